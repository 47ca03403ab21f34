"""Memory that nobody uses any more goes back to the system.

The C library keeps what was freed, in heaps of each thread: after a large message over gRPC, which
comes in many small pieces, hundreds of megabytes that no other process can have. It gives them back
when it is asked. That costs some milliseconds, in which its heaps are locked: so a replica asks
only when it has grown, and has stopped growing.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

# A replica that has grown by so much gives back what is free of it, once it has stopped growing: a
# few large bodies, and more than it grows by in an ordinary hour.
MEMORY_GROWN_BYTES_MIN: Final = 32 * 1024 * 1024


_STATM: Final = Path("/proc/self/statm")
_RESIDENT: Final = 1  # the field


class Growth:
    """When memory is worth giving back. Pure: it is told what the process has."""

    def __init__(self) -> None:
        self._least = 0  # what it had when it had nothing to give back; 0: not known yet
        self._before = 0  # at the last look

    def is_over(self, resident: int) -> bool:
        """Whether the process has grown by much since it had nothing to give back, and does not
        grow now: what it was for is probably gone."""
        before, self._before = self._before, resident
        self._least = min(self._least or resident, resident)
        return resident <= before and resident >= self._least + MEMORY_GROWN_BYTES_MIN

    def given_back(self, resident: int) -> None:
        """What is left is in use."""
        self._least = self._before = resident


def resident_bytes() -> int:
    """What this process has in memory; 0 where the system does not say."""
    try:
        return int(_STATM.read_text().split()[_RESIDENT]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def give_back() -> None:
    """Have the C library give back what is free; nothing, where it has no such function. Takes as
    long as its heaps are large: for a thread of its own."""
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
