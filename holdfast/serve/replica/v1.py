"""`POST /v1/models/NAME:predict`: KServe's protocol v1, which is TensorFlow Serving's. Pure.

`instances` is a list of rows, each the value of the only input or an object of all of them; the
answer's `predictions` is a list of rows too. `inputs` has the whole tensors, and so has the answer.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.serve.protocol.fitting import listed
from holdfast.serve.protocol.rest import Codec
from holdfast.serve.protocol.tensors import refused
from holdfast.serve.protocol.values import Answer, Request
from holdfast.serve.replica import plain

_Rows = list[msgspec.Raw]
_rows: Final = msgspec.json.Decoder(_Rows)
_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode: Final = msgspec.json.Encoder().encode
_MALFORMED: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)


class _Asked(msgspec.Struct):
    instances: msgspec.Raw = msgspec.Raw()
    inputs: msgspec.Raw = msgspec.Raw()


_asked: Final = msgspec.json.Decoder(_Asked)


def decode(codec: Codec, body: bytes) -> tuple[Request, bool]:
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
    request, row = plain.request_of(codec, found)
    if row:
        raise refused(
            "the rows have too few dimensions",
            f"the batch comes first, also for one row; the inputs are {listed(found)}",
            model,
        )
    return request, by_row


def encode(codec: Codec, answer: Answer, *, by_row: bool) -> bytes:
    """`predictions`: of one output its rows, of several an object for each row, or of tensors."""
    outputs = plain.nested(codec, answer, row=False)
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
