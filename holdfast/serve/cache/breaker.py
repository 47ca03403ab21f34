"""When to leave a server alone that does not answer. Pure: time is given."""

from __future__ import annotations

from holdfast.wire.backoff import Backoff


class Breaker:
    """Open: nobody asks. It is open at first, and after `failures_max` failures one after the
    other. While it is open somebody tries now and then, ever less often; a success closes it."""

    def __init__(self, failures_max: int, pause_s: float, pause_s_max: float) -> None:
        self._failures_max = failures_max
        self._tries = Backoff(pause_s, pause_s_max)
        self._failures = 0
        self.pause_s = self._tries.failed()  # how long to wait before the next try
        self.opened = 0  # how often it opened
        self.closed = False

    def succeeded(self) -> None:
        self.closed = True
        self._failures = 0
        self._tries.succeeded()
        self.pause_s = self._tries.failed()

    def failed(self) -> None:
        if not self.closed:  # a try that failed
            self.pause_s = self._tries.failed()
            return
        self._failures += 1
        if self._failures >= self._failures_max:
            self.closed = False
            self.opened += 1
            self._failures = 0
