"""Outputs as bytes for a store that may lose, mix up or damage them. Pure.

The bytes carry their own key and a checksum: what comes back for another key, cut off, changed or
written by another version of Holdfast is `Corrupt`, never an answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

import msgspec
import numpy as np

from holdfast.serve.cache.keys import KEY_BYTES
from holdfast.serve.protocol.tensors import DTYPES, from_raw, packed_bytes
from holdfast.serve.protocol.values import Array
from holdfast.wire.errors import Corrupt, Usage

_MAGIC: Final = b"hfc1"
_SUM_BYTES: Final = 16
_HEAD_BYTES: Final = len(_MAGIC) + KEY_BYTES + _SUM_BYTES


class _Tensor(msgspec.Struct, array_like=True):
    name: str
    dtype: str
    shape: tuple[int, ...]
    raw: bytes


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[_Tensor]).decode
# An array's own type in the raw form. BF16 is a float32 while it is ours.
_NAMES: Final = {dtype.str: name for name, dtype in DTYPES.items() if name != "BF16"}


def pack(key: bytes, outputs: Mapping[str, Array]) -> bytes:
    """The bytes of outputs; `Usage` for an array of a type that no datatype has."""
    tensors = []
    for name, array in outputs.items():
        if array.dtype.str not in _NAMES:
            raise Usage(f"output {name!r} is an array of {array.dtype}", why="no datatype has it")
        raw = packed_bytes(array) if array.dtype == object else array.tobytes()
        tensors.append(_Tensor(name, array.dtype.str, array.shape, raw))
    body = _encode(tensors)
    return b"".join((_MAGIC, key, _sum(key, body), body))


def unpack(key: bytes, value: bytes) -> dict[str, Array]:
    """The outputs that `pack` wrote for this key; `Corrupt` if these bytes are not that."""
    head, body = value[:_HEAD_BYTES], value[_HEAD_BYTES:]
    if head != b"".join((_MAGIC, key, _sum(key, body))):
        raise Corrupt("the cache gave other bytes than it was given", why="their checksum differs")
    try:
        return {tensor.name: _array(tensor) for tensor in _decode(body)}
    except (msgspec.MsgspecError, Usage, KeyError) as error:
        raise Corrupt("the cache gave what is not an answer", why=str(error)) from error


def _array(tensor: _Tensor) -> Array:
    datatype = _NAMES[tensor.dtype]
    shape = tensor.shape
    if datatype == "BYTES":
        count = math.prod(shape)
        return from_raw(tensor.name, datatype, shape, count, memoryview(tensor.raw))
    return np.frombuffer(tensor.raw, DTYPES[datatype]).reshape(shape)


def _sum(key: bytes, body: bytes) -> bytes:
    return blake2b(body, digest_size=_SUM_BYTES, key=key).digest()
