"""The REST surface of a replica: what is answered to each request.

Answers name the version, the variant, the replica and the region that gave them. Errors are
`{"error": ...}` with a status that says whose fault it was; nobody is shown a stack trace.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import msgspec

from holdfast.models.records import TensorSpec, Version
from holdfast.serve import settings
from holdfast.serve.guard import unknown
from holdfast.serve.protocol import management, openapi
from holdfast.serve.protocol.errors import body_of, status_of, too_large
from holdfast.serve.protocol.marks import (
    ARM,
    ATTEMPT,
    DIRECT,
    ELSEWHERE,
    EXTENSIONS,
    GATEWAY_REGION,
    INSTEAD,
    NAME,
    NOT_HERE,
    REGION,
    REPLICA,
    REQUEST_ID,
    SECRET,
    VARIANT,
    VERSION,
    number_of,
    platform_of,
    release,
)
from holdfast.serve.protocol.rest import HEADER_LENGTH, header_length_of
from holdfast.serve.protocol.tensors import InferAnswer, InferRequest
from holdfast.serve.records import LATENCY_BOUNDS_MS, CacheCounts, Counts, PredictionCounts
from holdfast.serve.replica import bodies
from holdfast.serve.replica.batching import BatchPace
from holdfast.serve.replica.engine import Engine, HeldVersion
from holdfast.serve.replica.requests import Endpoint, HttpRequest, Route, head_of, path_of, route_of
from holdfast.system import logs
from holdfast.wire import documents
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
_VARIANT: Final = VARIANT.encode()
_GATEWAY_REGION: Final = GATEWAY_REGION.encode()
_HEADER_LENGTH: Final = HEADER_LENGTH.encode()
_INSTEAD: Final = INSTEAD.encode()
_SECRET: Final = SECRET.encode()
_VERSION: Final = VERSION.encode()
_ATTEMPT: Final = ATTEMPT.encode()
_REQUEST_ID: Final = REQUEST_ID.encode()
# What anybody may ask: whether it is there, and numbers without names.
_PUBLIC: Final = (Endpoint.LIVE, Endpoint.READY, Endpoint.METRICS)
_COMPUTING: Final = (Endpoint.INFER, Endpoint.PREDICT, Endpoint.V1_PREDICT)
_PACKED: Final = b"content-encoding"
_ACCEPT_ENCODING: Final = b"accept-encoding"
_UNKNOWN_PACKING: Final = 415

log = logs.get(__name__)

Headers = list[tuple[str, str]]


class App:
    """Answers HTTP requests with the engine (`requests.HttpApp`)."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.active = 0  # requests for a model that were taken and not answered yet
        self.last_s = time.monotonic()  # when the last of them came
        self.bodies = 0  # bytes of their bodies, but for small ones
        self._routes: dict[bytes, Route | None] = {}
        self._marks: dict[tuple[int, str, str], bytes] = {}

    def begin(self, call: HttpRequest) -> None:
        route = call.route = self._route(call.target)
        shown = call.headers.pop(_SECRET, None)
        if (route is None or route.place not in _PUBLIC) and not self.engine.guard.admits(shown):
            call.refused, call.most = unknown(), 0
            return
        if route is None or route.place not in _COMPUTING or call.method != b"POST":
            return
        try:
            version = call.header(_VERSION)
            held = self._held(route, version, None if version is None else call.header(_INSTEAD))
            self.engine.check_capacity(held)
            most = self.engine.service.limits.body_bytes_max
            # Of one that is packed nobody knows how long it is.
            length = None if _PACKED in call.headers else call.length
            if call.length is not None and call.length > most:
                raise self._too_large(call.length)
            if length is None or length > HTTP_SMALL_BODY_BYTES_MAX:
                call.reserved_bytes = self._reserve(length, most)
        except HoldfastError as error:
            call.refused = error
            return
        call.most = most
        call.held = held
        held.chosen += 1
        self.active += 1
        self.last_s = time.monotonic()

    def ended(self, call: HttpRequest) -> None:
        held, call.held = call.held, None
        if held is not None:
            held.chosen -= 1
            self.active -= 1
            self.bodies -= call.reserved_bytes

    def answer(self, call: HttpRequest) -> None:
        try:
            held, route = call.held, call.route
            if call.refused is not None:
                self._fail(call, call.refused)
            elif held is not None:
                self._model(call, held)
            elif route is None:
                what = f"there is nothing at {path_of(call.target)[:200]}"
                raise Missing(  # noqa: TRY301
                    what, fix=f"GET /v2/models/{self.engine.service.name} says what is there"
                )
            elif call.method != route.method.encode():
                self._wrong_method(call, route)
            else:
                self._tell(call, route)
        except Exception as error:
            self._fail(call, error)

    # --- a model's answers -----------------------------------------------------------------------

    def _model(self, call: HttpRequest, held: HeldVersion) -> None:
        if call.cut:
            raise self._too_large(call.length)
        route, body = call.route, bytes(call.body)
        assert route is not None
        encoding = call.headers.get(_PACKED)
        if encoding is not None:
            try:
                body = bodies.unpacked(body, encoding, call.most)
            except TooLarge as error:
                raise self._too_large(None) from error
        row: bool | None = None
        if route.place is Endpoint.PREDICT:
            request, row = bodies.decode(held.codec, body)
        elif route.place is Endpoint.V1_PREDICT:
            request, row = bodies.decode_v1(held.codec, body)
        else:
            request = held.codec.decode(body, header_length_of(call.header(_HEADER_LENGTH)))
        record = held.record
        request.model, request.version = record.model, record.number
        # A gateway sends all of these, others none. A version in the path is the client's own.
        request.variant = DIRECT
        if _VERSION in call.headers and route.version is None:
            request.variant = call.header(_VARIANT) or DIRECT
            request.region = call.header(_GATEWAY_REGION) or ""
        if self.engine.traces:
            request.trace = call.header(_REQUEST_ID) or ""
            if self.engine.routed:
                request.entity = call.header(self.engine.routed) or ""
        # What takes long is not computed for a client that has hung up.
        long = held.batcher.pace is BatchPace.LONG
        pending = self.engine.ask(request, held, partial(self._done, call, held, request, row))
        if long and call.held is not None:
            call.pending = pending

    def _done(
        self,
        call: HttpRequest,
        held: HeldVersion,
        request: InferRequest,
        row: bool | None,
        found: InferAnswer | BaseException,
    ) -> None:
        """The engine has answered. `row`: how it was asked by `/predict` or by the protocol v1;
        None: by the protocol v2."""
        try:
            if isinstance(found, BaseException):
                self._fail(call, found)
            elif row is not None:
                head = self._marked(found.version, request.variant, _JSON[1])
                if call.route is not None and call.route.place is Endpoint.V1_PREDICT:
                    _reply(call, head, bodies.encode_v1(held.codec, found, by_row=row))
                else:
                    _reply(call, head, bodies.encode(held.codec, found, row=row))
            else:
                written, described = held.codec.encode(found, request)
                head = self._marked(found.version, request.variant, described["content-type"])
                length = described.get(HEADER_LENGTH)
                if length is not None:
                    head += f"{HEADER_LENGTH}: {length}\r\n".encode()
                _reply(call, head, written)
        except Exception as error:
            self._fail(call, error)

    def _held(self, route: Route, call: str | None, instead: str | None = None) -> HeldVersion:
        """The version that is to answer. A gateway's choice that is not here is `NotHere`: it asks
        another replica, or has named the version that answers instead. What only the path asks for
        is `Missing`."""
        self._known(route.model)
        if route.version is None:
            try:
                return self.engine.held(None if call is None else number_of(call))
            except NotHere:
                if instead is None:
                    raise
                return self.engine.held(number_of(instead))
        number = number_of(route.version)
        try:
            return self.engine.held(number)
        except NotHere as error:
            if call is not None and number_of(call) == number:
                raise
            raise Missing(error.what, why=error.why, fix=error.fix) from error

    def _known(self, model: str) -> None:
        if not self.engine.knows(model):
            raise Missing(
                f"there is no model {model[:100]!r} here",
                why=f"this replica serves {self.engine.service.model}",
                fix=f"ask for /v2/models/{self.engine.service.model}",
            )

    def _reserve(self, length: int | None, most: int) -> int:
        """Reserve memory for a body that is not small, or whose size is unknown; so many bytes."""
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

    def _marked(self, version: int, variant: str, content_type: str) -> bytes:
        """The head of an answer, with who gave it."""
        key = (version, variant, content_type)
        found = self._marks.get(key)
        if found is None:
            if len(self._marks) >= HTTP_ROUTES_MAX:  # variants come from outside
                self._marks.clear()
            shown = variant if variant.isascii() and variant.isprintable() else DIRECT
            headers = [
                ("content-type", content_type),
                (VERSION, str(version)),
                (VARIANT, shown),
                (ARM, shown),
                *self._who(),
            ]
            found = head_of(200, headers)
            if len(variant) <= HTTP_REMEMBERED_BYTES_MAX:
                self._marks[key] = found
        return found

    def _who(self) -> Headers:
        return [
            (REPLICA, str(self.engine.worker)),
            (REGION, self.engine.region),
        ]

    # --- what it says of itself ------------------------------------------------------------------

    def _tell(self, call: HttpRequest, route: Route) -> None:
        engine = self.engine
        match route.place:
            case Endpoint.LIVE:
                _send_health(call, "live", engine.live())
            case Endpoint.READY:
                _send_health(call, "ready", engine.ready())
            case Endpoint.MODEL_READY:
                self._known(route.model)
                version = None if route.version is None else number_of(route.version)
                if version is not None and version not in engine.versions:
                    self._held(route, None)
                _send_health(call, "ready", engine.ready(version))
            case Endpoint.MODEL:
                held = self._held(route, call.header(_VERSION))
                found = model(engine, held.record)
                marks = self._marked(held.record.number, DIRECT, _JSON[1])
                call.reply(marks, msgspec.json.encode(found))
            case Endpoint.CONFIG:
                held = self._held(route, call.header(_VERSION))
                _send(call, management.config(held.record))
            case Endpoint.STATISTICS:
                _send(call, management.statistics(engine, route.model, route.version or ""))
            case Endpoint.INDEX:
                _send(call, management.index(engine))
            case Endpoint.LOAD:
                management.load(engine, route.model)
                _send(call, {})
            case Endpoint.UNLOAD:
                management.unload(engine, route.model)
            case Endpoint.V1_MODELS:
                _send(call, {"models": [engine.service.model]})
            case Endpoint.V1_MODEL:
                self._tell_v1(call, route)
            case Endpoint.SERVER:
                _send(call, server())
            case Endpoint.STATS:
                _send(call, documents.document(engine.stats()))
            case Endpoint.METRICS:
                call.reply(head_of(200, [_TEXT]), metrics(engine).encode())
            case _:
                self._send_description(call)

    def _tell_v1(self, call: HttpRequest, route: Route) -> None:
        self._known(route.model)
        ready = self.engine.ready()
        head = _PLAIN if ready else head_of(503, [_JSON])
        call.reply(head, msgspec.json.encode({"name": route.model, "ready": ready}))

    def _send_description(self, call: HttpRequest) -> None:
        service = self.engine.service
        try:
            record = self.engine.signature(None)
        except NotHere:
            record = None
        names, gateway = (service.name,), _VERSION in call.headers
        found = openapi.document(record, model=service.model, names=names, gateway=gateway)
        _send(call, found)

    def _wrong_method(self, call: HttpRequest, route: Route) -> None:
        fix = f"{route.method} {path_of(call.target)[:200]}"
        error = Usage(f"this takes {route.method} only", fix=fix)
        call.reply(head_of(405, [_JSON, ("allow", route.method)]), body_of(error))

    def _fail(self, call: HttpRequest, error: BaseException) -> None:
        status = call.status or status_of(error)
        if isinstance(error, bodies.Unknown):
            status = _UNKNOWN_PACKING
        headers = [_JSON, *self._who()]
        if isinstance(error, NotHere):
            headers.append((NOT_HERE, "1"))
        if isinstance(error, NotHere | Full):
            headers.append(("retry-after", str(RETRY_AFTER_S)))
        if isinstance(error, Full) and self.engine.try_elsewhere(call.header(_ATTEMPT)):
            headers.append((ELSEWHERE, "1"))
        if not isinstance(error, HoldfastError):
            log.error("a request failed in a way nobody expected", exc_info=error)
        call.reply(head_of(status, headers), body_of(error))

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


def _reply(call: HttpRequest, head: bytes, body: bytes) -> None:
    """A model's answer, packed if the client accepts that."""
    accepted = call.headers.get(_ACCEPT_ENCODING)
    if accepted is not None:
        body, name = bodies.packed(body, accepted)
        if name:
            head += b"content-encoding: %b\r\nvary: accept-encoding\r\n" % name
    call.reply(head, body)


def _send(call: HttpRequest, value: Any) -> None:
    call.reply(_PLAIN, msgspec.json.encode(value))


def _send_health(call: HttpRequest, word: str, value: bool) -> None:
    head = _PLAIN if value else head_of(503, [_JSON])
    call.reply(head, b'{"%s":%s}' % (word.encode(), b"true" if value else b"false"))


# --- describing -----------------------------------------------------------------------------------
# What a replica says of itself over REST: metadata and metrics. Pure but for what it reads of
# the engine.


def server() -> dict[str, Any]:
    """`GET /v2`."""
    return {"name": NAME, "version": release(), "extensions": list(EXTENSIONS)}


def model(engine: Engine, record: Version) -> dict[str, Any]:
    """`GET /v2/models/M`."""
    return {
        "name": record.model,
        "versions": [str(number) for number in sorted(engine.versions)],
        "platform": platform_of(record),
        "inputs": [_tensor(spec) for spec in record.signature.inputs],
        "outputs": [_tensor(spec) for spec in record.signature.outputs],
    }


def metrics(engine: Engine) -> str:
    """`GET /metrics`: Prometheus' text format."""
    return "".join(f"{line}\n" for line in _lines(engine))


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


def _lines(engine: Engine) -> Iterator[str]:
    stats = engine.stats()
    service = f'service="{engine.service.name}"'
    gauges = {
        "waiting": (stats.waiting, "gauge", "Requests in the queue."),
        "running": (stats.running, "gauge", "Requests that are computed now."),
        "refused_total": (stats.refused, "counter", "Requests refused because too many waited."),
        "draining": (int(engine.draining), "gauge", "1 while the replica is going."),
    }
    for name, (value, kind, words) in gauges.items():
        yield f"# HELP holdfast_replica_{name} {words}"
        yield f"# TYPE holdfast_replica_{name} {kind}"
        yield f"holdfast_replica_{name}{{{service}}} {value}"
    yield from lines(stats.cache, service)
    if engine.traces:
        yield from _prediction_lines(stats.predictions, service)
    yield "# HELP holdfast_requests_total Requests that a version has answered."
    yield "# TYPE holdfast_requests_total counter"
    for number, counts in stats.versions.items():
        yield f'holdfast_requests_total{{{service},version="{number}"}} {counts.requests}'
    yield "# HELP holdfast_request_errors_total Requests on which a version failed."
    yield "# TYPE holdfast_request_errors_total counter"
    for number, counts in stats.versions.items():
        yield f'holdfast_request_errors_total{{{service},version="{number}"}} {counts.errors}'
    yield "# HELP holdfast_request_seconds Time from taking a request to its outputs."
    yield "# TYPE holdfast_request_seconds histogram"
    for number, counts in stats.versions.items():
        yield from _histogram(f'{service},version="{number}"', counts)


def _prediction_lines(counts: PredictionCounts, labels: str) -> Iterator[str]:
    shown = {
        "sent_total": (counts.sent, "counter", "Predictions that were told to their topic."),
        "dropped_total": (counts.dropped, "counter", "Predictions that were not told or written."),
        "waiting": (counts.waiting, "gauge", "Predictions that wait to be told."),
    }
    for name, (value, kind, words) in shown.items():
        yield f"# HELP holdfast_predictions_{name} {words}"
        yield f"# TYPE holdfast_predictions_{name} {kind}"
        yield f"holdfast_predictions_{name}{{{labels}}} {value}"


def _histogram(labels: str, counts: Counts) -> Iterator[str]:
    total = 0
    bounds = [*(f"{bound / 1000:g}" for bound in LATENCY_BOUNDS_MS), "+Inf"]
    for bound, count in zip(bounds, counts.buckets, strict=True):
        total += count
        yield f'holdfast_request_seconds_bucket{{{labels},le="{bound}"}} {total}'
    yield f"holdfast_request_seconds_count{{{labels}}} {total}"


# --- telling --------------------------------------------------------------------------------------
# What the cache has counted, as lines for Prometheus. Pure.


def lines(counts: CacheCounts, labels: str) -> Iterator[str]:
    """The lines, each with these labels."""
    told = {
        "hits_total": (counts.hits, "counter", "Answers from this replica's memory."),
        "shared_hits_total": (counts.shared_hits, "counter", "Answers from Redis."),
        "joined_total": (counts.joined, "counter", "Answers of an equal request at the same time."),
        "misses_total": (counts.misses, "counter", "Answers that were computed."),
        "errors_total": (counts.errors, "counter", "What Redis failed to do."),
        "entries": (counts.entries, "gauge", "Answers in memory."),
        "bytes": (counts.bytes, "gauge", "Their size."),
        "shared": (int(counts.shared), "gauge", "1 while Redis answers."),
    }
    for name, (value, kind, words) in told.items():
        yield f"# HELP holdfast_cache_{name} {words}"
        yield f"# TYPE holdfast_cache_{name} {kind}"
        yield f"holdfast_cache_{name}{{{labels}}} {value}"
