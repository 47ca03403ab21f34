"""The datatypes of the Open Inference Protocol, and tensors as raw bytes.

Raw tensors are little-endian and in row-major order. BYTES is a length of four bytes before each
element. BF16 is held as float32: numpy has no such type.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from hashlib import blake2b
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from holdfast.models.datatypes import NUMPY
from holdfast.models.records import Version
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


# --- values ---------------------------------------------------------------------------------------
# A request and its answer, as a replica computes with them: whatever protocol they came by.
#
# Arrays have the numpy type of their datatype (`tensors.DTYPES`), little-endian, in C order, and
# may be read-only views of the request's body. BYTES is an array of `bytes` objects, or of
# `str` where the version's record says so; BF16 is held as
# float32, because numpy has no such type.


Array = NDArray[Any]


@dataclass(slots=True)
class InferRequest:
    """What a client wants. `outputs`: the names that it asked for, in its order; empty: all.

    `version`: None until somebody has chosen one. `binary_all`: every output in the binary form
    but those in `json_outputs`; else only those in `binary_outputs`. `trace`: what a gateway calls
    it, the same for each of its tries; `entity`: the value that it is routed by; "": none has said
    so, or nobody writes it down.
    """

    model: str
    version: int | None
    id: str
    inputs: dict[str, Array]
    outputs: tuple[str, ...] = ()
    binary_outputs: frozenset[str] = frozenset()
    json_outputs: frozenset[str] = frozenset()
    binary_all: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)
    variant: str = ""
    region: str = ""
    trace: str = ""
    entity: str = ""

    @property
    def rows(self) -> int:
        """How many rows of a batch it has: the first dimension of its inputs."""
        for array in self.inputs.values():
            return int(array.shape[0]) if array.ndim else 1
        return 1

    def binary(self, output: str) -> bool:
        """Whether this output is wanted in the binary form."""
        if self.binary_all:
            return output not in self.json_outputs
        return output in self.binary_outputs


@dataclass(slots=True)
class InferAnswer:
    """What a version answered. `outputs` are all that were asked for; `cached`: nobody computed."""

    model: str
    version: int
    id: str
    outputs: dict[str, Array]
    cached: bool = False


# --- lists ----------------------------------------------------------------------------------------
# Tensors as JSON: numbers, booleans and texts in lists, flat or nested as the shape is.
#
# A number must be what its datatype can hold, but for the rounding of a fraction: nobody is served
# with 1 for 1.5, or with infinity for 1e300. JSON has neither NaN nor infinity: they are refused in
# requests, and `null` in answers. The raw form has them.


_WORDS: Final = {
    float: "numbers",
    int: "whole numbers",
    bool: "true or false",
    str: "texts",
}
_SPACE: Final = b" \t\r\n"
# Where the second bracket of a nested list is, unless somebody plays with spaces.
_PEEK_BYTES: Final = 64
# How the module `struct` calls the numbers of a datatype. It refuses what does not fit, and fills
# memory faster than numpy does from a list.
_FORMATS: Final = {
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "BF16": "f",
    "FP32": "f",
    "FP64": "d",
    "BOOL": "?",
}


def element_of(datatype: str) -> type:
    """What an element of this datatype is in JSON."""
    if datatype == "BYTES":
        return str
    if datatype == "BOOL":
        return bool
    return float if DTYPES[datatype].kind == "f" else int


@cache
def _decoder(datatype: str, depth: int) -> msgspec.json.Decoder[Any]:
    kind: Any = element_of(datatype)
    for _ in range(depth):
        kind = list[kind]
    return msgspec.json.Decoder(kind)


@lru_cache(maxsize=256)
def _packer(datatype: str, count: int) -> struct.Struct:
    return struct.Struct(f"<{count}{_FORMATS[datatype]}")


def _nested(data: msgspec.Raw) -> bool:
    """Whether the list begins with a list."""
    head = bytes(memoryview(data)[:_PEEK_BYTES]).translate(None, _SPACE)
    return head.startswith(b"[[")


def from_list(
    name: str,
    datatype: str,
    shape: tuple[int, ...],
    count: int,
    data: msgspec.Raw,
    *,
    text: bool = False,
) -> Array:
    """The array of a list. `count`: the number of elements of `shape`. `text`: elements of BYTES
    become `str`, not `bytes`."""
    try:
        values = _decoder(datatype, 1).decode(data)
    except msgspec.DecodeError as error:
        if len(shape) > 1 and _nested(data):
            return _from_nested(name, datatype, shape, data, text)
        raise _odd(name, datatype, error) from error
    if len(values) != count:
        raise refused(
            f"input {name!r} has {len(values)} elements",
            f"its shape {described(shape)} has {count}",
        )
    if datatype == "BYTES":
        return _texts(values, text).reshape(shape)
    return from_numbers(name, datatype, shape, values)


def from_numbers(
    name: str, datatype: str, shape: tuple[int, ...], values: Sequence[float | bool]
) -> Array:
    """The array of as many numbers as its shape has, each within the bounds of its datatype."""
    try:
        packed = _packer(datatype, len(values)).pack(*values)
    except (struct.error, OverflowError) as error:
        raise _odd(name, datatype, error) from error
    return np.ndarray(shape, DTYPES[datatype], packed)


def _from_nested(
    name: str, datatype: str, shape: tuple[int, ...], data: msgspec.Raw, text: bool
) -> Array:
    array = filled(name, datatype, data, len(shape), text=text)
    if array.shape != shape:
        raise refused(
            f"the data of input {name!r} has the shape {described(array.shape)}",
            f"its own shape says {described(shape)}",
        )
    return array


def filled(name: str, datatype: str, data: msgspec.Raw, depth: int, *, text: bool = False) -> Array:
    """The array of a list that is nested `depth` times; its shape is what the lists say."""
    try:
        values = _decoder(datatype, depth).decode(data)
        if datatype == "BYTES":
            return _texts(values, text)
        with np.errstate(over="raise"):
            return np.array(values, DTYPES[datatype])
    except (msgspec.DecodeError, ValueError, OverflowError, FloatingPointError) as error:
        raise _odd(name, datatype, error) from error


def _odd(name: str, datatype: str, error: Exception) -> Usage:
    words = _WORDS[element_of(datatype)]
    return refused(
        f"the data of input {name!r} is not {datatype}", f"{error}; it must be a list of {words}"
    )


def _texts(values: list[Any], text: bool) -> Array:
    array = np.array(values, object)
    flat = array.reshape(-1)
    for index, each in enumerate(flat):
        if isinstance(each, list):
            raise ValueError("its lists differ in length")  # noqa: TRY004  # of data, not of types
        if not text:
            flat[index] = each.encode()
    return array


def to_list(name: str, array: Array, datatype: str) -> list[Any]:
    """An array as a flat list for JSON. Bytes that are no text have no JSON form."""
    values: list[Any] = array.reshape(-1).tolist()
    if datatype != "BYTES":
        return values
    try:
        return [as_bytes(value).decode() for value in values]
    except UnicodeDecodeError as error:
        raise Usage(
            f"output {name!r} is not text, so it has no JSON form",
            why=str(error),
            fix='ask for it with "parameters": {"binary_data": true}',
        ) from error


# --- keys -----------------------------------------------------------------------------------------
# What makes two requests equal: the version's content, the inputs, the wanted outputs. Pure.


KEY_BYTES: Final = 20


def key_of(version: Version, request: InferRequest) -> bytes:
    """Equal for equal requests of one publication, and for no others. Not by the version's number:
    a Redis may outlive the cluster, and another one counts from 1 again."""
    named = f"{version.model}\0{version.number}\0{version.publication}"
    digest = blake2b(named.encode(), digest_size=KEY_BYTES)
    feed(digest, request.inputs)
    # All outputs are not the same as each of them by name: the answer's order differs.
    digest.update("\0\0".join(("", *request.outputs)).encode())
    return digest.digest()


def feed(digest: blake2b, inputs: Mapping[str, Array]) -> None:
    """Let a digest see these inputs, in the order of their names: a client may send them in any."""
    for name in sorted(inputs):
        array = inputs[name]
        digest.update(f"\0{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        if array.dtype == object:
            digest.update(packed_bytes(array))
        else:
            digest.update(np.ascontiguousarray(array).data)
