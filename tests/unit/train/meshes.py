"""Meshes for tests: real sockets on loopback, all members in this process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.system.job_credentials import Credentials
from holdfast.train.members.greeting import Epoch, Hello
from holdfast.train.members.listener import PeerListener
from holdfast.train.members.meeting import Meeting
from holdfast.train.members.mesh import Mesh, tune
from holdfast.train.members.tls import Connection, TlsSocket
from holdfast.train.members.wakeup import Wakeup
from tests.credentials import credentials

JOB = "job"
LIMIT_S = 120.0


@contextmanager
def meshes(count: int, shown: Credentials | None = None) -> Iterator[list[Mesh]]:
    """Everybody connected with everybody; with credentials: over TLS."""
    sockets: list[dict[int, Connection]] = [{} for _ in range(count)]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for high in range(count):
            for low in range(high):
                caller = socket.create_connection(listener.getsockname())
                accepted, _ = listener.accept()
                ends: tuple[Connection, Connection] = (caller, accepted)
                if shown is not None:
                    ends = with_tls(caller, accepted, shown)
                sockets[high][low], sockets[low][high] = map(tune, ends)
    found = [Mesh(worker, 1, 0, sockets[worker]) for worker in range(count)]
    try:
        yield found
    finally:
        for mesh in found:
            mesh.close()


def with_tls(
    caller: socket.socket, accepted: socket.socket, shown: Credentials
) -> tuple[TlsSocket, TlsSocket]:
    """Both ends of a connection, with TLS on it."""
    ends = (
        TlsSocket(caller, shown.client, server=False),
        TlsSocket(accepted, shown.server, server=True),
    )
    until_s = time.monotonic() + LIMIT_S
    waiting = list(ends)
    while waiting:
        assert time.monotonic() < until_s, "the handshake does not end"
        waiting = [end for end in waiting if not end.handshake()]
    return ends


class Listeners:
    """Listeners of some workers, each with its own wakeup, as if each were a process."""

    def __init__(self, count: int, shown: Credentials | None = None) -> None:
        self.wakeups = [Wakeup() for _ in range(count)]
        shown = shown or credentials(JOB)
        self.listeners = [
            PeerListener(shown, n, "127.0.0.1", 0, self.wakeups[n]) for n in range(count)
        ]
        self.addresses = {
            n: "{}:{}".format(*listener.address) for n, listener in enumerate(self.listeners)
        }
        self.suspected: dict[int, set[int]] = {n: set() for n in range(count)}

    def __enter__(self) -> Listeners:
        return self

    def __exit__(self, *exc: object) -> None:
        for listener in self.listeners:
            listener.close()

    def meet(
        self,
        worker: int,
        members: list[int],
        *,
        view: int = 1,
        round_: int = 0,
        step: int | None = None,
        over: Callable[[], bool] = lambda: False,
    ) -> tuple[Mesh, Meeting] | None:
        """One member's part; to be called in a thread of its own."""
        mine = Hello("meet", JOB, worker, -1, Epoch(view, round_), step)
        peers = [peer for peer in members if peer != worker]
        addresses = {peer: self.addresses[peer] for peer in members}
        meeting = Meeting(self.listeners[worker], self.wakeups[worker], mine, addresses, peers)
        if not meeting.run(over, self.suspected[worker].update):
            return None
        sockets = {peer: tune(sock) for peer, sock in meeting.sockets.items()}
        mesh = Mesh(worker, view, round_, sockets)
        self.listeners[worker].met(mesh.close)
        return mesh, meeting


class Thread(threading.Thread):
    """A call in a thread; `result` waits for it, and raises what it raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._result: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        self.join(LIMIT_S)
        assert not self.is_alive(), "it still waits"
        if self._error is not None:
            raise self._error
        return self._result
