"""Where tests write: into memory, where there is enough of it.

A sync then costs nothing. It proves nothing less: what a process has written outlives its SIGKILL
there as on a disk, and a power cut is played on a disk of our own (`tests/powercut`). The large
tests and the proofs write to the real one, as all do with `PYTEST_DEBUG_TEMPROOT=/tmp`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

MEMORY: Final = "/dev/shm"
# What a whole run leaves of tests that passed is a few hundred megabytes, of ones that failed more.
FREE_BYTES_MIN: Final = 6 << 30
# pytest's own word for where `tmp_path` lies.
VARIABLE: Final = "PYTEST_DEBUG_TEMPROOT"


def chosen(folder: str = MEMORY) -> str | None:
    """The folder, if it has the room, may be written to, and programs may be started from it."""
    try:
        there = os.statvfs(folder)
    except OSError:
        return None
    fits = min(there.f_bavail * there.f_frsize, _available_bytes()) >= FREE_BYTES_MIN
    usable = os.access(folder, os.W_OK | os.X_OK) and not there.f_flag & os.ST_NOEXEC
    return folder if fits and usable else None


def _available_bytes() -> int:
    """Of the machine's memory; the size of a file system in it is only a limit."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def choose() -> None:
    """Unless somebody has said where."""
    if folder := chosen():
        os.environ.setdefault(VARIABLE, folder)
