"""Who asks a replica directly, past the gateway, is not answered."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from holdfast.coordination import Membership
from holdfast.serve.controller.controller import ask
from holdfast.serve.protocol.grpc_server import SERVICE
from holdfast.serve.protocol.marks import SECRET
from holdfast.serve.records import replicas_path
from holdfast.system.job_certificates import certified
from holdfast.wire import documents, worker_messages
from holdfast.wire.proto import inference_pb2 as pb
from tests.conftest import require_service
from tests.credentials import ANOTHER
from tests.grpc_calls import unary
from tests.integration.gateway_world import World
from tests.integration.replica_stage import ReplicaProcess, ReplicaStage, infer_body
from tests.servers.envoy import envoy_missing
from tests.waiting import eventually

SHOWN = "9f" * 32
ROW = [1, 2, 3, 4]
EVERYWHERE: dict[str, Any] = {worker_messages.HOST_VARIABLE: "0.0.0.0"}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[ReplicaStage]:
    made = ReplicaStage(tmp_path, secret=SHOWN)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def replica(stage: ReplicaStage) -> ReplicaProcess:
    stage.hold(stage.publish_times(2.0))
    made = stage.start()
    made.await_ready()
    return made


def test_only_who_shows_the_services_secret_is_answered(replica: ReplicaProcess) -> None:
    assert replica.infer(ROW, **{SECRET: SHOWN}).status == 200
    for shown in ({}, {SECRET: ""}, {SECRET: "9e" * 32}, {SECRET: SHOWN + "00"}):
        said = replica.infer(ROW, **shown)
        assert said.status == 403 and "gateway" in said.json["error"]
        for path in ("/v2/models/digits", "/v2", "/openapi.json", "/holdfast/stats", "/nothing"):
            assert replica.get(path, **shown).status == 403
    for path in ("/v2/health/live", "/v2/health/ready", "/metrics"):
        assert replica.get(path).status == 200


def test_a_strangers_body_is_not_read(replica: ReplicaProcess) -> None:
    with socket.create_connection(("127.0.0.1", replica.http_port), timeout=60) as line:
        line.sendall(
            b"POST /v2/models/digits/infer HTTP/1.1\r\nhost: h\r\ncontent-length: 1000000\r\n\r\n"
        )
        answer = http.client.HTTPResponse(line)
        answer.begin()  # before a byte of the body was sent
        assert answer.status == 403
        assert json.loads(answer.read())["error"]
        assert answer.getheader("connection") == "close"


def infer(port: int, *, shown: str | None, method: str = "ModelInfer") -> bytes:
    message = pb.ModelInferRequest(model_name="digits")
    tensor = message.inputs.add(name="x", datatype="FP32", shape=[1, len(ROW)])
    tensor.contents.fp32_contents.extend(ROW)
    raw = b"" if method.startswith("Server") else message.SerializeToString()
    metadata = [] if shown is None else [(SECRET, shown)]
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        return unary(channel, f"/{SERVICE}/{method}")(raw, metadata=metadata, timeout=60)


def test_a_grpc_call_without_the_secret_is_refused(replica: ReplicaProcess) -> None:
    assert infer(replica.grpc_port, shown=SHOWN)
    for shown in (None, "9e" * 32):
        for method in ("ModelInfer", "ModelMetadata", "ServerMetadata", "NoSuchMethod"):
            with pytest.raises(grpc.RpcError) as refused:
                infer(replica.grpc_port, shown=shown, method=method)
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert "gateway" in (refused.value.details() or "")
    for method in ("ServerLive", "ServerReady"):
        assert infer(replica.grpc_port, shown=None, method=method)


def test_the_controller_shows_the_secret_too(stage: ReplicaStage, replica: ReplicaProcess) -> None:
    shown = eventually(lambda: stage.shown().get(1), "the replica is seen")
    assert ask(shown, SHOWN).worker == 1
    with pytest.raises(http.client.HTTPException, match="403"):
        ask(shown)


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    require_service(envoy_missing())
    made = World(tmp_path_factory.mktemp("callers"))
    try:
        yield made
    finally:
        made.close()


def test_a_gateway_shows_the_secret_and_no_client_can_set_or_see_it(
    world: World, stage: ReplicaStage, replica: ReplicaProcess
) -> None:
    shown = eventually(lambda: stage.shown().get(1), "the replica is seen")
    Membership(world.session, replicas_path("digits")).join(
        "1", documents.document(replace(shown, plan=0))
    )
    world.service(secret=SHOWN)
    plan = world.plan()
    gateway = world.gateway()
    world.applied(plan)
    body = infer_body(ROW)
    gateway.served(body=body)
    for tried in ({}, {SECRET: "mine"}):
        reply = gateway.ask(body=body, headers={"x-holdfast-service": "digits", **tried})
        assert reply.status == 200, reply.body
        assert SHOWN not in str(reply.headers) + reply.body.decode()
    with grpc.insecure_channel(f"127.0.0.1:{gateway.port}") as channel:
        call = unary(channel, f"/{SERVICE}/ServerMetadata")
        metadata = [("x-holdfast-service", "digits"), (SECRET, "mine")]
        assert call(b"", metadata=metadata, timeout=60)
    for log in gateway.folder.glob("*.log"):
        assert SHOWN not in log.read_text()
    assert gateway.folder.stat().st_mode & 0o077 == 0, "files with the secret are the owner's"


def test_a_replica_that_other_machines_reach_speaks_tls_with_gateways_and_controllers(
    world: World, stage: ReplicaStage
) -> None:
    number = stage.publish_times(2.0)
    stage.hold(number)
    replica = stage.start(**EVERYWHERE)
    stage.await_state(1, number)
    shown = replace(stage.shown()[1], host="127.0.0.1", plan=0)
    assert "BEGIN CERTIFICATE" in shown.trust and "PRIVATE" not in shown.trust
    with pytest.raises((OSError, http.client.HTTPException)):
        replica.get("/v2/health/ready")  # no plain text
    assert ask(shown, SHOWN).worker == 1
    Membership(world.session, replicas_path("digits")).join("1", documents.document(shown))
    plain = stage.start(worker=2)  # and one of this machine, in the same clusters
    stage.await_state(2, number)
    members = Membership(world.session, replicas_path("digits"))
    members.join("2", documents.document(stage.shown()[2]))
    world.service(secret=SHOWN)
    plan = world.plan()
    gateway = world.gateway()
    world.applied(plan)
    body = infer_body(ROW)
    answered = set()

    def both_answer() -> bool:
        reply = gateway.ask(body=body)
        answered.add((reply.status, reply.replica))
        return {(200, "1"), (200, "2")} <= answered

    eventually(both_answer, "both answer")
    plain.kill()
    with grpc.insecure_channel(f"127.0.0.1:{gateway.port}") as channel:
        call = unary(channel, f"/{SERVICE}/ServerMetadata")
        assert call(b"", timeout=60)


def test_a_gateway_does_not_believe_a_replica_with_another_certificate(
    world: World, stage: ReplicaStage, tmp_path: Path
) -> None:
    number = stage.publish_times(2.0)
    stage.hold(number)
    stage.start(**EVERYWHERE)
    stage.await_state(1, number)
    another = certified(bytes.fromhex(ANOTHER))[1].decode()
    shown = replace(stage.shown()[1], host="127.0.0.1", plan=0, trust=another)
    with pytest.raises(OSError, match="certificate"):
        ask(shown, SHOWN)
    Membership(world.session, replicas_path("digits")).join("1", documents.document(shown))
    world.service(secret=SHOWN)
    plan = world.plan()
    gateway = world.gateway()
    world.applied(plan)
    for _ in range(3):
        assert gateway.ask(body=infer_body(ROW)).status == 503
