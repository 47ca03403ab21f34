"""Parts of a process that go on after a failure: counted, bounded, and shown in `holdfast status`.

retries = Retries("the sweep of the store")
try:
    sweep()
except Exception as error:
    ended.wait(retries.failed(error))   # raises it, when there were too many in a row
else:
    retries.well()
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final
from weakref import WeakSet

# Failures in a row after which a part is not tried again: the process ends, and a new one begins.
RETRIES_MAX: Final = 20
RETRY_S: Final = 0.5
RETRY_S_MAX: Final = 60.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Retried:
    """What is shown of a part that has failed: how often in all, how often in a row (0: it is well
    again), the last cause, and when that was."""

    what: str
    count: int = 0
    in_a_row: int = 0
    why: str = ""
    at_s: float = 0.0


class Retries:
    """The failures of one part that is tried again. Used by one thread or loop at a time."""

    def __init__(self, what: str, most: int = RETRIES_MAX, pause_s: float = RETRY_S) -> None:
        self._most = most
        self._pause_s = pause_s
        self.told = Retried(what)
        with _lock:
            _all.add(self)

    def failed(self, error: Exception) -> float:
        """Count it; how long to wait before the next try. Raises it after too many in a row."""
        count, row = self.told.count + 1, self.told.in_a_row + 1
        why = f"{type(error).__name__}: {error}"
        self._tell(Retried(self.told.what, count, row, why, time.time()))
        _log.error("%s has failed %d times in a row", self.told.what, row, exc_info=error)
        if row >= self._most:
            raise error
        return min(self._pause_s * 2.0 ** (row - 1), RETRY_S_MAX)

    def well(self) -> None:
        """It has done its work."""
        if self.told.in_a_row:
            self._tell(replace(self.told, in_a_row=0))

    def _tell(self, told: Retried) -> None:
        self.told = told
        with _lock:
            found = [asdict(one.told) for one in _all if one.told.count]
            show = _show[-1]
        show(sorted(found, key=lambda one: str(one["what"])))


_lock = threading.Lock()
_all: WeakSet[Retries] = WeakSet()
_show: list[Callable[[list[dict[str, Any]]], None]] = [lambda _found: None]


def show_retries(show: Callable[[list[dict[str, Any]]], None]) -> None:
    """Call this after each change, with what has failed in this process: it shows that to people.
    Whoever comes last shows it."""
    with _lock:
        _show[:] = [show]
