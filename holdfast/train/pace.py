"""How long this worker needs for a lane, without the time that it waits for others.

    pace.lane()           # the next lane begins, its data included
    pace.end()            # the last one is computed; the wait for the sum comes next
    pace.metrics()        # {"lane_ms": ...} once there is enough of it to be worth telling

On a GPU work is only handed over in this time, except that reading the losses waits for it: all but
the last backward pass is measured.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from holdfast.wire.reports import LANE_METRIC

# A worker says how long a lane takes it when it has seen so much of its present view: so lanes move
# at most so often because of it, and not for a moment's trouble.
PACE_S: Final = 10.0
PACE_STEPS_MIN: Final = 5
# The median is over the last so many steps.
PACE_STEPS_KEPT: Final = 128


class LanePace:
    """The pace within one view. The median: a pause, a checkpoint or a slow batch is no pace."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._steps: deque[float] = deque(maxlen=PACE_STEPS_KEPT)
        self._since_s = self._clock()
        self._begun_s = 0.0
        self._lanes = 0  # of the step under way
        self.lane_ms: float | None = None  # in the last step; None: it had no lane
        self._reported: dict[str, float] = {}
        self._reported_s = 0.0

    def anew(self) -> None:
        """The view is another: so are the lanes, and perhaps who else is on the machine."""
        self._steps.clear()
        self._since_s, self._lanes, self._reported = self._clock(), 0, {}

    def lane(self) -> None:
        if not self._lanes:
            self._begun_s = self._clock()
        self._lanes += 1

    def end(self) -> None:
        self.lane_ms = None
        if self._lanes:
            self._steps.append((self._clock() - self._begun_s) / self._lanes)
            self.lane_ms = self._steps[-1] * 1000
        self._lanes = 0

    def metrics(self) -> dict[str, float]:
        now_s = self._clock()
        if now_s < self._since_s + PACE_S or len(self._steps) < PACE_STEPS_MIN:
            return {}
        if not self._reported or now_s > self._reported_s + 1.0:
            self._reported, self._reported_s = (
                {LANE_METRIC: statistics.median(self._steps) * 1000},
                now_s,
            )
        return self._reported
