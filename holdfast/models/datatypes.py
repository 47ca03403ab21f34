"""Types of elements: the Open Inference Protocol's names, and numpy's. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from holdfast.models.records import TensorSpec
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


# --- texts ----------------------------------------------------------------------------------------
# Arrays of BYTES, as a model sees them: of `str` where its example had texts, else of `bytes`.
#
# The wire knows only bytes. A tensor's record says which of the two its model takes and gives
# (`TensorSpec.text`); one that says nothing is of a version from before that was written down.
# Pure.


Array = np.ndarray[Any, Any]


def settled(array: Array, what: str) -> tuple[Array, bool | None]:
    """The array as a replica would give it to the model, and whether its elements are texts; None:
    it is of numbers. `Usage`, naming `what`, for other objects, and for a mixture."""
    if array.dtype.kind not in "OSU":
        return array, None
    plain = array if array.dtype.kind == "O" else array.astype(np.object_)
    kinds = {type(element) for element in plain.flat}
    texts = {kind for kind in kinds if issubclass(kind, str)}
    others = {kind for kind in kinds - texts if not issubclass(kind, bytes)}
    if others or (texts and texts != kinds):
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise Usage(
            f"{what} has elements of {names}",
            why="a tensor is of numbers, of texts (str) or of bytes",
            fix="make all of its elements str, or all of them bytes",
        )
    return plain, bool(texts) or array.dtype.kind == "U"


def fitted(spec: TensorSpec, array: Array) -> Array:
    """An array of BYTES with elements of the type that the tensor's record says, where it says one.
    `UnicodeDecodeError` if bytes are no text; `TypeError` for elements that are neither."""
    if spec.datatype != BYTES or spec.text is None or array.dtype.kind not in "OSU":
        return array
    wanted: type = str if spec.text else bytes
    if array.dtype.kind == "O" and all(type(element) is wanted for element in array.flat):
        return array
    made = np.empty(array.size, np.object_)
    turn = _text if spec.text else _bytes
    made[:] = [turn(element) for element in array.flat]
    return made.reshape(array.shape)


def _text(element: Any) -> str:
    if isinstance(element, str):
        return str(element)
    return _bytes(element).decode()


def _bytes(element: Any) -> bytes:
    if isinstance(element, str):
        return element.encode()
    if isinstance(element, bytes | bytearray | memoryview):
        return bytes(element)
    raise TypeError(f"an element is {type(element).__name__}, neither str nor bytes")
