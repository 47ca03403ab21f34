"""One connection of a mesh: a socket that others may shut at any time, and messages on their way
through it, in any number of calls."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from holdfast.train.members.tls import Connection, TlsSocket
from holdfast.wire.errors import Occupied
from holdfast.wire.limits import PEER_SILENCE_S

# Buffers in one call of the system; the kernel takes no more than 1,024.
BUFFERS_PER_CALL: Final = 512

_KEEPALIVE_S: Final = max(1, int(PEER_SILENCE_S / 3))


class Wire:
    """A connected socket with a count of who uses it.

    A descriptor that is closed while a call waits in it may be another file's before the call
    returns. So `shut` only ends the traffic, which wakes every call; the last user closes it.
    """

    def __init__(self, sock: Connection) -> None:
        self.sock = sock
        self._lock = threading.Lock()
        self._users = 0
        self._shut = False

    def enter(self) -> bool:
        """Begin to use it; False: it has been shut."""
        with self._lock:
            if self._shut:
                return False
            self._users += 1
            return True

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._shut and not self._users:
                self.sock.close()

    def shut(self) -> None:
        """End it, from any thread. Never blocks."""
        with self._lock:
            if self._shut:
                return
            self._shut = True
            with suppress(OSError):  # the other side was faster
                self.sock.shutdown(socket.SHUT_RDWR)
            if not self._users:
                self.sock.close()


def tune(sock: Connection) -> Connection:
    """A mesh's connection: it waits, sends at once, and notices when nobody answers."""
    sock.setblocking(True)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(PEER_SILENCE_S * 1000))
    return sock


def holds(sock: Connection) -> bool:
    """Whether bytes are here already of which no poll knows."""
    return isinstance(sock, TlsSocket) and sock.pending() > 0


def views_of(buffers: Iterable[Any]) -> list[memoryview]:
    """Flat views of whatever has the buffer protocol; empty ones are left out."""
    views = [memoryview(buffer).cast("B") for buffer in buffers]
    return [view for view in views if view.nbytes]


class Outbound:
    """Bytes on their way out."""

    def __init__(self, views: list[memoryview]) -> None:
        self._views = views
        self._at = 0

    def push(self, sock: Connection, flags: int = 0) -> bool:
        """Send as much as one call takes; whether all is sent."""
        if self._at < len(self._views):
            some = self._views[self._at : self._at + BUFFERS_PER_CALL]
            count = sock.sendmsg(some, (), flags | socket.MSG_NOSIGNAL)
            self._at = _advance(self._views, self._at, count)
        return self._at == len(self._views)


class Inbound:
    """Bytes on their way in. The first view is its own (a header): `head` is that view."""

    def __init__(self, views: list[memoryview]) -> None:
        self.head = views[0] if views else memoryview(b"")
        self._views = views
        self._at = 0

    @property
    def begun(self) -> bool:
        """Whether the header is complete."""
        return self._at > 0

    def pull(self, sock: Connection, flags: int = 0) -> bool:
        """Receive as much as one call gives; whether all is here. `EOFError` at the end.

        The header comes by itself: what follows may not be what is expected.
        """
        if self._at < len(self._views):
            end = 1 if self._at == 0 else self._at + BUFFERS_PER_CALL
            count = sock.recvmsg_into(self._views[self._at : end], 0, flags)[0]
            if not count:
                raise EOFError("the connection has ended")
            self._at = _advance(self._views, self._at, count)
        return self._at == len(self._views)


def _advance(views: list[memoryview], at: int, count: int) -> int:
    """The index of the first view that is not through; that one is cut to what is left of it."""
    while count:
        size = views[at].nbytes
        if count < size:
            views[at] = views[at][count:]
            break
        count -= size
        at += 1
    return at


def listening(host: str, port: int) -> socket.socket:
    """A socket on which this worker is called. `Occupied`: a stranger has the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise Occupied(
            f"this worker cannot listen at {host}:{port}",
            why=str(error),
            fix=f"see who does: ss -ltnp 'sport = :{port}'",
        ) from error
