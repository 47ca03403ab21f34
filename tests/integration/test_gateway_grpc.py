"""gRPC through a gateway: a real Envoy in front of real gRPC servers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from tests.conftest import require_service
from tests.contract.waiting import eventually
from tests.integration.gateway_world import GatewayProcess, World
from tests.servers import free_port
from tests.servers.envoy import envoy_missing

CALL = "/inference.GRPCInferenceService/ModelInfer"


class Answering(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers every call with its own name and what the gateway said of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.unavailable = False

    def service(self, _: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self.answer)

    def answer(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        if self.unavailable:
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        said = dict(context.invocation_metadata())
        words = [self.name, said["x-holdfast-version"], said["x-holdfast-arm"], str(len(request))]
        return " ".join(words).encode()


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    require_service(envoy_missing())
    made = World(tmp_path_factory.mktemp("grpc"))
    try:
        yield made
    finally:
        made.close()


def replica(world: World, worker: int, service: str) -> Answering:
    """Health by HTTP from an upstream, calls by gRPC from here."""
    handler = Answering(f"{service}-{worker}")
    server = grpc.server(ThreadPoolExecutor(4), handlers=(handler,))
    port = free_port()
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    handler.server = server  # type: ignore[attr-defined]
    upstream = world.replica(worker, service=service)
    world.register(upstream, service, grpc_port=port)
    return handler


def call(gateway: GatewayProcess, body: bytes = b"x", **headers: str) -> str:
    with grpc.insecure_channel(f"127.0.0.1:{gateway.port}") as channel:
        metadata = [(key.replace("_", "-"), text) for key, text in headers.items()]
        return str(channel.unary_unary(CALL)(body, metadata=metadata, timeout=30).decode())


def test_grpc_goes_to_the_only_service_or_by_the_header_and_is_tried_elsewhere(
    world: World,
) -> None:
    world.service("one")
    first, second = (replica(world, number, "one") for number in (1, 2))
    course = world.course("one")
    gateway = world.gateway()
    world.applied(course, "one")

    def answered(**headers: str) -> str:
        try:
            return call(gateway, **headers)
        except grpc.RpcError:
            return ""

    eventually(lambda: answered().startswith("one-"), "the only service answers")
    names = {call(gateway).split()[0] for _ in range(30)}
    assert names == {"one-1", "one-2"}
    assert call(gateway, bytes(1_000)).split()[1:] == ["1", "stable", "1000"]

    first.unavailable = True
    assert {call(gateway).split()[0] for _ in range(30)} == {"one-2"}
    second.unavailable = True
    with pytest.raises(grpc.RpcError) as failed:
        call(gateway)
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    first.unavailable = second.unavailable = False

    world.service("two")
    replica(world, 3, "two")
    world.applied(world.course("two"), "two")
    eventually(lambda: answered(x_holdfast_service="two") == "two-3 1 stable 1", "by its header")
    assert call(gateway, x_holdfast_service="one").startswith("one-")
    with pytest.raises(grpc.RpcError) as failed:
        call(gateway)
    assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "x-holdfast-service" in failed.value.details()
