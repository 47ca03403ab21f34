"""When to leave a server alone that does not answer. Pure: time is given."""

from __future__ import annotations


class Breaker:
    """Open: nobody asks. It is open at first, and after `failures_max` failures one after the
    other. While it is open somebody tries now and then, ever less often; a success closes it."""

    def __init__(self, failures_max: int, pause_s: float, pause_s_max: float) -> None:
        self._failures_max = failures_max
        self._shortest_s = pause_s
        self._longest_s = pause_s_max
        self._failures = 0
        self._pause_s = pause_s
        self.opened = 0  # how often it opened
        self.closed = False

    def succeeded(self) -> None:
        self.closed = True
        self._failures = 0
        self._pause_s = self._shortest_s

    def failed(self) -> None:
        if not self.closed:  # a try that failed
            self._pause_s = min(2 * self._pause_s, self._longest_s)
            return
        self._failures += 1
        if self._failures >= self._failures_max:
            self.closed = False
            self.opened += 1
            self._failures = 0

    @property
    def pause_s(self) -> float:
        """How long to wait before the next try."""
        return self._pause_s
