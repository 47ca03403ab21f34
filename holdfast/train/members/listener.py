"""Where a worker's peers find it: one listener for its whole life, served by a thread of its own.

The thread answers at once, whatever the rest of the worker computes: so a silent listener means
that the process does not run or cannot be reached. Who does not prove that it is of the job gets no
further than that (`CalledHandshake`). Callers for the present meeting are let in; those for a later
one wait here until the worker is there; those for an older one are told where it is.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from holdfast.system import logs
from holdfast.system.job_credentials import Credentials
from holdfast.system.tasks import WAITED, Died, start_thread
from holdfast.train.members.greeting import CalledHandshake, Epoch, FramedSocket, Hello, answer
from holdfast.train.members.mesh import listening
from holdfast.train.members.tls import Connection
from holdfast.train.members.wakeup import Wakeup
from holdfast.wire.errors import PeerLost, Refused
from holdfast.wire.handshake import Purpose, stranger
from holdfast.wire.limits import CALLERS_MAX, HELLO_S

# A worker tells a caller that has to wait that it is there.
WAIT_BEAT_S: Final = 1.0

log = logs.get(__name__)
_NOWHERE: Final = Epoch(0, 0)
_open: weakref.WeakSet[PeerListener] = weakref.WeakSet()


@dataclass(slots=True)
class _Caller:
    frames: FramedSocket
    admission: CalledHandshake
    until_s: float  # when it has to have said what it wants, or to have heard what it is told
    worker: int | None = None  # who it is, once it has proven it
    hello: Hello | None = None  # it waits with this one
    sent_s: float = 0.0  # when it was last told to wait
    welcome: bool = False  # it comes in when our greeting is sent
    leaves: bool = False  # when what it is told is sent


class PeerListener:
    """The listener of one worker. `wakeup` is set when somebody has come in, or when a later round
    of the present view is known; then also `moved` is called, in the listener's thread."""

    def __init__(
        self,
        credentials: Credentials,
        worker: int,
        host: str,
        port: int,
        wakeup: Wakeup,
        died: Died = WAITED,
    ) -> None:
        self.job = job = credentials.job
        self.worker = worker
        self.credentials = credentials
        self._wakeup = wakeup
        self._lock = threading.Lock()
        self._mine = Hello("meet", job, worker, -1, _NOWHERE)
        self._met = False
        self._arrived: dict[int, tuple[Connection, Hello]] = {}
        self._round = 0  # the latest that is known of the present view
        self._moved: Callable[[PeerLost], None] = lambda _why: None
        self._callers: dict[int, _Caller] = {}
        self._closed = False
        self._wake = Wakeup()
        self._socket = listening(host, port)
        self._socket.setblocking(False)
        self._thread = start_thread(self._run, "holdfast-listener", died)
        _open.add(self)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    # --- for the worker's own thread ------------------------------------------------------------

    def begin(self, mine: Hello) -> None:
        """This worker is in that meeting now, and brings this. Earlier callers are put out."""
        with self._lock:
            if mine.epoch.view != self._mine.epoch.view:
                self._round = 0
            self._round = max(self._round, mine.epoch.round)
            self._mine, self._met = mine, False
            self._put_out()
        self._wake.set()

    def arrivals(self) -> dict[int, tuple[Connection, Hello]]:
        """Who came in for the present meeting since the last question."""
        with self._lock:
            found, self._arrived = self._arrived, {}
            return found

    def met(self, moved: Callable[[PeerLost], None]) -> None:
        """The meeting is complete. `moved` is called as soon as a peer is known to meet again."""
        with self._lock:
            self._met, self._moved = True, moved
            late = next(iter(self._arrived), None)
            self._put_out()
        if late is not None:
            self._meet_again(late)

    @property
    def view(self) -> int:
        """The view of the present meeting."""
        return self._mine.epoch.view

    @property
    def round(self) -> int:
        """The latest round of the present view that is known: by ourselves or by a peer."""
        return self._round

    def note_epoch(self, epoch: Epoch) -> None:
        """A peer is in this meeting."""
        with self._lock:
            later = epoch.view == self._mine.epoch.view and epoch.round > self._round
            if later:
                self._round = epoch.round
        if later:
            self._wakeup.set()

    def close(self) -> None:
        self._closed = True
        self._wake.set()
        self._thread.join(1.0)

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while not self._closed:
            ready = dict(poll.poll(WAIT_BEAT_S * 500 if self._callers else None))
            self._wake.clear()
            if self._socket.fileno() in ready:
                self._let_in(poll)
            for fd, caller in list(self._callers.items()):
                if not self._serve(caller, ready.get(fd, 0)):
                    del self._callers[fd]
                    poll.unregister(fd)
                else:
                    events = select.POLLIN if caller.hello is None else select.POLLRDHUP
                    poll.modify(fd, events | (select.POLLOUT if caller.frames.sending else 0))
        self._socket.close()
        for caller in self._callers.values():
            caller.frames.close()
        with self._lock:
            self._put_out()

    def _let_in(self, poll: select.poll) -> None:
        with suppress(OSError):  # it has hung up already
            sock, _ = self._socket.accept()
            if len(self._callers) >= CALLERS_MAX and not self._cut_unproven(poll):
                sock.close()
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            admission = CalledHandshake(self.credentials, Purpose.MESH, self.worker)
            caller = _Caller(FramedSocket(sock), admission, time.monotonic() + HELLO_S)
            self._callers[sock.fileno()] = caller
            poll.register(sock, select.POLLIN)

    def _cut_unproven(self, poll: select.poll) -> bool:
        """Make room: cut the one that has been here longest without proving who it is, so that
        strangers cannot keep members out; whether there was one."""
        for fd, caller in self._callers.items():
            if caller.worker is None:
                poll.unregister(fd)
                del self._callers[fd]
                caller.frames.close()
                return True
        return False

    def _serve(self, caller: _Caller, event: int) -> bool:
        """Do what can be done for a caller; whether it is still ours."""
        stays: bool | None
        try:
            if event & select.POLLOUT or caller.frames.sending:
                caller.frames.flush()
            if caller.leaves:
                stays = caller.frames.sending and time.monotonic() < caller.until_s
            elif caller.hello is not None:
                stays = self._wait(caller, event)
            else:
                stays = self._read_hello(caller) if event else time.monotonic() < caller.until_s
        except (OSError, EOFError, Refused) as error:
            if isinstance(error, Refused):
                log.warning("a caller was sent away", job=self.job, why=error.why)
            caller.frames.close()
            return False
        if stays is None:  # it came in: the socket is somebody else's now
            return False
        if not stays:
            caller.frames.close()
        return stays

    def _read_hello(self, caller: _Caller) -> bool | None:
        if caller.worker is None:
            caller.worker = caller.admission.progress(caller.frames)
        body = None if caller.worker is None else caller.frames.next_frame()
        if body is None:
            return time.monotonic() < caller.until_s
        hello = Hello.of(body)
        if hello.worker != caller.worker:
            raise stranger(f"worker {caller.worker} says that it is worker {hello.worker}")
        if (hello.job, hello.to) != (self.job, self.worker) or hello.worker == self.worker:
            raise stranger(f"it looks for worker {hello.to} of job {hello.job!r}")
        if hello.kind == "probe":
            self._note(hello)
            return self._dismiss(caller, "here")
        caller.hello = hello
        return self._wait(caller, 0)

    def _wait(self, caller: _Caller, event: int) -> bool | None:
        """Let it in, send it away, or tell it now and then that we are here."""
        hello, now_s = caller.hello, time.monotonic()
        assert hello is not None
        if event & (select.POLLRDHUP | select.POLLHUP | select.POLLERR):
            return False
        self._note(hello)
        with self._lock:
            mine, met = self._mine, self._met
            if hello.epoch == mine.epoch and not met:
                return self._welcome(caller, hello)
        if caller.welcome:
            return False  # too late: it takes us for a member of a meeting that is over
        if hello.epoch == mine.epoch:
            self._meet_again(hello.worker)
        if hello.epoch <= mine.epoch:
            return self._dismiss(caller, "old")
        if now_s >= caller.sent_s + WAIT_BEAT_S:
            caller.sent_s = now_s
            caller.frames.say(answer("wait", mine.epoch))
        return True

    def _welcome(self, caller: _Caller, hello: Hello) -> bool | None:
        """Greet it, and let it in when the greeting is sent."""
        if not caller.welcome:
            caller.welcome = True
            caller.frames.say({**self._mine.body(), "to": hello.worker})
        if caller.frames.sending:
            return True
        former = self._arrived.pop(hello.worker, None)
        if former is not None:
            former[0].close()
        self._arrived[hello.worker] = (caller.frames.sock, hello)
        self._wakeup.set()
        return None

    def _dismiss(self, caller: _Caller, word: str) -> bool:
        with self._lock:
            where = Epoch(self._mine.epoch.view, self._round)
        caller.frames.say(answer(word, where))
        caller.leaves, caller.until_s = True, time.monotonic() + HELLO_S
        return caller.frames.sending

    def _note(self, hello: Hello) -> None:
        """Where a peer is: if it meets again in the view that we are in, our mesh is over."""
        self.note_epoch(hello.epoch)
        with self._lock:
            over = self._met and self._round > self._mine.epoch.round
            moved = self._moved
        if over:
            moved(PeerLost(f"worker {hello.worker} meets again", peer=hello.worker))

    def _meet_again(self, peer: int) -> None:
        """A peer calls for a meeting that we have completed: it has lost the connection."""
        with self._lock:
            self._round = max(self._round, self._mine.epoch.round + 1)
            moved = self._moved
        moved(PeerLost(f"worker {peer} has lost its connection", peer=peer))
        self._wakeup.set()

    def _put_out(self) -> None:
        for sock, _ in self._arrived.values():
            sock.close()
        self._arrived = {}

    def _forked(self) -> None:
        with suppress(OSError):
            os.close(self._socket.detach())
        for caller in self._callers.values():
            with suppress(OSError):
                os.close(caller.frames.sock.detach())


def _close_in_child() -> None:
    for listener in list(_open):
        listener._forked()


os.register_at_fork(after_in_child=_close_in_child)
