"""The HTTP server of a replica: granian, embedded in our own event loop."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server

from holdfast.wire.errors import Occupied
from holdfast.wire.limits import (
    HTTP_BACKLOG,
    HTTP_IDLE_S,
    HTTP_REQUESTS_MAX,
    HTTP_START_S,
    HTTP_STOP_S,
    REQUEST_HEAD_BYTES_MAX,
)


class Listener:
    """An application that is listened for at one address."""

    def __init__(self, app: Any, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._server = Server(
            app,
            address=host,
            port=port,
            interface=Interfaces.RSGI,
            http=HTTPModes.http1,
            http1_settings=HTTP1Settings(
                header_read_timeout=int(HTTP_IDLE_S * 1000),
                max_buffer_size=REQUEST_HEAD_BYTES_MAX,
            ),
            websockets=False,
            backlog=HTTP_BACKLOG,
            backpressure=HTTP_REQUESTS_MAX,
            log_enabled=False,
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen; returns when it answers. `Occupied`: somebody else has the port."""
        self._task = asyncio.create_task(self._serve(), name="http")
        async with asyncio.timeout(HTTP_START_S):
            while not self._task.done():
                with suppress(OSError):
                    _, writer = await asyncio.open_connection(self._host, self._port)
                    writer.close()
                    return
                await asyncio.sleep(0.01)
        await self._task

    async def ended(self) -> None:
        """Wait for its end, which nobody wants; raises why."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def stop(self) -> None:
        """Take no more connections, and end those that are there."""
        if self._task is None:
            return
        self._server.stop()  # type: ignore[no-untyped-call]
        with suppress(TimeoutError):
            async with asyncio.timeout(HTTP_STOP_S):
                await asyncio.shield(self._task)
        self._task.cancel()

    async def _serve(self) -> None:
        try:
            await self._server.serve()
        except (OSError, RuntimeError) as error:
            raise Occupied(
                f"cannot listen on {self._host}:{self._port}",
                why=f"{type(error).__name__}: {error}",
                fix="choose another port, or stop the process that has it",
            ) from error
