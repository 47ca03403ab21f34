"""Whatever bytes come, the answer is a request that fits or a refusal: nothing else is raised."""

from __future__ import annotations

import json
import random
import string
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.models.records import Signature, TensorSpec
from holdfast.serve.protocol.errors import status_of
from holdfast.serve.protocol.messages import request_of
from holdfast.serve.protocol.rest import Codec
from holdfast.wire.errors import HoldfastError
from holdfast.wire.proto import inference_pb2 as pb
from tests.unit.serve.protocol.tensors_made import NUMBERS, PAIR, body, raw_body, tensor

ROW = np.ones((1, 4), np.float32)
SIGNATURES = [
    NUMBERS,
    PAIR,
    Signature((TensorSpec("x", "BOOL", ()),), ()),
    Signature((TensorSpec("x", "BF16", (-1, -1)),), ()),
]
SEEDS = [
    (body(tensor("x", "FP32", ROW), id="1", outputs=[{"name": "y"}]), None),
    raw_body([("x", "FP32", ROW)], parameters={"binary_data_output": True}),
    raw_body(
        [
            ("a", "INT32", np.ones((1, 2), np.int32)),
            ("words", "BYTES", np.array([[b"hello"]], object)),
        ]
    ),
]


def judged(signature: Signature, sent: bytes, length: int | None) -> None:
    """Decode; anything but a request that fits, or an error of 4xx, fails the test."""
    codec = Codec(signature, "m")
    try:
        request = codec.decode(sent, length)
    except HoldfastError as error:
        assert 400 <= status_of(error) < 500, error
        return
    for spec in signature.inputs:
        array = request.inputs[spec.name]
        assert array.ndim == len(spec.shape)
        assert all(want in (-1, found) for want, found in zip(spec.shape, array.shape, strict=True))
    assert set(request.outputs) <= {spec.name for spec in signature.outputs}


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["name", "shape", "datatype", "data", "parameters", "inputs", "outputs", "id",
                 "binary_data_size", "binary_data"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)  # fmt: skip


@given(st.binary(max_size=200), st.none() | st.integers(0, 250), st.sampled_from(SIGNATURES))
@example(b"[" * 5_000, None, NUMBERS)
@example(b'{"inputs":' * 2_000, None, NUMBERS)
@example(b'{"inputs":[{"name":"\\ud800","shape":[],"datatype":"","data":[]}]}', None, NUMBERS)
def test_any_bytes_are_a_request_or_a_refusal(
    sent: bytes, length: int | None, signature: Signature
) -> None:
    judged(signature, sent, length)


@settings(max_examples=150)
@given(json_values, st.sampled_from(SIGNATURES))
def test_any_json_is_a_request_or_a_refusal(value: Any, signature: Signature) -> None:
    judged(signature, json.dumps({"inputs": value}).encode(), None)
    judged(signature, json.dumps(value).encode(), None)


@settings(max_examples=150)
@given(json_values, st.sampled_from(["name", "shape", "datatype", "data", "parameters"]))
def test_any_field_of_an_input_may_be_anything(value: Any, field: str) -> None:
    judged(NUMBERS, body({**tensor("x", "FP32", ROW), field: value}), None)


@pytest.mark.parametrize("seed", range(8))
def test_damaged_bodies_are_refused_or_still_fit(seed: int) -> None:
    print(f"seed {seed}")
    dice = random.Random(seed)
    for _ in range(250):
        sent, length = dice.choice(SEEDS)
        damaged = bytearray(sent)
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(damaged))
            match dice.randrange(4):
                case 0:
                    damaged[at] = dice.randrange(256)
                case 1:
                    del damaged[at : at + dice.randint(1, 20)]
                case 2:
                    damaged[at:at] = dice.randbytes(dice.randint(1, 8))
                case _:
                    damaged[at:at] = dice.choice(string.digits + '[]{}",:-.e').encode() * 3
            damaged = damaged or bytearray(b"{")
        if length is not None and dice.random() < 0.3:
            length = dice.randint(0, len(damaged) + 2)
        judged(dice.choice(SIGNATURES), bytes(damaged), length)


@settings(max_examples=200)
@given(
    st.builds(
        pb.ModelInferRequest,
        id=st.text(max_size=3),
        inputs=st.lists(
            st.builds(
                pb.ModelInferRequest.InferInputTensor,
                name=st.sampled_from(["x", "a", "words", ""]),
                datatype=st.sampled_from(["FP32", "INT32", "BYTES", "BOOL", "BF16", "no"]),
                shape=st.lists(st.integers(-2, 2**40), max_size=3),
                contents=st.builds(
                    pb.InferTensorContents,
                    fp32_contents=st.lists(st.floats(width=32), max_size=4),
                    bytes_contents=st.lists(st.binary(max_size=4), max_size=3),
                    int_contents=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4),
                ),
            ),
            max_size=3,
        ),
        raw_input_contents=st.lists(st.binary(max_size=20), max_size=3),
    ),
    st.sampled_from(SIGNATURES),
)
def test_any_message_is_a_request_or_a_refusal(
    message: pb.ModelInferRequest, signature: Signature
) -> None:
    try:
        request = request_of(message, Codec(signature).fitting)
    except HoldfastError as error:
        assert 400 <= status_of(error) < 500, error
    else:
        assert set(request.inputs) == {spec.name for spec in signature.inputs}
