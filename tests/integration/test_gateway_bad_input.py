"""Malformed requests through a gateway: each has a status, a sentence and a request id."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import grpc
import pytest

from holdfast.wire.proto import inference_pb2 as pb
from tests.conftest import require_service
from tests.grpc_calls import unary
from tests.integration.served_pair import ServedPair
from tests.servers.envoy import envoy_missing

INFER = "/v2/models/digits/infer"
PREDICT = "/predict/digits"
V1 = "/v1/models/digits:predict"
ROW = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
LIMIT = 16 * 1024 * 1024
ENVOYS_WORDS = ("upstream connect", "no healthy", "upstream request", "no route", "reset reason")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPair]:
    require_service(envoy_missing())
    made = ServedPair(tmp_path_factory.mktemp("bad"))
    try:
        yield made
    finally:
        made.close()


def head(line: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [line, "host: test", "connection: close", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def post(path: str, body: bytes | str, *headers: str) -> bytes:
    raw = body.encode() if isinstance(body, str) else body
    return head(f"POST {path} HTTP/1.1", *headers, body=raw)


def inputs(**changed: object) -> str:
    return json.dumps({"inputs": [{**ROW, **changed}]})


# --- requests, and the status that each may get ---------------------------------------------------


def no_http() -> Iterator[tuple[bytes, set[int]]]:
    """What Envoy itself refuses."""
    for raw in (
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"\x00\x01\x02\x03\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /v2 FTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nhost: a\r\nno colon here\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nhost: a\r\n: empty\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nhost: a\r\nx: \x00\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nhost: a b\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nhost: a\r\ncontent-length: abc\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999999999999999\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST /v2 HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST /predict/digits HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET /v2/x\x7f HTTP/1.1\r\nhost: a\r\n\r\n",
    ):
        yield raw, {400}
    for version in (b"", b" HTTP/1.0", b" HTTP/9.9"):
        yield b"GET /v2%b\r\nhost: a\r\n\r\n" % version, {426}
    yield b"POST /v2 HTTP/1.1\r\nhost: a\r\ntransfer-encoding: pigeon\r\n\r\n", {501}
    yield b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n", {404}
    yield head("GET /v2 HTTP/1.1", "x-long: " + "a" * 70_000), {431}
    yield head("GET /v2 HTTP/1.1", *(f"x-{n}: a" for n in range(150))), {431}
    yield head("GET /" + "a" * 70_000 + " HTTP/1.1"), {431}
    upgrade = ("upgrade: websocket", "sec-websocket-version: 13")
    yield head(f"GET {INFER} HTTP/1.1", *upgrade).replace(b": close", b": upgrade"), {403}


def no_place() -> Iterator[tuple[bytes, set[int]]]:
    for path in (
        *("/", "/nothing", "/v1", "/v2/models", "/v2/models/nobody", "/v2/models/nobody/infer"),
        *("/v2/models/digits/other", "/v2/models/digits/versions/9", "/predict", "/predict/nobody"),
        *("/v2/models/digits/versions/x", "/v2/models/digits%2finfer", "/metrics"),
        *("/v1/models/nobody", "/v1/models/nobody:predict", "/holdfast/stats", "/v2/models//ready"),
        *("/v2/repository/models/nobody/load", "/../../etc/passwd", "/v2/models/stats"),
        "/v2/models/digits/versions/99999999999999999999",
    ):
        yield head(f"GET {path} HTTP/1.1"), {404, 405}
        if path.count("/") < 3:
            yield post(path, "{}"), {404, 405}
    for method in ("PUT", "DELETE", "PATCH", "TRACE", "QUERY", "NONSENSE"):
        yield head(f"{method} {INFER} HTTP/1.1"), {405, 400}
        yield head(f"{method} /v2 HTTP/1.1"), {405, 400}
    yield head("GET /v2/models/%00 HTTP/1.1"), {400}
    yield head(f"GET {INFER} HTTP/1.1"), {405}
    yield head(f"GET {V1} HTTP/1.1"), {405}
    yield head("GET /v2/repository/index HTTP/1.1"), {405}
    yield post("/v2/repository/models/digits/load", "{}"), {403}
    yield post("/v2/repository/models/digits/unload", "{}", "authorization: Bearer x"), {403}


def no_request() -> Iterator[tuple[bytes, set[int]]]:
    for body in (
        *("", "{", "[]", "null", "1", '"text"', "{}", '{"inputs": 1}', '{"inputs": []}', "\x00"),
        *('{"inputs": [{}]}', '{"inputs": [1]}', '{"inputs": null}', "{" * 5_000, "[" * 5_000),
        *(inputs(name="z"), inputs(name=1), inputs(datatype="FP64"), inputs(datatype="NO")),
        *(inputs(shape=[4]), inputs(shape=[1, 5]), inputs(shape=[-1, 4]), inputs(shape="x")),
        *(inputs(shape=[2**62, 4]), inputs(shape=[0, 4]), inputs(data=[1, 2, 3])),
        *(inputs(data="1234"), inputs(data=[[1, 2], [3, 4]]), inputs(data=[1, 2, 3, "4"])),
        *(inputs(data=[1, 2, 3, None]), inputs(data=[1e300] * 4), inputs(data=None)),
        inputs(parameters={"binary_data_size": 16}),
        inputs(parameters={"shared_memory_region": "x"}),
        inputs().replace("1, 2", "NaN, 2"),
        json.dumps({"inputs": [ROW, ROW]}),
        json.dumps({"inputs": [ROW], "outputs": [{"name": "no"}]}),
    ):
        yield post(INFER, body), {400}
    yield post(INFER, b"\xff\xfe{}"), {400}
    yield post(INFER, inputs(), "inference-header-content-length: 9999"), {400}
    yield post(INFER, inputs(), "inference-header-content-length: x"), {400}
    for body in (
        "",
        "{",
        "[]",
        "{}",
        '{"x": 1}',
        '{"x": [[1]]}',
        '{"z": [1, 2, 3, 4]}',
        "[[[[1]]]]",
    ):
        yield post(PREDICT, body), {400}
    for body in (
        *(
            "",
            "{",
            "[]",
            "{}",
            '{"instances": 1}',
            '{"instances": []}',
            '{"instances": [1, 2, 3, 4]}',
        ),
        *('{"instances": [{"z": 1}]}', '{"instances": [{"x": [1, 2, 3, 4]}, {}]}'),
        '{"instances": [[1, 2, 3, 4]], "inputs": [[1, 2, 3, 4]]}',
    ):
        yield post(V1, body), {400}


def no_packing() -> Iterator[tuple[bytes, set[int]]]:
    good = inputs().encode()
    yield post(INFER, good, "content-encoding: gzip"), {400}
    yield post(INFER, gzip.compress(good)[:-9], "content-encoding: gzip"), {400}
    yield post(INFER, zlib.compress(good), "content-encoding: gzip"), {400}
    yield post(INFER, gzip.compress(good) + b"more", "content-encoding: gzip"), {400}
    yield post(INFER, good, "content-encoding: br"), {415}
    yield post(INFER, good, "content-encoding: gzip, gzip"), {415}
    for packed, name in bombs():
        yield post(INFER, packed, f"content-encoding: {name}"), {413}


@cache
def bombs() -> tuple[tuple[bytes, str], ...]:
    """Eight times the limit of nothing, in some kilobytes."""
    found = []
    for name, bits in (("gzip", 31), ("deflate", 15)):
        packing = zlib.compressobj(1, zlib.DEFLATED, bits)
        pieces = [packing.compress(bytes(LIMIT)) for _ in range(8)]
        found.append((b"".join([*pieces, packing.flush()]), name))
    return tuple(found)


def answered(port: int, raw: bytes) -> tuple[int, dict[str, str], bytes]:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as link:
        link.sendall(raw)
        reply = http.client.HTTPResponse(link)
        reply.begin()
        return reply.status, {key.lower(): text for key, text in reply.getheaders()}, reply.read()


def complaint(port: int, raw: bytes, wanted: set[int]) -> str:
    """What is wrong with the answer; nothing if it is as it should be."""
    try:
        status, headers, body = answered(port, raw)
        said = json.loads(body)["error"]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        return repr(error)
    if status not in wanted:
        return f"status {status}, not {wanted}: {said}"
    if len(said) < 10 or any(words in said for words in ENVOYS_WORDS):
        return f"the sentence {said!r}"
    if headers.get("content-type") != "application/json" or not headers.get("x-request-id"):
        return f"headers {headers}"
    return ""


def test_every_malformed_request_has_a_status_a_sentence_and_an_id(pair: ServedPair) -> None:
    requests = [*no_http(), *no_place(), *no_request(), *no_packing()]
    assert len(requests) >= 100
    found = [
        (raw[:200], wrong)
        for raw, wanted in requests
        if (wrong := complaint(pair.gateway.port, raw, wanted))
    ]
    assert not found
    assert pair.gateway.ask(body=inputs().encode()).status == 200
    assert all(replica.alive for replica in pair.replicas)


def test_a_packed_bomb_is_not_unpacked_beyond_the_limit(pair: ServedPair) -> None:
    replica = pair.replicas[0]

    def peak() -> int:
        lines = Path(f"/proc/{replica.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

    before = peak()
    for packed, name in bombs():
        reply = pair.gateway.ask(body=packed, headers={"content-encoding": name})
        assert reply.status == 413 and str(LIMIT) in reply.json()["error"]
    assert peak() - before < 4 * LIMIT


def test_what_is_packed_is_answered_and_packed_only_for_those_who_ask(pair: ServedPair) -> None:
    rows = {"name": "x", "shape": [256, 4], "datatype": "FP32", "data": [1] * 1024}
    body = json.dumps({"inputs": [rows]}).encode()
    plain = pair.gateway.ask(body=body)
    for name, pack, unpack in (
        ("gzip", gzip.compress, gzip.decompress),
        ("deflate", zlib.compress, zlib.decompress),
    ):
        headers = {"content-encoding": name, "accept-encoding": name}
        reply = pair.gateway.ask(body=pack(body), headers=headers)
        assert reply.headers["content-encoding"] == name
        assert unpack(reply.body) == plain.body
    # A list says what a client could read, not what it wants.
    reply = pair.gateway.ask(body=body, headers={"accept-encoding": "gzip, deflate, br"})
    assert "content-encoding" not in reply.headers and reply.body == plain.body


def test_every_malformed_call_has_a_status_a_sentence_and_an_id(pair: ServedPair) -> None:
    good = pb.ModelInferRequest(model_name="digits")
    tensor = good.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    tensor.contents.fp32_contents.extend([1, 2, 3, 4])

    def changed(**fields: object) -> bytes:
        made = pb.ModelInferRequest()
        made.CopyFrom(good)
        for name, value in fields.items():
            if name == "shape":
                del made.inputs[0].shape[:]
                made.inputs[0].shape.extend(value)  # type: ignore[arg-type]
            elif name in ("name", "datatype"):
                setattr(made.inputs[0], name, value)
            else:
                setattr(made, name, value)
        return made.SerializeToString()

    name = b"\x0a\x06digits"
    bad, missing = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
    unknown, denied = grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED
    calls: list[tuple[str, bytes, grpc.StatusCode]] = [
        ("ModelInfer", b"", missing),
        ("ModelInfer", b"\xff" * 40, missing),
        ("ModelInfer", changed(model_name="nobody"), missing),
        ("ModelInfer", changed(model_version="9"), missing),
        ("ModelInfer", changed(model_version="x"), missing),
        ("ModelInfer", name, bad),
        ("ModelInfer", name + b"\xff\xff\xff", bad),
        ("ModelInfer", name + b"\x2a\x7f", bad),
        ("ModelInfer", changed(shape=[1, 5]), bad),
        ("ModelInfer", changed(shape=[4]), bad),
        ("ModelInfer", changed(shape=[2**62, 4]), bad),
        ("ModelInfer", changed(name="z"), bad),
        ("ModelInfer", changed(datatype="NO"), bad),
        ("ModelReady", b"\x0a\x06nobody", missing),
        ("ModelConfig", b"\x0a\x06nobody", missing),
        ("ModelConfig", name + b"\x12\x019", missing),
        ("ModelStatistics", name + b"\x12\x019", missing),
        ("ModelMetadata", name + b"\x12\x01x", missing),
        ("RepositoryModelLoad", b"\x12\x06digits", denied),
        ("RepositoryModelUnload", b"\x12\x06digits", denied),
        ("RepositoryModelLoad", b"\x12\x06nobody", missing),
        ("Nothing", name, unknown),
        ("Nothing", b"", missing),
    ]
    with grpc.insecure_channel(pair.address) as channel:
        for method, raw, wanted in calls:
            with pytest.raises(grpc.RpcError) as failed:
                unary(channel, f"/inference.GRPCInferenceService/{method}")(raw, timeout=30)
            error: Any = failed.value
            assert error.code() is wanted, (method, raw, error)
            assert len(error.details()) > 10, (method, raw)
            said = dict([*error.initial_metadata(), *error.trailing_metadata()])
            assert said.get("x-request-id"), (method, raw, said)
