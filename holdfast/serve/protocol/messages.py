"""Requests and answers as the messages of `inference.proto`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from holdfast.serve.protocol.rest import Fitting
from holdfast.serve.protocol.tensors import (
    Array,
    InferAnswer,
    InferRequest,
    Nameless,
    as_bytes,
    decoded,
    described,
    from_numbers,
    from_raw,
    refused,
    to_raw,
)
from holdfast.wire.errors import Usage
from holdfast.wire.proto import inference_pb2 as pb

# The field of `InferTensorContents` for a datatype. FP16 and BF16 have none: they travel raw.
FIELDS: Final[Mapping[str, str]] = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
# What clients may ask for that we cannot do: silently doing without would be a wrong answer.
_UNSUPPORTED: Final = ("shared_memory_region", "classification")


def request_of(message: pb.ModelInferRequest, fitting: Fitting) -> InferRequest:
    """The request in a message; `Usage` if it does not fit. `binary_all`: the inputs came raw, and
    the outputs go back so. The caller adds version, variant and region."""
    try:
        return _request_of(message, fitting)
    except Nameless as error:
        raise error.of(fitting.model) from error


def _request_of(message: pb.ModelInferRequest, fitting: Fitting) -> InferRequest:
    raws = message.raw_input_contents
    if raws and len(raws) != len(message.inputs):
        raise refused(
            f"{len(raws)} raw tensors came with {len(message.inputs)} inputs",
            "either all inputs come raw, or none",
            fitting.model,
        )
    inputs: dict[str, Array] = {}
    for index, tensor in enumerate(message.inputs):
        _supported(tensor.name, tensor.parameters)
        shape = tuple(tensor.shape)
        count = fitting.elements(tensor.name, tensor.datatype, shape)
        if raws:
            raw = memoryview(raws[index])
            inputs[tensor.name] = from_raw(
                tensor.name,
                tensor.datatype,
                shape,
                count,
                raw,
                text=tensor.name in fitting.texts,
            )
        else:
            held = _from_contents(tensor, shape, count)
            texts = tensor.name in fitting.texts
            inputs[tensor.name] = decoded(tensor.name, held) if texts else held
    fitting.complete(inputs, len(message.inputs))
    for output in message.outputs:
        _supported(output.name, output.parameters)
    parameters = {name: _parameter(held) for name, held in message.parameters.items()}
    return InferRequest(
        message.model_name,
        None,
        message.id,
        inputs,
        outputs=fitting.wanted(output.name for output in message.outputs),
        binary_all=bool(raws),
        parameters=parameters,
    )


def message_of(
    answer: InferAnswer, request: InferRequest, fitting: Fitting
) -> pb.ModelInferResponse:
    """The message of an answer."""
    message = pb.ModelInferResponse(
        model_name=answer.model, model_version=str(answer.version), id=answer.id
    )
    specs = [fitting.outputs[name] for name in answer.outputs]
    raw = request.binary_all or any(spec.datatype not in FIELDS for spec in specs)
    for spec in specs:
        array = answer.outputs[spec.name]
        tensor = message.outputs.add(name=spec.name, datatype=spec.datatype, shape=array.shape)
        if raw:
            message.raw_output_contents.append(bytes(to_raw(array, spec.datatype)))
            continue
        values = array.reshape(-1).tolist()
        if spec.datatype == "BYTES":
            values = [as_bytes(value) for value in values]
        getattr(tensor.contents, FIELDS[spec.datatype]).extend(values)
    return message


def _from_contents(
    tensor: pb.ModelInferRequest.InferInputTensor, shape: tuple[int, ...], count: int
) -> Array:
    name, datatype = tensor.name, tensor.datatype
    field = FIELDS.get(datatype)
    if field is None:
        raise refused(f"input {name!r} came without raw bytes", f"{datatype} travels only raw")
    values = getattr(tensor.contents, field)
    if len(values) != count:
        raise refused(
            f"input {name!r} has {len(values)} elements in {field}",
            f"its shape {described(shape)} has {count}",
        )
    if datatype == "BYTES":
        array: Array = np.empty(count, object)
        array[:] = values
        return array.reshape(shape)
    return from_numbers(name, datatype, shape, values)


def _parameter(held: pb.InferParameter) -> Any:
    chosen = held.WhichOneof("parameter_choice")
    return None if chosen is None else getattr(held, chosen)


def _supported(name: str, parameters: Mapping[str, Any]) -> None:
    for odd in _UNSUPPORTED:
        if odd in parameters:
            raise Usage(
                f"tensor {name!r} asks for {odd!r}",
                why="this server has no such extension",
                fix=f"leave out the parameter {odd!r}",
            )
