"""KServe's protocol v1: rows and whole tensors."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from holdfast.models.records import Signature, TensorSpec
from holdfast.serve.protocol.rest import Codec
from holdfast.serve.protocol.tensors import InferAnswer
from holdfast.serve.replica import bodies
from holdfast.wire.errors import Usage

X, Z = TensorSpec("x", "FP32", (-1, 2)), TensorSpec("z", "INT64", (-1,))
ONE = Codec(Signature((X,), (TensorSpec("y", "FP32", (-1, 2)),)), "m")
TWO = Codec(Signature((X, Z), (TensorSpec("y", "FP32", (-1, 2)), TensorSpec("n", "INT64", (-1,)))))


def decoded(codec: Codec, **body: Any) -> tuple[dict[str, Any], bool]:
    request, by_row = bodies.decode_v1(codec, json.dumps(body).encode())
    return {name: array.tolist() for name, array in request.inputs.items()}, by_row


def test_rows_and_tensors_are_the_same_inputs() -> None:
    rows = {"x": [[1.0, 2.0], [3.0, 4.0]]}
    assert decoded(ONE, instances=[[1, 2], [3, 4]]) == (rows, True)
    assert decoded(ONE, instances=[{"x": [1, 2]}, {"x": [3, 4]}]) == (rows, True)
    assert decoded(ONE, inputs=[[1, 2], [3, 4]]) == (rows, False)
    assert decoded(ONE, inputs={"x": [[1, 2], [3, 4]]}, signature_name="any") == (rows, False)
    both = {**rows, "z": [5, 6]}
    assert decoded(TWO, instances=[{"x": [1, 2], "z": 5}, {"z": 6, "x": [3, 4]}]) == (both, True)
    assert decoded(TWO, inputs={"x": [[1, 2], [3, 4]], "z": [5, 6]}) == (both, False)


@pytest.mark.parametrize(
    ("codec", "body"),
    [
        (ONE, {}),
        (ONE, {"instances": [[1, 2]], "inputs": [[1, 2]]}),
        (ONE, {"instances": 1}),
        (ONE, {"instances": []}),
        (ONE, {"instances": [1, 2]}),
        (ONE, {"instances": [[1, 2, 3]]}),
        (ONE, {"instances": [{"x": [1, 2]}, {}]}),
        (ONE, {"instances": [{"x": [1, 2]}, 1]}),
        (ONE, {"inputs": [1, 2]}),
        (TWO, {"instances": [[1, 2]]}),
        (TWO, {"inputs": [[1, 2]]}),
        (TWO, {"instances": [{"x": [1, 2]}]}),
    ],
)
def test_what_does_not_fit_is_refused(codec: Codec, body: dict[str, Any]) -> None:
    with pytest.raises(Usage):
        decoded(codec, **body)


def test_predictions_come_as_they_were_asked_for() -> None:
    y, n = np.array([[1, 2], [3, 4]], np.float32), np.array([5, 6])

    def encoded(codec: Codec, by_row: bool, **outputs: Any) -> Any:
        return json.loads(bodies.encode_v1(codec, InferAnswer("m", 1, "", outputs), by_row=by_row))

    for by_row in (True, False):
        assert encoded(ONE, by_row, y=y) == {"predictions": [[1.0, 2.0], [3.0, 4.0]]}
    rows = [{"y": [1.0, 2.0], "n": 5}, {"y": [3.0, 4.0], "n": 6}]
    assert encoded(TWO, True, y=y, n=n) == {"predictions": rows}
    tensors = {"y": [[1.0, 2.0], [3.0, 4.0]], "n": [5, 6]}
    assert encoded(TWO, False, y=y, n=n) == {"predictions": tensors}
