"""One client's socket: frames in, answers out, in order and within bounds.

It knows bytes and nothing of the tree; what a frame means is the server's business. Input is
parsed a bounded number of frames at a time, so that one client cannot hold up the others; a
client that asks faster than it is answered, or does not read its answers, is not read from.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol, cast

from holdfast.coordination.embedded.jute import INT
from holdfast.coordination.embedded.transactions import AuthIdentity

# `jute.maxbuffer`: a larger frame is refused by ZooKeeper too, so nothing larger can be relied on.
FRAME_BYTES_MAX: Final = 0xFFFFF
# Requests of one connection that wait for their turn; beyond it we stop reading its socket.
REQUESTS_PER_CONNECTION_MAX: Final = 4_096
# The same in bytes: a client's requests may be a megabyte each.
REQUEST_BYTES_PER_CONNECTION_MAX: Final = 16 * 1024 * 1024
# Frames of one client before the others have their turn: about three milliseconds.
FRAMES_PER_TURN_MAX: Final = 256
# Replies that a client does not read: from here on we stop reading its requests.
UNSENT_BYTES_SLOW: Final = 1024 * 1024
# Replies and events that a client does not read; beyond it the client is closed.
UNSENT_BYTES_MAX: Final = 64 * 1024 * 1024

NEW: Final = 0  # nothing has come yet: a word of four letters or a session may follow
OPENING: Final = 1  # the client has introduced itself; its session is on its way
OPEN: Final = 2
CLOSED: Final = 3


class ConnectionHost(Protocol):
    """What a connection needs of its server."""

    loop: asyncio.AbstractEventLoop

    def connected(self, link: ClientConnection) -> None: ...

    def disconnected(self, link: ClientConnection) -> None: ...

    def closing(self, link: ClientConnection) -> None: ...

    def overrun(self, link: ClientConnection) -> None: ...

    def word(self, link: ClientConnection, letters: bytes) -> bool: ...

    def frame(self, link: ClientConnection, frame: bytes) -> None: ...


class ClientConnection(asyncio.Protocol):
    """A socket, its session once it has one, and what it has shown to be."""

    __slots__ = (
        "_buffer",
        "_missing_bytes",
        "_out",
        "_paused",
        "_server",
        "identities",
        "identities_encoded",
        "pending",
        "pending_bytes",
        "phase",
        "received",
        "says_read_only",
        "sent",
        "session",
        "since_s",
        "transport",
    )

    def __init__(self, server: ConnectionHost) -> None:
        self._server = server
        self._buffer = bytearray()
        self._missing_bytes = 0
        self._out: list[bytes] = []
        self._paused: set[str] = set()
        self.phase = NEW
        self.session = 0
        self.says_read_only = True
        self.since_s = 0.0
        self.identities: tuple[AuthIdentity, ...] = ()
        self.identities_encoded = b""
        self.pending = 0  # entries of ours in the line
        self.pending_bytes = 0
        self.received = 0
        self.sent = 0
        self.transport: asyncio.Transport

    # --- what asyncio calls -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=UNSENT_BYTES_SLOW)
        self._server.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.phase = CLOSED
        self._buffer.clear()
        self._out.clear()
        self._server.disconnected(self)

    def data_received(self, data: bytes) -> None:
        if self.phase == CLOSED:
            return
        if self._buffer or self._paused:
            # A frame in pieces: look again only when all of it is there, or a client that sends
            # byte by byte would have us copy a megabyte for each of them.
            self._buffer += data
            if len(self._buffer) < self._missing_bytes or self._paused:
                return
            data = bytes(self._buffer)
            self._buffer.clear()
        self._parse(data)

    def pause_writing(self) -> None:
        self.hold("client reads too slowly")

    def resume_writing(self) -> None:
        self.release("client reads too slowly")

    # --- input --------------------------------------------------------------------------------

    def _parse(self, data: bytes) -> None:
        at = 0
        size = len(data)
        self._missing_bytes = 4
        budget = FRAMES_PER_TURN_MAX
        while size - at >= 4:
            if self.phase == NEW and self._server.word(self, data[at : at + 4]):
                return
            (length,) = INT.unpack_from(data, at)
            if not 0 <= length < FRAME_BYTES_MAX:
                self.abort()
                return
            end = at + 4 + length
            if end > size:
                self._missing_bytes = 4 + length
                break
            self._server.frame(self, data[at + 4 : end])
            self.received += 1
            at = end
            if self.phase == CLOSED:
                return
            budget -= 1
            if not budget:
                self.hold("others have their turn")
                self._server.loop.call_soon(self.release, "others have their turn")
            if self._paused:
                break
        if at < size:
            self._buffer += data[at:] if at else data
        self.flush()

    def hold(self, reason: str) -> None:
        """Read no more from this client until every reason is gone."""
        if not self._paused and self.phase != CLOSED and not self.transport.is_closing():
            self.transport.pause_reading()
        self._paused.add(reason)

    def release(self, reason: str) -> None:
        if reason not in self._paused:
            return
        self._paused.discard(reason)
        if self._paused or self.phase == CLOSED or self.transport.is_closing():
            return
        self.transport.resume_reading()
        if len(self._buffer) >= self._missing_bytes:
            data = bytes(self._buffer)
            self._buffer.clear()
            self._parse(data)

    def queued(self, size: int) -> None:
        """An entry of ours went into the line."""
        self.pending += 1
        self.pending_bytes += size
        if (
            self.pending >= REQUESTS_PER_CONNECTION_MAX
            or self.pending_bytes >= REQUEST_BYTES_PER_CONNECTION_MAX
        ):
            self.hold("its requests wait")

    def answered(self, size: int) -> None:
        """An entry of ours came out of the line."""
        self.pending -= 1
        self.pending_bytes -= size
        if (
            self._paused
            and self.pending < REQUESTS_PER_CONNECTION_MAX // 2
            and self.pending_bytes < REQUEST_BYTES_PER_CONNECTION_MAX // 2
        ):
            self.release("its requests wait")

    # --- output -------------------------------------------------------------------------------

    def push(self, data: bytes) -> None:
        """Add to what is sent at the next `flush`."""
        if self.phase != CLOSED:
            self._out.append(data)

    def flush(self) -> None:
        if not self._out:
            return
        out = self._out
        self.sent += len(out)
        if not self.transport.is_closing():
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))
            if self.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
                self._server.overrun(self)
                return
        out.clear()

    def close(self) -> None:
        """Send what is there, then end. The server sees to it that this does not take for ever."""
        if self.phase != CLOSED:
            self.flush()
            self.phase = CLOSED
            self._server.closing(self)
            self.transport.close()

    def abort(self) -> None:
        """End now, without a word."""
        if self.phase != CLOSED:
            self.phase = CLOSED
            self._out.clear()
        self.transport.abort()

    @property
    def peer(self) -> str:
        """The client's address, for people."""
        name = self.transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) and len(name) >= 2 else "unknown"
