"""Tensors as JSON: numbers, booleans and texts in lists, flat or nested as the shape is.

A number must be what its datatype can hold, but for the rounding of a fraction: nobody is served
with 1 for 1.5, or with infinity for 1e300. JSON has neither NaN nor infinity: they are refused in
requests, and `null` in answers. The raw form has them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, Final

import msgspec
import numpy as np

from holdfast.serve.protocol.tensors import DTYPES, as_bytes, described, refused
from holdfast.serve.protocol.values import Array
from holdfast.wire.errors import Usage

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
