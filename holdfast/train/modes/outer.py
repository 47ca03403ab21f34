"""The outer optimizer of the local mode: it moves the shared weights by what a round has found.

SGD with Nesterov's momentum, as DiLoCo has it. What it is given in place of a gradient is the mean
difference between the shared weights and those that the lanes came to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import torch
from torch import nn

from holdfast.train.states.memory import entry, fill
from holdfast.train.states.state import Entry, State

# No tracked object can have this name: theirs have no slash.
_NAME: Final = "/outer"


class Outer:
    """The momentum of every trained parameter, the same on all members."""

    def __init__(self) -> None:
        self._momenta: list[torch.Tensor] = []

    @torch.no_grad()
    def step(
        self,
        parameters: Sequence[nn.Parameter],
        differences: Iterable[torch.Tensor],
        untouched: set[int],
        *,
        lr: float,
        momentum: float,
    ) -> None:
        """Move the parameters. One that no lane has touched stays, and so does its momentum."""
        self._prepare(parameters)
        for number, difference in enumerate(differences):
            if number in untouched:
                continue
            buffer = self._momenta[number]
            found = difference.to(buffer.dtype)
            buffer.mul_(momentum).add_(found)
            parameters[number].sub_((found + momentum * buffer).mul_(lr))

    def entries(self) -> list[Entry]:
        """Its part of the state; nothing before the first round."""
        return [entry(f"{_NAME}/{number}", each) for number, each in enumerate(self._momenta)]

    def adopt(self, state: State, parameters: Sequence[nn.Parameter]) -> None:
        """Take over what `entries` has said."""
        found = {each.name: each for each in state.entries if each.name.startswith(f"{_NAME}/")}
        if not found:
            self._momenta = []
            return
        self._prepare(parameters)
        for number, buffer in enumerate(self._momenta):
            fill(buffer, found[f"{_NAME}/{number}"])

    def _prepare(self, parameters: Sequence[nn.Parameter]) -> None:
        if not self._momenta:
            # Momentum is a sum of many small things: half precision would lose them.
            self._momenta = [
                torch.zeros_like(each, dtype=torch.promote_types(each.dtype, torch.float32))
                for each in parameters
            ]
