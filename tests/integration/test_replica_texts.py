"""A real replica with a model of texts and of any length: the same types by every protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from holdfast.models.examples import Example
from holdfast.models.records import Signature, TensorSpec
from holdfast.serve.protocol.grpc_server import SERVICE
from holdfast.serve.protocol.tensors import packed_bytes
from holdfast.wire.proto import inference_pb2 as pb
from tests.grpc_calls import unary
from tests.integration.replica_stage import ReplicaProcess, ReplicaStage

# Upper-cases texts, and says of what type they were; fails on more than four words.
WORDS = """
    import numpy as np

    def predict(inputs):
        words = inputs["words"]
        if words.shape[1] > 4:
            raise ValueError(f"{words.shape[1]} words are too many")
        each = [[f"{type(word).__name__} {word.upper()}" for word in row] for row in words]
        return {"said": np.array(each, object).reshape(words.shape)}
"""
SIGNATURE = Signature(
    (TensorSpec("words", "BYTES", (-1, -1), text=True),),
    (TensorSpec("said", "BYTES", (-1, -1), text=True),),
)


def grid(*rows: list[str]) -> np.ndarray[Any, Any]:
    return np.array(rows, object)


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaProcess]:
    stage = ReplicaStage(tmp_path_factory.mktemp("texts"), cache_entries=16)
    example = Example({"words": grid(["a", "ä"])}, {"said": grid(["str A", "str Ä"])})
    try:
        stage.hold(stage.publish(WORDS, example, signature=SIGNATURE).number)
        found = stage.start()
        found.await_ready()
        yield found
    finally:
        stage.close()


def rest(replica: ReplicaProcess, words: list[str]) -> list[str]:
    body = {"name": "words", "datatype": "BYTES", "shape": [1, len(words)], "data": words}
    said = replica.call("POST", "/v2/models/digits/infer", json.dumps({"inputs": [body]}).encode())
    assert said.status == 200, said.body
    data: list[str] = json.loads(said.body)["outputs"][0]["data"]
    return data


def raw_rest(replica: ReplicaProcess, raw: bytes, shape: list[int]) -> Any:
    size = {"binary_data_size": len(raw)}
    tensor = {"name": "words", "datatype": "BYTES", "shape": shape, "parameters": size}
    head = json.dumps({"inputs": [tensor]}).encode()
    length = {"Inference-Header-Content-Length": str(len(head))}
    return replica.call("POST", "/v2/models/digits/infer", head + raw, length)


def by_grpc(replica: ReplicaProcess, words: list[bytes], *, raw: bool) -> list[str]:
    message = pb.ModelInferRequest(model_name="digits")
    tensor = message.inputs.add(name="words", datatype="BYTES", shape=[1, len(words)])
    if raw:
        message.raw_input_contents.append(packed_bytes(np.array(words, object)))
    else:
        tensor.contents.bytes_contents.extend(words)
    with grpc.insecure_channel(f"127.0.0.1:{replica.grpc_port}") as channel:
        call = unary(channel, f"/{SERVICE}/ModelInfer")
        answer = pb.ModelInferResponse.FromString(call(message.SerializeToString(), timeout=60))
    if not raw:
        return [each.decode() for each in answer.outputs[0].contents.bytes_contents]
    packed, found = answer.raw_output_contents[0], []
    while packed:
        end = 4 + int.from_bytes(packed[:4], "little")
        found.append(packed[4:end].decode())
        packed = packed[end:]
    return found


def misses(replica: ReplicaProcess) -> int:
    """How often the cache had no answer so far."""
    lines = replica.get("/metrics").body.decode().splitlines()
    (line,) = (line for line in lines if line.startswith("holdfast_cache_misses_total"))
    return int(line.rpartition(" ")[2])


def test_a_model_of_texts_gets_texts_by_every_protocol_and_from_the_cache(
    replica: ReplicaProcess,
) -> None:
    before = misses(replica)
    for _ in range(2):  # the second time the cache answers
        assert rest(replica, ["fish", "Bär"]) == ["str FISH", "str BÄR"]
        said = raw_rest(replica, packed_bytes(grid(["fish", "Bär"])), [1, 2])
        assert json.loads(said.body)["outputs"][0]["data"] == ["str FISH", "str BÄR"]
        for raw in (True, False):
            found = by_grpc(replica, [b"fish", "Bär".encode()], raw=raw)
            assert found == ["str FISH", "str BÄR"]
    said = replica.call("POST", "/predict/digits", b'{"words": ["fish", "B\xc3\xa4r"]}')
    assert json.loads(said.body) == {"said": ["str FISH", "str BÄR"]}
    assert misses(replica) == before + 1


def test_what_is_no_text_is_refused_with_a_sentence(replica: ReplicaProcess) -> None:
    said = raw_rest(replica, packed_bytes(np.array([[b"\xff"]], object)), [1, 1])
    assert said.status == 400
    assert "element 0 of input 'words' is not UTF-8" in json.loads(said.body)["error"]
    with pytest.raises(grpc.RpcError) as refused:
        by_grpc(replica, [b"\xff"], raw=False)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_every_length_is_taken_and_one_that_is_too_long_fails_alone(
    replica: ReplicaProcess,
) -> None:
    for length in (1, 2, 3, 4):
        assert rest(replica, ["w"] * length) == ["str W"] * length
    body = {"name": "words", "datatype": "BYTES", "shape": [1, 5], "data": ["w"] * 5}
    said = replica.call("POST", "/v2/models/digits/infer", json.dumps({"inputs": [body]}).encode())
    assert said.status == 500
    assert "5 words are too many" in json.loads(said.body)["error"]
    assert rest(replica, ["still"]) == ["str STILL"]
    shapes = [each["shape"] for each in json.loads(replica.get("/v2/models/digits").body)["inputs"]]
    assert shapes == [[-1, -1]]
