"""A TCP proxy before a broker that loses requests, or the answers to them: the connection breaks
instead. Clients reach it because the broker tells them the proxy's address."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from typing import Self

from holdfast.topics.broker.protocol.apis import Api
from tests.contract import framed
from tests.waiting import PATIENCE_S, eventually


class CuttingBroker:
    """Before the broker that `leads_to` names. Nothing is cut until asked for."""

    def __init__(self) -> None:
        self._upstream = 0
        self._lock = threading.Lock()
        self._wanted: list[tuple[int, bool, Callable[[], object]]] = []
        self._links: set[socket.socket] = set()
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.hosts = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def leads_to(self, port: int) -> None:
        self._upstream = port

    def lose_answer(
        self, api: Api, times: int = 1, then: Callable[[], object] = lambda: None
    ) -> None:
        """Of the next requests of this kind: the broker does it, and nobody hears of it. `then` is
        called before the connection is cut."""
        with self._lock:
            self._wanted += [(api.key, True, then)] * times

    def lose_request(
        self, api: Api, times: int = 1, then: Callable[[], object] = lambda: None
    ) -> None:
        """Of the next requests of this kind: the broker never sees it."""
        with self._lock:
            self._wanted += [(api.key, False, then)] * times

    def await_cuts(self) -> None:
        """Until all that was asked for was lost."""
        eventually(lambda: not self._wanted, "everything was cut", PATIENCE_S)

    def close(self) -> None:
        self._closed = True
        self._listener.close()
        with self._lock:
            links = tuple(self._links)
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
            with self._lock:
                self._links |= {client, server}
            doomed: dict[int, Callable[[], object]] = {}
            for work in (self._requests, self._answers):
                threading.Thread(target=work, args=(client, server, doomed), daemon=True).start()

    def _take(self, key: int) -> tuple[bool, Callable[[], object]] | None:
        """Whether the answer is lost to a request of this kind, or it itself; None: neither."""
        with self._lock:
            for at, (wanted, answer, then) in enumerate(self._wanted):
                if wanted == key:
                    del self._wanted[at]
                    return answer, then
        return None

    def _requests(
        self, client: socket.socket, server: socket.socket, doomed: dict[int, Callable[[], object]]
    ) -> None:
        while (frame := framed.read(client)) is not None:
            key, _, correlation = struct.unpack_from("!hhi", frame, 4)
            if (lost := self._take(key)) is not None:
                answer, then = lost
                if not answer:
                    then()
                    break
                doomed[correlation] = then
            if not framed.send(server, frame):
                break
        framed.end(server)

    def _answers(
        self, client: socket.socket, server: socket.socket, doomed: dict[int, Callable[[], object]]
    ) -> None:
        while (frame := framed.read(server)) is not None:
            then = doomed.get(struct.unpack_from("!i", frame, 4)[0])
            if then is not None:
                then()
                break
            if not framed.send(client, frame):
                break
        framed.end(client)
        framed.end(server)
