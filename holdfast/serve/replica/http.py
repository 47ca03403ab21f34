"""The REST surface of a replica, as an application for granian's RSGI.

Answers name the version, the arm, the replica and the region that gave them. Errors are
`{"error": ...}` with a status that says whose fault it was; nobody is shown a stack trace.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, Never, Protocol

import msgspec
from granian._granian import RSGIProtocolClosed, RSGIProtocolError

from holdfast.serve.protocol import openapi
from holdfast.serve.protocol.errors import body_of, status_of
from holdfast.serve.protocol.marks import (
    ARM,
    DIRECT,
    GATEWAY_REGION,
    INSTEAD,
    NOT_HERE,
    REGION,
    REPLICA,
    VERSION,
    number_of,
)
from holdfast.serve.protocol.rest import HEADER_LENGTH, header_length_of
from holdfast.serve.protocol.values import Answer, Request
from holdfast.serve.replica import describing, plain
from holdfast.serve.replica.batching import Pace
from holdfast.serve.replica.engine import Engine, Held
from holdfast.serve.replica.paths import Place, Route, route_of
from holdfast.wire import documents, logs
from holdfast.wire.errors import (
    Cancelled,
    Full,
    HoldfastError,
    Missing,
    NotHere,
    TimedOut,
    TooLarge,
    Usage,
)
from holdfast.wire.limits import BODIES_BYTES_MAX, BODY_S, HTTP_ROUTES_MAX, RETRY_AFTER_S

_JSON: Final = ("content-type", "application/json")
_TEXT: Final = ("content-type", "text/plain; version=0.0.4; charset=utf-8")
# A body whose announced size has fewer digits is small: it is taken as it comes.
_SMALL_DIGITS: Final = 5

log = logs.get(__name__)

Headers = list[tuple[str, str]]


class _Headers(Protocol):
    def get(self, key: str, default: Any = None) -> Any: ...


class Scope(Protocol):
    """What granian says of a request."""

    @property
    def proto(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def headers(self) -> _Headers: ...


class Talk(Protocol):
    """What granian lets us do with a request."""

    async def __call__(self) -> bytes: ...
    def __aiter__(self) -> Any: ...
    def client_disconnect(self) -> Any: ...
    def response_bytes(self, status: int, headers: Headers, body: bytes) -> None: ...


class App:
    """Answers HTTP requests with the engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.active = 0  # requests for a model that were taken and not answered yet
        self.last_s = time.monotonic()  # when the last of them came
        self._bodies = 0  # bytes of those that are not small
        self._routes: dict[str, Route | None] = {}
        self._marks: dict[tuple[int, str, str], Headers] = {}

    async def __rsgi__(self, scope: Scope, talk: Talk) -> None:
        route = self._route(scope.path)
        if route is None:
            what = f"there is nothing at {scope.path[:200]}"
            self._fail(talk, Missing(what, fix="GET /openapi.json"))
            return
        try:
            if scope.method != route.method:
                self._wrong_method(talk, route)
            elif route.method == "POST":
                await self._model(scope, talk, route)
            else:
                self._tell(scope, talk, route)
        except (RSGIProtocolClosed, RSGIProtocolError) as error:  # the client has hung up
            log.debug("a request was not finished", reason=str(error))
        except Exception as error:
            self._fail(talk, error)

    # --- a model's answers -----------------------------------------------------------------------

    async def _model(self, scope: Scope, talk: Talk, route: Route) -> None:
        headers = scope.headers
        asked = headers.get(VERSION)
        held = self._held(route, asked, None if asked is None else headers.get(INSTEAD))
        held.chosen += 1
        large = 0
        self.active += 1
        self.last_s = time.monotonic()
        try:
            announced = headers.get("content-length")
            if announced is not None and len(announced) < _SMALL_DIGITS:
                body = await talk()
                if len(body) > self.engine.service.limits.body_bytes_max:
                    self._refuse_size()
            else:
                large = self._room_for(announced)
                body = await self._gathered(talk)
            arm, region = DIRECT, ""
            # A gateway sends all of these, others none. A version in the path is the client's own.
            if asked is not None and route.version is None:
                arm, region = headers.get(ARM) or DIRECT, headers.get(GATEWAY_REGION) or ""
            if route.place is Place.PREDICT:
                await self._predict(talk, held, body, arm, region)
                return
            codec, record = held.codec, held.record
            request = codec.decode(body, header_length_of(headers.get(HEADER_LENGTH)))
            request.model, request.version = record.model, record.number
            request.arm, request.region = arm, region
            if held.batcher.pace is Pace.LONG:
                answer = await self._answer(talk, request, held)
            else:
                answer = await self.engine.infer(request, held)
            written, described = codec.encode(answer, request)
            marks = self._marked(answer.version, arm, described["content-type"])
            if len(described) > 1:
                marks = [*marks, *(pair for pair in described.items() if pair[0] != _JSON[0])]
            talk.response_bytes(200, marks, written)
        finally:
            self.active -= 1
            self._bodies -= large
            held.chosen -= 1

    async def _predict(self, talk: Talk, held: Held, body: bytes, arm: str, region: str) -> None:
        record = held.record
        request, row = plain.decode(held.codec, body)
        request.model, request.version = record.model, record.number
        request.arm, request.region = arm, region
        answer = await self._answer(talk, request, held)
        written = plain.encode(held.codec, answer, row=row)
        talk.response_bytes(200, self._marked(answer.version, arm, _JSON[1]), written)

    async def _answer(self, talk: Talk, request: Request, held: Held) -> Answer:
        """Compute it. What takes long is not computed for a client that has hung up."""
        if held.batcher.pace is not Pace.LONG:
            return await self.engine.infer(request, held)
        answer = asyncio.ensure_future(self.engine.infer(request, held))
        gone = talk.client_disconnect()
        gone.add_done_callback(lambda _: answer.cancel())
        try:
            return await answer
        except asyncio.CancelledError:
            if not gone.done():
                raise
            raise Cancelled("the client has hung up") from None
        finally:
            gone.cancel()

    def _held(self, route: Route, asked: str | None, instead: str | None = None) -> Held:
        """The version that is to answer. A gateway's choice that is not here is `NotHere`: it asks
        another replica, or has named the version that answers instead. What only the path asks for
        is `Missing`."""
        self._known(route.model)
        if route.version is None:
            try:
                return self.engine.held(None if asked is None else number_of(asked))
            except NotHere:
                if instead is None:
                    raise
                return self.engine.held(number_of(instead))
        number = number_of(route.version)
        try:
            return self.engine.held(number)
        except NotHere as error:
            if asked is not None and number_of(asked) == number:
                raise
            raise Missing(error.what, why=error.why, fix=error.fix) from error

    def _known(self, model: str) -> None:
        if not self.engine.knows(model):
            raise Missing(
                f"there is no model {model[:100]!r} here",
                why=f"this replica serves {self.engine.service.model}",
                fix=f"ask for /v2/models/{self.engine.service.model}",
            )

    def _refuse_size(self) -> Never:
        raise _too_large(self.engine.service.limits.body_bytes_max)

    def _room_for(self, announced: str | None) -> int:
        """Make room for a body that is not small, or of which nobody knows; so many bytes."""
        most = self.engine.service.limits.body_bytes_max
        known = announced is not None and announced.isdecimal()
        size = int(announced[:20]) if announced is not None and known else most
        if size > most:
            self._refuse_size()
        if self._bodies + size > max(BODIES_BYTES_MAX, most):
            raise Full(
                "too many large requests are here at once",
                why=f"they have {self._bodies} bytes",
                fix="try again later, or add replicas: holdfast scale",
            )
        self._bodies += size
        return size

    async def _gathered(self, talk: Talk) -> bytes:
        """The whole body, within the service's bound, in time."""
        most = self.engine.service.limits.body_bytes_max
        pieces, size = [], 0
        try:
            async with asyncio.timeout(BODY_S):
                async for piece in talk:
                    size += len(piece)
                    if size > most:
                        self._refuse_size()
                    pieces.append(piece)
        except TimeoutError as error:
            raise TimedOut(f"the body did not come within {BODY_S:g} s") from error
        return b"".join(pieces)

    def _marked(self, version: int, arm: str, content_type: str) -> Headers:
        """Who answered, as headers. The same list again and again: nobody changes it."""
        key = (version, arm, content_type)
        found = self._marks.get(key)
        if found is None:
            if len(self._marks) >= HTTP_ROUTES_MAX:  # arms come from outside
                self._marks.clear()
            found = self._marks[key] = [
                ("content-type", content_type),
                (VERSION, str(version)),
                (ARM, arm if arm.isascii() and arm.isprintable() else DIRECT),
                *self._who(),
            ]
        return found

    def _who(self) -> Headers:
        return [
            (REPLICA, str(self.engine.worker)),
            (REGION, self.engine.region),
        ]

    # --- what it says of itself ------------------------------------------------------------------

    def _tell(self, scope: Scope, talk: Talk, route: Route) -> None:
        engine = self.engine
        match route.place:
            case Place.LIVE:
                _send_health(talk, "live", engine.live())
            case Place.READY:
                _send_health(talk, "ready", engine.ready())
            case Place.MODEL_READY:
                self._known(route.model)
                version = None if route.version is None else number_of(route.version)
                if version is not None and version not in engine.versions:
                    self._held(route, None)
                _send_health(talk, "ready", engine.ready(version))
            case Place.MODEL:
                held = self._held(route, scope.headers.get(VERSION))
                found = describing.model(engine, held.record)
                marks = self._marked(held.record.number, DIRECT, _JSON[1])
                talk.response_bytes(200, marks, msgspec.json.encode(found))
            case Place.SERVER:
                _send(talk, describing.server())
            case Place.STATS:
                _send(talk, documents.document(engine.stats()))
            case Place.METRICS:
                talk.response_bytes(200, [_TEXT], describing.metrics(engine).encode())
            case _:
                self._send_description(talk)

    def _send_description(self, talk: Talk) -> None:
        service = self.engine.service
        try:
            record = self.engine.signature(None)
        except NotHere:
            record = None
        _send(talk, openapi.document(record, model=service.model, names=(service.name,)))

    def _wrong_method(self, talk: Talk, route: Route) -> None:
        error = Usage(f"this takes {route.method} only", fix="GET /openapi.json")
        talk.response_bytes(405, [_JSON, ("allow", route.method)], body_of(error))

    def _fail(self, talk: Talk, error: Exception) -> None:
        status = status_of(error)
        headers = [_JSON, *self._who()]
        if isinstance(error, NotHere):
            headers.append((NOT_HERE, "1"))
        if isinstance(error, NotHere | Full):
            headers.append(("retry-after", str(RETRY_AFTER_S)))
        if not isinstance(error, HoldfastError):
            log.error("a request failed in a way nobody expected", exc_info=error)
        talk.response_bytes(status, headers, body_of(error))

    def _route(self, path: str) -> Route | None:
        try:
            return self._routes[path]
        except KeyError:
            if len(self._routes) >= HTTP_ROUTES_MAX:  # paths come from outside
                self._routes.clear()
            found = self._routes[path] = route_of(path)
            return found


def _too_large(most: int) -> TooLarge:
    return TooLarge(
        f"the body has more than {most} bytes",
        why="that is the service's limit",
        fix="send less at once, or raise the limit of the service",
    )


def _send(talk: Talk, value: Any) -> None:
    talk.response_bytes(200, [_JSON], msgspec.json.encode(value))


def _send_health(talk: Talk, word: str, value: bool) -> None:
    talk.response_bytes(
        200 if value else 503,
        [_JSON],
        b'{"%s":%s}' % (word.encode(), b"true" if value else b"false"),
    )
