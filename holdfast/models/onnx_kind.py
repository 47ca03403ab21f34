"""ONNX files, by onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from holdfast.models.datatypes import BYTES
from holdfast.models.files_kind import Array, Gathered, KnownFiles, shaped
from holdfast.models.records import ONNX, ModelKind, Signature, TensorSpec, Version
from holdfast.system.extras import require_extra
from holdfast.wire.errors import BadModel

FILE: Final = ONNX
_TYPES: Final = {
    "bool": "BOOL",
    "float16": "FP16",
    "float": "FP32",
    "double": "FP64",
    "string": "BYTES",
    **{kind: kind.upper() for kind in ("int8", "int16", "int32", "int64")},
    **{kind: kind.upper() for kind in ("uint8", "uint16", "uint32", "uint64")},
}


def gather(path: Path) -> Gathered:
    return Gathered(ModelKind.ONNX, {FILE: path})


def load(version: Version, folder: Path, device: str | None) -> OnnxServable:
    return OnnxServable(version.signature, folder / FILE, device)


def known(folder: Path, _arguments: Mapping[str, Any]) -> KnownFiles:
    signature = onnx_signature(folder / FILE)
    dynamic = {
        spec.name: {
            axis: spec.dims[axis] if spec.dims else ""
            for axis, size in enumerate(spec.shape)
            if size < 0
        }
        for spec in (*signature.inputs, *signature.outputs)
    }
    return KnownFiles(None, dynamic, signature)


def lines(_version: Version) -> list[str]:
    return ["import onnxruntime", f'session = onnxruntime.InferenceSession("{FILE}")']


def onnx_signature(path: Path) -> Signature:
    """What an ONNX file says of itself. A dimension without a number may have any size."""
    ort = require_extra("onnxruntime", "onnx")
    try:
        session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:
        raise BadModel(
            f"{path.name} cannot be loaded", why=str(error), fix="give a whole ONNX file"
        ) from error
    inputs = tuple(_spec(each) for each in session.get_inputs())
    outputs = tuple(_spec(each) for each in session.get_outputs())
    free = all(spec.shape[:1] == (-1,) for spec in (*inputs, *outputs))
    return Signature(inputs, outputs, batches=free)


class OnnxServable:
    """One thread for each call: the replica decides how many run at a time."""

    def __init__(self, signature: Signature, path: Path, device: str | None) -> None:
        ort = require_extra("onnxruntime", "onnx")
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors; they also come as exceptions
        there = ort.get_available_providers()
        wanted = ["CPUExecutionProvider"]
        if device != "cpu" and "CUDAExecutionProvider" in there:
            wanted.insert(0, "CUDAExecutionProvider")
        self._session = ort.InferenceSession(str(path), options, providers=wanted)
        self._signature = signature
        self._outputs = [output.name for output in self._session.get_outputs()]
        self._texts = [spec.name for spec in signature.inputs if spec.datatype == BYTES]

    def predict(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        given = dict(inputs)
        for name in self._texts:
            given[name] = _as_texts(given[name])
        found = self._session.run(self._outputs, given)
        return shaped(self._signature, dict(zip(self._outputs, found, strict=True)))

    def close(self) -> None:
        del self._session


def _spec(found: Any) -> TensorSpec:
    kind = found.type.removeprefix("tensor(").removesuffix(")")
    if kind not in _TYPES:
        raise BadModel(
            f"{ONNX} has the tensor {found.name!r} of the type {found.type}",
            why="it cannot be served",
            fix="convert it in the model",
        )
    shape = tuple(size if isinstance(size, int) else -1 for size in found.shape)
    # A name that the file gives to a dimension ties it to the others of that name.
    dims = tuple(size if isinstance(size, str) else "" for size in found.shape)
    text = True if kind == "string" else None
    return TensorSpec(found.name, _TYPES[kind], shape, text, dims if any(dims) else ())


def _as_texts(array: Array) -> Array:
    """Texts, not bytes: the only strings that onnxruntime takes."""
    texts = [each if isinstance(each, str) else bytes(each).decode() for each in array.flat]
    made = np.empty(len(texts), np.object_)
    made[:] = texts
    return made.reshape(array.shape)
