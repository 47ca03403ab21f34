"""Things of the machine that agents must not give away twice: GPUs, and ranges of ports.

A lock is a file that an agent holds (`flock`) while it lives, with the name of its folder in it. It
lies in a folder of the agent's user, where nobody else can put, take or lock anything: a place with
a name that all users share could be made by any of them first. For agents of other users each lock
is also a name of the machine (an abstract socket), held as long. Whoever takes such a name keeps
others from that GPU or range of ports, as an agent may; it can be seen who, and is said.

Not a lock of the coordination plane: two clusters share a machine but no plane, and an agent that
is cut off loses its session while its workers go on computing on the device. A file lock ends with
the process and never before it.

An agent that was killed leaves workers behind that still use what it held. So whoever finds a free
lock first looks whether workers of the folder named in it live; if so, it is not free.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import pwd
import socket
import stat
import struct
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from holdfast.agent import leftovers
from holdfast.wire.errors import Occupied, Refused
from holdfast.wire.limits import PORT_BLOCK, WORKER_PORT_FIRST, WORKER_PORT_LAST

LOCKS_VARIABLE: Final = "HOLDFAST_LOCKS"
_OF_ROOT: Final = Path("/run/holdfast/locks")
_MACHINE: Final = "machine"
_CREDENTIALS: Final = struct.Struct("3i")  # of the process at the other end: pid, uid, gid
# A machine's worth of agents in one sentence is cut.
_WHO_CHARACTERS_MAX: Final = 400


def locks_folder() -> Path:
    """One for each user of the machine, the same from wherever an agent is started."""
    named = os.environ.get(LOCKS_VARIABLE)
    if named:
        return Path(named)
    if os.getuid() == 0 and os.access(_OF_ROOT.parents[1], os.W_OK):
        return _OF_ROOT
    return Path(tempfile.gettempdir()) / f"holdfast-locks-{os.getuid()}"


class Holding:
    """What one agent holds of the machine. `home` is its folder."""

    def __init__(self, home: Path, folder: Path | None = None) -> None:
        self._home = home.absolute()
        named = folder or os.environ.get(LOCKS_VARIABLE)
        self._folder = folder or locks_folder()
        # Who names a folder, a test for instance, is apart from the rest of the machine.
        self.space = hashlib.sha256(str(named).encode()).hexdigest()[:16] if named else _MACHINE
        self._handles: list[int] = []
        self._names: list[socket.socket] = []
        self._others: dict[str, str] = {}  # what was not free, and who has it
        _make_own(self._folder)

    def close(self) -> None:
        """Let go. What workers of ours still use is not free for others."""
        for handle in self._handles:
            os.close(handle)
        for name in self._names:
            name.close()
        self._handles.clear()
        self._names.clear()

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
                fix=f"remove it, or set {LOCKS_VARIABLE} to another folder of yours",
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._others[name] = "another agent of this user"
            os.close(handle)
            return False
        former = os.read(handle, 4096).decode(errors="replace").strip()
        if former and former != str(self._home) and _in_use(Path(former)):
            self._others[name] = f"workers of {former}"
            os.close(handle)
            return False
        if not self._take_name(name):
            os.close(handle)
            return False
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{self._home}\n".encode(), 0)
        self._handles.append(handle)
        return True

    def _take_name(self, name: str) -> bool:
        """The same lock as agents of other users see it."""
        address = f"\0holdfast-{self.space}-{name}"
        mine = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            mine.bind(address)
            mine.listen(1)  # so that others can ask whose it is
        except OSError as error:
            mine.close()
            if error.errno != errno.EADDRINUSE:
                raise
            self._others[name] = _holder_of(address)
            return False
        self._names.append(mine)
        return True

    def _who(self) -> str:
        """Who has what was not free."""
        return "; ".join(dict.fromkeys(self._others.values()))[:_WHO_CHARACTERS_MAX]

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
                why=f"the others are held by {self._who()}",
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
            why=f"one machine has room for {len(blocks)} agents; held by {self._who()}",
            fix="stop an agent, or give this one a range of its own: --ports FIRST-LAST",
        )


def _opened(path: Path) -> int:
    """A handle of the lock's file, made if there is none."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _make_own(folder: Path) -> None:
    """The folder is there, is ours, and nobody else may enter it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    mine = found.st_uid == os.getuid()
    if stat.S_ISDIR(found.st_mode) and mine:
        folder.chmod(0o700)
        return
    what = "belongs to" if not mine else "is not a folder, but belongs to"
    raise Refused(
        f"{folder} {what} {_user(found.st_uid)}",
        why="an agent's locks lie in a folder that only its own user can enter",
        fix=f"let its owner or root remove it, or set {LOCKS_VARIABLE} to a folder of yours",
    )


def _holder_of(address: str) -> str:
    """Whose process has this name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        try:
            asking.connect(address)
            raw = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:
            return "a process that does not say whose it is (ss -xlp)"
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return f"process {pid} of {_user(uid)}"


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def _in_use(home: Path) -> bool:
    """Whether workers of that agent's folder live; one that we may not see might have some."""
    try:
        return bool(leftovers.living(home))
    except PermissionError:
        return True
