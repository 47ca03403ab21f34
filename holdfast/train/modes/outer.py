"""The outer optimizer of the local mode: it moves the shared weights by what a round has found.

SGD with Nesterov's momentum, as DiLoCo has it. What it is given in place of a gradient is the mean
difference between the shared weights and those that the lanes came to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import torch
from torch import nn

from holdfast.train.states.memory import entry, tensor_of
from holdfast.train.states.state import Entry, State

# No tracked object can have this name: theirs have no slash.
_NAME: Final = "/outer"


class Outer:
    """The momentum of every parameter that was ever trained, by name; the same on all members."""

    def __init__(self) -> None:
        self._momenta: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def step(
        self,
        parameters: Mapping[str, nn.Parameter],
        differences: Iterable[torch.Tensor],
        untouched: set[int],
        *,
        lr: float,
        momentum: float,
    ) -> None:
        """Move the parameters. One that no lane has touched stays, and so does its momentum."""
        self._prepare(parameters)
        pairs = zip(parameters.items(), differences, strict=True)
        for number, ((name, parameter), difference) in enumerate(pairs):
            if number in untouched:
                continue
            buffer = self._momenta[name] = self._momenta[name].to(parameter.device)
            found = difference.to(buffer.dtype)
            buffer.mul_(momentum).add_(found)
            parameter.sub_((found + momentum * buffer).mul_(lr))

    def entries(self) -> list[Entry]:
        """Its part of the state; nothing before the first round."""
        return [entry(f"{_NAME}/{name}", each) for name, each in self._momenta.items()]

    def adopt(self, state: State) -> None:
        """Take over what `entries` has said."""
        mine = [each for each in state.entries if each.name.startswith(f"{_NAME}/")]
        self._momenta = {it.name.removeprefix(f"{_NAME}/"): tensor_of(it).clone() for it in mine}

    def _prepare(self, parameters: Mapping[str, nn.Parameter]) -> None:
        for name, each in parameters.items():
            if name not in self._momenta:
                # Momentum is a sum of many small things: half precision would lose them.
                dtype = torch.promote_types(each.dtype, torch.float32)
                self._momenta[name] = torch.zeros_like(each, dtype=dtype)
