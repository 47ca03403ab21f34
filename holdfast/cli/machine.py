"""What the doctor asks of the machine itself: disk, clocks, ports, limits."""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import time
from typing import Final

_TIME_ERROR: Final = 5  # adjtimex: the kernel's clock is not synchronised
_TIMEX_BYTES: Final = 512  # struct timex has 208 on Linux; zeros mean "only tell"


def sync(descriptor: int) -> None:
    """Until the bytes are on the disk, the way our log does it."""
    getattr(os, "fdatasync", os.fsync)(descriptor)


def listening(port: int) -> bool:
    """Whether something on this machine accepts connections on the port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=0.3).close()
    except OSError:
        return False
    return True


def skew_ms(window_s: float = 0.05) -> float:
    """How far the wall clock ran ahead of the monotonic one in a short window."""
    wall, steady = time.time(), time.monotonic()
    time.sleep(window_s)
    return ((time.time() - wall) - (time.monotonic() - steady)) * 1_000


def synchronised() -> bool | None:
    """Whether the kernel says that a time service steers the clock; None when it does not tell."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        state: int = ctypes.CDLL(None, use_errno=True).adjtimex(
            ctypes.create_string_buffer(_TIMEX_BYTES)
        )
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR


def open_files() -> tuple[int, int]:
    """How many files this process may open, and how far that may be raised."""
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)
