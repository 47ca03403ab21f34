"""Requests as people write them by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.records import Signature, TensorSpec
from holdfast.serve.protocol.rest import Codec
from holdfast.serve.protocol.tensors import InferAnswer
from holdfast.serve.replica import bodies
from holdfast.wire.errors import Usage

ONE = Codec(
    Signature((TensorSpec("x", "FP32", (-1, 2)),), (TensorSpec("y", "FP32", (-1, 2)),)), "m"
)
TWO = Codec(
    Signature(
        (TensorSpec("a", "INT64", (-1,)), TensorSpec("b", "BYTES", (-1,))),
        (TensorSpec("c", "BYTES", (-1,)), TensorSpec("d", "FP64", ())),
    ),
    "m",
)


def written(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_inputs_come_by_name_or_bare_as_a_batch_or_as_a_row() -> None:
    for body, row in (
        ({"x": [[1, 2], [3, 4]]}, False),
        ([[1, 2], [3, 4]], False),
        ({"x": [1, 2]}, True),
        ([1, 2], True),
    ):
        request, alone = bodies.decode(ONE, written(body))
        assert alone is row
        expected = [[1, 2]] if row else [[1, 2], [3, 4]]
        assert request.inputs["x"].tolist() == expected
        assert request.inputs["x"].dtype == np.float32


def test_answers_are_nested_as_their_shapes_are_and_a_row_comes_back_as_one() -> None:
    answer = InferAnswer("m", 1, "", {"y": np.array([[1.5, 2.5]], np.float32)})
    assert json.loads(bodies.encode(ONE, answer, row=False)) == {"y": [[1.5, 2.5]]}
    assert json.loads(bodies.encode(ONE, answer, row=True)) == {"y": [1.5, 2.5]}
    several = {"c": np.array([b"one", b"two"], object), "d": np.array(3.0)}
    found = json.loads(bodies.encode(TWO, InferAnswer("m", 1, "", several), row=False))
    assert found == {"c": ["one", "two"], "d": 3.0}


def test_several_inputs_come_together() -> None:
    request, row = bodies.decode(TWO, written({"a": [1, 2], "b": ["x", "y"]}))
    assert not row
    assert request.inputs["a"].tolist() == [1, 2]
    assert request.inputs["b"].tolist() == [b"x", b"y"]


@pytest.mark.parametrize(
    ("codec", "body", "words"),
    [
        (ONE, b"", "not an object of inputs"),
        (ONE, b"nonsense", "not an object of inputs"),
        (ONE, b"5", "not an object of inputs"),
        (ONE, written({"x": 5}), "not a list"),
        (ONE, written({"x": [[1, 2, 3]]}), "shape"),
        (ONE, written({"x": [["a", "b"]]}), "not FP32"),
        (ONE, written({"x": [[1, 2], [3]]}), "x"),
        (ONE, written({"z": [[1, 2]]}), "no input 'z'"),
        (ONE, written({}), "missing"),
        (TWO, written([1, 2]), "not an object of inputs"),
        (TWO, written({"a": [1, 2], "b": ["x"]}), "rows"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_was_wrong(
    codec: Codec, body: bytes, words: str
) -> None:
    with pytest.raises(Usage) as caught:
        bodies.decode(codec, body)
    assert words in str(caught.value)


@given(st.one_of(st.binary(), st.text().map(str.encode)))
def test_no_body_is_anything_but_a_request_or_a_usage_error(body: bytes) -> None:
    for codec in (ONE, TWO):
        try:
            bodies.decode(codec, body)
        except Usage:
            continue


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(json_values)
def test_no_json_is_anything_but_a_request_or_a_usage_error(value: Any) -> None:
    for codec in (ONE, TWO):
        for shaped in (value, {"x": value}, {"a": value, "b": value}):
            try:
                bodies.decode(codec, written(shaped))
            except Usage:
                continue
