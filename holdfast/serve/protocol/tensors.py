"""The datatypes of the Open Inference Protocol, and tensors as raw bytes.

Raw tensors are little-endian and in row-major order. BYTES is a length of four bytes before each
element. BF16 is held as float32: numpy has no such type.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from holdfast.models.datatypes import NUMPY
from holdfast.serve.protocol.values import Array
from holdfast.wire.errors import Usage

assert sys.byteorder == "little", "raw tensors are little-endian, and used as they are"

# The type of the arrays that a model sees. numpy has no BF16: it is widened on the way in.
DTYPES: Final[Mapping[str, np.dtype[Any]]] = {**NUMPY, "BF16": NUMPY["FP32"]}
# Bytes of one element in the raw form; BYTES has no fixed size.
SIZES: Final[Mapping[str, int]] = {
    name: 2 if name == "BF16" else dtype.itemsize
    for name, dtype in DTYPES.items()
    if name != "BYTES"
}
LENGTH: Final = struct.Struct("<I")


def described(shape: Iterable[int]) -> str:
    """A shape for people: `[any, 16]`."""
    return "[" + ", ".join("any" if size < 0 else str(size) for size in shape) + "]"


class Nameless(Usage):
    """A request that is not what the model takes, said by who does not know the model's name.
    Whoever does says it: `of`."""

    def of(self, model: str) -> Usage:
        return refused(self.what, self.why, model) if model else self


def refused(what: str, why: str, model: str = "") -> Usage:
    """The error of a request that is not what the model takes."""
    kind, where = (Usage, model) if model else (Nameless, "NAME")
    return kind(what, why=why, fix=f"GET /v2/models/{where} shows what the model takes")


def from_raw(
    name: str,
    datatype: str,
    shape: tuple[int, ...],
    count: int,
    raw: memoryview,
    *,
    text: bool = False,
) -> Array:
    """The array of a raw tensor: a read-only view of `raw`, unless it must be converted or lies
    where numbers of its size may not. `count` is the number of elements of `shape`. `text`:
    elements of BYTES become `str`."""
    if datatype == "BYTES":
        array = _from_raw_bytes(name, shape, count, raw)
        return decoded(name, array) if text else array
    size = SIZES[datatype]
    if raw.nbytes != count * size:
        raise refused(
            f"input {name!r} has {raw.nbytes} bytes",
            f"{datatype} of shape {described(shape)} has {count * size}",
        )
    if datatype == "BF16":
        wide = np.frombuffer(raw, np.uint16).astype(np.uint32)
        wide <<= 16
        floats: Array = wide.view(np.float32).reshape(shape)
        return floats
    if datatype == "BOOL":
        # Any byte but 0 is true; a view of other bytes than 0 and 1 would not be a bool of numpy's.
        truths: Array = np.frombuffer(raw, np.uint8) != 0
        return truths.reshape(shape)
    numbers: Array = np.ndarray(shape, DTYPES[datatype], raw)
    return numbers if numbers.flags.aligned else numbers.copy()


def decoded(name: str, array: Array) -> Array:
    """The same array, of texts instead of bytes; refused if an element is not UTF-8."""
    flat = array.reshape(-1)
    for index, element in enumerate(flat):
        try:
            flat[index] = element.decode()
        except UnicodeDecodeError as error:
            raise refused(
                f"element {index} of input {name!r} is not UTF-8",
                f"the model takes texts; {error.reason} at byte {error.start}",
            ) from error
    return array


def _from_raw_bytes(name: str, shape: tuple[int, ...], count: int, raw: memoryview) -> Array:
    array = np.empty(_possible(name, count, raw.nbytes // LENGTH.size), object)
    at, end = 0, raw.nbytes
    for index in range(count):
        if at + LENGTH.size > end:
            raise _cut_off(name, index, count)
        (length,) = LENGTH.unpack_from(raw, at)
        at += LENGTH.size
        if length > end - at:
            raise _cut_off(name, index, count)
        array[index] = bytes(raw[at : at + length])
        at += length
    if at != end:
        raise refused(
            f"input {name!r} has {end - at} bytes too many",
            f"BYTES of shape {described(shape)} has {count} elements",
        )
    return array.reshape(shape)


def _possible(name: str, count: int, most: int) -> int:
    """`count`, before room is made for it: a shape alone must not cost memory."""
    if count > most:
        raise refused(
            f"input {name!r} has at most {most} elements", f"its shape says that it has {count}"
        )
    return count


def _cut_off(name: str, index: int, count: int) -> Usage:
    return refused(
        f"input {name!r} ends within element {index} of {count}",
        "an element of BYTES is a length of four bytes (little-endian) and as many bytes",
    )


def to_raw(array: Array, datatype: str) -> bytes | memoryview:
    """The raw form of an array; its own memory where that is possible."""
    if datatype == "BYTES":
        return packed_bytes(array)
    if datatype == "BF16":
        return rounded_bf16(array).tobytes()
    held = np.ascontiguousarray(array, DTYPES[datatype])
    return held.data.cast("B") if held.size else b""


def packed_bytes(array: Array) -> bytes:
    """An array of `bytes` (or texts) in the raw form of BYTES."""
    parts: list[bytes] = []
    for element in array.reshape(-1).tolist():
        held = as_bytes(element)
        parts.append(LENGTH.pack(len(held)))
        parts.append(held)
    return b"".join(parts)


def as_bytes(element: object) -> bytes:
    """An element of BYTES, as a model may have given it."""
    if isinstance(element, bytes):
        return element
    return str(element).encode(errors="surrogateescape")


def rounded_bf16(array: Array) -> Array:
    """The upper halves of float32, rounded to the nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    chosen: Array = np.where(np.isnan(array), quiet, rounded).astype(np.uint16)
    return chosen
