"""Bodies far above the limit: refused with a status and a sentence, and nobody keeps them."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from holdfast.coordination import Membership
from holdfast.serve.records import Limits, Load, Loaded, Replica, replicas_path
from holdfast.wire import documents
from tests.conftest import require_service
from tests.grpc_calls import unary
from tests.integration.gateway_world import GatewayProcess, World
from tests.integration.replica_stage import ReplicaProcess, ReplicaStage, infer_body
from tests.servers.envoy import envoy_missing
from tests.waiting import eventually

MEGABYTE = 1024 * 1024
LARGE = 200 * MEGABYTE
LIMIT = 16 * MEGABYTE
# What refusing may cost: some copies of the limit, never the body.
GROWTH_MAX = 4 * LIMIT
CALL = "/inference.GRPCInferenceService/ModelInfer"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[ReplicaStage]:
    made = ReplicaStage(tmp_path)
    try:
        yield made
    finally:
        made.close()


def resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):  # the most that it ever had: also what was given back
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no process {pid}")


@contextlib.contextmanager
def without_growth(*pids: int) -> Iterator[None]:
    before = {pid: resident(pid) for pid in pids}
    yield
    for pid, size in before.items():
        grown = resident(pid) - size
        assert grown < GROWTH_MAX, f"process {pid} grew by {grown / MEGABYTE:.0f} MB"


def post(port: int, *, chunked: bool) -> tuple[int, Any]:
    """Send a large body until somebody answers."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as line:
        how = "transfer-encoding: chunked" if chunked else f"content-length: {LARGE}"
        line.sendall(f"POST /v2/models/digits/infer HTTP/1.1\r\nhost: h\r\n{how}\r\n\r\n".encode())
        piece = b" " * MEGABYTE
        if chunked:
            piece = f"{len(piece):x}\r\n".encode() + piece + b"\r\n"
        with contextlib.suppress(ConnectionError):
            for _ in range(LARGE // MEGABYTE):
                line.sendall(piece)
        answer = http.client.HTTPResponse(line)
        answer.begin()
        return answer.status, json.loads(answer.read())


def call(port: int, size: int = LARGE, **how: Any) -> Any:
    """The error that it is refused with."""
    options = (("grpc.max_send_message_length", -1),)
    where = f"127.0.0.1:{port}"
    with (
        grpc.insecure_channel(where, options=options) as channel,
        pytest.raises(grpc.RpcError) as refused,
    ):
        unary(channel, CALL)(bytes(size), timeout=60, **how)
    return refused.value


def the_replica(stage: ReplicaStage) -> ReplicaProcess:
    stage.hold(stage.publish_times(2.0))
    replica = stage.start()
    replica.await_ready()
    assert replica.infer([1, 2, 3, 4]).status == 200
    return replica


@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "in chunks"])
def test_a_replica_does_not_take_a_large_http_body(stage: ReplicaStage, chunked: bool) -> None:
    replica = the_replica(stage)
    with without_growth(replica.pid):
        for _ in range(3):
            status, said = post(replica.http_port, chunked=chunked)
            assert status == 413 and "limit" in said["error"]
    assert replica.infer([1, 2, 3, 4]).status == 200


def test_a_replica_does_not_take_a_large_grpc_message(stage: ReplicaStage) -> None:
    replica = the_replica(stage)
    with without_growth(replica.pid):
        for _ in range(3):
            refused = call(replica.grpc_port)
            assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert str(LIMIT) in refused.details()
        packed = call(replica.grpc_port, compression=grpc.Compression.Gzip)
        assert packed.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert replica.infer([1, 2, 3, 4]).status == 200


def test_a_changed_limit_counts_for_grpc_before_a_message_is_read(stage: ReplicaStage) -> None:
    replica = the_replica(stage)

    def details(size: int) -> str:
        return str(call(replica.grpc_port, size).details())

    assert "16777216" in details(LIMIT + 1)
    stage.change(limits=Limits(body_bytes_max=2 * MEGABYTE))
    eventually(lambda: "2097152" in details(3 * MEGABYTE), "the lower limit counts")
    stage.change(limits=Limits(body_bytes_max=64 * MEGABYTE))
    # What is no message of ours is read, and refused for another reason.
    eventually(
        lambda: call(replica.grpc_port, LIMIT + 1).code() is grpc.StatusCode.INVALID_ARGUMENT,
        "the higher limit counts",
    )


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    require_service(envoy_missing())
    made = World(tmp_path_factory.mktemp("large"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def gateway(world: World, stage: ReplicaStage) -> Iterator[tuple[GatewayProcess, ReplicaProcess]]:
    """A gateway with a real replica behind it."""
    replica = the_replica(stage)
    world.service()
    shown = Replica(
        "digits",
        1,
        "127.0.0.1",
        replica.http_port,
        replica.grpc_port,
        versions={1: Loaded(Load.READY)},
    )
    Membership(world.session, replicas_path("digits")).join("1", documents.document(shown))
    plan = world.plan()
    made = world.gateway()
    world.applied(plan)
    made.served(body=infer_body([1, 2, 3, 4]))
    yield made, replica


Refusal = Callable[[int], None]


def by_http(port: int) -> None:
    for chunked in (False, True):
        status, said = post(port, chunked=chunked)
        assert status == 413 and said["error"]


def by_grpc(port: int) -> None:
    refused = call(port)
    assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused.details().startswith("the message is larger than the service takes")
    assert str(LIMIT) in refused.details()
    assert "holdfast serve SERVICE --body-max SIZE" in refused.details()


@pytest.mark.parametrize("refusal", [by_http, by_grpc])
def test_neither_a_gateway_nor_the_replica_behind_it_keeps_a_large_body(
    gateway: tuple[GatewayProcess, ReplicaProcess], refusal: Refusal
) -> None:
    front, replica = gateway
    with without_growth(front.envoy().pid, replica.pid):
        for _ in range(3):
            refusal(front.port)
    assert front.ask(body=infer_body([1, 2, 3, 4])).status == 200
