"""Things of the machine that agents must not give away twice: GPUs, and ranges of ports.

A lock is a file of the machine that an agent holds (`flock`) while it lives, and the name of its
folder in it. Not a lock of the coordination plane: two clusters share a machine but no plane, and
an agent that is cut off loses its session while its workers go on computing on the device. A file
lock ends with the process and never before it.

An agent that was killed leaves workers behind that still use what it held. So whoever finds a free
lock first looks whether workers of the folder named in it live; if so, it is not free.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from holdfast.agent import leftovers
from holdfast.wire.errors import Occupied, Refused
from holdfast.wire.limits import PORT_BLOCK, WORKER_PORT_FIRST, WORKER_PORT_LAST

LOCKS_VARIABLE: Final = "HOLDFAST_LOCKS"


def locks_folder() -> Path:
    """One for all users of the machine; another only for tests, and for machines without a /tmp
    that they share."""
    named = os.environ.get(LOCKS_VARIABLE)
    return Path(named) if named else Path(tempfile.gettempdir()) / "holdfast-locks"


class Holding:
    """What one agent holds of the machine. `home` is its folder."""

    def __init__(self, home: Path, folder: Path | None = None) -> None:
        self._home = home.absolute()
        self._folder = folder or locks_folder()
        self._handles: list[int] = []
        self._folder.mkdir(parents=True, exist_ok=True)
        with suppress(PermissionError):  # another user made it, with this mode
            self._folder.chmod(0o1777)

    def close(self) -> None:
        """Let go. What workers of ours still use is not free for others."""
        for handle in self._handles:
            os.close(handle)
        self._handles.clear()

    def release(self) -> None:
        """Let go when no worker of ours is left: others need not even look for them."""
        for handle in self._handles:
            os.ftruncate(handle, 0)
        self.close()

    def take(self, name: str) -> bool:
        """Hold `name`; False: another agent does, or workers that one has left behind."""
        path = self._folder / name
        try:
            handle = _opened(path)
        except OSError as error:
            raise Refused(
                f"{path} cannot be locked",
                why=error.strerror or str(error),
                fix=f"remove it, or set {LOCKS_VARIABLE} to a folder that all agents here share",
            ) from error
        with suppress(PermissionError):
            os.fchmod(handle, 0o666)  # the next owner may be another user
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        former = os.read(handle, 4096).decode(errors="replace").strip()
        if former and former != str(self._home) and _in_use(Path(former)):
            os.close(handle)
            return False
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{self._home}\n".encode(), 0)
        self._handles.append(handle)
        return True

    def gpus(self, there: Iterable[int], wanted: int | None) -> tuple[int, ...]:
        """The GPUs that this agent may give away: `wanted` of them, or all that are free.

        `Occupied`: fewer than `wanted` are free.
        """
        found = tuple(there)
        held: list[int] = []
        for gpu in found:
            if wanted is not None and len(held) >= wanted:
                break
            if self.take(f"gpu-{gpu}"):
                held.append(gpu)
        if wanted is not None and len(held) < wanted:
            raise Occupied(
                f"{wanted} GPUs are wanted, and {len(held)} of {len(found)} are free",
                why="another agent of this machine, or workers that it left, have the others",
                fix=f"start this one with --gpu {len(held)}, or stop the other one",
            )
        return tuple(held)

    def ports(self, before: int | None = None) -> tuple[int, int]:
        """A range of ports of its own; if it can be, the one that it had `before`."""
        blocks = list(range(WORKER_PORT_FIRST, WORKER_PORT_LAST + 1, PORT_BLOCK))
        if before in blocks:
            blocks.remove(before)
            blocks.insert(0, before)
        for first in blocks:
            if self.take(f"ports-{first}"):
                return first, min(first + PORT_BLOCK - 1, WORKER_PORT_LAST)
        raise Occupied(
            f"all {len(blocks)} ranges of ports are taken",
            why=f"one machine has room for {len(blocks)} agents",
            fix="stop an agent, or give this one a range of its own: --ports FIRST-LAST",
        )


def _opened(path: Path) -> int:
    """A handle of the lock's file, made if there is none. In a folder that users share, the system
    lets nobody "create" what is another user's: so that is only tried where there is nothing."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        return os.open(path, flags | os.O_CREAT, 0o666)


def _in_use(home: Path) -> bool:
    """Whether workers of that agent's folder live; one that we may not see might have some."""
    try:
        return bool(leftovers.living(home))
    except PermissionError:
        return True
