"""A TCP proxy that loses replies: it lets a request through, waits until the server has answered,
and cuts the connection instead of passing the answer on. Or that holds a request back until told,
also when its sender has died meanwhile."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Callable
from typing import Self

from holdfast.coordination.embedded import protocol
from tests.contract import framed

WRITES = frozenset(
    {
        protocol.CREATE,
        protocol.CREATE2,
        protocol.DELETE,
        protocol.SET_DATA,
        protocol.MULTI,
    }
)


class CuttingProxy:
    """In front of the server at `port`. Nothing is cut until asked for."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._lock = threading.Lock()
        self._decide: Callable[[int], bool] = lambda kind: False
        self._links: set[socket.socket] = set()
        self._clients: set[socket.socket] = set()
        self._closed = False
        self._dark = threading.Event()
        self._holds: int | None = None
        self._release = threading.Event()
        self.held = threading.Event()  # a request is held back
        self.answered = threading.Event()  # the server has answered the one that was held back
        self.cuts = 0
        self.drops_events = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_the_next(self, *kinds: int, then_dark: bool = False) -> None:
        """Lose the reply to the next request of one of these kinds (any write, if none).

        `then_dark`: and accept no connection after it, until `light_up`.
        """
        wanted = frozenset(kinds) or WRITES
        left = [1]

        def decide(kind: int) -> bool:
            if kind in wanted and left[0]:
                left[0] = 0
                if then_dark:
                    self._dark.set()
                return True
            return False

        with self._lock:
            self._decide = decide

    def cut_at_random(self, seed: int, part: float) -> None:
        """Lose the replies to this part of all writes."""
        chance = random.Random(seed)
        with self._lock:
            self._decide = lambda kind: kind in WRITES and chance.random() < part

    def hold_the_next(self, kind: int) -> None:
        """Keep the next request of this kind, and what follows it, until `release`."""
        for event in (self._release, self.held, self.answered):
            event.clear()
        with self._lock:
            self._holds = kind

    def release(self) -> None:
        self._release.set()

    def holds(self, kind: int) -> bool:
        """Wait, if a request of this kind is to be held back; whether it was."""
        with self._lock:
            if self._holds != kind:
                return False
            self._holds = None
        self.held.set()
        self._release.wait(60)
        return True

    def cut_nothing(self) -> None:
        with self._lock:
            self._decide = lambda kind: False

    def go_dark(self) -> None:
        """End all connections, and accept none until `light_up`."""
        self._dark.set()
        self._end_all()

    def light_up(self) -> None:
        self._dark.clear()

    def confuse(self) -> None:
        """Send every client an answer that it did not ask for."""
        with self._lock:
            clients = tuple(self._clients)
        for client in clients:
            framed.send(client, struct.pack("!iiqi", 16, 1_000_000, 1, 0))

    def close(self) -> None:
        self._closed = True
        self._listener.close()
        self._end_all()

    def _end_all(self) -> None:
        with self._lock:
            links = tuple(self._links)
            self._links.clear()
            self._clients.clear()
        for link in links:
            framed.end(link)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._upstream), timeout=60)
            except OSError:
                continue
            server.settimeout(None)
            if self._dark.is_set():
                framed.end(client)
                framed.end(server)
                continue
            _Link(self, client, server)

    def register(self, client: socket.socket, server: socket.socket) -> None:
        with self._lock:
            self._links |= {client, server}
            self._clients.add(client)

    def loses(self, kind: int) -> bool:
        with self._lock:
            lost = self._decide(kind)
            self.cuts += lost
            return lost


class _Link:
    """One connection: frames of both directions, each on a thread."""

    def __init__(self, proxy: CuttingProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._doomed: set[int] = set()
        self._held: int | None = None
        proxy.register(client, server)
        threading.Thread(target=self._requests, daemon=True).start()
        threading.Thread(target=self._replies, daemon=True).start()

    def _requests(self) -> None:
        introduced = False
        while (frame := framed.read(self._client)) is not None:
            if introduced:
                xid, kind = struct.unpack_from("!ii", frame, 4)
                if self._proxy.loses(kind):
                    self._doomed.add(xid)
                if self._proxy.holds(kind):
                    self._held = xid
            introduced = True
            if not framed.send(self._server, frame):
                break
            if self._held is not None:
                self._proxy.answered.wait(60)  # its sender may be dead: do not hang up before
        framed.end(self._server)

    def _replies(self) -> None:
        """Also those to a client that has died meanwhile are read, until its requests are over: one
        of them may be held back, and hanging up now would lose it."""
        introduced, there = False, True
        while (frame := framed.read(self._server)) is not None:
            xid = struct.unpack_from("!i", frame, 4)[0]
            if introduced and xid in self._doomed:
                break  # the server has done it; the client will never hear of it
            if introduced and xid == protocol.XID_WATCH_EVENT and self._proxy.drops_events:
                continue
            if introduced and xid == self._held:
                self._proxy.answered.set()
            introduced = True
            there = there and framed.send(self._client, frame)
        framed.end(self._client)
        framed.end(self._server)
