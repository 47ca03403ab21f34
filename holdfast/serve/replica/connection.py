"""One client's socket: requests in, answers out, in order and within bounds.

A request that is answered at once costs no task and no further turn of the loop. Requests that come
before the last one was answered wait, and no more is read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol, cast

import httptools

from holdfast.serve.replica import requests
from holdfast.serve.replica.requests import HttpApp, HttpRequest, HttpResponder
from holdfast.system import logs
from holdfast.wire.errors import TimedOut, Usage
from holdfast.wire.limits import HTTP_PIECE_BYTES

# An answer of this size is not copied once more to stand in one piece with its head.
HTTP_COPIED_BYTES_MAX: Final = 64 * 1024
# Answers that were written and not taken by a client: from here on its next requests wait.
HTTP_UNSENT_BYTES_SLOW: Final = 256 * 1024

log = logs.get(__name__)

_HEAD: Final = b"HEAD"


class HttpServer(Protocol):
    """What a connection needs of its server. `now_s` and `date` (a line of the head) are as old as
    the server's last look."""

    app: HttpApp
    loop: asyncio.AbstractEventLoop
    now_s: float
    date: bytes
    stopping: bool

    def connected(self, link: HttpConnection) -> bool:
        """Whether there is room for one more."""

    def disconnected(self, link: HttpConnection) -> None: ...

    def enters(self, link: HttpConnection) -> bool:
        """Whether one more request may be answered now. If not, `link.go_on` when it may."""

    def leaves(self) -> None:
        """One that has entered was answered, or forgotten."""


class HttpConnection(asyncio.Protocol):
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

    def __init__(self, host: HttpServer) -> None:
        self.app = host.app
        self._host = host
        self._reader = HttpReader(self)
        self._transport: asyncio.Transport
        self._current: HttpRequest | None = None  # all of it has come; it is being answered
        self._waiting: deque[HttpRequest] = deque()  # those that came meanwhile
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

    def take(self, call: HttpRequest) -> None:
        """It has come: its turn is now, or after those that came before."""
        if self._current is None and not self._waiting and not self._full:
            self._begin(call)
        else:
            self._waiting.append(call)

    def expected(self, call: HttpRequest) -> None:
        """Tell the client to send the body; not between the answers to others. Then it does so
        after a while by itself."""
        if self._current is None and not self._waiting:
            self._transport.write(requests.CONTINUE)

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

    def _begin(self, call: HttpRequest) -> None:
        if self._host.enters(self):
            self._current = call
            self.app.answer(call)
        else:
            self._waiting.appendleft(call)

    def reply(self, call: HttpRequest, head: bytes, body: bytes) -> None:
        """Write the answer to the request whose turn it is, and go on with the next."""
        if call is not self._current:  # its client has gone
            return
        self._current = None
        host, transport = self._host, self._transport
        host.leaves()
        self.app.ended(call)
        if transport.is_closing():
            return
        more = host.date
        if not call.keeps or (host.stopping and not self._waiting):
            call.keeps = False
            more += requests.CLOSE
        elif b"connection" in call.headers and self._reader.is_old:
            more += requests.KEEP
        bodiless = call.method == _HEAD
        if len(body) > HTTP_COPIED_BYTES_MAX and not bodiless:
            transport.writelines((requests.whole(head, more, body, bodiless=True), body))
        else:
            transport.write(requests.whole(head, more, body, bodiless=bodiless))
        self._since_s = host.now_s
        if not call.keeps:
            self._finish(reading=call.cut and not self._ended)
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
        if self._reader.call is not None:
            self.app.ended(self._reader.call)
            self._reader.call = None
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
        elif reader.call is not None:
            if age_s > patience.body_s:
                call = reader.call
                call.refused = TimedOut(f"the body did not come within {patience.body_s:g} s")
                reader.cut(call)
        elif reader.in_head:
            if age_s > patience.head_s:
                reader.too_slow()
        elif age_s > patience.idle_s:
            self._finish(reading=False)

    def stop(self) -> None:
        """The server goes: an idle connection ends now, any other one with its last answer."""
        reader = self._reader
        if not (self._current or self._waiting or reader.call or reader.in_head):
            self._finish(reading=False)

    def abort(self) -> None:
        """End it now, without a word."""
        self._reader.deaf = True
        self._transport.abort()


# --- reading --------------------------------------------------------------------------------------
# What a client sends becomes requests, within bounds.
#
# The parser (llhttp, by httptools) calls the `on_…` methods while it is fed. A request is handed on
# when all of it has come. After what is no HTTP, or is refused before its end, nothing more is
# parsed: the reader is deaf.


# A head of a request, in bytes: Envoy's own limit is 60 KiB.
REQUEST_HEAD_BYTES_MAX: Final = 64 * 1024
# The part of it that is the path and the query.
REQUEST_TARGET_BYTES_MAX: Final = 32 * 1024
# Headers of one request; Envoy's own limit is 100.
REQUEST_HEADERS_MAX: Final = 128
# A body in chunks may be so many times longer on its way: chunks of one byte are.
HTTP_CHUNKED_FACTOR: Final = 8

_CONNECT: Final = b"CONNECT"
_CONTINUE: Final = b"100-continue"


class Taker(HttpResponder, Protocol):
    """Who takes the requests: a connection."""

    app: HttpApp

    def began(self) -> None: ...

    def take(self, call: HttpRequest) -> None: ...

    def expected(self, call: HttpRequest) -> None: ...


class HttpReader:
    """Reads for one connection. `call`: the request whose head has come and whose body has not;
    `in_head`: whether one has begun whose head has not."""

    __slots__ = (
        "_fed",
        "_line",
        "_pairs",
        "_parser",
        "_target",
        "call",
        "deaf",
        "in_head",
        "on_header",
    )

    def __init__(self, line: Taker) -> None:
        self._line = line
        self._pairs: dict[bytes, bytes] = {}  # headers of the present request, as they were written
        self.on_header = self._pairs.setdefault  # called by the parser, so often that it counts
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._fed = 0  # bytes of a head or a body that has not come to its end
        self.call: HttpRequest | None = None
        self.in_head = False
        self.deaf = False

    def feed(self, piece: bytes | memoryview) -> None:
        """Parse it. At most `HTTP_PIECE_BYTES`."""
        while not self.deaf:
            try:
                self._parser.feed_data(piece)
                break
            except httptools.HttpParserUpgrade as upgrade:
                piece = self._without_upgrade() + bytes(piece[upgrade.args[0] :])
            except httptools.HttpParserCallbackError as error:
                raise error.__context__ or error from None
            except httptools.HttpParserError as error:
                if not self.deaf:  # what comes after the last request is nobody's
                    self._refuse(400, str(error))
        if self.deaf:
            return
        if self.in_head:
            self._fed += len(piece)
            # It is counted in pieces: the first may have the end of something else in it.
            if self._fed > REQUEST_HEAD_BYTES_MAX + HTTP_PIECE_BYTES:
                self._refuse(431, f"its head has more than {REQUEST_HEAD_BYTES_MAX} bytes")
        elif self.call is not None:
            self._fed += len(piece)
            if self._fed > HTTP_CHUNKED_FACTOR * self.call.most + REQUEST_HEAD_BYTES_MAX:
                self.cut(self.call)

    def too_slow(self) -> None:
        """Its head did not come in time."""
        self._refuse(408, "its head did not come in time")

    def close(self) -> None:
        """The reader and the parser know each other: the collector need not find that out."""
        self.deaf = True
        del self._parser, self.on_header

    @property
    def is_old(self) -> bool:
        """Whether the last request was of HTTP/1.0."""
        return self._parser.get_http_version() == "1.0"

    # --- what the parser calls -------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.in_head = True
        self._pairs.clear()
        self._target = b""
        self._fed = 0
        self._line.began()

    def on_url(self, piece: bytes) -> None:
        self._target += piece

    def on_headers_complete(self) -> None:
        if self.deaf:
            return
        self.in_head = False
        parser = self._parser
        headers = {name.lower(): value for name, value in self._pairs.items()}
        method = parser.get_method()
        if b"upgrade" in headers and parser.should_upgrade() and method != _CONNECT:
            return  # `feed` goes on without it
        self.call = call = HttpRequest(self._line, method, self._target, headers)
        call.keeps = parser.should_keep_alive()
        announced = headers.get(b"content-length")
        if announced is not None:
            call.length = int(announced) if announced.isdigit() else None
        elif b"transfer-encoding" in headers:
            call.length = None
        if len(headers) > REQUEST_HEADERS_MAX:
            self._refuse(431, f"it has more than {REQUEST_HEADERS_MAX} headers")
        elif len(call.target) > REQUEST_TARGET_BYTES_MAX:
            self._refuse(414, f"its path has more than {REQUEST_TARGET_BYTES_MAX} bytes")
        elif method == _CONNECT:
            self._refuse(405, "this is no proxy")
        else:
            self._line.app.begin(call)
            if call.length is not None and call.length > call.most:
                self.cut(call)
            elif call.length != 0 and headers.get(b"expect", b"").lower() == _CONTINUE:
                self._expected(call)

    def on_body(self, piece: bytes) -> None:
        call = self.call
        if call is None:
            return
        if not call.body:
            call.body = piece
        else:
            if type(call.body) is bytes:
                call.body = bytearray(call.body)
            call.body += piece
        if len(call.body) > call.most:
            self.cut(call)

    def on_message_complete(self) -> None:
        call = self.call
        if call is None:
            return
        self.call = None
        if not call.keeps:
            self.deaf = True
        if type(call.body) is bytearray:
            call.body = bytes(call.body)
        self._line.take(call)

    # --- what is not as usual --------------------------------------------------------------------

    def _without_upgrade(self) -> bytes:
        """We speak HTTP/1.1 and nothing else. The parser would not read the body of a request that
        asks for another protocol: so a new one gets its head again, without that header."""
        old = self._parser
        version = old.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (old.get_method(), self._target, version)]
        lines += [b"%b: %b" % pair for pair in self._pairs.items() if pair[0].lower() != b"upgrade"]
        self._parser = httptools.HttpRequestParser(self)
        return b"\r\n".join([*lines, b"", b""])

    def _expected(self, call: HttpRequest) -> None:
        """The client waits for our word before it sends the body."""
        if call.refused is not None:
            self.cut(call)
        else:
            self._line.expected(call)

    def _refuse(self, status: int, why: str) -> None:
        """What came is no request of ours. That is the last answer."""
        call = self.call
        if call is None:
            call = HttpRequest(self._line, b"", b"", {})
        call.refused = Usage("this is no request that a replica takes", why=why)
        call.status = status
        self.cut(call)

    def cut(self, call: HttpRequest) -> None:
        """Let it be answered without the rest of its body."""
        call.cut, call.keeps = True, False
        self.call = None
        self.in_head = False
        self.deaf = True
        self._line.take(call)


# --- patience -------------------------------------------------------------------------------------
# How long a server waits for its clients.


# A client that sends its body slower than this is hung up on.
BODY_S: Final = 30.0
# A connection on which nothing comes is closed after this: longer than Envoy keeps an idle one, so
# that it is Envoy who closes it, and no request meets a connection that is being closed.
HTTP_IDLE_S: Final = 2 * 3600.0
# A head that has begun is there within this, or its client is hung up on.
HTTP_HEAD_S: Final = 10.0
# A client that reads nothing of its answer for so long is hung up on.
HTTP_UNREAD_S: Final = 30.0
# Who was refused before all was read may still be sending. What comes is thrown away for so long:
# to hang up earlier would lose the answer on its way.
HTTP_LINGER_S: Final = 5.0
# How often connections are looked at for all of these.
HTTP_LOOK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Patience:
    """With a request's head and body, with one that does nothing, with one that does not read its
    answer, and with one that was refused and is still sending. `look_s`: how often that is seen."""

    head_s: float = HTTP_HEAD_S
    body_s: float = BODY_S
    idle_s: float = HTTP_IDLE_S
    unread_s: float = HTTP_UNREAD_S
    linger_s: float = HTTP_LINGER_S
    look_s: float = HTTP_LOOK_S
