"""The HTTP server of a replica: its connections, in our own event loop."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from contextlib import suppress
from email.utils import formatdate
from typing import Final

from holdfast.serve.replica.asking import Answering
from holdfast.serve.replica.connection import Connection
from holdfast.serve.replica.patience import Patience
from holdfast.wire.errors import Occupied
from holdfast.wire.limits import HTTP_STOP_S

# Connections of one replica: twice what one Envoy opens to all replicas of a version.
HTTP_CONNECTIONS_MAX: Final = 16_384
# Connections that wait to be accepted: gateways connect again all at once after a restart.
HTTP_BACKLOG: Final = 1_024
# Requests that a replica has in its hands at once, queues included; the rest waits in the sockets.
HTTP_REQUESTS_MAX: Final = 4_096


class Listener:
    """An application that is listened for at one address."""

    def __init__(
        self,
        app: Answering,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        patience: Patience | None = None,
        requests_max: int = HTTP_REQUESTS_MAX,
        connections_max: int = HTTP_CONNECTIONS_MAX,
    ) -> None:
        self.app = app
        self.loop = asyncio.get_running_loop()
        self.stopping = False
        self.now_s = 0.0
        self.date = b""
        self._host, self._port = host, port
        self._tls = tls
        self._patience = patience or Patience()
        self._requests_max = requests_max
        self._connections_max = connections_max
        self._requests = 0  # that are being answered
        self._links: set[Connection] = set()
        self._outside: deque[Connection] = deque()  # with a request for which there was no room
        self._empty = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def load(self) -> tuple[int, int]:
        """Requests that are being answered, and connections."""
        return self._requests, len(self._links)

    async def start(self) -> None:
        """Listen; returns when it answers. `Occupied`: somebody else has the port."""
        self._look()
        try:
            self._server = await self.loop.create_server(
                lambda: Connection(self),
                self._host,
                self._port,
                backlog=HTTP_BACKLOG,
                ssl=self._tls,
            )
        except OSError as error:
            raise Occupied(
                f"cannot listen on {self._host}:{self._port}",
                why=f"{type(error).__name__}: {error}",
                fix="choose another port, or stop the process that has it",
            ) from error

    async def stop(self, wait_s: float = HTTP_STOP_S) -> None:
        """Take no more connections, answer what has begun, and end those that are there."""
        if self._server is None:
            return
        self.stopping = True
        self._server.close()
        for link in list(self._links):
            link.stop()
        try:
            async with asyncio.timeout(wait_s):
                await self._without_links()
        except TimeoutError:
            for link in list(self._links):
                link.abort()
        if self._timer is not None:
            self._timer.cancel()

    async def _without_links(self) -> None:
        while self._links:
            self._empty.clear()
            await self._empty.wait()

    # --- what connections call -------------------------------------------------------------------

    def connected(self, link: Connection) -> bool:
        if self.stopping or len(self._links) >= self._connections_max:
            return False
        self._links.add(link)
        return True

    def disconnected(self, link: Connection) -> None:
        self._links.discard(link)
        if self._outside:
            with suppress(ValueError):
                self._outside.remove(link)
        if not self._links:
            self._empty.set()

    def enters(self, link: Connection) -> bool:
        if self._requests >= self._requests_max:
            self._outside.append(link)
            return False
        self._requests += 1
        return True

    def leaves(self) -> None:
        self._requests -= 1
        if self._outside:
            self.loop.call_soon(self._outside.popleft().go_on)

    # --- as time goes by -------------------------------------------------------------------------

    def _look(self) -> None:
        self.now_s = time.monotonic()
        self.date = f"date: {formatdate(usegmt=True)}\r\n".encode()
        self._timer = self.loop.call_later(self._patience.look_s, self._look)
        for link in list(self._links):
            link.look(self._patience)
        # Some of those that were let in had to wait for something else: their places are others'.
        for _ in range(min(len(self._outside), self._requests_max - self._requests)):
            self._outside.popleft().go_on()
