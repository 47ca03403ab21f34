"""TLS handshakes: who is connected and has not shown yet that he may be.

Nothing of a stranger reaches the server before his handshake is done. Until then he has a socket, a
bounded piece of memory and a bounded time, and there are only so many like him: when there is no
room, the oldest of that host goes which has the most of them. So a host that opens connections and
says nothing takes the place of its own, not of others.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from holdfast.coordination.embedded.connection import ClientConnection, ConnectionHost
from holdfast.system import logs
from holdfast.system.tasks import end, start_task
from holdfast.wire.limits import HANDSHAKE_S, SWEEP_S

# TLS handshakes that are not done, at the same time. Each takes some 50 KiB; a thousand machines
# that come back together are through in a few seconds, and those that had to go come again.
HANDSHAKES_MAX: Final = 512

log = logs.get(__name__)

# What says that this machine has no room for another connection; the listener is as good as before.
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Greeter:
    """Listens for a server that speaks TLS, and owns the handshakes that are not done. `died`: a
    part of it ended unexpectedly, and nobody can connect any more."""

    def __init__(
        self, server: ConnectionHost, context: ssl.SSLContext, died: Callable[[BaseException], None]
    ) -> None:
        self._server = server
        self._context = context
        self._died = died
        self._accepting: list[asyncio.Task[None]] = []
        self._pending: dict[asyncio.Task[None], socket.socket] = {}  # oldest first
        self._hosts: dict[asyncio.Task[None], str] = {}
        self.sockets: list[socket.socket] = []

    async def listen(self, host: str, port: int) -> None:
        """Listen wherever `host` is. `OSError`: it cannot."""
        loop, passive = self._server.loop, socket.AI_PASSIVE
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=passive)
        for family, _, _, _, address in dict.fromkeys(found):
            made = socket.create_server(address, family=family, backlog=1024)
            made.setblocking(False)
            self.sockets.append(made)
        for listener in self.sockets:
            self._accepting.append(start_task(self._accept(listener), "accept", self._died))

    async def close(self) -> None:
        """Listen no more, and end all handshakes that are not done."""
        await end(*self._accepting, *self._pending)
        for listener in self.sockets:
            listener.close()

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                link, address = await self._server.loop.sock_accept(listener)
            except OSError as error:
                if error.errno in _NO_ROOM:
                    log.warning("no connection can be accepted for now", error=str(error))
                    await asyncio.sleep(SWEEP_S)
                continue  # else it had gone before it was accepted
            self._begin(link, str(address[0]))

    def _begin(self, link: socket.socket, host: str) -> None:
        if len(self._pending) >= HANDSHAKES_MAX:
            self._cut_one()
        task = start_task(self._greet(link, host), "greet", self._broke)
        self._pending[task], self._hosts[task] = link, host
        task.add_done_callback(self._forget)

    async def _greet(self, link: socket.socket, host: str) -> None:
        try:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._server.loop.connect_accepted_socket(
                lambda: ClientConnection(self._server),
                link,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_S,
            )
        except OSError as error:  # of the connection, of TLS, or of the time that it has
            log.debug("a handshake failed", peer=host, error=str(error))

    def _cut_one(self) -> None:
        ((host, _),) = Counter(self._hosts.values()).most_common(1)
        oldest = next(task for task, its in self._hosts.items() if its == host)
        log.warning("a handshake was cut: too many at once", peer=host, limit=len(self._pending))
        with suppress(OSError):  # it has gone by itself
            self._pending[oldest].shutdown(socket.SHUT_RDWR)
        self._forget(oldest)
        oldest.cancel()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._pending.pop(task, None)
        self._hosts.pop(task, None)

    def _broke(self, error: BaseException) -> None:
        """One handshake, not the server: the others go on."""
        log.error("a handshake ended unexpectedly", error=repr(error))
