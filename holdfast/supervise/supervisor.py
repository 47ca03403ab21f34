"""The supervisor: one for each folder and machine, started by `holdfast up`.

It waits, and does nothing, until a process that is wanted has died; then it starts it again as
`decide` says. What it has started goes on without it, and the next one takes over by the records:
whoever is kept starts it (`watch`). It ends when it is told to, and after `holdfast down`.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from holdfast.supervise import records, spawn, wanted
from holdfast.supervise.decide import Care, ProcessDeath, after
from holdfast.supervise.records import Process, Registration
from holdfast.supervise.wanted import WantedProcess
from holdfast.wire.errors import Occupied
from holdfast.wire.limits import KEEP_STEADY_S

# A supervisor that nothing wakes looks so often whether it has missed something: one `stat`.
KEEP_LOOK_S: Final = 10.0
# Letters of the last words of a process that a supervisor tells.
KEEP_WORDS_MAX: Final = 400

KIND: Final = "supervisor"
NAME: Final = "supervisor-1"
# What it ends with when `holdfast down` has ended the cluster: a service manager lets that be.
ENDED: Final = 3

# An error of ours: what, why and how to mend it.
_WORDS_LINES: Final = 3

RUNNING: Final = "running"
WAITING: Final = "waiting"
GAVE_UP: Final = "gave up"


@dataclass
class Kept:
    """One that is wanted, and how keeping it goes."""

    wanted: WantedProcess
    care: Care = field(default_factory=Care)
    handle: int | None = None  # of the process that lives
    child: subprocess.Popen[bytes] | None = None
    pid: int = 0
    began_s: float = 0.0  # of the monotonic clock
    due_s: float | None = None  # when it is started again
    since_s: float = 0.0  # of the wall clock: since when it is as it is
    environment: Mapping[str, str] | None = None
    log_bytes: int = 0  # of its log when it was started

    def close(self) -> None:
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None

    @property
    def state(self) -> str:
        if self.handle is not None:
            return RUNNING
        return GAVE_UP if self.care.gave_up else WAITING

    def document(self, now_s: float) -> dict[str, Any]:
        again_s = 0.0 if self.due_s is None else round(time.time() + self.due_s - now_s, 1)
        return {
            "state": self.state,
            "since_s": self.since_s,
            "again_s": again_s if self.handle is None else 0.0,
            "deaths": self.care.deaths,
            "faults": self.care.faults,
            "why": self.care.why,
            "asked_s": self.wanted.asked_s,
        }


class Supervisor:
    """Keeps what is wanted over a folder. `former`: the one before us, if it was killed."""

    def __init__(self, folder: Path, former: Process | None) -> None:
        self._folder = folder
        self._former: Mapping[str, Any] = former.facts.get("kept", {}) if former else {}
        self._kept: dict[str, Kept] = {}
        self._stamp: tuple[int, int] = (-1, -1)
        self._stopped = False
        self._heard, self._tell_handle = os.pipe()
        os.set_blocking(self._heard, False)
        os.set_blocking(self._tell_handle, False)

    def listen(self) -> None:
        """Hear signals. To be called before anybody knows of us: they would end us."""
        signal.set_wakeup_fd(self._tell_handle, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGHUP, lambda *_: None)  # it wakes us, and so we look

    def run(self, registration: Registration) -> int:
        """Until we are told to end, or nothing is wanted; the exit code."""
        while not self._stopped and not wanted.is_down(self._folder):
            self._read()
            for kept in self._kept.values():
                self._mind(kept)
            self._say(registration)
            self._wait()
        return ENDED if wanted.is_down(self._folder) else 0

    # --- private --------------------------------------------------------------------------------

    def _stop(self, *_: object) -> None:
        self._stopped = True

    def _read(self) -> None:
        """What is wanted, if that has changed. One that was asked for anew begins anew."""
        stamp = wanted.stamp(self._folder)
        if stamp == self._stamp:
            return
        self._stamp, found = stamp, wanted.read(self._folder)
        for key in [key for key in self._kept if key not in found]:
            self._kept.pop(key).close()
        for key, one in found.items():
            kept = self._kept.get(key)
            if kept is None:
                self._kept[key] = self._remembered(key, one)
            elif kept.wanted != one:
                kept.wanted, kept.care = one, Care()
                kept.due_s = None

    def _remembered(self, key: str, one: WantedProcess) -> Kept:
        """How it went with the supervisor before us, if that was killed."""
        former = self._former.get(key, {})
        if former.get("asked_s") != one.asked_s:
            return Kept(one)
        gave_up, why = former.get("state") == GAVE_UP, str(former.get("why", ""))
        care = Care(int(former["deaths"]), int(former["faults"]), gave_up=gave_up, why=why)
        lived = former.get("state") == RUNNING  # if it does not any more, nobody has seen that
        return Kept(one, care, since_s=0.0 if lived else float(former["since_s"]))

    def _mind(self, kept: Kept) -> None:
        if kept.handle is not None:
            if not _has_ended(kept.handle):
                return
            self._died(kept)
        if self._adopt(kept):
            return
        now_s = time.monotonic()
        if kept.since_s == 0.0:  # it was gone before we came, or nobody has started it yet
            kept.since_s = time.time()
            if kept.wanted.pid:
                kept.care = after(kept.care, self._unseen(kept))
        if kept.care.gave_up:
            return
        if kept.due_s is None:
            kept.due_s = now_s + kept.care.pause_s
        if now_s >= kept.due_s:
            self._start(kept)

    def _adopt(self, kept: Kept) -> bool:
        """Watch the one that lives, if there is one, whoever has started it."""
        one = kept.wanted
        for process in (records.recorded(self._folder, one.kind, one.name), one.asked_for):
            handle = process.hold() if process is not None and process.pid else None
            if process is None or handle is None:
                continue
            if _has_ended(handle):  # a zombie
                os.close(handle)
                continue
            began_s = process.since_s or one.asked_s
            kept.handle, kept.pid, kept.child = handle, process.pid, None
            kept.began_s = time.monotonic() - max(0.0, time.time() - began_s)
            kept.since_s, kept.due_s = began_s, None
            kept.environment = _environment_of(process.pid) or kept.environment
            return True
        return False

    def _unseen(self, kept: Kept) -> ProcessDeath:
        """The death of one that we have not seen alive: of a machine that has stopped, or beside
        the supervisor before us."""
        one = kept.wanted
        record = records.recorded(self._folder, one.kind, one.name)
        return ProcessDeath(KEEP_STEADY_S, in_order=record is None, words=self._words(kept))

    def _died(self, kept: Kept) -> None:
        one, child = kept.wanted, kept.child
        kept.close()
        code = child.wait() if child is not None else None
        kept.child = None
        if code == Occupied.exit_code and self._adopt(kept):
            return  # another one was faster, and lives
        record = records.recorded(self._folder, one.kind, one.name)
        in_order = record is None or record.pid != kept.pid
        death = ProcessDeath(time.monotonic() - kept.began_s, code, in_order, self._words(kept))
        kept.care = after(kept.care, death)
        kept.since_s = time.time()
        kept.due_s = None
        if kept.care.gave_up:
            then = f"given up after {kept.care.faults} in a row; `holdfast up` tries again"
        else:
            then = f"started again in {kept.care.pause_s:g} s"
        _log(f"the {one.kind} {one.name} (process {kept.pid}) {kept.care.why}; {then}")

    def _start(self, kept: Kept) -> None:
        one = kept.wanted
        environment = kept.environment or spawn.environment()
        environment = {**environment, wanted.SUPERVISED_VARIABLE: "1"}
        log = records.log_path(self._folder, one.kind, one.name)
        kept.log_bytes = spawn.log_bytes(log)
        try:
            child = spawn.spawn(self._folder, one.command, log, environment)
        except OSError as error:
            kept.care = after(
                kept.care, ProcessDeath(0.0, 1, words=f"it cannot be started: {error}")
            )
            kept.since_s, kept.due_s = time.time(), None
            _log(f"the {one.kind} {one.name} cannot be started: {error}")
            return
        kept.child, kept.pid = child, child.pid
        kept.handle = os.pidfd_open(child.pid)
        kept.began_s, kept.since_s, kept.due_s = time.monotonic(), time.time(), None
        _log(f"the {one.kind} {one.name} is started again: process {child.pid}")

    def _words(self, kept: Kept) -> str:
        log = records.log_path(self._folder, kept.wanted.kind, kept.wanted.name)
        return _in_a_line(spawn.last_words(log, _WORDS_LINES, kept.log_bytes))

    def _say(self, registration: Registration) -> None:
        """In our record, when something has changed."""
        now_s = time.monotonic()
        registration.note(kept={key: one.document(now_s) for key, one in self._kept.items()})

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._heard, select.POLLIN)
        now_s, until_s = time.monotonic(), time.monotonic() + KEEP_LOOK_S
        for kept in self._kept.values():
            if kept.handle is not None:
                poll.register(kept.handle, select.POLLIN)
            elif kept.due_s is not None:
                until_s = min(until_s, kept.due_s)
            elif not kept.care.gave_up:
                until_s = now_s
        poll.poll(1000 * max(0.0, until_s - now_s))
        with suppress(BlockingIOError):
            os.read(self._heard, 4_096)


def ensure(folder: Path) -> bool:
    """See to it that the folder has a supervisor, and that it looks at what is wanted; whether it
    was started now. Nothing is started where nothing is wanted."""
    if not wanted.read(folder):
        return False
    lock = records.taken(folder, KIND, NAME)
    if lock is None:
        # One that has no record yet has not read what is wanted either.
        known = records.recorded(folder, KIND, NAME)
        if known is not None:
            known.send(signal.SIGHUP)
        return False
    try:
        start(folder, lock)
    finally:
        os.close(lock)
    return True


def start(folder: Path, lock: int) -> subprocess.Popen[bytes]:
    """Start one that takes our lock over: there is no moment in which nobody has it."""
    command = [sys.executable, "-m", "holdfast.supervise", "--cluster", str(folder)]
    command += ["--lock", str(lock)]
    log = records.log_path(folder, KIND, NAME)
    return spawn.spawn(folder, command, log, spawn.environment(), handles=(lock,))


# --- private ------------------------------------------------------------------------------------


def _has_ended(handle: int) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))


def _environment_of(pid: int) -> dict[str, str] | None:
    """What it was started with, so that the next one is started alike; None: it may not be read, or
    it is gone."""
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    words = [os.fsdecode(pair).partition("=") for pair in pairs if pair]
    return {name: value for name, _, value in words} or None


def _in_a_line(words: str) -> str:
    """What it said last, cut: an error of ours has its cause and its fix in lines of their own."""
    line = "; ".join(part.strip() for part in words.splitlines() if part.strip())
    return line if len(line) <= KEEP_WORDS_MAX else f"…{line[-KEEP_WORDS_MAX:]}"


def _log(line: str) -> None:
    with suppress(OSError):  # a full disk ends nobody
        sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
        sys.stderr.flush()
