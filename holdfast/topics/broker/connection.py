"""One client's socket: requests in, answers out in the order in which they were asked.

Kafka serves one request of a connection at a time; so do we, except that several Produce requests
may wait for the disk together and share its sync. A client that asks faster than it is answered,
or does not read its answers, is not read from.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import Final, Protocol, cast

from holdfast.topics.broker.incoming import IncomingMemory
from holdfast.topics.broker.protocol import apis
from holdfast.topics.broker.protocol.apis import Api
from holdfast.topics.broker.protocol.codec import Buffer

# `socket.request.max.bytes` of Kafka; a larger frame closes the connection.
FRAME_BYTES_MAX: Final = 100 * 1024 * 1024
# The same of who has not logged in: `sasl.server.max.receive.size`.
LOGIN_FRAME_BYTES_MAX: Final = 512 * 1024
# Requests of one connection that wait for their answers; clients have five in flight.
REQUESTS_MAX: Final = 64
REQUEST_BYTES_MAX: Final = 32 * 1024 * 1024
# Answers that a client does not read: from here on its requests wait.
UNSENT_BYTES_SLOW: Final = 1024 * 1024

_LENGTH: Final = struct.Struct("!i")


class KafkaHost(Protocol):
    """What a connection needs of its server."""

    loop: asyncio.AbstractEventLoop
    incoming: IncomingMemory

    def connected(self, link: KafkaConnection) -> None: ...

    def disconnected(self, link: KafkaConnection) -> None: ...

    def frame(self, link: KafkaConnection, frame: bytes) -> None: ...

    def takes_more(self, link: KafkaConnection) -> bool:
        """Whether another request may be begun; if not, `link.resume` is called later."""


class AnswerSlot:
    """A request's place in the order of answers; it is filled once."""

    __slots__ = ("answer", "is_produce", "link")

    def __init__(self, link: KafkaConnection, is_produce: bool) -> None:
        self.link = link
        self.is_produce = is_produce
        self.answer: list[Buffer] | None = None

    def fill(self, answer: list[Buffer]) -> None:
        """The answer; empty: there is none, and what follows need not wait for it."""
        if self.answer is None:
            self.answer = answer
            self.link.answered()


class KafkaConnection(asyncio.Protocol):
    """A socket, what it waits for, and whom it belongs to."""

    __slots__ = (
        "_buffer",
        "_closed",
        "_held",
        "_inbox",
        "_inbox_bytes",
        "_is_held_back",
        "_missing_bytes",
        "_noted_bytes",
        "_server",
        "_slots",
        "auth",
        "host",
        "is_slow",
        "principal",
        "since_s",
        "transport",
    )

    def __init__(self, server: KafkaHost) -> None:
        self._server = server
        self._buffer = bytearray()
        self._missing_bytes = 4
        self._inbox: deque[bytes] = deque()
        self._inbox_bytes = 0
        self._slots: deque[AnswerSlot] = deque()
        self._closed = False
        self._held = False
        self._is_held_back = False  # there is too much in memory of all connections
        self._noted_bytes = 0
        self.is_slow = False
        self.principal = ""  # who it has shown to be; "": nobody yet
        self.auth: object | None = None  # the conversation in which it shows that
        self.host = ""
        self.since_s = 0.0
        self.transport: asyncio.Transport

    # --- what asyncio calls -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=UNSENT_BYTES_SLOW)
        name = transport.get_extra_info("peername")
        self.host = str(name[0]) if isinstance(name, tuple) and name else "127.0.0.1"
        self._server.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._buffer = bytearray()
        self._inbox.clear()
        self._slots.clear()
        self._server.disconnected(self)

    def data_received(self, data: bytes) -> None:
        if self._closed:
            return
        if not self._buffer:
            self._cut_frames(data)
        else:
            self._buffer += data
            if len(self._buffer) < self._missing_bytes:
                self._note_memory()
                return  # a frame in pieces is looked at when all of it is there
            whole, self._buffer = self._buffer, bytearray()
            self._cut_frames(whole)
        self._serve()

    @property
    def missing_bytes(self) -> int:
        """What its frame lacks; 0: it has no half frame."""
        return self._missing_bytes - len(self._buffer) if self._buffer else 0

    def hold_reading(self, hold: bool) -> None:
        """Read no further until there is memory again, or go on."""
        self._is_held_back = hold
        self._hold_or_release()

    def _note_memory(self) -> None:
        size = len(self._buffer) + self._inbox_bytes
        if size != self._noted_bytes and not self._closed:
            self._noted_bytes = size
            self._server.incoming.note(self, size)

    def pause_writing(self) -> None:
        self.is_slow = True

    def resume_writing(self) -> None:
        self.is_slow = False
        self.resume()

    def resume(self) -> None:
        """Go on with the requests that have come."""
        self._serve()

    # --- requests -----------------------------------------------------------------------------

    def _cut_frames(self, data: bytes | bytearray) -> None:
        at, size = 0, len(data)
        most = FRAME_BYTES_MAX if self.principal else LOGIN_FRAME_BYTES_MAX
        self._missing_bytes = 4
        while size - at >= 4:
            (length,) = _LENGTH.unpack_from(data, at)
            if not 0 <= length <= most:
                self.abort()
                return
            end = at + 4 + length
            if end > size:
                self._missing_bytes = 4 + length
                break
            with memoryview(data) as view:
                self._inbox.append(bytes(view[at + 4 : end]))
            self._inbox_bytes += length
            at = end
        if at < size:
            self._buffer += data[at:] if at else data

    def _serve(self) -> None:
        """Hand over the requests whose turn it is."""
        while self._inbox and not self._closed and not self.is_slow:
            if self._slots and not self._may_overtake():
                break
            if not self._server.takes_more(self):
                break
            frame = self._inbox.popleft()
            self._inbox_bytes -= len(frame)
            self._server.frame(self, frame)
        self._note_memory()
        self._hold_or_release()

    def _may_overtake(self) -> bool:
        """Whether the next request may be begun while others wait: both are Produce."""
        is_produce = self._inbox[0][:2] == b"\0\0"
        return is_produce and len(self._slots) < REQUESTS_MAX and self._slots[-1].is_produce

    def _hold_or_release(self) -> None:
        if self._closed or self.transport.is_closing():
            return
        most = REQUEST_BYTES_MAX if self.principal else LOGIN_FRAME_BYTES_MAX
        full = len(self._inbox) >= REQUESTS_MAX or self._inbox_bytes >= most
        full = full or self._is_held_back
        if full and not self._held:
            self._held = True
            self.transport.pause_reading()
        elif self._held and not full:
            self._held = False
            self.transport.resume_reading()

    def open_slot(self, api: Api) -> AnswerSlot:
        """The place of an answer behind those that are asked for already."""
        slot = AnswerSlot(self, api is apis.PRODUCE)
        self._slots.append(slot)
        return slot

    # --- answers ------------------------------------------------------------------------------

    def answered(self) -> None:
        """A slot was filled: send what is complete from the front on."""
        slots = self._slots
        out: list[Buffer] = []
        while slots and slots[0].answer is not None:
            out += slots.popleft().answer or ()
        if out and not self._closed and not self.transport.is_closing():
            self.transport.writelines(out)
        if self._inbox and not self._closed:
            # Not here: whoever fills a slot may be in the middle of something.
            self._server.loop.call_soon(self._serve)

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._closed else self.transport.get_write_buffer_size()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Send what is there, then end."""
        if not self._closed:
            self._closed = True
            self.transport.close()

    def abort(self) -> None:
        """End now, without a word."""
        self._closed = True
        self.transport.abort()

    @property
    def peer(self) -> str:
        """The client's address, for people."""
        name = self.transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) and len(name) >= 2 else "unknown"
