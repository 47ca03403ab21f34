"""Bodies of the Open Inference Protocol over REST: JSON, and JSON followed by raw tensors.

A `Codec` is made once for a version: what it decodes fits the version's signature. Whatever does
not is `Usage`, which names the input, what was expected and what came.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from holdfast.models.records import Signature, TensorSpec
from holdfast.serve.protocol.tensors import (
    DTYPES,
    Array,
    InferAnswer,
    InferRequest,
    Nameless,
    described,
    from_list,
    from_raw,
    refused,
    to_list,
    to_raw,
)
from holdfast.wire.errors import BugError, Usage

HEADER_LENGTH: Final = "inference-header-content-length"
CONTENT_TYPE: Final = "content-type"
JSON: Final = "application/json"
BINARY: Final = "application/octet-stream"
# What clients may ask for that we cannot do: silently doing without would be a wrong answer.
_UNSUPPORTED: Final = frozenset({"shared_memory_region", "classification"})


class _Input(msgspec.Struct):
    name: str
    shape: tuple[int, ...]
    datatype: str
    data: msgspec.Raw = msgspec.Raw()
    parameters: dict[str, Any] | None = None


class _Output(msgspec.Struct):
    name: str
    parameters: dict[str, Any] | None = None


class _RestRequest(msgspec.Struct):
    inputs: list[_Input]
    id: str | None = None
    parameters: dict[str, Any] | None = None
    outputs: list[_Output] | None = None


class _RestTensor(msgspec.Struct, omit_defaults=True):
    name: str
    shape: tuple[int, ...]
    datatype: str
    parameters: dict[str, Any] | None = None
    data: list[Any] | None = None


class _RestAnswer(msgspec.Struct, omit_defaults=True):
    model_name: str
    model_version: str
    outputs: list[_RestTensor]
    id: str = ""


_decode: Final = msgspec.json.Decoder(_RestRequest).decode
_encode: Final = msgspec.json.Encoder().encode
_JSON_HEADERS: Final = {CONTENT_TYPE: JSON}


class Codec:
    """Requests and answers of one signature as bodies."""

    __slots__ = ("fitting",)

    def __init__(self, signature: Signature, model: str = "") -> None:
        self.fitting = Fitting(signature, model)

    def decode(self, body: bytes, header_length: int | None = None) -> InferRequest:
        """The request in a body; `Usage` if there is none that fits. `header_length`: how many of
        its bytes are JSON, if raw tensors follow. The caller adds what the body does not say:
        model, version, variant and region."""
        try:
            return self._decoded(body, header_length)
        except Nameless as error:
            raise error.of(self.fitting.model) from error

    def _decoded(self, body: bytes, header_length: int | None) -> InferRequest:
        head, tail = _divided(body, header_length)
        try:
            document = _decode(head)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise refused(
                "the body is not an inference request", str(error), self.fitting.model
            ) from error
        inputs: dict[str, Array] = {}
        at = 0
        for each in document.inputs:
            at, inputs[each.name] = self._input(each, tail, at)
        if at != len(tail):
            raise refused(
                f"{len(tail) - at} bytes follow the last tensor",
                "each raw tensor's binary_data_size says how many are its own",
                self.fitting.model,
            )
        self.fitting.complete(inputs, len(document.inputs))
        parameters = document.parameters or {}
        request = InferRequest("", None, document.id or "", inputs, parameters=parameters)
        if parameters:
            request.binary_all = parameters.get("binary_data_output") is True
        if document.outputs:
            self._outputs(request, document.outputs)
        return request

    def _input(self, each: _Input, tail: memoryview, at: int) -> tuple[int, Array]:
        """The array of an input, and where the raw tensor after it begins."""
        shape = each.shape
        count = self.fitting.elements(each.name, each.datatype, shape)
        text = each.name in self.fitting.texts
        if each.parameters:
            _supported(each.name, each.parameters)
            size = each.parameters.get("binary_data_size")
            if size is not None:
                end = _end(each.name, at, size, len(tail))
                return end, from_raw(
                    each.name, each.datatype, shape, count, tail[at:end], text=text
                )
        if not memoryview(each.data):
            raise refused(
                f"input {each.name!r} has no data",
                "it needs `data`, or `parameters.binary_data_size` and raw bytes after the JSON",
                self.fitting.model,
            )
        return at, from_list(each.name, each.datatype, shape, count, each.data, text=text)

    def _outputs(self, request: InferRequest, outputs: list[_Output]) -> None:
        request.outputs = self.fitting.wanted([each.name for each in outputs])
        binary: list[str] = []
        plain: list[str] = []
        for each in outputs:
            if each.parameters:
                _supported(each.name, each.parameters)
                form = each.parameters.get("binary_data")
                if form is True:
                    binary.append(each.name)
                elif form is False:
                    plain.append(each.name)
        if binary:
            request.binary_outputs = frozenset(binary)
        if plain:
            request.json_outputs = frozenset(plain)

    def encode(self, answer: InferAnswer, request: InferRequest) -> tuple[bytes, dict[str, str]]:
        """The body of an answer, and the headers that describe it."""
        tensors: list[_RestTensor] = []
        raws: list[bytes | memoryview] = []
        for name, array in answer.outputs.items():
            spec = self.fitting.outputs.get(name)
            if spec is None:
                raise BugError(f"the answer has an output {name!r} that its signature has not")
            tensor = _RestTensor(name, array.shape, spec.datatype)
            if request.binary(name):
                raw = to_raw(array, spec.datatype)
                tensor.parameters = {"binary_data_size": len(raw)}
                raws.append(raw)
            else:
                tensor.data = to_list(name, array, spec.datatype)
            tensors.append(tensor)
        document = _RestAnswer(answer.model, str(answer.version), tensors, answer.id)
        body = _encode(document)
        if not raws:
            return body, _JSON_HEADERS
        headers = {CONTENT_TYPE: BINARY, HEADER_LENGTH: str(len(body))}
        return b"".join((body, *raws)), headers


@lru_cache(maxsize=64)
def codec_of(signature: Signature) -> Codec:
    """The codec of a signature. Whoever has many requests keeps it."""
    return Codec(signature)


def decode_infer(body: bytes, header_length: int | None, signature: Signature) -> InferRequest:
    """`Codec.decode` for one request."""
    return codec_of(signature).decode(body, header_length)


def encode(
    answer: InferAnswer, request: InferRequest, signature: Signature
) -> tuple[bytes, dict[str, str]]:
    """`Codec.encode` for one answer."""
    return codec_of(signature).encode(answer, request)


def header_length_of(text: str | None) -> int | None:
    """The value of the header `HEADER_LENGTH`."""
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()):
        raise Usage(
            f"the header {HEADER_LENGTH} is {text[:40]!r}",
            why="it is the number of bytes of the JSON that stands before the raw tensors",
            fix="leave it out when the body is JSON alone",
        )
    return int(text[:20])


def _divided(body: bytes, header_length: int | None) -> tuple[bytes | memoryview, memoryview]:
    """The JSON, and the raw tensors after it."""
    if header_length is None:
        return body, memoryview(b"")
    if header_length > len(body):
        raise refused(
            f"the body has {len(body)} bytes",
            f"{HEADER_LENGTH} says that {header_length} of them are JSON",
        )
    view = memoryview(body)
    return view[:header_length], view[header_length:]


def _end(name: str, at: int, size: Any, length: int) -> int:
    """Where a raw tensor ends."""
    if type(size) is not int or not 0 <= size <= length - at:
        raise refused(
            f"input {name!r} has a binary_data_size of {str(size)[:40]}",
            f"{length - at} bytes of raw tensors are left for it",
        )
    return at + size


def _supported(name: str, parameters: dict[str, Any]) -> None:
    for odd in _UNSUPPORTED & parameters.keys():
        raise Usage(
            f"tensor {name!r} asks for {odd!r}",
            why="this server has no such extension",
            fix=f"leave out the parameter {odd!r}",
        )


# --- fitting --------------------------------------------------------------------------------------
# What a signature asks of a request, whatever protocol it came by.
#
# Made once for a version, so that a request is compared and not interpreted. Each refusal names the
# tensor, what was expected and what came.


class Fitting:
    """A signature, ready to be compared with. `model` is only for the sentences of errors."""

    __slots__ = ("_named", "_rows", "inputs", "model", "outputs", "signature", "texts")

    def __init__(self, signature: Signature, model: str = "") -> None:
        for spec in (*signature.inputs, *signature.outputs):
            if spec.datatype not in DTYPES:
                raise Usage(
                    f"tensor {spec.name!r} has the datatype {spec.datatype!r}",
                    why=f"known are {', '.join(sorted(DTYPES))}",
                    fix="publish the version with another signature",
                )
        self.signature = signature
        self.model = model
        self.inputs = {spec.name: spec for spec in signature.inputs}
        self.outputs = {spec.name: spec for spec in signature.outputs}
        # Inputs of BYTES that the model takes as `str`.
        self.texts = frozenset(spec.name for spec in signature.inputs if spec.text)
        # Inputs whose first dimension is free. Where that is the batch's, they must have as many
        # rows as each other.
        self._rows = tuple(
            spec.name for spec in signature.inputs if spec.shape and spec.shape[0] < 0
        )
        self._named = tied(signature)

    def elements(self, name: str, datatype: str, shape: Sequence[int]) -> int:
        """How many elements this input has, if name, datatype and shape are as the signature
        says."""
        spec = self.inputs.get(name)
        if spec is None:
            raise refused(
                f"there is no input {name!r}", f"the inputs are {listed(self.inputs)}", self.model
            )
        if datatype != spec.datatype:
            raise refused(
                f"input {name!r} came as {datatype!r}", f"it must be {spec.datatype}", self.model
            )
        if len(shape) != len(spec.shape):
            raise self._shape(spec, shape)
        for wanted, found in zip(spec.shape, shape, strict=True):
            if found < 0 or (found != wanted and wanted >= 0):
                raise self._shape(spec, shape)
        return math.prod(shape)

    def _shape(self, spec: TensorSpec, shape: Sequence[int]) -> Usage:
        return refused(
            f"input {spec.name!r} came with the shape {list(shape)}",
            f"it must be {described(spec.shape)}",
            self.model,
        )

    def complete(self, inputs: dict[str, Array], came: int) -> None:
        """All inputs are there, each once (`came`: how many came), with equally many rows."""
        if came != len(inputs):
            raise refused("an input came twice", f"{came} came, for {listed(inputs)}", self.model)
        if len(inputs) != len(self.inputs):
            missing = [name for name in self.inputs if name not in inputs]
            raise refused(
                f"input {missing[0]!r} is missing",
                f"the model takes {listed(self.inputs)}, and {listed(inputs)} came",
                self.model,
            )
        rows = None
        for name in self._rows:
            found = inputs[name].shape[0]
            if found == 0:
                raise refused(
                    f"input {name!r} has no rows", "there is nothing to compute", self.model
                )
            if rows not in (None, found) and self.signature.batches:
                raise refused(
                    f"input {name!r} has {found} rows",
                    f"input {self._rows[0]!r} has {rows}",
                    self.model,
                )
            rows = found
        if self._named:
            self._equal(inputs)

    def _equal(self, inputs: dict[str, Array]) -> None:
        """Dimensions of one name have one size."""
        for dimension, places in self._named.items():
            first, axis = places[0]
            size = inputs[first].shape[axis]
            for name, at in places[1:]:
                if inputs[name].shape[at] != size:
                    raise refused(
                        f"dimension {at} of input {name!r} is {inputs[name].shape[at]}",
                        f"it is {dimension!r}, which is {size} in input {first!r}",
                        self.model,
                    )

    def wanted(self, names: Iterable[str]) -> tuple[str, ...]:
        """The outputs that were asked for, each once."""
        chosen = tuple(dict.fromkeys(names))
        for name in chosen:
            if name not in self.outputs:
                raise refused(
                    f"there is no output {name!r}",
                    f"the outputs are {listed(self.outputs)}",
                    self.model,
                )
        return chosen


def tied(signature: Signature) -> dict[str, list[tuple[str, int]]]:
    """The dimensions of the inputs that must be equal: by name, each as its input and its axis."""
    found: dict[str, list[tuple[str, int]]] = {}
    for spec in signature.inputs:
        for axis, dimension in enumerate(spec.dims):
            if dimension:
                found.setdefault(dimension, []).append((spec.name, axis))
    return {name: places for name, places in found.items() if len(places) > 1}


def listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
