"""A version is tried in a process of its own before it is loaded beside others.

What a model's code may do to its process (end it, crash it, eat its memory, never return) then
happens to a process that nobody needs. A *nest* is forked when the replica starts, before it has
any thread; for each trial the nest forks a process that loads the version, warms it up and checks
its example. Both end when the replica does.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Never

from holdfast.models.records import Kind, Version
from holdfast.serve.replica.batching import first_line
from holdfast.serve.replica.preparing import prepare
from holdfast.wire import documents, logs
from holdfast.wire.errors import BadModel, HoldfastError, Unavailable
from holdfast.wire.limits import LOAD_REASON_CHARACTERS_MAX, TRIAL_NICE, TRIAL_S

log = logs.get(__name__)

_LINE_BYTES_MAX: Final = 1024 * 1024
_STOP: Final = b"\n"


class Nest:
    """The replica's end of the nest. `trial` is called by one thread at a time."""

    def __init__(self, line: socket.socket, pid: int) -> None:
        self._line = line
        self.pid = pid

    @classmethod
    def fork(cls) -> Nest:
        """Call it before any thread is started."""
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            _nest(theirs)
        theirs.close()
        return cls(ours, pid)

    def trial(self, record: Version, folder: Path, batch_max: int) -> None:
        """Try a version. `BadModel` says what became of it; `Unavailable`: the nest is gone."""
        task = {
            "record": documents.document(record),
            "folder": str(folder),
            "batch_max": batch_max,
        }
        try:
            self._line.sendall(json.dumps(task).encode() + b"\n")
            answer = _line(self._line)
        except OSError as error:
            raise Unavailable("versions cannot be tried any more", why=str(error)) from error
        if answer is None:
            raise Unavailable("versions cannot be tried any more", why="the nest has ended")
        if answer["failed"]:
            raise BadModel(answer["failed"], why=answer["why"], fix="publish a version that loads")

    def stop(self) -> None:
        """Give up the present trial, if there is one: it fails. Called by another thread."""
        with suppress(OSError):  # the nest is gone
            self._line.sendall(_STOP)

    def close(self) -> None:
        """End it, and whatever it tries."""
        self._line.close()
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


# --- in the nest ---------------------------------------------------------------------------------


def _nest(line: socket.socket) -> Never:
    """Try what is asked for until the replica is gone."""
    try:
        # The replica is told to leave, and drains; the nest goes with it.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.setpriority(os.PRIO_PROCESS, 0, TRIAL_NICE)
        while (task := _line(line)) is not None:
            _warm(task)
            answer = _tried(line, task)
            line.sendall(json.dumps(answer).encode() + b"\n")
    except OSError:
        pass  # the replica is gone
    except BaseException:
        traceback.print_exc()
    os._exit(0)


def _warm(task: dict[str, Any]) -> None:
    """What every trial would import again: torch takes seconds."""
    if task["record"]["kind"] == Kind.TORCH.value:
        with suppress(ImportError):
            import torch  # noqa: PLC0415

            torch.set_num_threads(1)


def _tried(line: socket.socket, task: dict[str, Any]) -> dict[str, str]:
    """Fork a process that tries it, and see what becomes of it."""
    began_s = time.monotonic()
    words, theirs = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(words)
        line.close()
        _try(task, theirs)
    os.close(theirs)
    said, late = _heard(line, words, pid)
    os.close(words)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    name = f"{task['record']['model']}@{task['record']['number']}"
    if late:
        why = f"it was stopped after {time.monotonic() - began_s:.0f} s"
        return {"failed": f"{name} does not finish loading", "why": why}
    if code == 0 and said:
        answer: dict[str, str] = json.loads(said)
        return answer
    how = f"status {code}" if code >= 0 else f"signal {-code} ({_signal(-code)})"
    return {"failed": f"loading {name} ends its process", "why": f"it ended with {how}"}


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _heard(line: socket.socket, words: int, pid: int) -> tuple[bytes, bool]:
    """What the trial said until its end, and whether it had to be ended."""
    until_s = time.monotonic() + TRIAL_S
    said = b""
    poll = select.poll()
    for handle in (line.fileno(), words):
        poll.register(handle, select.POLLIN)
    while True:
        left_s = until_s - time.monotonic()
        ready = dict(poll.poll(max(0.0, left_s) * 1000))
        if not ready or line.fileno() in ready:  # too late, not wanted any more, or all is over
            os.kill(pid, signal.SIGKILL)
            return b"", True
        piece = os.read(words, 64 * 1024)
        said += piece
        if not piece or len(said) > _LINE_BYTES_MAX:
            return said, False


def _try(task: dict[str, Any], words: int) -> Never:
    """In a process of its own: load, warm up, check; say what came of it."""
    failed, why = "", ""
    try:
        record = documents.from_document("a trial", Version, task["record"])
        prepare(record, Path(task["folder"]), task["batch_max"])
    except HoldfastError as error:
        failed, why = error.what, error.why
    except BaseException as error:  # the model's code may raise whatever it likes
        name = f"{task['record']['model']}@{task['record']['number']}"
        failed, why = f"{name} cannot be loaded", first_line(error)
    bounded = {"failed": failed, "why": why[:LOAD_REASON_CHARACTERS_MAX]}
    with os.fdopen(words, "wb") as out:
        out.write(json.dumps(bounded).encode())
    os._exit(0)


# --- on both sides -------------------------------------------------------------------------------


def _line(line: socket.socket) -> dict[str, Any] | None:
    """The next line that says something; None: the other side is gone."""
    held = b""
    while not held.endswith(b"\n"):
        piece = line.recv(64 * 1024)
        if not piece:
            return None
        held = (held + piece).lstrip(_STOP)  # a stop that came after the end of its trial
    found: dict[str, Any] = json.loads(held)
    return found
