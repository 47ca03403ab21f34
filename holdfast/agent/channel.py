"""The agent's end of the sockets to its workers: one in each worker's folder.

Who can open the folder is the worker: there is no other proof, and none is needed on one machine.
A new connection takes the place of the one before it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from holdfast.agent import users
from holdfast.agent.events import Connected, Disconnected, Event, Key, PartsReport, WorkerReport
from holdfast.system import logs
from holdfast.wire import sharing, values, worker_messages
from holdfast.wire.errors import Refused, Usage
from holdfast.wire.limits import CHANNEL_MESSAGE_BYTES_MAX, UNREADABLE_WHY_CHARACTERS_MAX
from holdfast.wire.orders import GiveSettings, GiveView, StopWorker, TakeShare

# What waits for a worker that does not read; beyond it the connection is cut, and the worker is
# told everything again when it is back.
CHANNEL_UNSENT_BYTES_MAX: Final = 4 * 1024 * 1024

log = logs.get(__name__)

# Kinds of lines of a newer version, each named once on a connection.
_UNKNOWN_NAMED_MAX: Final = 20


class Channel:
    """The sockets of one agent. `heard` takes an event and returns when it has been dealt with:
    a worker that talks faster than the agent listens waits. `lost` takes the end of a line, and
    `shares` what a worker wants to share (`wire.sharing`)."""

    def __init__(
        self,
        heard: Callable[[Event], Awaitable[object]],
        lost: Callable[[Disconnected], object],
        shares: Callable[[Key, Any], None] = lambda _key, _body: None,
    ) -> None:
        self._heard = heard
        self._lost = lost
        self._shares = shares
        self._servers: dict[Key, asyncio.Server] = {}
        self._links: dict[Key, asyncio.StreamWriter] = {}

    async def open(self, key: Key, folder: Path) -> None:
        """Listen for this worker."""
        if key in self._servers:
            return
        listener = _listen(folder)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(key, reader, writer)

        self._servers[key] = await asyncio.start_unix_server(
            serve, sock=listener, limit=CHANNEL_MESSAGE_BYTES_MAX
        )

    def tell(self, key: Key, what: GiveView | GiveSettings | TakeShare | StopWorker) -> None:
        """Send it, if the worker is connected; otherwise it is told when it connects."""
        self.send(key, values.order_bytes(what) + b"\n")

    def send(self, key: Key, line: bytes) -> None:
        """Send this line, if the worker is connected."""
        writer = self._links.get(key)
        if writer is None:
            return
        if writer.transport.get_write_buffer_size() > CHANNEL_UNSENT_BYTES_MAX:
            log.warning("a worker does not read what it is told; it is cut off", worker=str(key))
            writer.transport.abort()
            return
        writer.write(line)

    def close(self, key: Key) -> None:
        """The worker has ended."""
        server = self._servers.pop(key, None)
        if server is not None:
            server.close()
        writer = self._links.pop(key, None)
        if writer is not None:
            writer.transport.abort()

    def close_all(self) -> None:
        for key in list(self._servers):
            self.close(key)

    async def _serve(
        self, key: Key, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        before = self._links.get(key)
        if before is not None:
            before.transport.abort()
        self._links[key] = writer
        try:
            await self._heard(Connected(key))
            unknown: set[str] = set()
            while raw := await reader.readline():
                kind, body = worker_messages.parse(raw)
                if kind == sharing.SHARED:
                    self._take_wants(key, raw, body)
                elif (event := _event(key, raw, kind, body)) is not None:
                    await self._heard(event)
                elif kind not in unknown and len(unknown) < _UNKNOWN_NAMED_MAX:
                    unknown.add(kind)
                    log.warning("a worker says what is not known", worker=str(key), kind=kind[:50])
        except ConnectionError:
            pass  # it ended, or it comes back: neither is news here
        except (Refused, Usage, ValueError) as error:
            log.warning("a worker's line was refused", worker=str(key), reason=str(error))
        finally:
            writer.transport.abort()
            if self._links.get(key) is writer:
                del self._links[key]
                self._lost(Disconnected(key))

    def _take_wants(self, key: Key, raw: bytes, body: Any) -> None:
        try:
            self._shares(key, body)
        except (KeyError, TypeError, ValueError) as error:
            raise worker_messages.not_understood(raw, error) from error


def _listen(folder: Path) -> socket.socket:
    """A socket in this folder; one that a dead agent left behind is replaced."""
    folder.mkdir(mode=0o700, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(FileNotFoundError):
            os.unlink(worker_messages.SOCKET_NAME, dir_fd=handle)
        listener.bind(worker_messages.socket_path(handle))
        users.give_socket(folder, worker_messages.socket_path(handle))
        listener.listen()
    finally:
        os.close(handle)
    return listener


def _event(key: Key, raw: bytes, kind: str, body: Any) -> Event | None:
    """What the worker says; None: it is of a kind that this version does not know."""
    if kind == "say":
        say = values.parse_body(values.Say, raw, body)
        return WorkerReport(
            key,
            say.ready,
            say.view,
            say.step,
            frozenset(say.unreadable),
            waits=say.waits,
            ending=say.ending,
            suspects=frozenset(say.suspects),
            metrics=say.metrics,
            beats=True,
            unreadable_why=say.unreadable_why[:UNREADABLE_WHY_CHARACTERS_MAX],
        )
    if kind == "parts":
        done = values.parse_body(values.SayParts, raw, body)
        return PartsReport(key, done.attempt, done.parts, done.missed)
    return None
