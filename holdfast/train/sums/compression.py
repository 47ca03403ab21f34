"""Gradients that travel in fewer bytes. What each way gives up is in docs/modes.md.

A way to compress says four things, each about one place, so that nothing depends on who holds what:

    shrink, grow     a lane's gradient of one parameter, and the sum's, to what is summed and back
    leaf             a lane's bucket before it is summed: here something may be left out
    snap             a sum of two: every node of the tree is put on the same coarse grid
    encode, decode   what is on the grid as bytes, and back, exactly

Whoever sums a subtree by itself snaps at every node of it, just as those do who send partial sums.
So the result is a function of the lanes' gradients alone: the same bits on any number of workers.

What top-k and PowerSGD leave out of a lane's gradient is added to the lane's next one. It stays at
the worker that computed it. When a lane moves to another worker, what is left of it is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import torch
from torch import nn

from holdfast.train.chance import seed_of
from holdfast.train.states.tracked import Tracked
from holdfast.wire.errors import Usage

_BF16_BLOCK: Final = 16
_INT8_BLOCK: Final = 128  # elements with one scale: 1 byte in 129
_TOPK_BLOCK: Final = 1024  # elements of which the largest are kept
_EXPONENTS: Final = (-126, 126)  # of an int8 block's scale
_BROKEN: Final = 127  # in place of an exponent: the block has a number that is none


class Code:
    """No compression; and what the others have in common."""

    exact = True  # sums are plain sums, and travel as they are
    block = 16  # whoever owns a part of a bucket owns whole blocks of so many elements

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = parameters

    # --- one parameter, one lane ---------------------------------------------------------------

    def summed(self) -> list[torch.Tensor]:
        """Tensors without memory, of the shapes and types that are summed."""
        return [_hollow(each.shape, torch.float32, each.device) for each in self.parameters]

    def shrink(self, lane: int, number: int, gradient: torch.Tensor) -> torch.Tensor:
        return gradient

    def grow(self, number: int, total: torch.Tensor) -> torch.Tensor:
        """The gradient from the sum; called once a step, for every parameter."""
        return total.to(self.parameters[number].dtype)

    # --- one bucket ----------------------------------------------------------------------------

    def leaf(self, lane: int, bucket: int, value: torch.Tensor) -> None:
        self.snap(value)

    def snap(self, value: torch.Tensor) -> None:
        """Put it on the grid, in place. What is on it stays as it is."""

    # --- on the wire ---------------------------------------------------------------------------

    def bytes_of(self, elements: int, lanes: int) -> int:
        """Of the sum of so many lanes."""
        return 4 * elements

    def encode(self, value: torch.Tensor, lanes: int) -> torch.Tensor:
        return value.contiguous().view(torch.uint8)

    def decode(self, raw: torch.Tensor, lanes: int, into: torch.Tensor) -> None:
        into.copy_(raw.view(torch.float32))

    # --- what is left out ----------------------------------------------------------------------

    def keep(self, held: Iterable[int]) -> None:
        """The lanes are these now."""

    def complete(self) -> None:
        """The step is complete: what it left out is part of the next one."""

    def state_dict(self) -> dict[str, Any]:
        """What all members share."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Another state was taken over: what was left out here does not belong to it."""


class Rounded(Code):
    """bf16: half the bytes. Every sum of two is rounded to it."""

    exact = False
    block = _BF16_BLOCK

    def snap(self, value: torch.Tensor) -> None:
        value.copy_(value.to(torch.bfloat16))

    def bytes_of(self, elements: int, lanes: int) -> int:
        return 2 * elements

    def encode(self, value: torch.Tensor, lanes: int) -> torch.Tensor:
        return value.to(torch.bfloat16).view(torch.uint8)

    def decode(self, raw: torch.Tensor, lanes: int, into: torch.Tensor) -> None:
        into.copy_(raw.view(torch.bfloat16))


class Whole(Code):
    """int8: a quarter of the bytes. A block has one scale, a power of two: then what was rounded
    once is found on the grid again, bit for bit. Rounding is to the nearest, ties to even."""

    exact = False
    block = _INT8_BLOCK

    def snap(self, value: torch.Tensor) -> None:
        exponents, whole = self._parts(value)
        _blocks(value, _INT8_BLOCK).copy_(self._joined(exponents, whole))

    def bytes_of(self, elements: int, lanes: int) -> int:
        return elements + elements // _INT8_BLOCK

    def encode(self, value: torch.Tensor, lanes: int) -> torch.Tensor:
        exponents, whole = self._parts(value)
        return torch.cat([exponents.flatten(), whole.flatten()]).view(torch.uint8)

    def decode(self, raw: torch.Tensor, lanes: int, into: torch.Tensor) -> None:
        blocks = into.numel() // _INT8_BLOCK
        found = raw.view(torch.int8)
        whole = found[blocks:].view(blocks, _INT8_BLOCK)
        _blocks(into, _INT8_BLOCK).copy_(self._joined(found[:blocks].view(blocks, 1), whole))

    @staticmethod
    def _parts(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        blocks = _blocks(value, _INT8_BLOCK)
        top = blocks.abs().amax(1, keepdim=True)
        broken = ~torch.isfinite(top)
        mantissa, exponent = torch.frexp(torch.where(broken, 1.0, top) / 127)
        exponent = torch.where(mantissa == 0.5, exponent - 1, exponent).clamp(*_EXPONENTS)
        whole = (blocks / _power(exponent)).round().clamp(-127, 127)
        whole = torch.where(broken, 0.0, whole).to(torch.int8)
        return torch.where(broken, _BROKEN, exponent).to(torch.int8), whole

    @staticmethod
    def _joined(exponents: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        found = whole.to(torch.float32) * _power(exponents.to(torch.int32))
        return torch.where(exponents == _BROKEN, torch.nan, found)


class Largest(Code):
    """top-k: of every block of a lane's gradient only the largest travel. What is left out is added
    to the lane's next gradient."""

    exact = False
    block = _TOPK_BLOCK

    def __init__(self, parameters: Sequence[nn.Parameter], ratio: float) -> None:
        super().__init__(parameters)
        self.count = max(1, round(ratio * _TOPK_BLOCK))
        self.left = Residual()

    def leaf(self, lane: int, bucket: int, value: torch.Tensor) -> None:
        self.left.add(lane, bucket, value)
        blocks = _blocks(value, _TOPK_BLOCK)
        places = blocks.abs().topk(self.count, dim=1).indices
        kept = torch.zeros_like(blocks).scatter_(1, places, blocks.gather(1, places))
        self.left.put(lane, bucket, (blocks - kept).view_as(value))
        blocks.copy_(kept)

    def bytes_of(self, elements: int, lanes: int) -> int:
        sparse = 6 * self._count(lanes) * (elements // _TOPK_BLOCK)
        return 4 * elements if self._dense(lanes) else sparse

    def encode(self, value: torch.Tensor, lanes: int) -> torch.Tensor:
        if self._dense(lanes):
            return super().encode(value, lanes)
        blocks = _blocks(value, _TOPK_BLOCK)
        # A sum of so many lanes has no more than these that are not zero.
        places = blocks.abs().topk(self._count(lanes), dim=1).indices
        found = blocks.gather(1, places).flatten().view(torch.uint8)
        return torch.cat([places.to(torch.int16).flatten().view(torch.uint8), found])

    def decode(self, raw: torch.Tensor, lanes: int, into: torch.Tensor) -> None:
        if self._dense(lanes):
            super().decode(raw, lanes, into)
            return
        blocks, count = _blocks(into, _TOPK_BLOCK), self._count(lanes)
        split = 2 * count * len(blocks)
        places = raw[:split].view(torch.int16).view(len(blocks), count).to(torch.int64)
        # What follows may begin where a float must not: copied, it begins at the beginning.
        found = raw[split:].clone().view(torch.float32).view(len(blocks), count)
        blocks.zero_().scatter_(1, places, found)

    def _count(self, lanes: int) -> int:
        return min(_TOPK_BLOCK, lanes * self.count)

    def _dense(self, lanes: int) -> bool:
        return 6 * self._count(lanes) >= 4 * _TOPK_BLOCK

    def keep(self, held: Iterable[int]) -> None:
        self.left.keep(held)

    def complete(self) -> None:
        self.left.complete()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.left.forget()


class Residual:
    """What was left out of lanes' gradients: what the last step left, and what this one does. The
    second counts when the step is complete; until then a lane may be computed again."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, int], torch.Tensor] = {}
        self._next: dict[tuple[int, int], torch.Tensor] = {}

    def add(self, lane: int, place: int, value: torch.Tensor) -> None:
        """To the value, in place."""
        if (found := self._last.get((lane, place))) is not None:
            value.add_(found)

    def put(self, lane: int, place: int, rest: torch.Tensor) -> None:
        # An overflow would stay for ever; such a step is passed over by a scaler.
        if bool(torch.isfinite(rest).all()):
            self._next[lane, place] = rest
        elif (found := self._last.get((lane, place))) is not None:
            self._next[lane, place] = found

    def keep(self, held: Iterable[int]) -> None:
        mine = set(held)
        for kept in (self._last, self._next):
            for lane, place in [key for key in kept if key[0] not in mine]:
                del kept[lane, place]

    def complete(self) -> None:
        self._last.update(self._next)
        self._next.clear()

    def forget(self) -> None:
        self._last.clear()
        self._next.clear()

    def of(self, lane: int, place: int) -> torch.Tensor | None:
        return self._last.get((lane, place))


def _hollow(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty(1, dtype=dtype, device=device).expand(*shape)


def _power(exponent: torch.Tensor) -> torch.Tensor:
    """Two to this power, exactly, within `_EXPONENTS`."""
    return ((exponent.to(torch.int32) + 127) << 23).view(torch.float32)


def _blocks(value: torch.Tensor, size: int) -> torch.Tensor:
    return value.view(value.numel() // size, size)


# --- powersgd -------------------------------------------------------------------------------------
# PowerSGD: a gradient's matrix as a product of two thin ones, of which one travels a step.
#
# Members share an orthonormal basis of one side of every matrix. A lane sends its gradient's
# projection onto it, which is thin and can be summed. The sum gives the gradient of the step, and,
# made orthonormal, the basis of the other side for the next step: one half of a power iteration
# each time. (PowerSGD itself sends both halves in every step. Alternating is half the bytes, and
# one sum instead of two.) What a projection leaves out is added to the lane's next gradient.
#
# Vectors, and matrices that would not become smaller, travel as they are.


class LowRank(Code):
    """The bases are the same on all members, and part of the state."""

    def __init__(self, parameters: Sequence[nn.Parameter], rank: int) -> None:
        super().__init__(parameters)
        self.rank = rank
        self.left = Residual()
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


# --- codes ----------------------------------------------------------------------------------------
# The ways to compress, by the names that people give them.


TRACKED_NAME: Final = "(compression)"  # among the tracked objects
_MOST: Final = {"topk": 1.0, "powersgd": 1024.0}  # the largest numbers that they take


def code_of(spelled: str, tracked: Tracked) -> Code | None:
    """The way that this names, for the parameters of these; it is tracked with them. None: none."""
    kind, _, number = spelled.partition(":")
    made: dict[str, Callable[[Sequence[nn.Parameter]], Code]] = {
        "bf16": Rounded,
        "int8": Whole,
        "topk": lambda found: Largest(found, float(number or "0.01")),
        "powersgd": lambda found: LowRank(found, int(number or "4")),
    }
    if spelled == "none":
        return None
    try:
        right = kind in made and (not number or 0 < float(number) <= _MOST[kind])
        code = made[kind](tracked.parameters()) if right else None
    except (ValueError, KeyError):
        code = None
    if code is None:
        raise Usage(
            f"compress={spelled!r}",
            why="there is no such way, or its number is out of range",
            fix="write none, bf16, int8, topk:0.01 (a share) or powersgd:4 (a rank)",
        )
    tracked.add(TRACKED_NAME, code)
    return code
