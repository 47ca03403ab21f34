"""gRPC calls besides inference: Triton's extensions, and gRPC's own protocol of health.

Like the calls of `grpc_server` they read their message themselves and raise errors of ours; that
one makes statuses of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message

from holdfast.serve.protocol import management
from holdfast.serve.protocol.management import Managed
from holdfast.wire.proto import inference_pb2 as pb

# Whoever watches a replica's health by gRPC hears of a change after this at the latest.
HEALTH_WATCH_S: Final = 0.5

HEALTH: Final = "grpc.health.v1.Health"
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
