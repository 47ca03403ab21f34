"""The Open Inference Protocol over gRPC: the service `inference.GRPCInferenceService`.

The version and the variant of a request come as metadata of the names that REST has as headers; so
does what is said of an answer. An error before the answer has its marks in the trailing metadata,
which is then all there is: a gateway sees them as headers, and asks another replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, NoReturn, Protocol

import grpc
import grpc.aio
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError, Message

from holdfast.models.records import TensorSpec, Version
from holdfast.serve.guard import Guard, unknown
from holdfast.serve.protocol import management
from holdfast.serve.protocol.errors import code_of, sentence, too_large
from holdfast.serve.protocol.management import Managed
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
from holdfast.serve.protocol.messages import message_of, request_of
from holdfast.serve.protocol.rest import Codec
from holdfast.serve.protocol.tensors import InferAnswer, InferRequest
from holdfast.serve.records import ServiceSpec
from holdfast.system import logs
from holdfast.wire.errors import Full, HoldfastError, Missing, NotHere, Occupied, Usage
from holdfast.wire.limits import RPC_KEEPALIVE_S
from holdfast.wire.proto import inference_pb2 as pb

# Calls of one replica at once, queues included; the rest is refused at once.
GRPC_CALLS_MAX: Final = 4_096
# The sentence of an error travels in a header: all headers together have eight kilobytes.
GRPC_ERROR_CHARACTERS_MAX: Final = 2_000

SERVICE: Final = "inference.GRPCInferenceService"
HEALTH: Final = "grpc.health.v1.Health"
_PUBLIC: Final = (
    f"/{SERVICE}/ServerLive",
    f"/{SERVICE}/ServerReady",
    f"/{HEALTH}/Check",
    f"/{HEALTH}/Watch",
)

Context = grpc.aio.ServicerContext[Any, Any]
Pairs = list[tuple[str, str]]

log = logs.get(__name__)


class GrpcVersion(Protocol):
    """A version that is loaded. `chosen`: requests on their way to it; it stays while there are."""

    chosen: int

    @property
    def record(self) -> Version: ...
    @property
    def codec(self) -> Codec: ...


class GrpcBackend(Protocol):
    """What answers: a replica's engine. Each method as the engine says."""

    @property
    def service(self) -> ServiceSpec: ...
    @property
    def worker(self) -> int: ...
    @property
    def region(self) -> str: ...
    @property
    def versions(self) -> Any: ...
    def knows(self, name: str) -> bool: ...
    def held(self, version: int | None) -> GrpcVersion: ...
    def ready(self, version: int | None = None) -> bool: ...
    def live(self) -> bool: ...
    def try_elsewhere(self, attempt: str | None) -> bool: ...
    @property
    def guard(self) -> Guard: ...
    async def infer(self, request: InferRequest, chosen: Any = None) -> InferAnswer: ...


async def serve_grpc(
    engine: GrpcBackend,
    host: str,
    port: int,
    credentials: grpc.ServerCredentials | None = None,
) -> grpc.aio.Server:
    """A server that has begun to answer there, with credentials by TLS; `Occupied` if it cannot
    listen. The caller stops it: `await server.stop(grace_s)`."""
    server = grpc.aio.server(
        options=(
            # Envoy and clients keep connections for hours; a peer that is gone is noticed.
            ("grpc.keepalive_time_ms", int(RPC_KEEPALIVE_S * 1000)),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", int(RPC_KEEPALIVE_S * 500)),
            # Refused at its length, before it is read. The limit may change at any time: whoever
            # listens then makes a new server, and until then each message is compared.
            ("grpc.max_receive_message_length", engine.service.limits.body_bytes_max),
            ("grpc.max_send_message_length", -1),
            # Two replicas on one port would share its requests by chance.
            ("grpc.so_reuseport", 0),
        ),
        interceptors=(_Guarding(engine),),
        maximum_concurrent_rpcs=GRPC_CALLS_MAX,
    )
    server.add_generic_rpc_handlers(_handlers(Servicer(engine)))
    try:
        where = f"{host}:{port}"
        if credentials is None:
            server.add_insecure_port(where)
        else:
            server.add_secure_port(where, credentials)
    except RuntimeError as error:
        raise Occupied(
            f"cannot listen on {host}:{port}",
            why=str(error),
            fix="end the process that has the port, or choose another",
        ) from error
    await server.start()
    return server


class _Guarding(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Nobody without the service's secret gets as far as a message."""

    def __init__(self, engine: GrpcBackend) -> None:
        self._engine = engine

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        shown = dict(details.invocation_metadata or ()).get(SECRET)
        text = shown.encode() if isinstance(shown, str) else shown
        if details.method in _PUBLIC or self._engine.guard.admits(text):
            return await continuation(details)
        # As a stream: of a single message gRPC would read all before it called us.
        return grpc.stream_stream_rpc_method_handler(_refuse)


async def _refuse(_requests: AsyncIterator[bytes], context: Context) -> None:
    error = unknown()
    await context.abort(code_of(error), sentence(error))


def _handlers(servicer: Servicer) -> tuple[grpc.GenericRpcHandler[Any, Any], ...]:
    """Messages are read by us: a malformed one then gets an answer that says so."""

    def of_engine(asked: str, version: str, context: Context) -> Version:
        return servicer.held(asked, version, context).record

    others = Management(servicer.engine, _read, of_engine)
    unary = {
        "ServerLive": servicer.server_live,
        "ServerReady": servicer.server_ready,
        "ModelReady": servicer.model_ready,
        "ServerMetadata": servicer.server_metadata,
        "ModelMetadata": servicer.model_metadata,
        "ModelInfer": servicer.model_infer,
        **others.calls(),
    }
    methods: dict[str, Any] = {
        name: grpc.unary_unary_rpc_method_handler(_guarded(engine_call, servicer))
        for name, engine_call in unary.items()
    }
    methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(servicer.stream)
    health: dict[str, Any] = {
        "Check": grpc.unary_unary_rpc_method_handler(_guarded(others.check, servicer)),
        "Watch": grpc.unary_stream_rpc_method_handler(_guarded_stream(others.watch, servicer)),
    }
    return (
        grpc.method_handlers_generic_handler(SERVICE, methods),
        grpc.method_handlers_generic_handler(HEALTH, health),
    )


def _guarded(
    call: Callable[[bytes, Context], Awaitable[Message]], servicer: Servicer
) -> Callable[[bytes, Context], Awaitable[bytes]]:
    async def guarded(raw: bytes, context: Context) -> bytes:
        try:
            return (await call(raw, context)).SerializeToString()
        except Exception as error:  # everything becomes a status: a bare UNKNOWN tells nobody
            await servicer.fail(context, error)

    return guarded


def _guarded_stream(
    call: Callable[[bytes, Context], AsyncIterator[bytes]], servicer: Servicer
) -> Callable[[bytes, Context], AsyncIterator[bytes]]:
    async def guarded(raw: bytes, context: Context) -> AsyncIterator[bytes]:
        try:
            async for answer in call(raw, context):
                yield answer
        except Exception as error:
            await servicer.fail(context, error)

    return guarded


class Servicer:
    """The calls of the service, over an engine."""

    def __init__(self, engine: GrpcBackend) -> None:
        self.engine = engine

    async def server_live(self, raw: bytes, _: Context) -> Message:
        _read(pb.ServerLiveRequest, raw)
        return pb.ServerLiveResponse(live=self.engine.live())

    async def server_ready(self, raw: bytes, _: Context) -> Message:
        _read(pb.ServerReadyRequest, raw)
        return pb.ServerReadyResponse(ready=self.engine.ready())

    async def model_ready(self, raw: bytes, _: Context) -> Message:
        asked = _read(pb.ModelReadyRequest, raw)
        self._known(asked.name)
        version = number_of(asked.version) if asked.version else None
        return pb.ModelReadyResponse(ready=self.engine.ready(version))

    async def server_metadata(self, raw: bytes, _: Context) -> Message:
        _read(pb.ServerMetadataRequest, raw)
        return pb.ServerMetadataResponse(name=NAME, version=release(), extensions=EXTENSIONS)

    async def model_metadata(self, raw: bytes, context: Context) -> Message:
        asked = _read(pb.ModelMetadataRequest, raw)
        record = self.held(asked.name, asked.version, context).record
        return pb.ModelMetadataResponse(
            name=record.model,
            versions=[str(number) for number in sorted(self.engine.versions)],
            platform=platform_of(record),
            inputs=[_described(spec) for spec in record.signature.inputs],
            outputs=[_described(spec) for spec in record.signature.outputs],
        )

    async def model_infer(self, raw: bytes, context: Context) -> Message:
        metadata = _metadata(context)
        answer, message = await self._infer(raw, metadata)
        await context.send_initial_metadata(self._marks(answer.version, metadata))
        return message

    async def stream(
        self, requests: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[bytes]:
        """One answer for each request, in their order. An error is an answer too."""
        metadata = _metadata(context)
        metadata.pop(REQUEST_ID, None)  # of the whole stream, and so of no single request
        async for raw in requests:
            answered = pb.ModelStreamInferResponse()
            try:
                _, message = await self._infer(raw, metadata)
                answered.infer_response.CopyFrom(message)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self._noted(error)
                answered.error_message = sentence(error)
            yield answered.SerializeToString()

    async def _infer(
        self, raw: bytes, metadata: dict[str, str]
    ) -> tuple[InferAnswer, pb.ModelInferResponse]:
        if len(raw) > self.engine.service.limits.body_bytes_max:
            raise too_large(self.engine.service, len(raw))
        asked = _read(pb.ModelInferRequest, raw)
        held = self._held(asked.model_name, asked.model_version, metadata)
        request = request_of(asked, held.codec.fitting)
        request.model, request.version = held.record.model, held.record.number
        # A version in the message is the client's own.
        request.variant = DIRECT if asked.model_version else _variant(metadata)
        if VERSION in metadata:
            request.region = metadata.get(GATEWAY_REGION, "")
        request.trace = metadata.get(REQUEST_ID, "")
        held.chosen += 1
        try:
            answer = await self.engine.infer(request, held)
        finally:
            held.chosen -= 1
        return answer, message_of(answer, request, held.codec.fitting)

    def _known(self, model: str) -> None:
        if not self.engine.knows(model):
            raise Missing(
                f"there is no model {model[:100]!r} here",
                why=f"this replica serves {self.engine.service.model}",
                fix=f"ask for {self.engine.service.model}",
            )

    def held(self, model: str, version: str, context: Context) -> GrpcVersion:
        """The version that a call asks for."""
        return self._held(model, version, _metadata(context))

    def _held(self, model: str, version: str, metadata: dict[str, str]) -> GrpcVersion:
        """The version that is to answer: as over REST."""
        self._known(model)
        chosen = metadata.get(VERSION)
        if not version:
            try:
                return self.engine.held(None if chosen is None else number_of(chosen))
            except NotHere:
                instead = metadata.get(INSTEAD)
                if instead is None:
                    raise
                return self.engine.held(number_of(instead))
        number = number_of(version)
        try:
            return self.engine.held(number)
        except NotHere as error:
            if chosen is not None and number_of(chosen) == number:
                raise
            raise Missing(error.what, why=error.why, fix=error.fix) from error

    def _marks(self, version: int, metadata: dict[str, str]) -> Pairs:
        variant = _variant(metadata)
        return [(VERSION, str(version)), (VARIANT, variant), (ARM, variant), *self._who()]

    def _who(self) -> Pairs:
        return [(REPLICA, str(self.engine.worker)), (REGION, self.engine.region)]

    async def fail(self, context: Context, error: Exception) -> NoReturn:
        self._noted(error)
        marks = self._who()
        if isinstance(error, NotHere):
            marks.append((NOT_HERE, "1"))
        elif isinstance(error, Full) and self.engine.try_elsewhere(_metadata(context).get(ATTEMPT)):
            marks.append((ELSEWHERE, "1"))
        words = sentence(error)[:GRPC_ERROR_CHARACTERS_MAX]
        await context.abort(code_of(error), words, tuple(marks))

    def _noted(self, error: Exception) -> None:
        if not isinstance(error, HoldfastError):
            log.error("a call failed in a way nobody expected", exc_info=error)


def _read(kind: type[Any], raw: bytes) -> Any:
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        raise Usage(
            f"the message is not a {kind.DESCRIPTOR.name}",
            why=str(error),
            fix="use the schema of the Open Inference Protocol v2",
        ) from error


def _metadata(context: Context) -> dict[str, str]:
    pairs: Sequence[tuple[str, str | bytes]] = context.invocation_metadata() or ()  # type: ignore[assignment]
    return {key: text for key, text in pairs if isinstance(text, str)}


def _variant(metadata: dict[str, str]) -> str:
    """Whoever chose the version says in which variant the request is; without one nobody did."""
    return metadata.get(VARIANT, DIRECT) if VERSION in metadata else DIRECT


def _described(spec: TensorSpec) -> pb.ModelMetadataResponse.TensorMetadata:
    return pb.ModelMetadataResponse.TensorMetadata(
        name=spec.name, datatype=spec.datatype, shape=spec.shape
    )


# --- grpc management ------------------------------------------------------------------------------
# gRPC calls besides inference: Triton's extensions, and gRPC's own protocol of health.
#
# Like the calls of `grpc_server` they read their message themselves and raise errors of ours; that
# one makes statuses of them.


# Whoever watches a replica's health by gRPC hears of a change after this at the latest.
HEALTH_WATCH_S: Final = 0.5

# What a client may call the whole by.
_WHOLE: Final = ("", "inference.GRPCInferenceService", HEALTH)

Read = Callable[[type[Any], bytes], Any]
Serving = pb.HealthCheckResponse.ServingStatus


class Management:
    """The calls over an engine; `read` makes a message of bytes, or raises `Usage`; `described`
    gives the record of a model's version."""

    def __init__(self, engine: Managed, read: Read, described: Callable[..., Any]) -> None:
        self._engine = engine
        self._read = read
        self._described = described

    def calls(self) -> dict[str, Callable[[bytes, Any], Awaitable[Message]]]:
        """Those of the inference service, by their names."""
        return {
            "ModelConfig": self.config,
            "ModelStatistics": self.statistics,
            "RepositoryIndex": self.index,
            "RepositoryModelLoad": self.load,
            "RepositoryModelUnload": self.unload,
        }

    async def config(self, raw: bytes, context: Any) -> Message:
        asked = self._read(pb.ModelConfigRequest, raw)
        record = self._described(asked.name, asked.version, context)
        return ParseDict({"config": management.config(record)}, pb.ModelConfigResponse())

    async def statistics(self, raw: bytes, _: Any) -> Message:
        asked = self._read(pb.ModelStatisticsRequest, raw)
        found = management.statistics(self._engine, asked.name, asked.version)
        return ParseDict(found, pb.ModelStatisticsResponse())

    async def index(self, raw: bytes, _: Any) -> Message:
        self._read(pb.RepositoryIndexRequest, raw)
        return ParseDict({"models": management.index(self._engine)}, pb.RepositoryIndexResponse())

    async def load(self, raw: bytes, _: Any) -> Message:
        management.load(self._engine, self._read(pb.RepositoryModelLoadRequest, raw).model_name)
        return pb.RepositoryModelLoadResponse()

    async def unload(self, raw: bytes, _: Any) -> Message:
        management.unload(self._engine, self._read(pb.RepositoryModelUnloadRequest, raw).model_name)
        return pb.RepositoryModelUnloadResponse()

    async def check(self, raw: bytes, _: Any) -> Message:
        """`grpc.health.v1.Health/Check`."""
        name = self._read(pb.HealthCheckRequest, raw).service
        if name not in _WHOLE:
            management.known(self._engine, name)
        return self._health(name)

    async def watch(self, raw: bytes, _: Any) -> AsyncIterator[bytes]:
        """`grpc.health.v1.Health/Watch`: what is, and then each change, until the client goes."""
        name = self._read(pb.HealthCheckRequest, raw).service
        before = b""
        while True:
            found = self._health(name).SerializeToString()
            if found != before:
                before = found
                yield found
            await asyncio.sleep(HEALTH_WATCH_S)

    def _health(self, name: str) -> pb.HealthCheckResponse:
        if name not in _WHOLE and not self._engine.knows(name):
            return pb.HealthCheckResponse(status=Serving.SERVICE_UNKNOWN)
        ready = self._engine.ready()
        return pb.HealthCheckResponse(status=Serving.SERVING if ready else Serving.NOT_SERVING)
