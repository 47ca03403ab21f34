"""Bodies of the Open Inference Protocol over REST: JSON, and JSON followed by raw tensors.

A `Codec` is made once for a version: what it decodes fits the version's signature. Whatever does
not is `Usage`, which names the input, what was expected and what came.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import msgspec

from holdfast.models.records import Signature
from holdfast.serve.protocol.fitting import Fitting
from holdfast.serve.protocol.lists import from_list, to_list
from holdfast.serve.protocol.tensors import Nameless, from_raw, refused, to_raw
from holdfast.serve.protocol.values import Answer, Array, Request
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


class _Request(msgspec.Struct):
    inputs: list[_Input]
    id: str | None = None
    parameters: dict[str, Any] | None = None
    outputs: list[_Output] | None = None


class _Tensor(msgspec.Struct, omit_defaults=True):
    name: str
    shape: tuple[int, ...]
    datatype: str
    parameters: dict[str, Any] | None = None
    data: list[Any] | None = None


class _Answer(msgspec.Struct, omit_defaults=True):
    model_name: str
    model_version: str
    outputs: list[_Tensor]
    id: str = ""


_decode: Final = msgspec.json.Decoder(_Request).decode
_encode: Final = msgspec.json.Encoder().encode
_JSON_HEADERS: Final = {CONTENT_TYPE: JSON}


class Codec:
    """Requests and answers of one signature as bodies."""

    __slots__ = ("fitting",)

    def __init__(self, signature: Signature, model: str = "") -> None:
        self.fitting = Fitting(signature, model)

    def decode(self, body: bytes, header_length: int | None = None) -> Request:
        """The request in a body; `Usage` if there is none that fits. `header_length`: how many of
        its bytes are JSON, if raw tensors follow. The caller adds what the body does not say:
        model, version, arm and region."""
        try:
            return self._decoded(body, header_length)
        except Nameless as error:
            raise error.of(self.fitting.model) from error

    def _decoded(self, body: bytes, header_length: int | None) -> Request:
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
        request = Request("", None, document.id or "", inputs, parameters=parameters)
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

    def _outputs(self, request: Request, outputs: list[_Output]) -> None:
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

    def encode(self, answer: Answer, request: Request) -> tuple[bytes, dict[str, str]]:
        """The body of an answer, and the headers that describe it."""
        tensors: list[_Tensor] = []
        raws: list[bytes | memoryview] = []
        for name, array in answer.outputs.items():
            spec = self.fitting.outputs.get(name)
            if spec is None:
                raise BugError(f"the answer has an output {name!r} that its signature has not")
            tensor = _Tensor(name, array.shape, spec.datatype)
            if request.binary(name):
                raw = to_raw(array, spec.datatype)
                tensor.parameters = {"binary_data_size": len(raw)}
                raws.append(raw)
            else:
                tensor.data = to_list(name, array, spec.datatype)
            tensors.append(tensor)
        document = _Answer(answer.model, str(answer.version), tensors, answer.id)
        body = _encode(document)
        if not raws:
            return body, _JSON_HEADERS
        headers = {CONTENT_TYPE: BINARY, HEADER_LENGTH: str(len(body))}
        return b"".join((body, *raws)), headers


@lru_cache(maxsize=64)
def codec_of(signature: Signature) -> Codec:
    """The codec of a signature. Whoever has many requests keeps it."""
    return Codec(signature)


def decode_infer(body: bytes, header_length: int | None, signature: Signature) -> Request:
    """`Codec.decode` for one request."""
    return codec_of(signature).decode(body, header_length)


def encode(answer: Answer, request: Request, signature: Signature) -> tuple[bytes, dict[str, str]]:
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
