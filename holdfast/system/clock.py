"""Clocks. Code that decides takes a time as an argument; the rim takes it from here.

`SystemClock.now_s` counts also while the machine sleeps, so that a lease held over a suspend is
seen to be over. It never goes back; `wall_ms` may.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

_BOOT: Final = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


class Clock(Protocol):
    """What the rim asks for the time; the simulator has its own."""

    def now_s(self) -> float:
        """Seconds since some moment in the past, never going back."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as the machine believes."""


class SystemClock:
    """The machine's clocks."""

    def now_s(self) -> float:
        return time.monotonic() if _BOOT is None else time.clock_gettime(_BOOT)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
