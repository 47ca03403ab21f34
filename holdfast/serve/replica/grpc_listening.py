"""The gRPC server of a replica, with the limit of its service.

gRPC refuses a message at its announced length, before it is read; but the bound is fixed when a
server is made. So a service with another limit gets another server on the same port. That is rare:
at the start, when the plane has said what the service is, and when its users change the limit.
Calls that have begun end in the server that took them, and gateways try the others again.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import grpc
import grpc.aio

from holdfast.serve.protocol.grpc_server import Answering, serve_grpc
from holdfast.wire import logs
from holdfast.wire.errors import Occupied
from holdfast.wire.limits import HTTP_STOP_S
from holdfast.wire.tasks import Tasks

# A gRPC server whose limit has changed lets go of its port for the next one: within so long, and it
# is tried so often.
GRPC_PORT_S: Final = 10.0
GRPC_AGAIN_S: Final = 0.005

log = logs.get(__name__)


class GrpcListener:
    """Listens at one address for as long as it is not stopped."""

    def __init__(
        self,
        engine: Answering,
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
