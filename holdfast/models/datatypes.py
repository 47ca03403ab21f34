"""Types of elements: the Open Inference Protocol's names, and numpy's. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from holdfast.wire.errors import Usage

BYTES: Final = "BYTES"
# BF16 is not here: numpy has no such type, and a model that computes in it answers in FP32.
NUMPY: Final[Mapping[str, np.dtype[Any]]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    BYTES: np.dtype(np.object_),
}
_NAMES: Final = {dtype: name for name, dtype in NUMPY.items()}


def numpy_of(datatype: str) -> np.dtype[Any]:
    """The type of numpy; `Usage` for a name that the protocol does not have."""
    try:
        return NUMPY[datatype]
    except KeyError:
        raise Usage(
            f"{datatype!r} is not a type of tensors", fix=f"use one of {', '.join(NUMPY)}"
        ) from None


def datatype_of(dtype: np.dtype[Any], what: str) -> str:
    """The protocol's name of numpy's type; texts and bytes are BYTES. `Usage`, naming `what`."""
    if dtype.kind in "OSU":
        return BYTES
    try:
        return _NAMES[dtype.newbyteorder("=")]
    except KeyError:
        raise Usage(
            f"{what} has the type {dtype}, which cannot be served",
            why=f"the Open Inference Protocol knows {', '.join(NUMPY)}",
            fix="convert it to one of these",
        ) from None
