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
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from holdfast.agent import leftovers
from holdfast.wire.errors import Occupied, Refused
from holdfast.wire.limits import WORKER_PORT_FIRST, WORKER_PORT_LAST

# Agents of one machine share the range of workers' ports in blocks of so many: each worker has a
# few, so a block serves two hundred workers, and 25 agents fit. A larger machine: `--ports`.
PORT_BLOCK: Final = 400

LOCKS_VARIABLE: Final = "HOLDFAST_LOCKS"
_OF_ROOT: Final = Path("/run/holdfast/locks")
_MACHINE: Final = "machine"
_WHO_MAX: Final = 3  # of whom it is said what they hold


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
        # What was not free, and who has it: in words, or the name that another user's process has.
        self._others: dict[str, str] = {}
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
            mine.bind(address)  # and nobody listens: it is there for its name
        except OSError as error:
            mine.close()
            if error.errno != errno.EADDRINUSE:
                raise
            self._others[name] = address
            return False
        self._names.append(mine)
        return True

    def _who(self) -> str:
        """Who has what was not free. A few of them: to find one of another user takes a while."""
        some = list(dict.fromkeys(self._others.values()))[:_WHO_MAX]
        named = [_holder_of(one) if one.startswith("\0") else one for one in some]
        return "; ".join(dict.fromkeys(named))

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
    """Whose process has this name; only root sees the handles of everybody."""
    inode = ""
    for row in Path("/proc/net/unix").read_text().splitlines():
        fields = row.split()
        if fields[-1] == f"@{address[1:]}":
            inode = f"socket:[{fields[6]}]"
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            if any(str(handle.readlink()) == inode for handle in (entry / "fd").iterdir()):
                return f"process {entry.name} of {_user(entry.stat().st_uid)}"
    return f"a process of another user (root sees which: ss -xap | grep {address[1:]})"


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
