"""A worker's connection to its agent.

    agent = AgentClient.from_environment()      # None under a plain `python train.py`
    agent.ready()
    view = agent.view()                  # waits for one that is newer than the adopted one
    agent.adopted(view.number, step)
    agent.step(step + 1)
    for share in agent.shares(): ...     # what a checkpoint wants of this worker
        agent.part_done(share.attempt.number, parts)
    if agent.leaving: agent.left(); return
    agent.done()

The agent may be killed and come back at any time: a thread connects again and says everything
again. No call here waits for the agent, except `view`, and none fails because it is away. The
thread also repeats what is true every `WORKER_BEAT_S`: a process that is paused does not.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

from holdfast.system import logs
from holdfast.system.backoff import Backoff
from holdfast.system.tasks import WAITED, Died, start_thread, unexpected
from holdfast.wire import values, worker_messages
from holdfast.wire.errors import BugError, Refused, Usage
from holdfast.wire.limits import (
    ATTEMPTS_KEPT,
    CHANNEL_MESSAGE_BYTES_MAX,
    UNREADABLE_WHY_CHARACTERS_MAX,
)
from holdfast.wire.orders import Attempt, GiveSettings, GiveView, StopWorker, TakeShare, View
from holdfast.wire.reports import LANE_METRIC, Part

# Steps are reported to the agent at most so often; everything else at once.
STEP_REPORT_S: Final = 0.1
# A worker whose agent is away tries again so often.
AGENT_RETRY_S: Final = 0.05
AGENT_RETRY_S_MAX: Final = 1.0
# A worker says what is true of it at least so often, changed or not: a sign of life.
WORKER_BEAT_S: Final = 1.0

log = logs.get(__name__)

# An agent that does not take a few bytes for so long is replaced by a new connection.
_SEND_S: Final = 5.0


class WantedShare(NamedTuple):
    """Write share `share` of `shares` of the state at the attempt's step."""

    attempt: Attempt
    share: int
    shares: int


class AgentClient:
    """The connection of one worker. Its methods may be called from any thread of the process."""

    def __init__(
        self,
        folder: Path,
        job: str,
        worker: int,
        ports: tuple[int, ...] = (),
        host: str = "",
        died: Died = WAITED,
    ) -> None:
        """`died` is called in its thread when that has died, beside what every caller is told."""
        self.job = job
        self.worker = worker
        self.ports = ports
        self.host = host or "127.0.0.1"
        self.folder = folder
        self._pid = os.getpid()
        self.changing = self._changed = threading.Condition()
        self._extension: worker_messages.Extension | None = None
        self._ready, self._adopted = False, 0
        self._step: int | None = None
        self._unreadable: set[int] = set()  # at most the checkpoints that a job keeps
        self._unreadable_why = ""  # of the last that it tried
        self._waits: set[str] = set()  # for what
        self._ending = False
        self._suspects: frozenset[int] = frozenset()
        self._metrics: dict[str, float] = {}
        self._answers: dict[int, bytes] = {}  # attempt -> the line that says what came of it
        self._given: View | None = None
        self._settings: tuple[tuple[str, str, int], ...] = ()
        self._share: WantedShare | None = None
        self._stopping = self._closed = False
        self._unsent: set[int] = set()  # attempts whose answer was not sent on this connection
        self._state_waits = self._step_waits = self._anew = False
        self._news: Callable[[], None] = lambda: None
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._waker.setblocking(False)
        self._died = died
        self._failure: BugError | None = None
        self._thread = start_thread(self._run, "holdfast-agent-client", self.fail)

    @classmethod
    def from_environment(cls, died: Died = WAITED) -> AgentClient | None:
        """The connection of this process; None: no agent has started it.

        In the main thread it also takes SIGTERM, unless the script has its own handler: `leaving`
        becomes true, and the notice period is there for a clean end.
        """
        found = worker_messages.worker_of(os.environ)
        if found is None:
            return None
        client = cls(*found, died=died)
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, client._asked_to_stop)
        return client

    # --- what the worker says ------------------------------------------------------------------

    def ready(self) -> None:
        """It can take a view. Saying it again costs nothing."""
        with self._changed:
            if not self._ready:
                self._ready = True
                self._report()

    def adopted(self, view: int, step: int | None) -> None:
        """It works in this view, and holds the state of `step` (None: none yet)."""
        with self._changed:
            self._adopted, self._step = view, step
            self._ending, self._suspects = False, frozenset()
            self._metrics.pop(LANE_METRIC, None)  # it was that of another view
            self._report()

    def step(self, number: int, metrics: Mapping[str, float] | None = None) -> None:
        """It has completed this step; `metrics` are for people. Cheap: many are reported as one."""
        with self._changed:
            self._check()
            self._step = number
            if metrics is not None:
                self._metrics = {name: float(value) for name, value in metrics.items()}
            if not self._step_waits:
                self._step_waits = True
                self.nudge()

    def waits(self, waits: bool, what: str = "peers") -> None:
        """Whether it waits for its peers, or for something else that is not its own: that it makes
        no progress then is not its own fault."""
        with self._changed:
            before = bool(self._waits)
            (self._waits.add if waits else self._waits.discard)(what)
            if before != bool(self._waits):
                self._report()

    def suspects(self, peers: Iterable[int]) -> None:
        """These members of its view cannot be reached, or have been silent for too long. Adopting
        another view takes it back."""
        with self._changed:
            self._suspects = frozenset(peers)
            self._report()

    def ending(self, step: int) -> None:
        """This was the job's last step: it stays until it is asked to leave (`leaving`). The
        control plane does so when the step is committed, and knows that the job is done."""
        with self._changed:
            self._step, self._ending = step, True
            self._report()

    def unreadable(self, step: int, why: str) -> None:
        """The committed checkpoint of this step could not be read back."""
        with self._changed:
            self._unreadable.add(step)
            self._unreadable_why = why[:UNREADABLE_WHY_CHARACTERS_MAX]
            self._report()

    def part_done(self, attempt: int, parts: tuple[Part, ...]) -> None:
        """Its share of this attempt is durable: these are its parts, all of them."""
        done = values.SayParts(attempt, parts, missed=False)
        self._answer(attempt, values.line("parts", done))

    def missed(self, attempt: int) -> None:
        """It had passed the attempt's step when it heard of it."""
        self._answer(attempt, values.line("parts", values.SayParts(attempt, (), missed=True)))

    def done(self) -> None:
        """The job is finished, by the word of one that follows no views; it may end with 0."""
        self._leave_word(worker_messages.DONE)

    def left(self) -> None:
        """It leaves at a step boundary or at the end, as asked; it may end with status 0."""
        self._leave_word(worker_messages.LEFT)

    def refused(self) -> None:
        """It ends with an error that would come again, whoever tries."""
        self._leave_word(worker_messages.REFUSED)

    # --- what the worker hears -----------------------------------------------------------------

    def view(self, timeout_s: float | None = None) -> View | None:
        """The newest view, once it is newer than the adopted one; None: not within the time, or
        the worker is leaving."""
        self.wait(self._newer, timeout_s)
        return self._given if self._newer() else None

    def wait(self, until: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until it is so (that may change with what the agent says), or the worker is to
        leave, or the time is over; whether it is so."""
        with self._changed:
            self._changed.wait_for(lambda: until() or self.leaving or self._failure, timeout_s)
            self._check()
            return until()

    def extend(self, extension: worker_messages.Extension) -> None:
        """Let somebody else have messages of its own on this line."""
        with self._changed:
            self._extension = extension
            self.nudge()

    def listen(self, news: Callable[[], None]) -> None:
        """Call `news` in the client's thread whenever something may have been heard. It must be
        short, and must not fail."""
        self._news = news
        self.nudge()

    @property
    def settings(self) -> tuple[tuple[str, str, int], ...]:
        """Changed settings: name, value, and the step at which it takes effect."""
        return self._settings

    def shares(self) -> list[WantedShare]:
        """The share that is wanted and not yet answered, if there is one. A newer attempt takes
        the place of an older one."""
        share = self._share
        return [] if share is None else [share]

    @property
    def leaving(self) -> bool:
        """Whether it is to leave at the next step boundary."""
        given = self._given
        return self._stopping or (given is not None and self.worker not in given.lanes)

    def close(self) -> None:
        """End the thread. What was said last is sent if the agent is there."""
        with self._changed:
            self._closed = True
            self.nudge()
        self._thread.join(_SEND_S)

    def fail(self, error: BaseException) -> None:
        """A thread of this worker has died: whoever says or hears something is told, and ends."""
        log.error("a thread of this worker has died", exc_info=error)
        with self._changed:
            self._failure = self._failure or unexpected("a thread of this worker", error)
            self._changed.notify_all()
        self._died(error)
        with suppress(Exception):  # it may be what has died, and is told if it asks for something
            self._news()

    @property
    def failed(self) -> bool:
        """Whether a thread of this worker has died."""
        return self._failure is not None

    # --- inside --------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _newer(self) -> bool:
        return self._given is not None and self._given.number > self._adopted

    def _asked_to_stop(self, _number: int, _frame: FrameType | None) -> None:
        # A handler may interrupt a holder of the lock, so it takes none; waiters look up by a
        # byte to the thread, which takes the lock for them.
        self._stopping = True
        self.nudge()

    def _report(self) -> None:
        self._check()
        self._state_waits = True
        self.nudge()

    def _answer(self, attempt: int, answer: bytes) -> None:
        with self._changed:
            if self._share is not None and self._share.attempt.number <= attempt:
                self._share = None
            self._answers[attempt] = answer
            for old in sorted(self._answers)[:-ATTEMPTS_KEPT]:
                del self._answers[old]
            self._unsent.add(attempt)
            self.nudge()

    def _leave_word(self, word: str) -> None:
        """A file, not a message: the agent may be away, and the shim reads it at the end."""
        unfinished = self.folder / f"{worker_messages.WORD_NAME}.tmp"
        try:
            unfinished.write_text(word)
        except PermissionError:
            # The folder is not ours, for the job's queue has a user; this file is, and is empty.
            (self.folder / worker_messages.WORD_NAME).write_text(word)
            return
        unfinished.rename(self.folder / worker_messages.WORD_NAME)

    def _state(self) -> bytes:
        say = values.Say(
            self._ready,
            self._adopted,
            self._step,
            sorted(self._unreadable),
            sorted(self._suspects),
            bool(self._waits),
            self._ending,
            self._metrics,
            self._unreadable_why,
        )
        return values.line("say", say)

    def nudge(self) -> None:
        """Something is to be sent, or has changed for those who wait."""
        if os.getpid() != self._pid:
            raise Usage(
                "the agent client of a worker was used in a forked process",
                why="a forked process has neither its thread nor its state",
                fix="call it in the process that made it",
            )
        with suppress(BlockingIOError):  # enough nudges wait already
            self._waker.send(b"!")

    def _run(self) -> None:
        again = Backoff(AGENT_RETRY_S, AGENT_RETRY_S_MAX)
        while not self._closed:
            try:
                with _connect(self.folder, _SEND_S) as line:
                    again.succeeded()
                    self._talk(line)
            except (OSError, Refused) as error:
                if isinstance(error, Refused):
                    log.warning("the agent's line was refused", reason=str(error))
                self._wait(again.failed())

    def _wait(self, seconds: float) -> None:
        """Wait for the next attempt; a nudge only wakes those who wait in this process."""
        until_s = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        while not self._closed and (left_s := until_s - time.monotonic()) > 0:
            poll.poll(left_s * 1000)
            self._drain_nudges()

    def _talk(self, line: socket.socket) -> None:
        """Say everything, then what changes, and now and then the same again; hear what comes.
        Returns only when closed."""
        with self._changed:
            self._state_waits, self._unsent, self._anew = True, set(self._answers), True
        poll = select.poll()
        for each in (line, self._wake):
            poll.register(each, select.POLLIN)
        pending, sent_s = b"", 0.0
        while True:
            sent_s = self._send(line, sent_s)
            if self._closed:
                return
            until_s = sent_s + (STEP_REPORT_S if self._step_waits else WORKER_BEAT_S)
            ready = dict(poll.poll(max(0.0, until_s - time.monotonic()) * 1000))
            self._drain_nudges()
            if line.fileno() in ready:
                pending = self._receive(line, pending)

    def _send(self, line: socket.socket, sent_s: float) -> float:
        """Send what waits; the time when the state was last said."""
        now_s = time.monotonic()
        with self._changed:
            step_due = self._step_waits and (now_s >= sent_s + STEP_REPORT_S or self._closed)
            due = self._state_waits or step_due or now_s >= sent_s + WORKER_BEAT_S
            waiting = [self._state()] if due else []
            if due:
                self._state_waits = self._step_waits = False
            waiting += [self._answers[one] for one in sorted(self._unsent) if one in self._answers]
            self._unsent.clear()
            if self._extension is not None:
                waiting.append(self._extension.unsent(anew=self._anew))
                self._anew = False
        line.sendall(b"".join(waiting))
        return now_s if due else sent_s

    def _receive(self, line: socket.socket, pending: bytes) -> bytes:
        data = line.recv(64 * 1024)
        if not data:
            raise ConnectionResetError("the agent has gone")
        *lines, rest = (pending + data).split(b"\n")
        if len(rest) > CHANNEL_MESSAGE_BYTES_MAX:
            raise worker_messages.not_understood(rest)
        for raw in lines:
            kind, body = worker_messages.parse(raw)
            more = self._extension
            with self._changed:
                try:
                    if more is not None and kind in more.kinds:
                        more.receive(kind, body)
                    else:
                        self._receive_order(kind, body)
                except (KeyError, TypeError, ValueError) as error:
                    raise worker_messages.not_understood(raw, error) from error
                self._changed.notify_all()
        self._news()
        return rest

    def _drain_nudges(self) -> None:
        with suppress(BlockingIOError):  # there was none: the time was over
            self._wake.recv(4096)
        with self._changed:
            self._changed.notify_all()
        self._news()

    def _receive_order(self, kind: str, body: Any) -> None:
        if kind not in values.ORDER_KINDS:
            log.warning("the agent says what is not known", kind=kind[:50])
            return
        match values.order_of(kind, body):
            case GiveView(view=view):
                if self._given is None or view.number > self._given.number:
                    self._given = view
            case GiveSettings(settings=settings):
                # Settings are only added to, so a shorter list is an older one.
                if len(settings) >= len(self._settings):
                    self._settings = settings
            case TakeShare(attempt=attempt, share=share, shares=shares):
                known = self._share.attempt.number if self._share else 0
                if attempt.number > max(known, *self._answers, 0):
                    self._share = WantedShare(attempt, share, shares)
            case StopWorker():
                self._stopping = True


def _connect(folder: Path, timeout_s: float) -> socket.socket:
    """A socket to the agent that listens in this folder; `OSError`: none does."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.settimeout(timeout_s)
        line.connect(worker_messages.socket_path(handle))
    except OSError:
        line.close()
        raise
    finally:
        os.close(handle)
    return line
