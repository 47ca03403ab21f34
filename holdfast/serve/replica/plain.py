"""`POST /predict/NAME`: requests as people write them by hand. Pure.

The body is an object of inputs by name, or the bare list of the only input; a single row may come
without the batch's brackets, and its answer comes back without them. Nothing says a datatype or a
shape: the signature and the brackets do.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.models.records import TensorSpec
from holdfast.serve.protocol.fitting import Fitting
from holdfast.serve.protocol.lists import filled, to_list
from holdfast.serve.protocol.rest import Codec
from holdfast.serve.protocol.tensors import Nameless, described, refused
from holdfast.serve.protocol.values import Answer, Array, Request

_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode: Final = msgspec.json.Encoder().encode
_DEPTH_MAX: Final = 32


def decode(codec: Codec, body: bytes) -> tuple[Request, bool]:
    """The request, and whether it is a row without its batch; `Usage` says what does not fit."""
    return request_of(codec, _inputs(codec, body))


def request_of(codec: Codec, found: dict[str, msgspec.Raw]) -> tuple[Request, bool]:
    """As `decode`, of inputs by name."""
    try:
        return _request_of(codec.fitting, found)
    except Nameless as error:
        raise error.of(codec.fitting.model) from error


def _request_of(fitting: Fitting, found: dict[str, msgspec.Raw]) -> tuple[Request, bool]:
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
    return Request("", None, "", inputs), row


def encode(codec: Codec, answer: Answer, *, row: bool) -> bytes:
    """The outputs by name, nested as their shapes are."""
    return _encode(nested(codec, answer, row=row))


def nested(codec: Codec, answer: Answer, *, row: bool) -> dict[str, Any]:
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
