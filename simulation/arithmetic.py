"""A cheap stand-in for training: the state is a step and a number.

What a lane contributes to a step depends on the state before it, as a gradient does, and on the
settings that are in effect. Contributions are combined by the real tree
(`holdfast.train.sums.tree`), in a way that is neither commutative nor associative: other lanes, or
the same in another order, give another number from there on. So equal numbers mean: the same lanes,
each once, summed in the same order, from the same state, under the same settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from holdfast.train.members.effective import Record, in_effect
from holdfast.train.sums.tree import PartialSum, fold, merges, partial_sums

_PRIME = 0x100000001B3
_MASK = 0xFFFFFFFFFFFFFFFF

Sums = Mapping[
    PartialSum, int
]  # what a worker brings: the subtrees that it holds, and their values


def start_of(job: int) -> int:
    """The state of a job before its first step."""
    return _mix(0xCBF29CE484222325, job + 1)


def contribution(value: int, step: int, lane: int, setting: int = 0) -> int:
    """What `lane` brings to `step`, from the state before it, with the setting of that step."""
    return _mix(_mix(value, step + (setting << 32)), lane + 1)


def setting_of(record: Record, step: int) -> int:
    """The settings that are in effect for computing `step`, as a number."""
    if not record:
        return 0
    texts = in_effect(record, step).items()
    return int.from_bytes(";".join(f"{name}={text}" for name, text in sorted(texts)).encode())


def summed(own: Mapping[int, int], held: Sequence[int], lanes: int) -> Sums:
    """What a worker brings of the lanes that it holds: the largest subtrees, summed in tree
    order."""
    stack: list[int] = []
    subtrees, joins = _shape(tuple(sorted(held)), lanes)
    for lane, joined in joins:
        stack.append(own[lane])
        for _ in range(joined):
            right = stack.pop()
            stack[-1] = _combined(stack[-1], right)
    return dict(zip(subtrees, stack, strict=True))


@lru_cache(maxsize=4096)
def _shape(
    held: tuple[int, ...], lanes: int
) -> tuple[tuple[PartialSum, ...], tuple[tuple[int, int], ...]]:
    """Which subtrees these lanes are, and after which of them how many values become one."""
    joins = tuple(zip(held, merges(held, lanes), strict=True))
    return tuple(partial_sums(held, lanes)), joins


def following(value: int, brought: Iterable[Sums], lanes: int) -> int:
    """The state after a step to which these were brought, by whomever."""
    together: dict[PartialSum, int] = {}
    for sums in brought:
        for piece, number in sums.items():
            # Who brings what somebody else has brought too changes the sum, as it really would.
            before = together.get(piece)
            together[piece] = number if before is None else _combined(before, number)
    return _mix(value ^ fold(together, lanes, _combined), lanes)


class Undisturbed:
    """The states of runs in which nothing goes wrong, by step; they differ by when settings took
    effect. Made when they are asked for."""

    def __init__(self, job: int, lanes: int, steps: int) -> None:
        self._job = job
        self._lanes = lanes
        self._steps = steps
        self._states: dict[Record, list[int]] = {}

    def state(self, step: int, record: Record) -> int | None:
        """The state after `step`; None: there is no such step."""
        if step > self._steps:
            return None
        states = self._states.get(record)
        if states is None:
            states = self._states[record] = [start_of(self._job)]
        while len(states) <= step:
            value, number = states[-1], len(states)
            setting, lanes = setting_of(record, number), range(self._lanes)
            own = {lane: contribution(value, number, lane, setting) for lane in lanes}
            states.append(following(value, [summed(own, lanes, self._lanes)], self._lanes))
        return states[step]


def _combined(left: int, right: int) -> int:
    return _mix(3 * left + 1, right)


def _mix(value: int, other: int) -> int:
    return ((value ^ other) * _PRIME + other) & _MASK
