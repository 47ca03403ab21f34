"""Exactly this process, and not the next one that gets its number.

A number, the time of its start and the run of the machine together name a process for ever. The
shim imports this, so it imports almost nothing.
"""

from __future__ import annotations

import os


def start_ticks(pid: int, *, zombies: bool = False) -> int | None:
    """When the process was started, as the kernel counts; None: there is none, or it has ended.

    `zombies`: one whose first thread has ended counts too. Nobody has waited for it yet, or other
    threads of it go on: its pidfd tells which.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib is large
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    ended = fields[0] in (b"Z", b"X")
    return None if ended and not zombies else int(fields[19])


def boot() -> str:
    """The name of this run of the machine."""
    with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123
        return file.read().strip()


def hold(pid: int, started: int, booted: str, *, zombies: bool = False) -> int | None:
    """A pidfd of exactly this process, readable when it has ended; the caller closes it. None:
    there is none any more."""
    if booted != boot():
        return None
    try:
        handle = os.pidfd_open(pid)
    except (ProcessLookupError, FileNotFoundError):
        return None  # the second: it is the number of a thread by now
    # Asked after the handle is there: from here on the number cannot change its owner.
    if start_ticks(pid, zombies=zombies) != started:
        os.close(handle)
        return None
    return handle
