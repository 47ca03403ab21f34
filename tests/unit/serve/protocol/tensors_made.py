"""Signatures and tensors that tests make up."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from holdfast.models.records import Signature, TensorSpec
from holdfast.serve.protocol.tensors import DTYPES, Array, to_raw

NUMBERS = Signature(
    (TensorSpec("x", "FP32", (-1, 4)),),
    (TensorSpec("y", "FP32", (-1, 4)), TensorSpec("label", "INT64", (-1,))),
)
PAIR = Signature(
    (TensorSpec("a", "INT32", (-1, 2)), TensorSpec("words", "BYTES", (-1, 1))),
    (TensorSpec("b", "INT32", (-1, 2)), TensorSpec("echo", "BYTES", (-1, 1))),
)


def elements(datatype: str, *, json_form: bool) -> st.SearchStrategy[Any]:
    """Values of one element; those that JSON can say, or any that the type can."""
    if datatype == "BYTES":
        return st.text(max_size=8).map(str.encode) if json_form else st.binary(max_size=8)
    if datatype == "BOOL":
        return st.booleans()
    dtype = DTYPES[datatype]
    if dtype.kind == "f":
        width: Any = 16 if datatype in ("FP16", "BF16") else dtype.itemsize * 8
        return st.floats(width=width, allow_nan=not json_form, allow_infinity=not json_form)
    bounds = np.iinfo(dtype)
    return st.integers(int(bounds.min), int(bounds.max))


@st.composite
def arrays(draw: st.DrawFn, datatype: str, *, json_form: bool = False) -> Array:
    """An array of one to three dimensions, none of them empty."""
    shape = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    count = int(np.prod(shape))
    values = draw(st.lists(elements(datatype, json_form=json_form), min_size=count, max_size=count))
    made: Array = np.empty(count, DTYPES[datatype])
    for index, value in enumerate(values):
        made[index] = value
    if datatype == "BF16":  # only what sixteen bits can hold
        made = (made.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return made.reshape(shape)


def signature_for(datatype: str, array: Array) -> Signature:
    shape = (-1, *array.shape[1:])
    return Signature((TensorSpec("x", datatype, shape),), (TensorSpec("y", datatype, shape),))


def tensor(name: str, datatype: str, array: Array, data: Any = None) -> dict[str, Any]:
    """An input as JSON; flat, unless `data` says how."""
    if data is None:
        data = [
            value.decode() if isinstance(value, bytes) else value
            for value in array.reshape(-1).tolist()
        ]
    return {"name": name, "datatype": datatype, "shape": list(array.shape), "data": data}


def body(*inputs: Mapping[str, Any], **more: Any) -> bytes:
    return json.dumps({"inputs": list(inputs), **more}).encode()


def raw_body(tensors: Sequence[tuple[str, str, Array]], **more: Any) -> tuple[bytes, int]:
    """A body with raw tensors, and how many of its bytes are JSON."""
    inputs, raws = [], []
    for name, datatype, array in tensors:
        raw = bytes(to_raw(array, datatype))
        shape = list(array.shape)
        size = {"binary_data_size": len(raw)}
        inputs.append({"name": name, "datatype": datatype, "shape": shape, "parameters": size})
        raws.append(raw)
    head = json.dumps({"inputs": inputs, **more}).encode()
    return b"".join((head, *raws)), len(head)


def same(one: Array, other: Array) -> bool:
    """Bit for bit, NaN included."""
    if one.dtype == object:
        return one.shape == other.shape and one.reshape(-1).tolist() == other.reshape(-1).tolist()
    return (
        one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    )
