"""A member's port: answers what workers push and ask, and what other members need of it.

Every member has one, whether it serves names or not: it may have a copy, or be asked for what its
worker has seen. A thread for each connection; nothing here calls anybody else. Who does not prove
at once that it is of the job is sent away, before anything of what it sends counts.
"""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from holdfast.system import logs
from holdfast.system.job_credentials import Credentials
from holdfast.system.tasks import start_thread
from holdfast.train.members.mesh import listening
from holdfast.train.modes.asynchronous.messages import admitted, message, receive, send
from holdfast.train.states.state import TrainingState
from holdfast.wire.errors import Refused
from holdfast.wire.limits import THREAD_END_S

# Connections to a server: every member of a large job twice (its worker, and its maintenance loop).
ASYNC_CALLERS_MAX: Final = 2_048

log = logs.get(__name__)
Answer = Callable[[TrainingState], TrainingState]
_open: weakref.WeakSet[RequestServer] = weakref.WeakSet()


class RequestServer:
    """Listens at a worker's port; `answers` says what to do for each kind of request."""

    def __init__(
        self,
        credentials: Credentials,
        worker: int,
        address: tuple[str, int],
        answers: dict[str, Answer],
        failed: Callable[[BaseException], None],
    ) -> None:
        """`failed` is called if an answer could not be made, which should not be."""
        self._credentials = credentials
        self._worker = worker
        self._job = credentials.job
        self._failed = failed
        self._answers = answers
        self._closed = False
        self._lines: set[socket.socket] = set()
        self._unproven: dict[socket.socket, None] = {}  # of `_lines`, the oldest first
        self._listener = listening(*address)
        self._thread = start_thread(self._run, "holdfast-serve", failed)
        _open.add(self)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        self._closed = True
        for each in (self._listener, *list(self._lines)):
            with suppress(OSError):
                # Not that of a TLS socket, after which its calls go on without TLS.
                socket.socket.shutdown(each, socket.SHUT_RDWR)
        with suppress(OSError):
            self._listener.close()
        self._thread.join(THREAD_END_S)

    def _run(self) -> None:
        while not self._closed:
            try:
                line, _ = self._listener.accept()
            except ConnectionError:
                continue  # it has hung up already
            except OSError:
                if self._closed:
                    return
                raise  # nobody can reach this worker any more
            if len(self._lines) >= ASYNC_CALLERS_MAX:
                line.close()
                self._cut_unproven()
                continue
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._lines.add(line)
            self._unproven[line] = None
            answer = partial(self._serve, line)
            start_thread(answer, "holdfast-answer", self._failed, lasts="its connection ends it")

    def _cut_unproven(self) -> None:
        """Make room: strangers cannot keep members out, who come again."""
        for line in list(self._unproven)[:1]:
            with suppress(OSError):  # it has ended by itself
                line.shutdown(socket.SHUT_RDWR)

    def _admit(self, line: socket.socket) -> socket.socket:
        try:
            proven = admitted(line, self._credentials, self._worker)
        finally:
            self._unproven.pop(line, None)
        self._lines.discard(line)  # TLS may have taken it over
        self._lines.add(proven)
        if self._closed:
            raise EOFError("this worker ends")
        return proven

    def _serve(self, line: socket.socket) -> None:
        try:
            line = self._admit(line)
            while not self._closed:
                request = receive(line)
                send(line, self._answer(request))
        except (OSError, EOFError):
            pass  # the other side has gone: its next call is on a new connection
        except Refused as error:
            log.warning("a caller was sent away", job=self._job, why=error.why)
        except Exception as error:  # a bug: the worker's own thread raises it
            self._failed(error)  # before the caller knows
        finally:
            self._lines.discard(line)
            line.close()

    def _answer(self, request: TrainingState) -> TrainingState:
        kind, who = request.notes.get("ask"), request.notes.get("from", {})
        if who.get("job") != self._job or kind not in self._answers:
            raise Refused(
                "a request for another job came to a worker's port",
                why=f"it asks {kind!r} of job {who.get('job')!r}",
                fix="run all workers of a job with the same version",
            )
        return self._answers[kind](request)

    def _forked(self) -> None:
        with suppress(OSError):
            os.close(self._listener.detach())
        for line in list(self._lines):
            with suppress(OSError):
                os.close(line.detach())


def nothing(**notes: Any) -> TrainingState:
    """An answer without arrays."""
    return message(notes)


def _close_in_child() -> None:
    for server in list(_open):
        server._forked()


os.register_at_fork(after_in_child=_close_in_child)
