"""Requests as rows of one batch, and their answers as rows of its outputs. Pure.

Only requests whose inputs have the same names, types and shapes but for the first dimension go
together, and only where the signature says that rows do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.wire.errors import ModelFailed

Array = NDArray[Any]
Inputs = Mapping[str, Array]


def shape_of(inputs: Inputs) -> tuple[Hashable, int]:
    """What inputs must have in common to be one batch, and how many rows these have. None instead
    of the first: they go with nobody."""
    rows = -1
    key: list[Hashable] = []
    for name, array in inputs.items():
        shape = array.shape
        if not shape or (rows >= 0 and shape[0] != rows):
            return None, 1
        rows = shape[0]
        key.append((name, array.dtype.char, shape[1:]))
    if rows < 1:
        return None, 1
    return tuple(key), rows


def joined(parts: Sequence[Inputs]) -> Inputs:
    """One batch of all their rows, in their order. All have the same key."""
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([each[name] for each in parts]) for name in parts[0]}


def split(outputs: Mapping[str, Array], rows: Sequence[int]) -> list[dict[str, Array]]:
    """The outputs of each request; `ModelFailed` if they do not have the batch's rows."""
    total = sum(rows)
    for name, array in outputs.items():
        if not array.ndim or array.shape[0] != total:
            raise ModelFailed(
                f"output {name!r} has the shape {list(array.shape)} for a batch of {total} rows",
                why="the version says that its outputs have a row for each row of its inputs",
                fix="publish it with a signature that does not batch, or mend the model",
            )
    found = []
    start = 0
    for count in rows:
        end = start + count
        found.append({name: array[start:end] for name, array in outputs.items()})
        start = end
    return found


def repeated(inputs: Inputs, rows: int) -> Inputs:
    """The rows of an example again and again until there are `rows` of them."""
    return {name: np.resize(array, (rows, *array.shape[1:])) for name, array in inputs.items()}
