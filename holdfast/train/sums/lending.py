"""Whose lanes others compute meanwhile: those of a member that is far slower than the rest. Pure.

A step takes as long as its slowest member, and lanes move between views only after a while. So
within a view, from one step to the next: a member that took several times as long as the others for
its lanes is left without, and the others compute them with their own. Everyone hears everyone's
times with each step, so all conclude the same, and the bits are those of the lanes, whoever
computes them. The slow one takes part in the sum and in the update. After some steps it gets a lane
again, to show whether it is still slow: after twice as many each time that it is.

It is lent before a step, not raced for within one: a lane that is with a user's code cannot be
called off, so a loser of such a race would hold up the next step. Where nobody is slow nothing is
lent. When members meet again, all begin with the lanes of the view.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

# A member is slow that took so many times as long for a lane as the others do (their median), in
# each of so many steps.
SLOW_RATIO: Final = 3.0
SLOW_STEPS: Final = 3
# And if the step would be shorter by so much: noise of short steps is not worth a change.
GAIN_MS_MIN: Final = 20.0
# It is without lanes for so many steps, then for twice as many, up to the second.
LENT_STEPS: Final = 16
LENT_STEPS_MAX: Final = 1024

Deal = dict[int, tuple[int, ...]]


class Lending:
    """Of the members of one meeting."""

    def __init__(self, held: Mapping[int, Sequence[int]]) -> None:
        self._view: Deal = {worker: tuple(sorted(held[worker])) for worker in sorted(held)}
        self.dealt = self._view
        self._times = {worker: deque[float](maxlen=SLOW_STEPS) for worker in held}
        self._slow: int | None = None  # who is without lanes, or shows what it does with one
        self._left = 0  # steps until that
        self._period = LENT_STEPS

    def take(self, lane_ms: Mapping[int, float]) -> None:
        """A step is complete; what a lane took each member that had one."""
        for worker, took in lane_ms.items():
            self._times[worker].append(took)
        if self._slow is not None:
            self._while_lent(self._slow, lane_ms)
        else:
            self._slow = self._found()
            if self._slow is not None:
                self._lend(self._slow, 0)

    def _while_lent(self, slow: int, lane_ms: Mapping[int, float]) -> None:
        if slow not in lane_ms:
            self._left -= 1
            if self._left <= 0:
                self._lend(slow, 1)
        elif lane_ms[slow] > SLOW_RATIO * self._others_ms(slow):
            self._period = min(2 * self._period, LENT_STEPS_MAX)
            self._lend(slow, 0)
        else:
            self.dealt, self._slow = self._view, None
            self._times[slow].clear()

    def _found(self) -> int | None:
        """The slowest, if it is worth it."""
        if len(self._view) < 2 or not all(map(self._is_known, self._view)):
            return None
        least_ms = {worker: min(times) for worker, times in self._times.items()}
        slowest = max(self._view, key=least_ms.__getitem__)
        least = least_ms[slowest]
        if least <= SLOW_RATIO * min(least_ms.values()):  # as in every step, mostly
            return None
        if least <= SLOW_RATIO * self._others_ms(slowest):
            return None
        before_ms = least * len(self._view[slowest])
        gained_ms = before_ms - self._longest_ms(self._without(slowest, 0), slowest)
        return slowest if gained_ms > GAIN_MS_MIN else None

    def _is_known(self, worker: int) -> bool:
        return len(self._times[worker]) == SLOW_STEPS

    def _others_ms(self, slow: int) -> float:
        others = [times for worker, times in self._times.items() if worker != slow]
        return statistics.median(map(statistics.median, others))

    def _longest_ms(self, dealt: Deal, slow: int) -> float:
        return max(
            statistics.median(self._times[worker]) * len(lanes)
            for worker, lanes in dealt.items()
            if worker != slow
        )

    def _lend(self, slow: int, keeps: int) -> None:
        """The slow one keeps so many lanes."""
        self.dealt, self._left = self._without(slow, keeps), self._period

    def _without(self, slow: int, keeps: int) -> Deal:
        """Its lanes, one after the other, to whom is through first with them."""
        found = {worker: list(lanes) for worker, lanes in self._view.items()}
        found[slow], lent = found[slow][:keeps], found[slow][keeps:]
        for lane in lent:
            others = [worker for worker in found if worker != slow]
            through = {
                worker: statistics.median(self._times[worker]) * (len(found[worker]) + 1)
                for worker in others
            }
            found[min(others, key=lambda worker: (through[worker], worker))].append(lane)
        return {worker: tuple(sorted(lanes)) for worker, lanes in found.items()}
