"""`POST /predict/NAME`: requests as people write them by hand. Pure.

The body is an object of inputs by name, or the bare list of the only input; a single row may come
without the batch's brackets, and its answer comes back without them. Nothing says a datatype or a
shape: the signature and the brackets do.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

import msgspec

from holdfast.models.records import TensorSpec
from holdfast.serve.protocol.rest import Codec, Fitting, listed
from holdfast.serve.protocol.tensors import (
    Array,
    InferAnswer,
    InferRequest,
    Nameless,
    described,
    filled,
    refused,
    to_list,
)
from holdfast.wire.errors import TooLarge, Usage

_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode: Final = msgspec.json.Encoder().encode
_DEPTH_MAX: Final = 32


def decode(codec: Codec, body: bytes) -> tuple[InferRequest, bool]:
    """The request, and whether it is a row without its batch; `Usage` says what does not fit."""
    return request_of(codec, _inputs(codec, body))


def request_of(codec: Codec, found: dict[str, msgspec.Raw]) -> tuple[InferRequest, bool]:
    """As `decode`, of inputs by name."""
    try:
        return _request_of(codec.fitting, found)
    except Nameless as error:
        raise error.of(codec.fitting.model) from error


def _request_of(fitting: Fitting, found: dict[str, msgspec.Raw]) -> tuple[InferRequest, bool]:
    inputs: dict[str, Array] = {}
    rows = []
    for name, data in found.items():
        spec = fitting.inputs.get(name)
        if spec is None:
            fitting.elements(name, "", ())  # says so
            continue
        depth = _depth(data)
        alone = depth == len(spec.shape) - 1 and spec.shape[0] < 0
        text = name in fitting.texts
        array = filled(name, spec.datatype, data, depth, text=text) if depth else _single(spec)
        inputs[name] = array[None] if alone else array
        rows.append(alone)
        fitting.elements(name, spec.datatype, inputs[name].shape)
    fitting.complete(inputs, len(inputs))
    row = bool(rows) and all(rows)
    return InferRequest("", None, "", inputs), row


def encode(codec: Codec, answer: InferAnswer, *, row: bool) -> bytes:
    """The outputs by name, nested as their shapes are."""
    return _encode(nested(codec, answer, row=row))


def nested(codec: Codec, answer: InferAnswer, *, row: bool) -> dict[str, Any]:
    """The outputs as lists."""
    outputs: dict[str, Any] = {}
    for name, array in answer.outputs.items():
        flat = to_list(name, array, codec.fitting.outputs[name].datatype)
        shape = array.shape[1:] if row and array.ndim and array.shape[0] == 1 else array.shape
        outputs[name] = _nested(flat, shape)
    return outputs


def _inputs(codec: Codec, body: bytes) -> dict[str, msgspec.Raw]:
    fitting = codec.fitting
    if body.lstrip()[:1] == b"[" and len(fitting.inputs) == 1:
        (name,) = fitting.inputs
        return {name: msgspec.Raw(body)}
    try:
        return _object.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        names = ", ".join(f'"{name}": [...]' for name in fitting.inputs)
        raise refused(
            "the body is not an object of inputs", f"{error}; send {{{names}}}", fitting.model
        ) from error


def _single(spec: TensorSpec) -> Array:
    raise refused(
        f"input {spec.name!r} is not a list", f"its shape must be {described(spec.shape)}"
    )


def _depth(data: msgspec.Raw) -> int:
    """How many brackets the list begins with: that many dimensions it has."""
    depth = 0
    for byte in bytes(memoryview(data)[:1024]):
        if byte == ord("["):
            depth += 1
        elif byte not in b" \t\r\n":
            break
    return min(depth, _DEPTH_MAX)


def _nested(flat: list[Any], shape: tuple[int, ...]) -> Any:
    if not shape:
        return flat[0]
    nested = flat
    for size in reversed(shape[1:]):
        count = len(nested) // size if size else 0
        nested = [nested[at * size : (at + 1) * size] for at in range(count)]
    return nested


# --- v1 -------------------------------------------------------------------------------------------
# `POST /v1/models/NAME:predict`: KServe's protocol v1, which is TensorFlow Serving's. Pure.
#
# `instances` is a list of rows, each the value of the only input or an object of all of them; the
# answer's `predictions` is a list of rows too. `inputs` has the whole tensors, and so has the
# answer.


_Rows = list[msgspec.Raw]
_rows: Final = msgspec.json.Decoder(_Rows)
_MALFORMED: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)


class _V1Request(msgspec.Struct):
    instances: msgspec.Raw = msgspec.Raw()
    inputs: msgspec.Raw = msgspec.Raw()


_asked: Final = msgspec.json.Decoder(_V1Request)


def decode_v1(codec: Codec, body: bytes) -> tuple[InferRequest, bool]:
    """The request, and whether its rows came one by one."""
    model = codec.fitting.model
    try:
        asked = _asked.decode(body)
        by_row = bool(memoryview(asked.instances))
        if by_row == bool(memoryview(asked.inputs)):
            raise refused(
                "the body has neither `instances` nor `inputs`, or both",
                'send {"instances": [...]}, a list of rows, or {"inputs": {...}}, whole tensors',
                model,
            )
        found = _columns(codec, asked.instances) if by_row else _tensors(codec, asked.inputs)
    except _MALFORMED as error:
        raise refused("the body is not a request of protocol v1", str(error), model) from error
    request, row = request_of(codec, found)
    if row:
        raise refused(
            "the rows have too few dimensions",
            f"the batch comes first, also for one row; the inputs are {listed(found)}",
            model,
        )
    return request, by_row


def encode_v1(codec: Codec, answer: InferAnswer, *, by_row: bool) -> bytes:
    """`predictions`: of one output its rows, of several an object for each row, or of tensors."""
    outputs = nested(codec, answer, row=False)
    if len(outputs) == 1:
        (predictions,) = outputs.values()
        return _encode({"predictions": predictions})
    rows = {len(array) if array.ndim else -1 for array in answer.outputs.values()}
    if by_row and len(rows) == 1 and -1 not in rows:
        count = rows.pop()
        each = [{name: outputs[name][at] for name in outputs} for at in range(count)]
        return _encode({"predictions": each})
    return _encode({"predictions": outputs})


def _columns(codec: Codec, instances: msgspec.Raw) -> dict[str, msgspec.Raw]:
    """Rows, by the name of their inputs."""
    rows = _rows.decode(instances)
    if not rows or bytes(memoryview(rows[0])[:1]) != b"{":
        return {_only(codec, "a row"): instances}
    columns: dict[str, _Rows] = {}
    for row in rows:
        for name, value in _object.decode(row).items():
            columns.setdefault(name, []).append(value)
    for name, column in columns.items():
        if len(column) != len(rows):
            raise refused(
                f"{len(column)} of {len(rows)} rows have {name!r}",
                "all rows have the same inputs",
                codec.fitting.model,
            )
    return {name: _joined(column) for name, column in columns.items()}


def _tensors(codec: Codec, inputs: msgspec.Raw) -> dict[str, msgspec.Raw]:
    if bytes(memoryview(inputs)[:1]) == b"{":
        return _object.decode(inputs)
    return {_only(codec, "`inputs`"): inputs}


def _only(codec: Codec, what: str) -> str:
    names: list[Any] = list(codec.fitting.inputs)
    if len(names) != 1:
        raise refused(
            f"{what} does not say which input it is for",
            f"the inputs are {listed(names)}: send an object of them",
            codec.fitting.model,
        )
    return str(names[0])


def _joined(column: _Rows) -> msgspec.Raw:
    return msgspec.Raw(b"[" + b",".join(bytes(memoryview(one)) for one in column) + b"]")


# --- compression ----------------------------------------------------------------------------------
# Bodies that came packed, and answers that are wanted so: gzip and deflate. Pure.
#
# Nothing is unpacked beyond the limit of a body: what would be larger is refused when it gets
# there. An answer is packed for whoever asks for one of the two alone. Clients that name all they
# could read (`gzip, deflate, br`) have not asked for it: packing costs more than it saves within a
# cluster.


# A shorter answer is not packed: the head of gzip and a packet's worth outweigh what is saved.
PACKED_BYTES_MIN: Final = 256
# How hard it is tried, of 9: on numbers more effort saves little and takes several times as long.
PACKING_LEVEL: Final = 1

_GZIP: Final = zlib.MAX_WBITS | 16
_WAYS: Final = {b"gzip": _GZIP, b"x-gzip": _GZIP, b"deflate": zlib.MAX_WBITS}
_NONE: Final = (b"", b"identity")


def unpacked(body: bytes, encoding: bytes, most: int) -> bytes:
    """The body as it was before it was packed so; `TooLarge` at `most` bytes, `Usage` if it is
    damaged or packed in another way."""
    name = encoding.strip().lower()
    if name in _NONE:
        return body
    if name not in _WAYS:
        raise Unknown(
            f"the body is packed as {encoding[:40].decode('latin-1')!r}",
            why="gzip and deflate are known, one at a time",
            fix="send it as it is, or by gzip",
        )
    found, left = b"", body
    while left:  # gzip may have several parts
        inflating = zlib.decompressobj(_WAYS[name])
        try:
            found += inflating.decompress(left, most + 1 - len(found))
        except zlib.error as error:
            raise _damaged(str(error)) from error
        if len(found) > most:
            raise TooLarge(f"the body has more than {most} bytes when it is unpacked")
        if not inflating.eof:
            raise _damaged("it ends too early")
        left = inflating.unused_data
    return found


def packed(body: bytes, accepted: bytes) -> tuple[bytes, bytes]:
    """The body as it is wanted (the value of `accept-encoding`), and the name of that way; empty:
    as it is."""
    name = accepted.strip().lower()
    if name not in _WAYS or len(body) < PACKED_BYTES_MIN:
        return body, b""
    packing = zlib.compressobj(PACKING_LEVEL, zlib.DEFLATED, _WAYS[name])
    return packing.compress(body) + packing.flush(), name


class Unknown(Usage):
    """A way to pack that is not known (415)."""


def _damaged(why: str) -> Usage:
    return Usage("the body cannot be unpacked", why=why, fix="send it as it is, or pack it again")
