"""One client's socket: requests in, answers out, in order and within bounds.

A request that is answered at once costs no task and no further turn of the loop. Requests that come
before the last one was answered wait, and no more is read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol, cast

from holdfast.serve.replica import replies
from holdfast.serve.replica.asking import Answering, Asked
from holdfast.serve.replica.patience import Patience
from holdfast.serve.replica.reading import Reader
from holdfast.wire import logs
from holdfast.wire.errors import TimedOut
from holdfast.wire.limits import HTTP_PIECE_BYTES

# An answer of this size is not copied once more to stand in one piece with its head.
HTTP_COPIED_BYTES_MAX: Final = 64 * 1024
# Answers that were written and not taken by a client: from here on its next requests wait.
HTTP_UNSENT_BYTES_SLOW: Final = 256 * 1024

log = logs.get(__name__)

_HEAD: Final = b"HEAD"


class Host(Protocol):
    """What a connection needs of its server. `now_s` and `date` (a line of the head) are as old as
    the server's last look."""

    app: Answering
    loop: asyncio.AbstractEventLoop
    now_s: float
    date: bytes
    stopping: bool

    def connected(self, link: Connection) -> bool:
        """Whether there is room for one more."""

    def disconnected(self, link: Connection) -> None: ...

    def enters(self, link: Connection) -> bool:
        """Whether one more request may be answered now. If not, `link.go_on` when it may."""

    def leaves(self) -> None:
        """One that has entered was answered, or forgotten."""


class Connection(asyncio.Protocol):
    """A socket and the requests that are on it."""

    __slots__ = (
        "_current",
        "_ended",
        "_finished",
        "_full",
        "_host",
        "_kept",
        "_paused",
        "_reader",
        "_since_s",
        "_transport",
        "_unsent",
        "_waiting",
        "app",
    )

    def __init__(self, host: Host) -> None:
        self.app = host.app
        self._host = host
        self._reader = Reader(self)
        self._transport: asyncio.Transport
        self._current: Asked | None = None  # all of it has come; it is being answered
        self._waiting: deque[Asked] = deque()  # those that came meanwhile
        self._kept = b""  # what came behind them, unparsed
        self._ended = False  # the client sends nothing more
        self._paused = False  # nothing is read
        self._full = False  # the client does not read its answers
        self._finished = False  # the last answer was written
        self._since_s = host.now_s  # when it began what it does now
        self._unsent = 0  # bytes, when it was looked at last

    # --- what asyncio calls ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HTTP_UNSENT_BYTES_SLOW)
        if not self._host.connected(self):
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._finished = True
        self._drop()
        self._reader.close()
        self._host.disconnected(self)

    def data_received(self, data: bytes) -> None:
        if self._reader.deaf:
            return
        if self._waiting or self._kept:
            self._kept += data
        else:
            self._feed(data)

    def eof_received(self) -> bool:
        """The client sends nothing more. What is computed in the loop is answered; what would take
        long is not computed for a client that has hung up."""
        self._reader.deaf = self._ended = True
        current = self._current
        last = self._waiting[-1] if self._waiting else current
        if last is None or (current is not None and current.pending is not None):
            return False
        last.keeps = False
        return True

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self.go_on()

    # --- what the reader calls -------------------------------------------------------------------

    def began(self) -> None:
        self._since_s = self._host.now_s

    def take(self, asked: Asked) -> None:
        """It has come: its turn is now, or after those that came before."""
        if self._current is None and not self._waiting and not self._full:
            self._begin(asked)
        else:
            self._waiting.append(asked)

    def expected(self, asked: Asked) -> None:
        """Tell the client to send the body; not between the answers to others. Then it does so
        after a while by itself."""
        if self._current is None and not self._waiting:
            self._transport.write(replies.CONTINUE)

    # --- input -----------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        """Parse it, piece by piece; what comes behind a request that waits is kept."""
        reader = self._reader
        try:
            if len(data) <= HTTP_PIECE_BYTES:
                reader.feed(data)
            else:
                view = memoryview(data)
                for at in range(0, len(data), HTTP_PIECE_BYTES):
                    reader.feed(view[at : at + HTTP_PIECE_BYTES])
                    if self._waiting and not reader.deaf:
                        self._kept = data[at + HTTP_PIECE_BYTES :]
                        break
        except Exception:  # a fault of ours, on this connection: all others go on
            log.exception("a connection failed in a way nobody expected")
            self.abort()
        if self._waiting and not (self._paused or reader.deaf):
            self._paused = True
            self._transport.pause_reading()

    def go_on(self) -> None:
        """Take what waits, and read on, if nothing stands in the way any more."""
        if self._finished or self._full or self._current is not None:
            return
        if self._waiting:
            self._begin(self._waiting.popleft())
            return
        if self._kept:
            kept, self._kept = self._kept, b""
            self._feed(kept)
        if self._paused and not (self._waiting or self._kept or self._transport.is_closing()):
            self._paused = False
            self._transport.resume_reading()

    # --- answers ---------------------------------------------------------------------------------

    def _begin(self, asked: Asked) -> None:
        if self._host.enters(self):
            self._current = asked
            self.app.answer(asked)
        else:
            self._waiting.appendleft(asked)

    def reply(self, asked: Asked, head: bytes, body: bytes) -> None:
        """Write the answer to the request whose turn it is, and go on with the next."""
        if asked is not self._current:  # its client has gone
            return
        self._current = None
        host, transport = self._host, self._transport
        host.leaves()
        self.app.ended(asked)
        if transport.is_closing():
            return
        more = host.date
        if not asked.keeps or (host.stopping and not self._waiting):
            asked.keeps = False
            more += replies.CLOSE
        elif b"connection" in asked.headers and self._reader.is_old:
            more += replies.KEEP
        bodiless = asked.method == _HEAD
        if len(body) > HTTP_COPIED_BYTES_MAX and not bodiless:
            transport.writelines((replies.whole(head, more, body, bodiless=True), body))
        else:
            transport.write(replies.whole(head, more, body, bodiless=bodiless))
        self._since_s = host.now_s
        if not asked.keeps:
            self._finish(reading=asked.cut and not self._ended)
        elif self._waiting or self._kept or self._paused:
            host.loop.call_soon(self.go_on)

    def _finish(self, *, reading: bool) -> None:
        """The last answer was written. `reading`: the client may still be sending, and would lose
        the answer if we hung up now."""
        self._finished = self._reader.deaf = True
        if not reading:
            self._transport.close()
            return
        if self._transport.can_write_eof():  # TLS has no such thing: it is closed when it is idle
            self._transport.write_eof()
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    def _drop(self) -> None:
        """Forget all that was asked: nobody waits for it any more."""
        current, self._current = self._current, None
        if current is not None:
            self._host.leaves()
            self.app.ended(current)
            if current.pending is not None:
                current.pending.cancel()
        if self._reader.asked is not None:
            self.app.ended(self._reader.asked)
            self._reader.asked = None
        while self._waiting:
            self.app.ended(self._waiting.popleft())
        self._kept = b""

    # --- what the server calls -------------------------------------------------------------------

    def look(self, patience: Patience) -> None:
        """End what has taken too long."""
        now_s, reader = self._host.now_s, self._reader
        age_s = now_s - self._since_s
        unsent, before = self._transport.get_write_buffer_size(), self._unsent
        self._unsent = unsent
        if unsent:
            if unsent != before:
                self._since_s = now_s
            elif age_s > patience.unread_s:
                self.abort()
        elif self._finished:
            if age_s > patience.linger_s:
                self.abort()
        elif self._current is not None or self._waiting:
            pass  # whoever answers has limits of his own
        elif reader.asked is not None:
            if age_s > patience.body_s:
                asked = reader.asked
                asked.refused = TimedOut(f"the body did not come within {patience.body_s:g} s")
                reader.cut(asked)
        elif reader.in_head:
            if age_s > patience.head_s:
                reader.too_slow()
        elif age_s > patience.idle_s:
            self._finish(reading=False)

    def stop(self) -> None:
        """The server goes: an idle connection ends now, any other one with its last answer."""
        reader = self._reader
        if not (self._current or self._waiting or reader.asked or reader.in_head):
            self._finish(reading=False)

    def abort(self) -> None:
        """End it now, without a word."""
        self._reader.deaf = True
        self._transport.abort()
