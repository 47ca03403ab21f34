"""gRPC through a gateway: a real Envoy in front of real gRPC servers."""

from __future__ import annotations

import hashlib
import random
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from holdfast.serve.protocol import marks
from tests.conftest import require_service
from tests.grpc_calls import streams, unary
from tests.integration.gateway_world import GatewayProcess, World
from tests.servers import free_port, http2
from tests.servers.envoy import envoy_missing
from tests.waiting import eventually

CALL = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
HEALTH = "/grpc.health.v1.Health/Check"


class Answering(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # only its stub is generic
    """Answers every call with its own name and what the gateway said of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.unavailable = False

    def service(self, details: Any) -> Any:
        if details.method == STREAM:
            return grpc.stream_stream_rpc_method_handler(self.stream)
        return grpc.unary_unary_rpc_method_handler(self.answer)

    def stream(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        for request in requests:
            yield self.answer(request, context)

    def answer(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        if self.unavailable:
            context.set_trailing_metadata(((marks.ELSEWHERE, "1"),))  # as a full replica offers it
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        said = dict(context.invocation_metadata())
        words = (self.name, said["x-holdfast-version"], said["x-holdfast-variant"], len(request))
        return " ".join(map(str, words)).encode()


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
    server = grpc.server(ThreadPoolExecutor(4), handlers=[handler])
    port = free_port()
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    handler.server = server  # type: ignore[attr-defined]
    upstream = world.replica(worker, service=service)
    world.register(upstream, service, grpc_port=port)
    return handler


def call(
    gateway: GatewayProcess,
    body: bytes = b"x",
    *,
    method: str = CALL,
    compression: grpc.Compression | None = None,
    **headers: str,
) -> str:
    with grpc.insecure_channel(f"127.0.0.1:{gateway.port}") as channel:
        metadata = [(key.replace("_", "-"), text) for key, text in headers.items()]
        ask = unary(channel, method)
        return ask(body, metadata=metadata, timeout=30, compression=compression).decode()


def test_grpc_goes_to_the_only_service_or_by_the_header_and_is_tried_elsewhere(
    world: World,
) -> None:
    world.service("one")
    first, second = (replica(world, number, "one") for number in (1, 2))
    plan = world.plan("one")
    gateway = world.gateway()
    world.applied(plan, "one")

    def answered(**headers: Any) -> str:
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

    world.service("two", model="mnist")
    replica(world, 3, "two")
    world.applied(world.plan("two"), "two")
    eventually(lambda: answered(x_holdfast_service="two").startswith("two-3"), "by its header")
    assert call(gateway, x_holdfast_service="one").startswith("one-")


def named(name: str, more: bytes = b"") -> bytes:
    """A message with a model's name in field 1, as every call of the protocol has it."""
    return b"\x0a" + bytes([len(name)]) + name.encode() + more


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    require_service(envoy_missing())
    made = World(tmp_path_factory.mktemp("pair"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def two(pair: World) -> GatewayProcess:
    """A gateway before two services, `one` and `two` (of the model `mnist`)."""
    world = pair
    for number, (name, model) in enumerate((("one", "one"), ("two", "mnist"))):
        world.service(name, model=model)
        replica(world, number, name)
    plans = {name: world.plan(name) for name in ("one", "two")}
    gateway = world.gateway()
    for name, plan in plans.items():
        world.applied(plan, name)

    def both() -> bool:
        try:
            return {call(gateway, named(name))[:3] for name in ("one", "two")} == {"one", "two"}
        except grpc.RpcError:
            return False

    eventually(both, "both services answer")
    return gateway


def test_a_call_goes_to_the_service_that_its_message_names(two: GatewayProcess) -> None:
    for packing in (None, grpc.Compression.Gzip, grpc.Compression.Deflate):
        for name, service in (("one", "one-0"), ("two", "two-1"), ("mnist", "two-1")):
            # Packed, the name is not where it was: as text, as something that repeats, as noise.
            for more in (b"", b"\x32\x82\x08" + b"ab" * 513, b"\x3a\x80\x80\x40" + noise(1 << 20)):
                message = named(name, more)
                answered = call(two, message, compression=packing).split()
                assert answered == [service, "1", "stable", str(len(message))]
    # A name may come after other fields, and twice; the first one counts for the way.
    assert call(two, b"\x10\x07\x1a\x03xyz" + named("two")).startswith("two-1")
    unknown: list[bytes] = [
        b"",
        b"x",
        named("nobody"),
        named("o" * 120),
        b"\x0a\xff" * 9,
        bytes(99),
    ]
    for message in unknown:
        with pytest.raises(grpc.RpcError) as failed:
            call(two, message)
        assert failed.value.code() is grpc.StatusCode.NOT_FOUND, message
        assert "service" in (failed.value.details() or "")


def noise(count: int) -> bytes:
    return random.Random(count).randbytes(count)


def test_a_stream_goes_where_its_first_message_goes(two: GatewayProcess) -> None:
    for packing in (None, grpc.Compression.Gzip):
        with grpc.insecure_channel(f"127.0.0.1:{two.port}") as channel:
            answers = streams(channel, STREAM)(
                iter((named("mnist"), named("mnist", b"\x10\x01"), named("one"))),
                compression=packing,
                timeout=30,
            )
            assert [one.split()[0] for one in answers] == [b"two-1"] * 3


def test_the_first_answer_of_a_stream_comes_before_its_second_request(two: GatewayProcess) -> None:
    ready = threading.Event()

    def asked() -> Iterator[bytes]:
        yield named("two")
        assert ready.wait(30)
        yield named("two")

    with grpc.insecure_channel(f"127.0.0.1:{two.port}") as channel:
        answers = streams(channel, STREAM)(asked(), timeout=30)
        assert next(answers).startswith(b"two-1")
        ready.set()
        assert [one[:5] for one in answers] == [b"two-1"]


def test_a_name_that_comes_in_pieces_is_read(two: GatewayProcess) -> None:
    """HTTP/2 by hand: each byte of the message in a frame of its own."""
    message = named("mnist", b"\x10\x07")
    body = bytes([0]) + len(message).to_bytes(4, "big") + message
    with socket.create_connection(("127.0.0.1", two.port), timeout=30) as link:
        link.sendall(http2.PREFACE + http2.settings() + http2.headers(1, CALL))
        for place in range(len(body)):
            link.sendall(http2.data(1, body[place : place + 1], ended=place == len(body) - 1))
        assert http2.answered(link, 1) == b"two-1 1 stable %d" % len(message)


def test_keys_hold_for_calls_that_are_routed_by_their_message(
    pair: World, two: GatewayProcess
) -> None:
    world = pair
    world.service("locked", keys=(hashlib.sha256(b"sesame").hexdigest(),))
    replica(world, 7, "locked")
    world.applied(world.plan("locked"), "locked")

    def answered(**how: Any) -> Any:
        try:
            return call(two, named("locked"), **how)
        except grpc.RpcError as error:
            return error.code()

    eventually(lambda: "locked-7" in str(answered(x_api_key="sesame")), "the key opens it")
    assert answered() is grpc.StatusCode.UNAUTHENTICATED
    assert answered(x_api_key="other") is grpc.StatusCode.UNAUTHENTICATED
    assert answered(x_holdfast_model="locked") is grpc.StatusCode.UNAUTHENTICATED
    assert call(two, named("two")).startswith("two-1")


def test_calls_for_no_model_are_answered_by_whoever_is_there(two: GatewayProcess) -> None:
    for method in ("ServerLive", "ServerReady", "ServerMetadata"):
        assert call(two, b"", method=f"/inference.GRPCInferenceService/{method}")
    assert call(two, b"", method=HEALTH).split()[0] in ("one-0", "two-1", "locked-7")
    for name in ("one", "two"):
        assert call(two, named(name), method=HEALTH).startswith(name)
