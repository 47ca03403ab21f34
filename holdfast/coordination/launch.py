"""Finding the embedded server over a folder, and starting it when nobody has.

The server holds an exclusive lock on `DIR/lock` while it lives and writes `DIR/server.json` when it
listens. Any number of processes may want to start it at once: one has the turn (a lock on
`DIR/starting`), and all find the address of its server. A server that comes too late all the same
ends with `Occupied`.

A server that was ended on purpose stays ended, whoever still has a session with it: `forbid` leaves
the file `DIR/ended`, and nobody starts one before `allow`. And a worker does not start the server
of its own cluster: all that a worker starts has its limits, and ends with it.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.coordination.address import SECRET, EmbeddedAddress, parse
from holdfast.system import disk
from holdfast.system.process import PART_VARIABLE
from holdfast.wire import worker_messages
from holdfast.wire.errors import Occupied, Unavailable, Usage
from holdfast.wire.limits import SERVER_START_S

MODULE = "holdfast.coordination.embedded"
_ENDED = "ended"
_POLL_S = 0.02
_START_AGAIN_S = 1.0  # the winner of a race is still recovering its folder
_LOG_TAIL_BYTES = 2_000

_children_lock = threading.Lock()
_children: list[subprocess.Popen[bytes]] = []


def find(folder: Path) -> str | None:
    """`host:port` of the server that lives over `folder` now, or None."""
    try:
        record = json.loads((folder / "server.json").read_bytes())
        address, pid, tls = str(record["address"]), int(record["pid"]), record.get("tls")
        holder = int((folder / "lock").read_bytes().split()[0])
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None
    # The record may be an older server's: while a new one starts, the lock names the new one.
    if holder != pid or not _alive(pid) or not _held(folder / "lock"):
        return None
    if tls and tls != SECRET:
        raise Usage(
            f"the server over {folder} speaks TLS only, with a certificate that it was given",
            fix=f"connect by its address: zk://{address}?tls=true&ca=…",
        )
    return address


def holder(folder: Path) -> int | None:
    """The number of the process that has `folder` now, also while it starts; None: nobody has."""
    try:
        pid = int((folder / "lock").read_bytes().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return pid if _alive(pid) and _held(folder / "lock") else None


def closed(folder: Path) -> int:
    """How many nodes the server over `folder` found open to everybody when it started."""
    try:
        return int(json.loads((folder / "server.json").read_bytes()).get("closed", 0))
    except (OSError, ValueError, TypeError):
        return 0


def speaks_tls(folder: Path) -> bool:
    """Whether the server over `folder` speaks TLS, with certificates made from its secret."""
    try:
        return bool(json.loads((folder / "server.json").read_bytes()).get("tls") == SECRET)
    except (OSError, ValueError):
        return False


def user_of(folder: Path) -> Callable[[], int]:
    """Gives the user whose process the server over `folder` is; `OSError`: there is none now."""
    return lambda: (folder / "server.json").stat().st_uid


def forbid(folder: Path, fix: str, timeout_s: float) -> None:
    """From now on nobody starts a server over `folder`. Those who were about to have given up, or
    have started it, when this returns; one that is paused is waited for `timeout_s` at most.

    `fix`: the command with which it is allowed again, for those who want one.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    disk.draft(folder / _ENDED, fix.encode())
    # Who has the turn looks for the mark before it starts anything.
    deadline_s = time.monotonic() + timeout_s
    turn = _StartLock(folder)
    try:
        while not turn.ours() and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
    finally:
        turn.close()


def allow(folder: Path) -> None:
    """A server may be started over `folder` again, by whoever wants one."""
    (folder / _ENDED).unlink(missing_ok=True)


def forbidden(folder: Path) -> bool:
    """Whether the server over `folder` was ended on purpose."""
    return (folder / _ENDED).exists()


def ensure(address: EmbeddedAddress, timeout_s: float = SERVER_START_S) -> str:
    """`host:port` of the server over the folder, started if need be. `Unavailable`: it does not
    start, or it was ended on purpose."""
    turn = _StartLock(address.folder)
    try:
        return _ensured(address, timeout_s, turn)
    finally:
        turn.close()


def _ensured(address: EmbeddedAddress, timeout_s: float, turn: _StartLock) -> str:
    folder = address.folder
    deadline_s = time.monotonic() + timeout_s
    child: subprocess.Popen[bytes] | None = None
    start_again_s = 0.0
    while True:
        found = find(folder)
        if found is not None:
            return found
        ours = not _is_workers(folder) and turn.ours()
        if forbidden(folder):  # asked when the turn is ours: `forbid` waits for that
            if child is not None:
                child.kill()
            raise _ended(folder)
        if child is None and time.monotonic() >= start_again_s:
            # Nobody lives there by the record; if somebody does, ours ends at once as occupied.
            child = _start(address) if ours else None
        elif child is not None and child.poll() == Occupied.exit_code:
            child = None
            start_again_s = time.monotonic() + _START_AGAIN_S
        elif child is not None and child.poll() is not None:
            raise Unavailable(
                f"the coordination server over {folder} ended while it started "
                f"(exit code {child.returncode})",
                why=_tail(folder / "server.log") or "it said nothing",
                fix=f"{Path(sys.executable).name} -m {MODULE} --data {folder} --listen 127.0.0.1:0",
            )
        if time.monotonic() > deadline_s:
            raise Unavailable(
                f"no coordination server over {folder} after {timeout_s:g} s",
                why=_tail(folder / "server.log") or "it has not said that it listens",
                fix=f"holdfast coord check {folder}",
            )
        time.sleep(_POLL_S)


def _is_workers(folder: Path) -> bool:
    """Whether we are a worker, and this is the plane that its agent told it of."""
    plane = os.environ.get(worker_messages.COORDINATION_VARIABLE)
    if not plane:
        return False
    address = parse(plane)
    return isinstance(address, EmbeddedAddress) and address.folder == folder


def _ended(folder: Path) -> Unavailable:
    try:
        fix = (folder / _ENDED).read_text()
    except OSError:
        fix = "try again"  # it was allowed this very moment
    return Unavailable(
        f"the coordination server over {folder} was ended",
        why="it was ended on purpose, and so nobody starts it again",
        fix=fix,
    )


class _StartLock:
    """The right to start a server over a folder. One has it at a time, and who is killed loses it:
    so of several that come up together one starts a server, and the others wait for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._handle = -1

    def ours(self) -> bool:
        """Whether we have it, or get it now."""
        if self._handle >= 0:
            return True
        try:
            disk.make_folder(self._folder, 0o700)
            handle = os.open(self._folder / "starting", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            return True  # starting one says what is wrong with the folder
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        self._handle = handle
        return True

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)


def _alive(pid: int) -> bool:
    """Whether a process has that number. A zombie of ours does not count: it is reaped first."""
    with _children_lock:
        _children[:] = [child for child in _children if child.poll() is None]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _held(lock: Path) -> bool:
    """Whether a server holds the folder: the number of a dead one may belong to anybody now."""
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _start(address: EmbeddedAddress) -> subprocess.Popen[bytes]:
    folder = address.folder
    command = [
        *(sys.executable, "-m", MODULE),
        *("--data", str(folder), "--listen", address.listen),
        *("--linger", f"{address.linger_s:g}", "--tick-ms", str(address.tick_ms)),
    ]
    if address.network:
        command += ["--network", address.network]
    try:
        disk.make_folder(folder, 0o700)
        with disk.private(folder / "server.log", "ab") as log:
            # A session of its own: Ctrl-C in the terminal of its starter must not end it.
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(folder),
                start_new_session=True,
            )
    except OSError as error:
        raise Usage(
            f"the folder {folder} cannot hold a coordination server",
            why=str(error),
            fix="give a folder that you may write to",
        ) from error
    with _children_lock:
        _children.append(child)
    return child


def _environment(folder: Path) -> dict[str, str]:
    """Ours, with this very package first on the path, wherever it was imported from; and the mark
    by which a server is found that has not taken its folder yet."""
    root = str(Path(__file__).resolve().parents[2])
    known = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([root, known] if known else [root])
    return {**os.environ, "PYTHONPATH": path, PART_VARIABLE: str(folder)}


def _tail(path: Path) -> str:
    try:
        return path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
    except OSError:
        return ""
