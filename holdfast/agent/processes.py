"""Who is who in the process table. Linux only: it reads /proc and holds processes by pidfd."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from holdfast.agent.events import Identity
from holdfast.system import logs, process_identity
from holdfast.wire import worker_messages
from holdfast.wire.limits import KILL_AGAIN_S

# In the environment of a worker and so of all that it starts: the path of its folder.
MARK: Final = worker_messages.FOLDER_VARIABLE

_SWEEP_S: Final = 0.02

log = logs.get(__name__)


def identify(pid: int) -> Identity | None:
    """The process that has this number now; None: there is none, or it has ended."""
    ticks = process_identity.start_ticks(pid)
    return None if ticks is None else Identity(pid, ticks, process_identity.boot())


def hold(identity: Identity) -> int | None:
    """A pidfd of exactly this process; None: it has ended. Readable when it ends."""
    return process_identity.hold(identity.pid, identity.start_ticks, identity.boot)


def send(handle: int, number: signal.Signals) -> None:
    """Signal the held process; one that has ended does not mind."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, number)


def marked(folder: Path, variable: str = MARK) -> list[int]:
    """Processes that were started, by whomever, under the worker of this folder; or with another
    variable that names the folder."""
    names = [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [int(name) for name in names if _is_marked(int(name), folder, variable)]


def kill_marked(folder: Path, variable: str = MARK) -> int:
    """SIGKILL to everything that still runs for this folder; how many there were."""
    killed = 0
    for pid in marked(folder, variable):
        with _held(pid) as handle:
            # Asked again now that it is held: the number may have changed its owner before.
            if handle is not None and _is_marked(pid, folder, variable):
                send(handle, signal.SIGKILL)
                killed += 1
    return killed


def _is_marked(pid: int, folder: Path, variable: str) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False  # ended, or another user's: not ours
    return f"{variable}={folder}".encode() in environment.split(b"\0")


def paused_below(parent: int) -> bool:
    """Whether a child of this process was paused (SIGSTOP)."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
                if fields[0] == b"T" and int(fields[1]) == parent:
                    return True
    return False


@contextmanager
def _held(pid: int) -> Iterator[int | None]:
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        yield None
        return
    try:
        yield handle
    finally:
        os.close(handle)


async def readable(handle: int) -> None:
    """Until the held process has ended, or the pipe has something to say."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    loop.add_reader(handle, ended.set_result, None)
    try:
        await ended
    finally:
        loop.remove_reader(handle)


# --- as the supervisor sees them (`ports`) --------------------------------------------------------


class PidHandle:
    """A process held by its pidfd; `child` if it is our own to wait for."""

    def __init__(
        self, identity: Identity, handle: int, child: subprocess.Popen[bytes] | None = None
    ) -> None:
        self._identity = identity
        self._handle = handle
        self._child = child
        self._watched = False

    @property
    def identity(self) -> Identity:
        return self._identity

    def send(self, number: signal.Signals) -> None:
        send(self._handle, number)

    def on_end(self, ended: Callable[[], None]) -> None:
        def reap() -> None:
            if self._child is not None:
                self._child.wait()
            self.close()
            ended()

        self._watched = True
        asyncio.get_running_loop().add_reader(self._handle, reap)

    async def wait(self) -> None:
        await readable(self._handle)

    def close(self) -> None:
        if self._watched:
            asyncio.get_running_loop().remove_reader(self._handle)
        os.close(self._handle)


class LinuxProcesses:
    """The process table of this machine."""

    def hold(self, identity: Identity) -> PidHandle | None:
        handle = hold(identity)
        return None if handle is None else PidHandle(identity, handle)

    def kill_all(self, folder: Path) -> None:
        kill_marked(folder)

    async def sweep(self, folder: Path) -> None:
        await asyncio.to_thread(_sweep, folder)

    def is_paused_below(self, identity: Identity) -> bool:
        return paused_below(identity.pid)


def _sweep(folder: Path) -> None:
    """Return when nothing runs for this folder any more."""
    warn_at = time.monotonic() + KILL_AGAIN_S
    while kill_marked(folder):
        if time.monotonic() > warn_at:
            log.warning("processes of a worker do not die", worker=folder.name)
            warn_at = time.monotonic() + KILL_AGAIN_S
        time.sleep(_SWEEP_S)
