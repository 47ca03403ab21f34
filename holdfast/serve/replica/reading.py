"""What a client sends becomes requests, within bounds.

The parser (llhttp, by httptools) calls the `on_…` methods while it is fed. A request is handed on
when all of it has come. After what is no HTTP, or is refused before its end, nothing more is
parsed: the reader is deaf.
"""

from __future__ import annotations

from typing import Final, Protocol

import httptools

from holdfast.serve.replica.asking import Answering, Asked, Line
from holdfast.wire.errors import Usage
from holdfast.wire.limits import HTTP_PIECE_BYTES

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


class Taker(Line, Protocol):
    """Who takes the requests: a connection."""

    app: Answering

    def began(self) -> None: ...

    def take(self, asked: Asked) -> None: ...

    def expected(self, asked: Asked) -> None: ...


class Reader:
    """Reads for one connection. `asked`: the request whose head has come and whose body has not;
    `in_head`: whether one has begun whose head has not."""

    __slots__ = (
        "_fed",
        "_line",
        "_pairs",
        "_parser",
        "_target",
        "asked",
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
        self.asked: Asked | None = None
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
        elif self.asked is not None:
            self._fed += len(piece)
            if self._fed > HTTP_CHUNKED_FACTOR * self.asked.most + REQUEST_HEAD_BYTES_MAX:
                self.cut(self.asked)

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
        self.asked = asked = Asked(self._line, method, self._target, headers)
        asked.keeps = parser.should_keep_alive()
        announced = headers.get(b"content-length")
        if announced is not None:
            asked.length = int(announced) if announced.isdigit() else None
        elif b"transfer-encoding" in headers:
            asked.length = None
        if len(headers) > REQUEST_HEADERS_MAX:
            self._refuse(431, f"it has more than {REQUEST_HEADERS_MAX} headers")
        elif len(asked.target) > REQUEST_TARGET_BYTES_MAX:
            self._refuse(414, f"its path has more than {REQUEST_TARGET_BYTES_MAX} bytes")
        elif method == _CONNECT:
            self._refuse(405, "this is no proxy")
        else:
            self._line.app.begin(asked)
            if asked.length is not None and asked.length > asked.most:
                self.cut(asked)
            elif asked.length != 0 and headers.get(b"expect", b"").lower() == _CONTINUE:
                self._expected(asked)

    def on_body(self, piece: bytes) -> None:
        asked = self.asked
        if asked is None:
            return
        if not asked.body:
            asked.body = piece
        else:
            if type(asked.body) is bytes:
                asked.body = bytearray(asked.body)
            asked.body += piece
        if len(asked.body) > asked.most:
            self.cut(asked)

    def on_message_complete(self) -> None:
        asked = self.asked
        if asked is None:
            return
        self.asked = None
        if not asked.keeps:
            self.deaf = True
        if type(asked.body) is bytearray:
            asked.body = bytes(asked.body)
        self._line.take(asked)

    # --- what is not as usual --------------------------------------------------------------------

    def _without_upgrade(self) -> bytes:
        """We speak HTTP/1.1 and nothing else. The parser would not read the body of a request that
        asks for another protocol: so a new one gets its head again, without that wish."""
        old = self._parser
        version = old.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (old.get_method(), self._target, version)]
        lines += [b"%b: %b" % pair for pair in self._pairs.items() if pair[0].lower() != b"upgrade"]
        self._parser = httptools.HttpRequestParser(self)
        return b"\r\n".join([*lines, b"", b""])

    def _expected(self, asked: Asked) -> None:
        """The client waits for our word before it sends the body."""
        if asked.refused is not None:
            self.cut(asked)
        else:
            self._line.expected(asked)

    def _refuse(self, status: int, why: str) -> None:
        """What came is no request of ours. That is the last answer."""
        asked = self.asked
        if asked is None:
            asked = Asked(self._line, b"", b"", {})
        asked.refused = Usage("this is no request that a replica takes", why=why)
        asked.status = status
        self.cut(asked)

    def cut(self, asked: Asked) -> None:
        """Let it be answered without the rest of its body."""
        asked.cut, asked.keeps = True, False
        self.asked = None
        self.in_head = False
        self.deaf = True
        self._line.take(asked)
