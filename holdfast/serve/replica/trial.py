"""A version is fetched and tried in a process of its own before it is loaded beside others.

What a model's code may do to its process (end it, crash it, eat its memory, never return) then
happens to a process that nobody needs; and what takes time takes it from nobody who answers. A
*prefork server* is forked when the replica starts, before it has any thread: two processes, each of
which forks one for each task. One fetches a version's files; it stays small, so that forking and
ending costs next to nothing. The other one loads a version, warms it up and checks its example, and
has imported what that takes. All of them end when the replica does.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Never

from holdfast.models import examples, loading
from holdfast.models.examples import Example
from holdfast.models.files_kind import ALLOW_PICKLE
from holdfast.models.kinds import Servable
from holdfast.models.records import TORCH_KINDS, ModelKind, Version
from holdfast.serve.priority import OwnSession
from holdfast.serve.replica.batching import Array, BatchPace, first_line, repeated, shape_of
from holdfast.storage import Blobs
from holdfast.system import logs
from holdfast.wire import documents
from holdfast.wire.errors import BadModel, HoldfastError, Unavailable
from holdfast.wire.limits import INLINE_LATE_S, INLINE_S, LOAD_REASON_CHARACTERS_MAX, TRIAL_S

# --- preparing ------------------------------------------------------------------------------------
# From a version's files to something that is warm and has given the right answer.


# One shorter than this is done at once: putting several requests together costs more.
INSTANT_S: Final = 0.00003
# Times that the example is computed before a version is ready, at each size: the first is slow. A
# model that computes for long is not asked again and again: none begins after the second.
WARM_UP_TRIES: Final = 5
WARM_UP_S: Final = 0.25


class Manner(NamedTuple):
    """How a version computes. `batches`: rows of several requests may go together."""

    batches: bool
    pace: BatchPace


class Prepared(NamedTuple):
    """A version that can answer."""

    servable: Servable
    manner: Manner


def prepare(record: Version, folder: Path, batch_max: int, known: Manner | None = None) -> Prepared:
    """Load it, warm it up at the sizes that it will be asked for, and compare its example.
    `known`: how it computes, if that was measured on this machine: it is computed less often."""
    servable = loading.load(record, folder)
    _bound_threads()
    try:
        # Of several the largest: what takes longest decides where it is computed.
        known_ones = examples.read_all(folder, record.signature)
        example = max(known_ones, key=_elements, default=None)
        if known is None or example is None:
            known = _measured(servable, record, example, batch_max)
        else:
            known = _warmed(servable, record, example, batch_max, known)
        loading.check_example(servable, record, folder)
    except BaseException:
        servable.close()
        raise
    return Prepared(servable, known)


def _elements(example: Example) -> int:
    return sum(array.size for array in example.inputs.values())


def _warmed(
    servable: Servable, record: Version, example: Example, most: int, known: Manner
) -> Manner:
    """Computed once, alone. The example's own size is computed when it is compared, and the largest
    one by whoever has found out how it computes: beside requests it would take a core for long. But
    on a GPU here too: a batch takes memory there, of which this process may have less."""
    batches = known.batches
    if batches:
        servable.predict(repeated(example.inputs, 1))
    if not _on_gpu(record):
        return known
    if batches:
        batches = not _trouble(servable, repeated(example.inputs, max(1, most)), max(1, most))
    return Manner(batches, BatchPace.LONG)


def _measured(servable: Servable, record: Version, example: Example | None, most: int) -> Manner:
    """Whether it batches, and how long it computes."""
    batches = record.signature.batches
    if example is None:
        return Manner(batches, BatchPace.LONG)
    key, _ = shape_of(example.inputs)
    if not batches or key is None:
        return Manner(False, _pace(record, _timed(servable, example.inputs)))
    one, many = repeated(example.inputs, 1), repeated(example.inputs, max(1, most))
    alone = _pace(record, _timed(servable, one))
    trouble = _trouble(servable, many, max(1, most))
    if trouble:
        log.warning(
            "a version is computed request by request",
            version=f"{record.model}@{record.number}",
            reason=trouble,
        )
        return Manner(False, alone)
    together = _pace(record, _timed(servable, many))
    return Manner(True, BatchPace.LONG if together is BatchPace.LONG else alone)


def _trouble(servable: Servable, inputs: Mapping[str, Array], rows: int) -> str:
    """What is wrong with its largest batch; empty: nothing."""
    try:
        outputs = servable.predict(inputs)
    except Exception as error:
        return f"a batch of {rows} rows fails: {first_line(error)}"
    odd = [name for name, array in outputs.items() if array.shape[:1] != (rows,)]
    return f"output {odd[0]!r} does not have a row for each row of the inputs" if odd else ""


def _timed(servable: Servable, inputs: Mapping[str, Array]) -> list[tuple[float, float]]:
    """How long it takes, several times: of this thread's own time, and by the clock."""
    took: list[tuple[float, float]] = []
    first_s = time.monotonic()
    while len(took) < WARM_UP_TRIES and time.monotonic() - first_s < WARM_UP_S:
        own_s, began_s = time.thread_time(), time.monotonic()
        servable.predict(inputs)
        took.append((time.thread_time() - own_s, time.monotonic() - began_s))
    return took


def _pace(record: Version, took: list[tuple[float, float]]) -> BatchPace:
    """By the thread's own time, since the machine may be busy with requests. The clock's time is
    looked at for those that wait for something. What a GPU computes does not show in either, and
    another process may never answer."""
    if _on_gpu(record) or record.arguments.get(ALLOW_PICKLE):
        return BatchPace.LONG
    own_s = min(own for own, _ in took)
    clock_s = min(clock for _, clock in took)
    if own_s >= INLINE_S or clock_s >= INLINE_LATE_S:
        return BatchPace.LONG
    return BatchPace.INSTANT if own_s < INSTANT_S else BatchPace.SHORT


def _bound_threads() -> None:
    """Torch computes with as many threads as the replica was given cores. It reads the variable
    when it is imported, which another process may have done for us."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


def _on_gpu(record: Version) -> bool:
    torch = sys.modules.get("torch")
    return record.kind in TORCH_KINDS and torch is not None and torch.cuda.is_initialized()


# The process not for longer than this, fetching and trying together: on a machine that is busy for
# hours a version must come to an end too, and somebody waits for it.
TRIAL_PATIENCE_S: Final = 10.0

log = logs.get(__name__)

_LINE_BYTES_MAX: Final = 1024 * 1024
_STOP: Final = b"\n"
_Store = Callable[[], Blobs]


class PreforkServer:
    """The replica's end of the prefork server. `fetch`, `trial` and `warm` are called by one thread
    at a time. `Unavailable`: the prefork server is gone."""

    def __init__(self, fetching: _Forking, trying: _Forking) -> None:
        self._fetching, self._trying = fetching, trying
        self._fetched = "", 0.0  # what was fetched last, and how long that took

    @classmethod
    def fork(cls, store: _Store | None = None) -> PreforkServer:
        """Call it before any thread is started. `store`: where versions come from."""
        fetching = _Forking.fork(store)
        return cls(fetching, _Forking.fork(None, fetching))

    @property
    def pids(self) -> tuple[int, int]:
        return self._fetching.pid, self._trying.pid

    def fetch(self, record: Version, cache: Path) -> bool:
        """Whether the version's files are in the cache now, whole. If not, whoever does it himself
        hears why."""
        began_s = time.monotonic()
        answer = self._fetching.run_task(record, TRIAL_PATIENCE_S, cache=str(cache))
        self._fetched = record.publication, time.monotonic() - began_s
        return not answer["failed"]

    def trial(self, record: Version, folder: Path, batch_max: int) -> Manner:
        """Try a version; how it computes. `BadModel` says what became of it."""
        what, took_s = self._fetched
        left_s = TRIAL_PATIENCE_S - (took_s if what == record.publication else 0.0)
        answer = self._trying.run_task(record, left_s, folder=str(folder), batch_max=batch_max)
        if answer["failed"]:
            raise BadModel(answer["failed"], why=answer["why"], fix="publish a version that loads")
        return Manner(answer["batches"], BatchPace(answer["pace"]))

    def warm(self, record: Version) -> None:
        """Let it import what the trial of such a version takes, before one is needed."""
        self._trying.run_task(record, TRIAL_PATIENCE_S)

    def stop(self) -> None:
        """Give up the present task, if there is one: it fails. Called by another thread."""
        self._fetching.stop()
        self._trying.stop()

    def close(self) -> None:
        """End it, and whatever it tries."""
        self._fetching.close()
        self._trying.close()


class _Forking:
    """The replica's end of a process that forks one for each task."""

    def __init__(self, line: socket.socket, pid: int) -> None:
        self._line = line
        self.pid = pid

    @classmethod
    def fork(cls, store: _Store | None, *others: _Forking) -> _Forking:
        """`others` were forked before: they end with the replica, and not with this one."""
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            for each in (ours, *(other._line for other in others)):
                each.close()
            _prefork(theirs, store)
        theirs.close()
        return cls(ours, pid)

    def run_task(self, record: Version, patience_s: float, **task: Any) -> dict[str, Any]:
        """What came of a task for which it has a lower priority so long at most."""
        task |= {"record": documents.document(record), "patience_s": patience_s}
        try:
            self._line.sendall(json.dumps(task).encode() + b"\n")
            answer = _line(self._line)
        except OSError as error:
            raise Unavailable("versions cannot be tried any more", why=str(error)) from error
        if answer is None:
            raise Unavailable(
                "versions cannot be tried any more", why="the prefork server has ended"
            )
        return answer

    def stop(self) -> None:
        with suppress(OSError):  # the prefork server is gone
            self._line.sendall(_STOP)

    def close(self) -> None:
        self._line.close()
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


# --- in the prefork server ------------------------------------------------------------------------


def _prefork(line: socket.socket, store: _Store | None) -> Never:
    """Do what is asked for until the replica is gone."""
    try:
        # The replica is told to leave, and drains; the prefork server goes with it.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        apart = OwnSession()
        while (task := _line(line)) is not None:
            with apart.patiently(_name(task), task["patience_s"]):
                _warm(task)
                answer = {} if _only_warm(task) else _done(line, task, store)
            line.sendall(json.dumps(answer).encode() + b"\n")
    except OSError:
        pass  # the replica is gone
    except BaseException:
        traceback.print_exc()
    os._exit(0)


def _warm(task: dict[str, Any]) -> None:
    """What every trial would import again: torch takes seconds."""
    if "cache" not in task and ModelKind(task["record"]["kind"]) in TORCH_KINDS:
        with suppress(ImportError):
            import torch  # noqa: PLC0415

            torch.set_num_threads(1)


def _only_warm(task: dict[str, Any]) -> bool:
    return "cache" not in task and "folder" not in task


def _done(line: socket.socket, task: dict[str, Any], store: _Store | None) -> dict[str, Any]:
    """Fork a process that does it, and see what becomes of it."""
    began_s = time.monotonic()
    words, theirs = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(words)
        line.close()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the model's own, if it wants one
        _do(task, store, theirs)
    os.close(theirs)
    # A store may be slow, and has limits of its own.
    said, late = _read_until_end(line, words, pid, TRIAL_S if "folder" in task else math.inf)
    os.close(words)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    name = _name(task)
    if late:
        why = f"it was stopped after {time.monotonic() - began_s:.0f} s"
        return {"failed": f"{name} does not finish loading", "why": why}
    if code == 0 and said:
        answer: dict[str, Any] = json.loads(said)
        return answer
    how = f"status {code}" if code >= 0 else f"signal {-code} ({_signal(-code)})"
    return {"failed": f"loading {name} ends its process", "why": f"it ended with {how}"}


def _name(task: dict[str, Any]) -> str:
    return f"{task['record']['model']}@{task['record']['number']}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _read_until_end(
    line: socket.socket, words: int, pid: int, patience_s: float
) -> tuple[bytes, bool]:
    """What the process said until its end, and whether it had to be ended."""
    until_s = time.monotonic() + patience_s
    said = b""
    poll = select.poll()
    for handle in (line.fileno(), words):
        poll.register(handle, select.POLLIN)
    while True:
        left_s = until_s - time.monotonic()
        ready = dict(poll.poll(None if math.isinf(left_s) else max(0.0, left_s) * 1000))
        if not ready or line.fileno() in ready:  # too late, not wanted any more, or all is over
            os.kill(pid, signal.SIGKILL)
            return b"", True
        piece = os.read(words, 64 * 1024)
        said += piece
        if not piece or len(said) > _LINE_BYTES_MAX:
            return said, False


def _do(task: dict[str, Any], store: _Store | None, words: int) -> Never:
    """In a process of its own: fetch; or load, warm up, check. Say what came of it."""
    answer: dict[str, Any] = {"failed": "", "why": ""}
    try:
        record = documents.from_document("a trial", Version, task["record"])
        if "folder" in task:
            found = prepare(record, Path(task["folder"]), task["batch_max"]).manner
            answer |= {"batches": found.batches, "pace": found.pace.value}
        elif store is None:
            answer["failed"] = "this prefork server has no store"
        else:
            loading.fetch(record, store(), Path(task["cache"]))
    except HoldfastError as error:
        answer |= {"failed": error.what, "why": error.why}
    except BaseException as error:  # the model's code may raise whatever it likes
        answer |= {"failed": f"{_name(task)} cannot be loaded", "why": first_line(error)}
    answer["why"] = answer["why"][:LOAD_REASON_CHARACTERS_MAX]
    with os.fdopen(words, "wb") as out:
        out.write(json.dumps(answer).encode())
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
