"""Records of processes: who runs over a cluster's folder, each known for ever by number, start and
boot.

Each process writes its own record, `run/KIND-NAME.json`, and holds a lock beside it while it lives.
A record of a process that was killed stays, and says who it was; one that ended in order has taken
it away.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from holdfast.system import disk, process_identity
from holdfast.system.process import PART_VARIABLE
from holdfast.system.process_identity import boot
from holdfast.system.retries import show_retries
from holdfast.wire.errors import Full, Occupied
from holdfast.wire.plain import known_fields


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a cluster. Number, start and boot together name it for ever; `facts` is what it
    says of itself (where it listens, whether it is connected). `launched`: a command of ours has
    started it, and nobody by hand."""

    kind: str
    name: str
    pid: int
    start_ticks: int
    boot: str
    command: tuple[str, ...] = ()
    since_s: float = 0.0
    log: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    launched: bool = False

    @property
    def alive(self) -> bool:
        return not self.wait(0.0)

    @property
    def stopped(self) -> bool:
        """Whether a signal has stopped it (SIGSTOP, Ctrl-Z): it lives, and does nothing."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] in ("T", "t") and self.alive

    def send(self, number: signal.Signals) -> bool:
        """Signal exactly this process; False: it has ended."""
        handle = self.hold()
        if handle is None:
            return False
        try:
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has ended, all its threads included; whether it has. A zombie has."""
        handle = self.hold()
        if handle is None:
            return True
        try:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            return bool(poll.poll(1000 * timeout_s))
        finally:
            os.close(handle)

    def hold(self) -> int | None:
        """A handle of exactly this process, readable when it has ended; the caller closes it. None:
        there is none any more."""
        return process_identity.hold(self.pid, self.start_ticks, self.boot, zombies=True)


class Registration:
    """Our own record. Made by `register`; closed when the process ends."""

    def __init__(self, path: Path, lock: int, process: Process) -> None:
        self._path = path
        self._lock = lock
        self._closed = False
        self._before: list[Callable[[], None]] = []
        self._noting = threading.Lock()
        self.process = process
        write(path, process)
        show_retries(lambda found: self.note(retried=found))

    def before_close(self, end: Callable[[], None]) -> None:
        """Call this when we end, while we still hold our place."""
        self._before.append(end)

    def note(self, **facts: Any) -> None:
        """Say something of ourselves, in place of what was said under these names. While the disk
        is full the record stays as it was: say it again, and it is written when there is room."""
        with self._noting, suppress(Full):
            noted = replace(self.process, facts={**self.process.facts, **facts})
            if noted != self.process and not self._closed:
                write(self._path, noted)
                self.process = noted

    def close(self) -> None:
        """We end: the record goes."""
        while self._before:
            self._before.pop()()
        with self._noting:
            self._closed = True
        self._path.unlink(missing_ok=True)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def register(folder: Path, kind: str, name: str, *, lock: int | None = None) -> Registration:
    """Be the process of this kind and name over the cluster's folder. `Occupied`: a living one is.

    `lock`: somebody has taken the lock for us, and has handed it on.
    """
    run = run_folder(folder)
    run.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = record_path(folder, kind, name)
    held = taken(folder, kind, name) if lock is None else lock
    if held is None:
        raise Occupied(
            f"the {kind} {name} of {folder} runs already",
            why=f"another process holds {path.with_suffix('.lock')}",
            fix="use that one, or choose another name",
        )
    # From here on our record tells of us; what we start is no part of the cluster by itself.
    launched = os.environ.pop(PART_VARIABLE, None) == str(folder)
    pid = os.getpid()
    started = process_identity.start_ticks(pid, zombies=True)
    assert started is not None, "we are alive"
    command = (sys.executable, *sys.orig_argv[1:])
    log = str(log_path(folder, kind, name))
    made = Process(
        kind,
        name,
        pid,
        started,
        boot(),
        command,
        time.time(),
        log,
        launched=launched,
    )
    return Registration(path, held, made)


def taken(folder: Path, kind: str, name: str) -> int | None:
    """The lock of that process, if nobody holds it; None: somebody does. Whoever has its handle, or
    has inherited it, holds it."""
    path = record_path(folder, kind, name).with_suffix(".lock")
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def processes(folder: Path, *, ended: bool = False) -> list[Process]:
    """The processes that live over this folder; with `ended` also those that left a record."""
    found = []
    for path in sorted(run_folder(folder).glob("*.json")):
        process = read(path)
        if process is not None and (ended or process.alive):
            found.append(process)
    return found


def recorded(folder: Path, kind: str, name: str) -> Process | None:
    """The process of that record; it may have ended. None: there is no record."""
    return read(record_path(folder, kind, name))


def run_folder(folder: Path) -> Path:
    return folder / "run"


def record_path(folder: Path, kind: str, name: str) -> Path:
    return run_folder(folder) / f"{_stem(kind, name)}.json"


def log_path(folder: Path, kind: str, name: str) -> Path:
    """Where its output goes when a command of ours starts it."""
    return folder / "logs" / f"{_stem(kind, name)}.log"


def _stem(kind: str, name: str) -> str:
    return name if name.startswith(f"{kind}-") else f"{kind}-{name}"


def identified(
    kind: str, name: str, pid: int, *, log: str = "", facts: Mapping[str, Any] | None = None
) -> Process | None:
    """The process that has this number now, for one that keeps no record; None: there is none."""
    started = process_identity.start_ticks(pid, zombies=True)
    if started is None:
        return None
    command: tuple[str, ...] = ()
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        command = tuple(word.decode(errors="replace") for word in words if word)
    return Process(kind, name, pid, started, boot(), command, _since_s(pid), log, facts or {})


def write(path: Path, process: Process) -> None:
    unfinished = path.with_suffix(f".{os.getpid()}.tmp")
    disk.draft(unfinished, (json.dumps(asdict(process)) + "\n").encode())
    unfinished.replace(path)


def read(path: Path) -> Process | None:
    """A record; None: it went while we looked, or a crash of the machine left half of it."""
    try:
        fields = json.loads(path.read_text())
        known = known_fields(Process, fields)
        return Process(**{**known, "command": tuple(fields["command"])})
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _since_s(pid: int) -> float:
    try:
        return Path(f"/proc/{pid}").stat().st_ctime
    except FileNotFoundError:
        return 0.0
