"""A request as it came over HTTP, until it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from enum import Enum
from http import HTTPStatus
from typing import Final, NamedTuple, Protocol
from urllib.parse import unquote

from holdfast.serve.replica.engine import HeldVersion

# A body that nobody asked for, or of a request that is refused, is read up to this size, and the
# connection stays; a larger one is not read.
HTTP_IGNORED_BODY_BYTES_MAX: Final = 64 * 1024


class HttpResponder(Protocol):
    """The connection that a request came by."""

    def reply(self, call: HttpRequest, head: bytes, body: bytes) -> None: ...


class HttpRequest:
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
        "reserved_bytes",
        "route",
        "status",
        "target",
    )

    def __init__(
        self, line: HttpResponder, method: bytes, target: bytes, headers: dict[bytes, bytes]
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
        self.held: HeldVersion | None = None
        self.reserved_bytes = 0
        self.pending: asyncio.Future[object] | None = None

    def header(self, name: bytes) -> str | None:
        """The value of a header; `name` in small letters."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def reply(self, head: bytes, body: bytes) -> None:
        """Answer it, once. `head` is what `replies.head_of` gives."""
        self.line.reply(self, head, body)


class HttpApp(Protocol):
    """What answers requests: for each one `begin`, then `answer` unless its client goes before,
    and `ended` when it is over in either way."""

    def begin(self, call: HttpRequest) -> None:
        """Its head has come: say how much of its body is read. Must not raise."""

    def answer(self, call: HttpRequest) -> None:
        """All of it has come, or it is `cut`. `call.reply` now or later. Must not raise."""

    def ended(self, call: HttpRequest) -> None:
        """It was answered, or its client has gone."""


# --- replies --------------------------------------------------------------------------------------
# Answers as bytes of HTTP/1.1. Pure.


CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
CLOSE: Final = b"connection: close\r\n"
KEEP: Final = b"connection: keep-alive\r\n"  # for those who would not expect it

_REASONS: Final = {status.value: status.phrase for status in HTTPStatus}


def head_of(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    """The status line and the headers, without those that the connection adds, and without the
    empty line. A value that cannot stand in a header is left out with its name."""
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}"]
    lines += [f"{name}: {value}" for name, value in headers if value.isprintable()]
    return "\r\n".join([*lines, ""]).encode("latin-1", "replace")


def whole(head: bytes, more: bytes, body: bytes, *, bodiless: bool) -> bytes:
    """An answer in one piece. `bodiless`: it describes its body, and has none (to `HEAD`)."""
    if bodiless:
        return b"%b%bcontent-length: %d\r\n\r\n" % (head, more, len(body))
    return b"%b%bcontent-length: %d\r\n\r\n%b" % (head, more, len(body), body)


# --- paths ----------------------------------------------------------------------------------------
# Which part of the REST surface a path names. Pure.


class Endpoint(Enum):
    """A part of the surface."""

    SERVER = "server"
    LIVE = "live"
    READY = "ready"
    MODEL = "model"
    MODEL_READY = "model ready"
    INFER = "infer"
    PREDICT = "predict"
    CONFIG = "configuration"
    STATISTICS = "statistics"
    INDEX = "repository index"
    LOAD = "load"
    UNLOAD = "unload"
    V1_MODELS = "v1 models"
    V1_MODEL = "v1 model"
    V1_PREDICT = "v1 predict"
    STATS = "stats"
    METRICS = "metrics"
    OPENAPI = "openapi"


class Route(NamedTuple):
    """Where a path leads, and the one method that it takes there. `version`: as it stands in the
    path, None if it names none."""

    place: Endpoint
    model: str = ""
    version: str | None = None
    method: str = "GET"


_FIXED = {
    "v1/models": Endpoint.V1_MODELS,
    "v2/models/stats": Endpoint.STATISTICS,
    "v2": Endpoint.SERVER,
    "v2/health/live": Endpoint.LIVE,
    "v2/health/ready": Endpoint.READY,
    "holdfast/stats": Endpoint.STATS,
    "metrics": Endpoint.METRICS,
    "openapi.json": Endpoint.OPENAPI,
}
_OF_MODEL = {
    "": Endpoint.MODEL,
    "ready": Endpoint.MODEL_READY,
    "infer": Endpoint.INFER,
    "config": Endpoint.CONFIG,
    "stats": Endpoint.STATISTICS,
}
_OF_REPOSITORY = {"load": Endpoint.LOAD, "unload": Endpoint.UNLOAD}
_PREDICT = ":predict"


def path_of(target: bytes) -> str:
    """The path of a request's target, without the query; still quoted."""
    text = target.decode("latin-1").partition("?")[0].partition("#")[0]
    if text.startswith("/"):
        return text
    return "/" + text.partition("://")[2].partition("/")[2]  # a client that takes us for a proxy


def route_of(path: str) -> Route | None:
    """Where it leads; None: nowhere."""
    fixed = _FIXED.get(path.strip("/"))
    if fixed is not None:
        return Route(fixed)
    match [unquote(part) for part in path.strip("/").split("/")]:
        case ["predict", str(model)] if model:
            return Route(Endpoint.PREDICT, model, method="POST")
        case ["predict", str(model), "versions", str(version)] if model and version:
            return Route(Endpoint.PREDICT, model, version, "POST")
        case ["v2", "repository", "index"]:
            return Route(Endpoint.INDEX, method="POST")
        case ["v2", "repository", "models", str(model), ("load" | "unload") as what] if model:
            return Route(_OF_REPOSITORY[what], model, method="POST")
        case ["v1", "models", str(model)] if model:
            return _of_v1(model)
        case ["v2", "models", str(model), "versions", str(version), *rest] if model and version:
            return _of_model(model, version, rest)
        case ["v2", "models", str(model), *rest] if model:
            return _of_model(model, None, rest)
    return None


def _of_v1(last: str) -> Route:
    """What is to be done stands behind a colon."""
    model = last.removesuffix(_PREDICT)
    if model == last or not model:
        return Route(Endpoint.V1_MODEL, last)
    return Route(Endpoint.V1_PREDICT, model, method="POST")


def _of_model(model: str, version: str | None, rest: list[str]) -> Route | None:
    place = _OF_MODEL.get("/".join(rest))
    if place is None:
        return None
    return Route(place, model, version, "POST" if place is Endpoint.INFER else "GET")
