"""Bodies over REST: what goes in comes out, and what does not fit is said in words."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.models.records import Signature, TensorSpec
from holdfast.serve.protocol.messages import request_of
from holdfast.serve.protocol.rest import (
    BINARY,
    HEADER_LENGTH,
    JSON,
    Codec,
    Fitting,
    header_length_of,
)
from holdfast.serve.protocol.tensors import DTYPES, InferAnswer, InferRequest, from_raw
from holdfast.serve.replica import bodies
from holdfast.wire.errors import Usage
from holdfast.wire.proto import inference_pb2 as pb
from tests.unit.serve.protocol.tensors_made import (
    NUMBERS,
    PAIR,
    arrays,
    body,
    raw_body,
    same,
    signature_for,
    tensor,
)

ROW = np.arange(4, dtype=np.float32).reshape(1, 4)
DATATYPES = sorted(DTYPES)


def sentence_of(signature: Signature, raw: bytes, header_length: int | None = None) -> str:
    with pytest.raises(Usage) as caught:
        Codec(signature, "m").decode(raw, header_length)
    return str(caught.value)


@settings(max_examples=25)
@given(st.data())
@pytest.mark.parametrize("datatype", DATATYPES)
def test_a_raw_tensor_comes_through_bit_for_bit(datatype: str, data: st.DataObject) -> None:
    array = data.draw(arrays(datatype))
    codec = Codec(signature_for(datatype, array))
    sent, length = raw_body([("x", datatype, array)], parameters={"binary_data_output": True})
    request = codec.decode(sent, length)
    assert same(request.inputs["x"], array)
    answer = InferAnswer("m", 3, request.id, {"y": request.inputs["x"]})
    written, headers = codec.encode(answer, request)
    at = int(headers[HEADER_LENGTH])
    document = json.loads(written[:at])
    (output,) = document["outputs"]
    raw = memoryview(written)[at:]
    assert headers["content-type"] == BINARY
    assert output["parameters"] == {"binary_data_size": len(raw)}
    assert same(from_raw("y", datatype, array.shape, array.size, raw), array)


@settings(max_examples=25)
@given(st.data())
@pytest.mark.parametrize("datatype", DATATYPES)
@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
def test_a_tensor_in_json_comes_through_bit_for_bit(
    nested: bool, datatype: str, data: st.DataObject
) -> None:
    array = data.draw(arrays(datatype, json_form=True))
    codec = Codec(signature_for(datatype, array))
    texts = array
    if datatype == "BYTES":
        texts = np.array([value.decode() for value in array.reshape(-1)], object)
        texts = texts.reshape(array.shape)
    sent = body(tensor("x", datatype, array, texts.tolist() if nested else None), id="7")
    request = codec.decode(sent)
    assert same(request.inputs["x"], array)
    answer = InferAnswer("m", 3, request.id, {"y": request.inputs["x"]})
    written, headers = codec.encode(answer, request)
    assert headers == {"content-type": JSON}
    document = json.loads(written)
    assert (document["model_name"], document["model_version"], document["id"]) == ("m", "3", "7")
    (output,) = document["outputs"]
    again = codec.decode(body({**output, "name": "x"}))
    assert same(again.inputs["x"], array)


def test_a_raw_tensor_is_a_view_where_its_numbers_may_lie() -> None:
    sent, length = raw_body([("x", "FP32", np.zeros((64, 4), np.float32))])
    padded = sent[:length] + b" " * (-length % 16) + sent[length:]
    array = Codec(NUMBERS).decode(padded, length + (-length % 16)).inputs["x"]
    assert array.base is not None and array.flags.aligned
    shifted = sent[:length] + b" " * (-length % 16 + 1) + sent[length:]
    array = Codec(NUMBERS).decode(shifted, length + (-length % 16) + 1).inputs["x"]
    assert array.flags.aligned


def test_each_output_may_be_raw_or_json() -> None:
    codec = Codec(NUMBERS)
    outputs = [{"name": "label", "parameters": {"binary_data": True}}, {"name": "y"}]
    request = codec.decode(body(tensor("x", "FP32", ROW), outputs=outputs))
    assert request.outputs == ("label", "y")
    assert request.binary("label") and not request.binary("y")
    answer = InferAnswer("m", 1, "", {"label": np.array([5]), "y": ROW})
    written, headers = codec.encode(answer, request)
    head = json.loads(written[: int(headers[HEADER_LENGTH])])
    assert head["outputs"][0]["parameters"] == {"binary_data_size": 8}
    assert head["outputs"][1]["data"] == [0.0, 1.0, 2.0, 3.0]
    assert written[int(headers[HEADER_LENGTH]) :] == np.array([5]).tobytes()


def test_all_outputs_raw_but_one() -> None:
    outputs = [{"name": "y", "parameters": {"binary_data": False}}, {"name": "label"}]
    sent = body(tensor("x", "FP32", ROW), outputs=outputs, parameters={"binary_data_output": True})
    request = Codec(NUMBERS).decode(sent)
    assert request.binary("label") and not request.binary("y")


def test_numbers_that_json_cannot_say_are_null_in_an_answer() -> None:
    codec = Codec(NUMBERS)
    array = np.array([[np.nan, np.inf, -np.inf, 1]], np.float32)
    written, _ = codec.encode(InferAnswer("m", 1, "", {"y": array}), InferRequest("m", 1, "", {}))
    assert json.loads(written)["outputs"][0]["data"] == [None, None, None, 1.0]


def test_bytes_that_are_no_text_are_refused_in_json_with_the_way_out() -> None:
    answer = InferAnswer("m", 1, "", {"echo": np.array([[b"\xff"]], object)})
    with pytest.raises(Usage, match="binary_data"):
        Codec(PAIR).encode(answer, InferRequest("m", 1, "", {}))


def test_a_body_that_says_that_nothing_of_it_is_json_is_refused() -> None:
    sent = np.arange(8, dtype=np.float32).tobytes()
    assert "not an inference request" in sentence_of(NUMBERS, sent, 0)


@pytest.mark.parametrize("absent", ["id", "parameters", "outputs"])
def test_null_is_as_good_as_nothing(absent: str) -> None:
    request = Codec(NUMBERS).decode(body(tensor("x", "FP32", ROW), **{absent: None}))
    assert same(request.inputs["x"], ROW)
    assert request.id == "" and request.outputs == ()


REFUSED: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("an unknown input", tensor("z", "FP32", ROW), ("'z'", "'x'")),
    ("another datatype", tensor("x", "FP64", ROW), ("'x'", "FP64", "FP32")),
    ("an unknown datatype", tensor("x", "FLOAT", ROW), ("'x'", "FLOAT", "FP32")),
    ("another rank", tensor("x", "FP32", ROW[0]), ("'x'", "[4]", "[any, 4]")),
    ("another size", tensor("x", "FP32", ROW.reshape(2, 2)), ("'x'", "[2, 2]", "[any, 4]")),
    ("a negative size", {**tensor("x", "FP32", ROW), "shape": [-1, 4]}, ("'x'", "[-1, 4]")),
    ("no rows", {**tensor("x", "FP32", ROW), "shape": [0, 4], "data": []}, ("'x'", "no rows")),
    ("too few elements", tensor("x", "FP32", ROW, [1.0, 2.0]), ("'x'", "2", "4")),
    ("too many elements", tensor("x", "FP32", ROW, [1.0] * 5), ("'x'", "5", "4")),
    ("no data", {**tensor("x", "FP32", ROW), "data": None}, ("'x'", "null")),
    ("a text", tensor("x", "FP32", ROW, ["a"] * 4), ("'x'", "FP32", "numbers")),
    ("a null", tensor("x", "FP32", ROW, [None] * 4), ("'x'", "null")),
    ("too large a number", tensor("x", "FP32", ROW, [1e300] * 4), ("'x'", "FP32")),
    ("too large a number, nested", tensor("x", "FP32", ROW, [[1e300] * 4]), ("'x'", "FP32")),
    ("ragged lists", tensor("x", "FP32", ROW.repeat(2, 0), [[1.0] * 4, [1.0] * 3]), ("'x'",)),
    ("lists of another shape", tensor("x", "FP32", ROW, [[1.0] * 3]), ("'x'", "[1, 3]", "[1, 4]")),
    ("lists too deep", tensor("x", "FP32", ROW, [[[1.0] * 4]]), ("'x'",)),
    ("a huge shape", {**tensor("x", "FP32", ROW), "shape": [2**62, 4]}, ("'x'", "4")),
]


@pytest.mark.parametrize(("case", "given_input", "words"), REFUSED, ids=[r[0] for r in REFUSED])
def test_a_refusal_says_which_input_and_what_was_expected(
    case: str, given_input: dict[str, Any], words: tuple[str, ...]
) -> None:
    said = sentence_of(NUMBERS, body(given_input))
    for word in words:
        assert word in said, (case, said)


@pytest.mark.parametrize("value", [1.5, 300, -129, "1", True, None])
def test_a_whole_number_is_neither_rounded_nor_cut(value: Any) -> None:
    signature = Signature((TensorSpec("x", "INT8", (-1,)),), (TensorSpec("y", "INT8", (-1,)),))
    said = sentence_of(signature, body(tensor("x", "INT8", np.zeros(1), [value])))
    assert "'x'" in said and "INT8" in said


def test_inputs_that_are_missing_twice_or_uneven_are_named() -> None:
    numbers = tensor("a", "INT32", np.zeros((2, 2), np.int32))
    words = tensor("words", "BYTES", np.array([[b"a"]], object))
    assert "'words' is missing" in sentence_of(PAIR, body(numbers))
    assert "twice" in sentence_of(PAIR, body(numbers, numbers))
    said = sentence_of(PAIR, body(numbers, words))
    assert "'words' has 1 rows" in said and "'a' has 2" in said


def test_an_unknown_output_is_named_with_those_there_are() -> None:
    said = sentence_of(NUMBERS, body(tensor("x", "FP32", ROW), outputs=[{"name": "z"}]))
    assert "'z'" in said and "'y', 'label'" in said


@pytest.mark.parametrize("parameter", ["shared_memory_region", "classification"])
def test_an_extension_that_is_not_there_is_refused_by_name(parameter: str) -> None:
    outputs = [{"name": "y", "parameters": {parameter: 1}}]
    said = sentence_of(NUMBERS, body(tensor("x", "FP32", ROW), outputs=outputs))
    assert parameter in said


@pytest.mark.parametrize("change", [-1, 1])
def test_raw_bytes_must_be_as_many_as_announced(change: int) -> None:
    sent, length = raw_body([("x", "FP32", ROW)])
    changed = sent[:change] if change < 0 else sent + b"\0"
    assert "bytes" in sentence_of(NUMBERS, changed, length)
    wrong = sent.replace(b'"binary_data_size": 16', b'"binary_data_size": %d' % (16 + change))
    assert "'x'" in sentence_of(NUMBERS, wrong, length)


def test_a_cut_element_of_bytes_is_refused_before_room_is_made() -> None:
    signature = Signature((TensorSpec("w", "BYTES", (-1,)),), (TensorSpec("v", "BYTES", (-1,)),))
    huge = {"name": "w", "datatype": "BYTES", "shape": [2**40]}
    head = body({**huge, "parameters": {"binary_data_size": 8}})
    assert "elements" in sentence_of(signature, head + b"\0" * 8, len(head))
    head = body({**huge, "shape": [1], "parameters": {"binary_data_size": 8}})
    said = sentence_of(signature, head + b"\xff\0\0\0abcd", len(head))
    assert "element 0 of 1" in said


@pytest.mark.parametrize("text", ["", "-1", "x", "1.5", "²"])
def test_a_header_length_is_a_number(text: str) -> None:
    with pytest.raises(Usage, match=HEADER_LENGTH):
        header_length_of(text)


def test_a_header_length_beyond_the_body_is_refused() -> None:
    assert "JSON" in sentence_of(NUMBERS, b"{}", 3)
    assert header_length_of("12") == 12 and header_length_of(None) is None


def test_what_does_not_fit_is_told_with_the_models_own_name_whoever_finds_out() -> None:
    """A list, a raw tensor, a header, a single number, a message: none says `NAME`."""
    signature = signature_for("FP32", ROW)
    words = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
    short = {"inputs": [{**words, "data": [1.0]}]}
    raw = {"inputs": [{**words, "parameters": {"binary_data_size": 8}}]}
    head = json.dumps(raw).encode()
    told = [
        sentence_of(signature, json.dumps(short).encode()),
        sentence_of(signature, head + bytes(8), len(head)),
        sentence_of(signature, b"{}", 9),
    ]
    with pytest.raises(Usage) as caught:
        bodies.decode(Codec(signature, "m"), b'{"x": 3}')
    told.append(str(caught.value))
    message = pb.ModelInferRequest(model_name="m")
    message.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    with pytest.raises(Usage) as caught:
        request_of(message, Fitting(signature, "m"))
    told.append(str(caught.value))
    assert [one for one in told if "GET /v2/models/m shows" not in one] == []
