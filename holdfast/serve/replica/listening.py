"""The HTTP server of a replica: its connections, in our own event loop."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from contextlib import suppress
from email.utils import formatdate
from typing import Final

import grpc
import grpc.aio

from holdfast.serve.protocol.grpc_server import GrpcBackend, serve_grpc
from holdfast.serve.replica.connection import HttpConnection, Patience
from holdfast.serve.replica.requests import HttpApp
from holdfast.system import logs
from holdfast.system.tasks import Tasks
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
        app: HttpApp,
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
        self._links: set[HttpConnection] = set()
        self._outside: deque[HttpConnection] = deque()  # with a request for which there was no room
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
                lambda: HttpConnection(self),
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

    def connected(self, link: HttpConnection) -> bool:
        if self.stopping or len(self._links) >= self._connections_max:
            return False
        self._links.add(link)
        return True

    def disconnected(self, link: HttpConnection) -> None:
        self._links.discard(link)
        if self._outside:
            with suppress(ValueError):
                self._outside.remove(link)
        if not self._links:
            self._empty.set()

    def enters(self, link: HttpConnection) -> bool:
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


# --- grpc listening -------------------------------------------------------------------------------
# The gRPC server of a replica, with the limit of its service.
#
# gRPC refuses a message at its announced length, before it is read; but the bound is fixed when a
# server is made. So a service with another limit gets another server on the same port. That is
# rare: at the start, when the plane has said what the service is, and when its users change the
# limit. Calls that have begun end in the server that took them, and gateways try the others again.


# A gRPC server whose limit has changed lets go of its port for the next one: within so long, and it
# is tried so often.
GRPC_PORT_S: Final = 10.0
GRPC_AGAIN_S: Final = 0.005

log = logs.get(__name__)


class GrpcListener:
    """Listens at one address for as long as it is not stopped."""

    def __init__(
        self,
        engine: GrpcBackend,
        host: str,
        port: int,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self._engine = engine
        self._credentials = credentials
        self._where = (host, port)
        self._server: grpc.aio.Server | None = None
        self._most = 0
        self._changed = asyncio.Event()
        self._ending = Tasks()

    async def start(self) -> None:
        """Listen; `Occupied`: somebody else has the port."""
        self._most = self._engine.service.limits.body_bytes_max
        self._server = await serve_grpc(self._engine, *self._where, self._credentials)

    def changed(self) -> None:
        """The service may have another limit."""
        self._changed.set()

    async def run(self) -> None:
        """Until it is cancelled: follow the limit."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._engine.service.limits.body_bytes_max != self._most:
                self._end(HTTP_STOP_S)
                await self._start_again()
                log.info("gRPC messages have another limit", bytes=self._most)

    async def stop(self) -> None:
        """Take no more calls, and end those that have begun."""
        self._end(HTTP_STOP_S)
        await self._ending.wait()

    def _end(self, wait_s: float) -> None:
        server, self._server = self._server, None
        if server is not None:
            self._ending.start(server.stop(wait_s), "grpc-end")

    async def _start_again(self) -> None:
        """The former server lets go of the port in a moment."""
        until_s = time.monotonic() + GRPC_PORT_S
        while True:
            try:
                await self.start()
            except Occupied:
                if time.monotonic() > until_s:
                    raise
                await asyncio.sleep(GRPC_AGAIN_S)
            else:
                return
