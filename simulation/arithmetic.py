"""A cheap stand-in for training: the state is a step and a number chained over all lanes.

What a lane contributes to a step depends on the state before it, as a gradient does. The next
state depends on every contribution, in the order of the lanes: one lane too many, too few or from
another state gives another number from there on. So equal numbers mean: every sample counted once.
A step also depends on the setting that is in effect: who takes one a step too early shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_PRIME = 0x100000001B3
_MASK = 0xFFFFFFFFFFFFFFFF

Contribution = tuple[int, int]  # lane, number


def start_of(job: int) -> int:
    """The state of a job before its first step."""
    return _mix(0xCBF29CE484222325, job + 1)


def contribution(value: int, step: int, lane: int, setting: int = 0) -> Contribution:
    """What `lane` brings to `step`, from the state before it, with the setting of that step."""
    return lane, _mix(_mix(value, step + (setting << 32)), lane + 1)


def setting_at(step: int, effects: Sequence[int]) -> int:
    """Which setting counts at `step` (0: none yet), if each takes effect at its `effects`."""
    return max((which for which, since in enumerate(effects, 1) if since <= step), default=0)


def following(value: int, contributions: Iterable[Contribution]) -> int:
    """The state after a step to which these were brought, by whomever."""
    for lane, number in sorted(contributions):
        value = _mix(value ^ number, lane + 1)
    return value


def undisturbed(job: int, lanes: int, steps: int, effects: Sequence[int] = ()) -> Sequence[int]:
    """The states of a run in which nothing goes wrong, by step."""
    values = [start_of(job)]
    for step in range(1, steps + 1):
        value, setting = values[-1], setting_at(step, effects)
        brought = (contribution(value, step, lane, setting) for lane in range(lanes))
        values.append(following(value, brought))
    return values


def _mix(value: int, other: int) -> int:
    return ((value ^ other) * _PRIME + other) & _MASK
