"""PowerSGD: a gradient's matrix as a product of two thin ones, of which one travels a step.

Members share an orthonormal basis of one side of every matrix. A lane sends its gradient's
projection onto it, which is thin and can be summed. The sum gives the gradient of the step, and,
made orthonormal, the basis of the other side for the next step: one half of a power iteration each
time. (PowerSGD itself sends both halves in every step. Alternating is half the bytes, and one sum
instead of two.) What a projection leaves out is added to the lane's next gradient.

Vectors, and matrices that would not become smaller, travel as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from holdfast.train.chance import seed_of
from holdfast.train.sums.compression import Code, Left


class LowRank(Code):
    """The bases are the same on all members, and part of the state."""

    def __init__(self, parameters: Sequence[nn.Parameter], rank: int) -> None:
        super().__init__(parameters)
        self.rank = rank
        self.left = Left()
        self._bases: dict[int, torch.Tensor] = {}
        self._left_side: dict[int, bool] = {}  # whether the basis is one of the rows
        for number, parameter in enumerate(parameters):
            if parameter.dim() < 2:
                continue
            rows = len(parameter)
            columns = parameter.numel() // max(rows, 1)
            if rank < min(rows, columns):
                chance = torch.Generator().manual_seed(seed_of("powersgd", number))
                begin = torch.randn(columns, rank, generator=chance)
                self._bases[number] = torch.linalg.qr(begin).Q.to(parameter.device)
                self._left_side[number] = False

    def summed(self) -> list[torch.Tensor]:
        found = super().summed()
        for number in self._bases:
            rows = len(self.parameters[number])
            longer = max(rows, self.parameters[number].numel() // rows)
            found[number] = found[number].new_empty(1).expand(longer, self.rank)
        return found

    @torch.no_grad()
    def shrink(self, lane: int, number: int, gradient: torch.Tensor) -> torch.Tensor:
        basis = self._bases.get(number)
        if basis is None:
            return gradient
        matrix = gradient.detach().to(torch.float32).reshape(len(gradient), -1).clone()
        self.left.add(lane, number, matrix)
        side = matrix.T if self._left_side[number] else matrix
        thin = side @ basis
        self.left.put(lane, number, matrix - self._product(number, thin))
        longer = max(matrix.shape)
        return torch.cat([thin, thin.new_zeros(longer - len(thin), self.rank)])

    @torch.no_grad()
    def grow(self, number: int, total: torch.Tensor) -> torch.Tensor:
        parameter = self.parameters[number]
        if number not in self._bases:
            return super().grow(number, total)
        rows = len(parameter)
        thin = total[: parameter.numel() // rows if self._left_side[number] else rows]
        found = self._product(number, thin).reshape(parameter.shape).to(parameter.dtype)
        # A sum that says nothing (zero, or an overflow) gives no direction to go on with.
        if bool(torch.isfinite(thin).all()) and bool((thin != 0).any()):
            self._bases[number] = torch.linalg.qr(thin).Q.contiguous()
            self._left_side[number] = not self._left_side[number]
        return found

    def _product(self, number: int, thin: torch.Tensor) -> torch.Tensor:
        found = thin @ self._bases[number].T
        return found.T if self._left_side[number] else found

    def keep(self, held: Iterable[int]) -> None:
        self.left.keep(held)

    def complete(self) -> None:
        self.left.complete()

    def state_dict(self) -> dict[str, Any]:
        bases = {str(number): basis for number, basis in self._bases.items()}
        return {"bases": bases, "left": [n for n, side in self._left_side.items() if side]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for number in self._bases:
            found: torch.Tensor = state["bases"][str(number)]
            self._bases[number] = found.to(self.parameters[number].device)
            self._left_side[number] = number in state["left"]
        self.left.forget()
