"""The gRPC service over a real engine, called as a client of the published schema calls it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.models.records import ModelKind, Signature, TensorSpec, Version
from holdfast.serve.protocol.grpc_server import SERVICE, serve_grpc
from holdfast.serve.protocol.messages import FIELDS, message_of, request_of
from holdfast.serve.protocol.rest import Fitting
from holdfast.serve.protocol.tensors import DTYPES, InferAnswer, from_raw, to_raw
from holdfast.serve.records import Limits, ServiceSpec
from holdfast.serve.replica.batching import BatchPace
from holdfast.serve.replica.engine import Engine
from holdfast.wire.errors import ModelFailed, Occupied, Usage
from holdfast.wire.proto import inference_pb2 as pb
from tests.servers import free_port
from tests.unit.serve.protocol.tensors_made import PAIR, arrays, same, signature_for

DOUBLE = Signature((TensorSpec("x", "FP32", (-1, 2)),), (TensorSpec("y", "FP32", (-1, 2)),))


def twice(inputs: Mapping[str, Any]) -> dict[str, Any]:
    if inputs["x"][0, 0] == 13:
        raise ModelFailed("13 is bad luck")
    return {"y": inputs["x"] * 2}


def record(number: int, signature: Signature = DOUBLE) -> Version:
    return Version("m", number, ModelKind.FUNCTION, signature, {}, f"publication-{number}", 0.0)


class Client:
    """Calls by name, with raw messages in and out."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel

    async def call(
        self, method: str, message: Any, answer: Any, **metadata: str
    ) -> tuple[Any, dict[str, str]]:
        ask: Any = self.channel.unary_unary(
            f"/{SERVICE}/{method}", request_serializer=bytes, response_deserializer=bytes
        )
        pairs = tuple((name.replace("_", "-"), text) for name, text in metadata.items())
        raw = message if isinstance(message, bytes) else message.SerializeToString()
        going = ask(raw, metadata=pairs, timeout=60)
        marks = dict(await going.initial_metadata())
        return answer.FromString(await going), marks

    async def refusal(self, method: str, message: Any, **metadata: str) -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.call(method, message, pb.ModelInferResponse, **metadata)
        return caught.value

    async def infer(self, message: Any, **metadata: str) -> tuple[Any, dict[str, str]]:
        return await self.call("ModelInfer", message, pb.ModelInferResponse, **metadata)


@asynccontextmanager
async def served(*, limits: Limits | None = None) -> AsyncIterator[tuple[Engine, Client]]:
    service = ServiceSpec("svc", "m", "prod", limits=limits or Limits())
    engine = Engine(service, worker=7, region="north")
    for number in (1, 2):
        engine.install(record(number), twice, batches=True, pace=BatchPace.INSTANT)
    engine.stable = 1
    port = free_port()
    server = await serve_grpc(engine, "127.0.0.1", port)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield engine, Client(channel)
    finally:
        await server.stop(None)
        await engine.close()


def with_server(body: Callable[[Engine, Client], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        async with served(**options) as (engine, client):
            await body(engine, client)

    asyncio.run(run())


def asked(row: list[float], **fields: Any) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name="m", **fields)
    tensor = message.inputs.add(name="x", datatype="FP32", shape=[1, len(row)])
    tensor.contents.fp32_contents.extend(row)
    return message


def test_typed_and_raw_inputs_are_answered_in_kind() -> None:
    async def body(_: Engine, client: Client) -> None:
        answer, _marks = await client.infer(asked([1, 2], id="a"))
        assert (answer.model_name, answer.model_version, answer.id) == ("m", "1", "a")
        assert list(answer.outputs[0].contents.fp32_contents) == [2, 4]
        raw = asked([])
        raw.inputs[0].shape[:] = [2, 2]
        raw.raw_input_contents.append(np.arange(4, dtype=np.float32).tobytes())
        answer, _marks = await client.infer(raw)
        assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == [0, 2, 4, 6]
        assert list(answer.outputs[0].shape) == [2, 2]

    with_server(body)


def test_the_version_is_chosen_by_metadata_or_by_name_and_the_answer_says_who_gave_it() -> None:
    async def body(_: Engine, client: Client) -> None:
        _, marks = await client.infer(
            asked([1, 2]), x_holdfast_version="2", x_holdfast_variant="canary"
        )
        assert marks["x-holdfast-version"] == "2" and marks["x-holdfast-variant"] == "canary"
        assert marks["x-holdfast-replica"] == "7" and marks["x-holdfast-region"] == "north"
        answer, marks = await client.infer(asked([1, 2], model_version="2"))
        assert answer.model_version == "2" and marks["x-holdfast-variant"] == "direct"
        away = await client.refusal("ModelInfer", asked([1, 2]), x_holdfast_version="9")
        assert away.code() is grpc.StatusCode.UNAVAILABLE
        trailing: Any = away.trailing_metadata()
        assert dict(trailing)["x-holdfast-not-here"] == "1"
        _, marks = await client.infer(asked([1, 2]), x_holdfast_version="9", x_holdfast_instead="2")
        assert marks["x-holdfast-version"] == "2"
        unknown = await client.refusal("ModelInfer", asked([1, 2], model_version="9"))
        assert unknown.code() is grpc.StatusCode.NOT_FOUND

    with_server(body)


def test_health_and_metadata() -> None:
    async def body(engine: Engine, client: Client) -> None:
        live, _ = await client.call("ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse)
        ready, _ = await client.call("ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse)
        assert live.live and ready.ready
        server, _ = await client.call(
            "ServerMetadata", pb.ServerMetadataRequest(), pb.ServerMetadataResponse
        )
        assert server.name == "holdfast" and "binary_tensor_data" in server.extensions
        model, _ = await client.call(
            "ModelMetadata", pb.ModelMetadataRequest(name="svc"), pb.ModelMetadataResponse
        )
        assert list(model.versions) == ["1", "2"]
        (tensor,) = model.inputs
        assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("x", "FP32", [-1, 2])
        for version, expected in (("", True), ("2", True), ("9", False)):
            message = pb.ModelReadyRequest(name="m", version=version)
            said, _ = await client.call("ModelReady", message, pb.ModelReadyResponse)
            assert said.ready is expected
        engine.draining = True
        said, _ = await client.call("ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse)
        assert not said.ready

    with_server(body)


def test_an_error_has_the_code_of_its_kind_and_says_what_was_wrong() -> None:
    async def body(_: Engine, client: Client) -> None:
        said = await client.refusal("ModelInfer", asked([1, 2, 3]))
        assert said.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "'x'" in str(said.details()) and "[any, 2]" in str(said.details())
        said = await client.refusal("ModelInfer", b"\xff\xff")
        assert said.code() is grpc.StatusCode.INVALID_ARGUMENT
        unknown = asked([1, 2])
        unknown.model_name = "other"
        assert (await client.refusal("ModelInfer", unknown)).code() is grpc.StatusCode.NOT_FOUND
        said = await client.refusal("ModelInfer", asked([13, 0]))
        assert said.code() is grpc.StatusCode.INTERNAL and "bad luck" in str(said.details())

    with_server(body)


def test_a_message_beyond_the_services_limit_is_refused_also_when_the_limit_changed() -> None:
    async def body(engine: Engine, client: Client) -> None:
        large = asked([])
        large.inputs[0].shape[:] = [100, 2]
        large.raw_input_contents.append(bytes(800))
        await client.infer(large)
        engine.configure(replace(engine.service, limits=Limits(body_bytes_max=500)))
        said = await client.refusal("ModelInfer", large)
        assert said.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    with_server(body)


def test_a_stream_answers_in_order_and_goes_on_after_an_error() -> None:
    async def body(_: Engine, client: Client) -> None:
        ask: Any = client.channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer", request_serializer=bytes, response_deserializer=bytes
        )
        rows: list[list[float]] = [[1, 0], [13, 0], [3, 0]]
        going = ask((asked(row, id=str(row[0])).SerializeToString() for row in rows), timeout=60)
        answers = [pb.ModelStreamInferResponse.FromString(raw) async for raw in going]
        assert [answer.infer_response.id for answer in answers] == ["1", "", "3"]
        assert "bad luck" in answers[1].error_message
        assert answers[2].infer_response.outputs[0].contents.fp32_contents[0] == 6

    with_server(body)


def test_a_port_that_is_taken_is_said() -> None:
    async def body(engine: Engine, client: Client) -> None:
        port = free_port()
        server = await serve_grpc(engine, "127.0.0.1", port)
        try:
            with pytest.raises(Occupied, match=str(port)):
                await serve_grpc(engine, "127.0.0.1", port)
        finally:
            await server.stop(None)

    with_server(body)


@settings(max_examples=25)
@given(st.data())
@pytest.mark.parametrize("datatype", sorted(DTYPES))
def test_every_datatype_comes_through_raw_and_typed(datatype: str, data: st.DataObject) -> None:
    array = data.draw(arrays(datatype))
    fitting = Fitting(signature_for(datatype, array))
    for raw in (True, False):
        if not raw and datatype not in FIELDS:
            continue
        message = pb.ModelInferRequest(model_name="m")
        tensor = message.inputs.add(name="x", datatype=datatype, shape=array.shape)
        if raw:
            message.raw_input_contents.append(bytes(to_raw(array, datatype)))
        else:
            getattr(tensor.contents, FIELDS[datatype]).extend(array.reshape(-1).tolist())
        request = request_of(message, fitting)
        assert np.array_equal(request.inputs["x"], array, equal_nan=array.dtype.kind == "f")
        written = message_of(InferAnswer("m", 1, "", {"y": request.inputs["x"]}), request, fitting)
        output = written.outputs[0]
        assert tuple(output.shape) == array.shape and output.datatype == datatype
        if raw:
            held = memoryview(written.raw_output_contents[0])
            assert same(from_raw("y", datatype, array.shape, array.size, held), array)
        else:
            values = list(getattr(output.contents, FIELDS[datatype]))
            assert len(values) == array.size


def test_raw_tensors_are_as_many_as_inputs_and_small_types_keep_their_bounds() -> None:
    message = pb.ModelInferRequest(model_name="m", raw_input_contents=[b"", b"", b""])
    message.inputs.add(name="a", datatype="INT32", shape=[1, 2])
    with pytest.raises(Usage, match="3 raw tensors"):
        request_of(message, Fitting(PAIR))
    small = Fitting(Signature((TensorSpec("x", "INT8", (-1,)),), ()))
    message = pb.ModelInferRequest()
    tensor = message.inputs.add(name="x", datatype="INT8", shape=[1])
    tensor.contents.int_contents.append(300)
    with pytest.raises(Usage, match="INT8"):
        request_of(message, small)
    half = Fitting(Signature((TensorSpec("x", "FP16", (-1,)),), ()))
    tensor.datatype = "FP16"
    with pytest.raises(Usage, match="only raw"):
        request_of(message, half)
