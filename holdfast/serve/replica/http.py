"""The REST surface of a replica: what is answered to each request.

Answers name the version, the arm, the replica and the region that gave them. Errors are
`{"error": ...}` with a status that says whose fault it was; nobody is shown a stack trace.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Final

import msgspec

from holdfast.serve import settings
from holdfast.serve.guard import unknown
from holdfast.serve.protocol import management, openapi
from holdfast.serve.protocol.errors import body_of, status_of, too_large
from holdfast.serve.protocol.marks import (
    ARM,
    ATTEMPT,
    DIRECT,
    ELSEWHERE,
    GATEWAY_REGION,
    INSTEAD,
    NOT_HERE,
    REGION,
    REPLICA,
    SECRET,
    VERSION,
    number_of,
)
from holdfast.serve.protocol.rest import HEADER_LENGTH, header_length_of
from holdfast.serve.protocol.values import Answer, Request
from holdfast.serve.replica import compression, describing, plain, v1
from holdfast.serve.replica.asking import Asked
from holdfast.serve.replica.batching import Pace
from holdfast.serve.replica.engine import Engine, Held
from holdfast.serve.replica.paths import Place, Route, path_of, route_of
from holdfast.serve.replica.replies import head_of
from holdfast.wire import documents, logs
from holdfast.wire.errors import Full, HoldfastError, Missing, NotHere, TooLarge, Usage
from holdfast.wire.limits import RETRY_AFTER_S

# Paths, and marks of answers, that are remembered: both come from outside.
HTTP_ROUTES_MAX: Final = 1_024
# Longer ones are not.
HTTP_REMEMBERED_BYTES_MAX: Final = 1_024
# A body of which no more is announced is small: nobody counts it.
HTTP_SMALL_BODY_BYTES_MAX: Final = 10_000

_JSON: Final = ("content-type", "application/json")
_TEXT: Final = ("content-type", "text/plain; version=0.0.4; charset=utf-8")
_PLAIN: Final = head_of(200, [_JSON])
_ARM: Final = ARM.encode()
_GATEWAY_REGION: Final = GATEWAY_REGION.encode()
_HEADER_LENGTH: Final = HEADER_LENGTH.encode()
_INSTEAD: Final = INSTEAD.encode()
_SECRET: Final = SECRET.encode()
_VERSION: Final = VERSION.encode()
_ATTEMPT: Final = ATTEMPT.encode()
# What anybody may ask: whether it is there, and numbers without names.
_PUBLIC: Final = (Place.LIVE, Place.READY, Place.METRICS)
_COMPUTING: Final = (Place.INFER, Place.PREDICT, Place.V1_PREDICT)
_PACKED: Final = b"content-encoding"
_WISH: Final = b"accept-encoding"
_UNKNOWN_PACKING: Final = 415

log = logs.get(__name__)

Headers = list[tuple[str, str]]


class App:
    """Answers HTTP requests with the engine (`asking.Answering`)."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.active = 0  # requests for a model that were taken and not answered yet
        self.last_s = time.monotonic()  # when the last of them came
        self.bodies = 0  # bytes of their bodies, but for small ones
        self._routes: dict[bytes, Route | None] = {}
        self._marks: dict[tuple[int, str, str], bytes] = {}

    def begin(self, asked: Asked) -> None:
        route = asked.route = self._route(asked.target)
        shown = asked.headers.pop(_SECRET, None)
        if (route is None or route.place not in _PUBLIC) and not self.engine.guard.admits(shown):
            asked.refused, asked.most = unknown(), 0
            return
        if route is None or route.place not in _COMPUTING or asked.method != b"POST":
            return
        try:
            version = asked.header(_VERSION)
            held = self._held(route, version, None if version is None else asked.header(_INSTEAD))
            self.engine.check_room(held)
            most = self.engine.service.limits.body_bytes_max
            # Of one that is packed nobody knows how long it is.
            length = None if _PACKED in asked.headers else asked.length
            if asked.length is not None and asked.length > most:
                raise self._too_large(asked.length)
            if length is None or length > HTTP_SMALL_BODY_BYTES_MAX:
                asked.room = self._room_for(length, most)
        except HoldfastError as error:
            asked.refused = error
            return
        asked.most = most
        asked.held = held
        held.chosen += 1
        self.active += 1
        self.last_s = time.monotonic()

    def ended(self, asked: Asked) -> None:
        held, asked.held = asked.held, None
        if held is not None:
            held.chosen -= 1
            self.active -= 1
            self.bodies -= asked.room

    def answer(self, asked: Asked) -> None:
        try:
            held, route = asked.held, asked.route
            if asked.refused is not None:
                self._fail(asked, asked.refused)
            elif held is not None:
                self._model(asked, held)
            elif route is None:
                what = f"there is nothing at {path_of(asked.target)[:200]}"
                raise Missing(  # noqa: TRY301
                    what, fix=f"GET /v2/models/{self.engine.service.name} says what is there"
                )
            elif asked.method != route.method.encode():
                self._wrong_method(asked, route)
            else:
                self._tell(asked, route)
        except Exception as error:
            self._fail(asked, error)

    # --- a model's answers -----------------------------------------------------------------------

    def _model(self, asked: Asked, held: Held) -> None:
        if asked.cut:
            raise self._too_large(asked.length)
        route, body = asked.route, bytes(asked.body)
        assert route is not None
        encoding = asked.headers.get(_PACKED)
        if encoding is not None:
            try:
                body = compression.unpacked(body, encoding, asked.most)
            except TooLarge as error:
                raise self._too_large(None) from error
        row: bool | None = None
        if route.place is Place.PREDICT:
            request, row = plain.decode(held.codec, body)
        elif route.place is Place.V1_PREDICT:
            request, row = v1.decode(held.codec, body)
        else:
            request = held.codec.decode(body, header_length_of(asked.header(_HEADER_LENGTH)))
        record = held.record
        request.model, request.version = record.model, record.number
        # A gateway sends all of these, others none. A version in the path is the client's own.
        request.arm = DIRECT
        if _VERSION in asked.headers and route.version is None:
            request.arm = asked.header(_ARM) or DIRECT
            request.region = asked.header(_GATEWAY_REGION) or ""
        # What takes long is not computed for a client that has hung up.
        long = held.batcher.pace is Pace.LONG
        pending = self.engine.ask(request, held, partial(self._done, asked, held, request, row))
        if long and asked.held is not None:
            asked.pending = pending

    def _done(
        self,
        asked: Asked,
        held: Held,
        request: Request,
        row: bool | None,
        found: Answer | BaseException,
    ) -> None:
        """The engine has answered. `row`: how it was asked by `/predict` or by the protocol v1;
        None: by the protocol v2."""
        try:
            if isinstance(found, BaseException):
                self._fail(asked, found)
            elif row is not None:
                head = self._marked(found.version, request.arm, _JSON[1])
                if asked.route is not None and asked.route.place is Place.V1_PREDICT:
                    _reply(asked, head, v1.encode(held.codec, found, by_row=row))
                else:
                    _reply(asked, head, plain.encode(held.codec, found, row=row))
            else:
                written, described = held.codec.encode(found, request)
                head = self._marked(found.version, request.arm, described["content-type"])
                length = described.get(HEADER_LENGTH)
                if length is not None:
                    head += f"{HEADER_LENGTH}: {length}\r\n".encode()
                _reply(asked, head, written)
        except Exception as error:
            self._fail(asked, error)

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

    def _room_for(self, length: int | None, most: int) -> int:
        """Make room for a body that is not small, or of which nobody knows; so many bytes."""
        size = most if length is None else length
        service = self.engine.service
        if size > most:
            raise self._too_large(length)
        together = max(service.limits.bodies_bytes_max, most)
        if self.bodies + size > together:
            more = settings.command(service.name, settings.BODIES, settings.size(2 * together))
            raise Full(
                "too many large requests are here at once",
                why=f"they have {self.bodies} bytes, and {together} are the limit of a replica",
                fix=f"try again later, or: {more}",
            )
        self.bodies += size
        return size

    def _too_large(self, length: int | None) -> TooLarge:
        return too_large(self.engine.service, length)

    def _marked(self, version: int, arm: str, content_type: str) -> bytes:
        """The head of an answer, with who gave it."""
        key = (version, arm, content_type)
        found = self._marks.get(key)
        if found is None:
            if len(self._marks) >= HTTP_ROUTES_MAX:  # arms come from outside
                self._marks.clear()
            headers = [
                ("content-type", content_type),
                (VERSION, str(version)),
                (ARM, arm if arm.isascii() and arm.isprintable() else DIRECT),
                *self._who(),
            ]
            found = head_of(200, headers)
            if len(arm) <= HTTP_REMEMBERED_BYTES_MAX:
                self._marks[key] = found
        return found

    def _who(self) -> Headers:
        return [
            (REPLICA, str(self.engine.worker)),
            (REGION, self.engine.region),
        ]

    # --- what it says of itself ------------------------------------------------------------------

    def _tell(self, asked: Asked, route: Route) -> None:
        engine = self.engine
        match route.place:
            case Place.LIVE:
                _send_health(asked, "live", engine.live())
            case Place.READY:
                _send_health(asked, "ready", engine.ready())
            case Place.MODEL_READY:
                self._known(route.model)
                version = None if route.version is None else number_of(route.version)
                if version is not None and version not in engine.versions:
                    self._held(route, None)
                _send_health(asked, "ready", engine.ready(version))
            case Place.MODEL:
                held = self._held(route, asked.header(_VERSION))
                found = describing.model(engine, held.record)
                marks = self._marked(held.record.number, DIRECT, _JSON[1])
                asked.reply(marks, msgspec.json.encode(found))
            case Place.CONFIG:
                held = self._held(route, asked.header(_VERSION))
                _send(asked, management.config(held.record))
            case Place.STATISTICS:
                _send(asked, management.statistics(engine, route.model, route.version or ""))
            case Place.INDEX:
                _send(asked, management.index(engine))
            case Place.LOAD:
                management.load(engine, route.model)
                _send(asked, {})
            case Place.UNLOAD:
                management.unload(engine, route.model)
            case Place.V1_MODELS:
                _send(asked, {"models": [engine.service.model]})
            case Place.V1_MODEL:
                self._tell_v1(asked, route)
            case Place.SERVER:
                _send(asked, describing.server())
            case Place.STATS:
                _send(asked, documents.document(engine.stats()))
            case Place.METRICS:
                asked.reply(head_of(200, [_TEXT]), describing.metrics(engine).encode())
            case _:
                self._send_description(asked)

    def _tell_v1(self, asked: Asked, route: Route) -> None:
        self._known(route.model)
        ready = self.engine.ready()
        head = _PLAIN if ready else head_of(503, [_JSON])
        asked.reply(head, msgspec.json.encode({"name": route.model, "ready": ready}))

    def _send_description(self, asked: Asked) -> None:
        service = self.engine.service
        try:
            record = self.engine.signature(None)
        except NotHere:
            record = None
        names, gateway = (service.name,), _VERSION in asked.headers
        found = openapi.document(record, model=service.model, names=names, gateway=gateway)
        _send(asked, found)

    def _wrong_method(self, asked: Asked, route: Route) -> None:
        fix = f"{route.method} {path_of(asked.target)[:200]}"
        error = Usage(f"this takes {route.method} only", fix=fix)
        asked.reply(head_of(405, [_JSON, ("allow", route.method)]), body_of(error))

    def _fail(self, asked: Asked, error: BaseException) -> None:
        status = asked.status or status_of(error)
        if isinstance(error, compression.Unknown):
            status = _UNKNOWN_PACKING
        headers = [_JSON, *self._who()]
        if isinstance(error, NotHere):
            headers.append((NOT_HERE, "1"))
        if isinstance(error, NotHere | Full):
            headers.append(("retry-after", str(RETRY_AFTER_S)))
        if isinstance(error, Full) and self.engine.try_elsewhere(asked.header(_ATTEMPT)):
            headers.append((ELSEWHERE, "1"))
        if not isinstance(error, HoldfastError):
            log.error("a request failed in a way nobody expected", exc_info=error)
        asked.reply(head_of(status, headers), body_of(error))

    def _route(self, target: bytes) -> Route | None:
        try:
            return self._routes[target]
        except KeyError:
            found = route_of(path_of(target))
            if len(self._routes) >= HTTP_ROUTES_MAX:  # paths come from outside
                self._routes.clear()
            if len(target) <= HTTP_REMEMBERED_BYTES_MAX:
                self._routes[target] = found
            return found


def _reply(asked: Asked, head: bytes, body: bytes) -> None:
    """A model's answer, packed if it is wanted so."""
    wish = asked.headers.get(_WISH)
    if wish is not None:
        body, name = compression.packed(body, wish)
        if name:
            head += b"content-encoding: %b\r\nvary: accept-encoding\r\n" % name
    asked.reply(head, body)


def _send(asked: Asked, value: Any) -> None:
    asked.reply(_PLAIN, msgspec.json.encode(value))


def _send_health(asked: Asked, word: str, value: bool) -> None:
    head = _PLAIN if value else head_of(503, [_JSON])
    asked.reply(head, b'{"%s":%s}' % (word.encode(), b"true" if value else b"false"))
