"""A request as it came over HTTP, until it is answered."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from holdfast.serve.replica.engine import Held
from holdfast.serve.replica.paths import Route

# A body that nobody asked for, or of a request that is refused, is read up to this size, and the
# connection stays; a larger one is not read.
HTTP_IGNORED_BODY_BYTES_MAX: Final = 64 * 1024


class Line(Protocol):
    """The connection that a request came by."""

    def reply(self, asked: Asked, head: bytes, body: bytes) -> None: ...


class Asked:
    """One request. The first part says what came, the second belongs to whoever answers.

    `length`: of the body as it was announced; None: it comes in chunks. `keeps`: whether the
    connection stays after the answer. `cut`: the body was not read to its end, and will not be.
    `most`: so many bytes of a body are read. `refused`: what it is answered, whatever it asks for;
    with `status`, if that is not what the error itself means. `pending`: what is computed for it
    alone, and not any more when its client has gone.
    """

    __slots__ = (
        "body",
        "cut",
        "headers",
        "held",
        "keeps",
        "length",
        "line",
        "method",
        "most",
        "pending",
        "refused",
        "room",
        "route",
        "status",
        "target",
    )

    def __init__(
        self, line: Line, method: bytes, target: bytes, headers: dict[bytes, bytes]
    ) -> None:
        self.line = line
        self.method = method
        self.target = target
        self.headers = headers
        self.body: bytes | bytearray = b""
        self.length: int | None = 0
        self.keeps = True
        self.cut = False
        self.most = HTTP_IGNORED_BODY_BYTES_MAX
        self.refused: Exception | None = None
        self.status = 0
        self.route: Route | None = None
        self.held: Held | None = None
        self.room = 0
        self.pending: asyncio.Future[object] | None = None

    def header(self, name: bytes) -> str | None:
        """The value of a header; `name` in small letters."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def reply(self, head: bytes, body: bytes) -> None:
        """Answer it, once. `head` is what `replies.head_of` gives."""
        self.line.reply(self, head, body)


class Answering(Protocol):
    """What answers requests: for each one `begin`, then `answer` unless its client goes before,
    and `ended` when it is over in either way."""

    def begin(self, asked: Asked) -> None:
        """Its head has come: say how much of its body is read. Must not raise."""

    def answer(self, asked: Asked) -> None:
        """All of it has come, or it is `cut`. `asked.reply` now or later. Must not raise."""

    def ended(self, asked: Asked) -> None:
        """It was answered, or its client has gone."""
