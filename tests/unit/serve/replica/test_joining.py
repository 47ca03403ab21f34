"""Requests as rows of one batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.serve.replica.batching import joined, repeated, shape_of, split
from holdfast.wire.errors import ModelFailed


@given(rows=st.lists(st.integers(1, 5), min_size=1, max_size=6), width=st.integers(1, 4))
def test_each_request_gets_back_its_own_rows(rows: list[int], width: int) -> None:
    start = 0
    parts: list[dict[str, np.ndarray]] = []
    for count in rows:
        x = np.arange(start, start + count * width, dtype=np.float32).reshape(count, width)
        parts.append({"x": x, "z": x[:, 0].copy()})
        start += count * width
    assert len({shape_of(part)[0] for part in parts}) == 1
    batch = joined(parts)
    outputs = {"y": batch["x"] * 2, "w": batch["z"] + 1}
    for part, found in zip(parts, split(outputs, rows), strict=True):
        assert np.array_equal(found["y"], part["x"] * 2)
        assert np.array_equal(found["w"], part["z"] + 1)


@pytest.mark.parametrize(
    "other",
    [
        {"x": np.zeros((1, 3), np.float32)},
        {"x": np.zeros((1, 2), np.float64)},
        {"z": np.zeros((1, 2), np.float32)},
    ],
)
def test_requests_that_differ_in_shape_type_or_name_do_not_go_together(
    other: dict[str, np.ndarray],
) -> None:
    assert shape_of({"x": np.zeros((1, 2), np.float32)})[0] != shape_of(other)[0]


@pytest.mark.parametrize(
    "inputs",
    [
        {"x": np.zeros(())},
        {"x": np.zeros((2, 3)), "z": np.zeros((3, 3))},
        {"x": np.zeros((0, 3))},
        {},
    ],
)
def test_inputs_without_rows_in_common_go_with_nobody(inputs: dict[str, np.ndarray]) -> None:
    assert shape_of(inputs)[0] is None


def test_outputs_that_do_not_have_the_rows_of_the_batch_are_the_models_fault() -> None:
    with pytest.raises(ModelFailed, match="batch of 5 rows"):
        split({"y": np.zeros((4, 2))}, [2, 3])


def test_an_example_is_repeated_row_by_row() -> None:
    found = repeated({"x": np.array([[1, 2], [3, 4]])}, 5)
    assert found["x"].tolist() == [[1, 2], [3, 4], [1, 2], [3, 4], [1, 2]]
