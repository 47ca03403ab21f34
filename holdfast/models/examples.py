"""A version's example: one batch of inputs and what the model made of it, as a safetensors file.

    input.NAME   output.NAME

A tensor of BYTES is kept as U8: each element as its length in four bytes and itself, as the Open
Inference Protocol sends it; the file's metadata has its shape.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from holdfast.models.datatypes import BYTES, datatype_of
from holdfast.models.records import EXAMPLE, Signature, TensorSpec
from holdfast.wire import logs
from holdfast.wire.errors import BadModel, Corrupt, Usage
from holdfast.wire.extras import require_extra

log = logs.get(__name__)
Arrays = Mapping[str, np.ndarray[Any, Any]]
_INPUT, _OUTPUT = "input.", "output."
_SHAPES: Final = "holdfast.bytes"
# What differs less is the same: other processors, other numbers of threads, other batch sizes sum
# in another order. Relative to the largest value of the output, for each kind of float.
_TOLERANCE: Final = {"FP16": 1e-2, "FP32": 1e-3, "FP64": 1e-6}


@dataclass(frozen=True, slots=True)
class Example:
    """One batch."""

    inputs: Arrays
    outputs: Arrays

    @property
    def rows(self) -> int:
        """How many rows the batch has."""
        return next((len(array) for array in self.inputs.values() if array.ndim), 0)


def signature_of(example: Example, predict: Callable[[Arrays], Arrays] | None = None) -> Signature:
    """The signature that the example shows. The first dimension may have any size, and rows may be
    computed together, if every tensor has as many rows as the others.

    With `predict` that is tried: one row alone (or a row twice) must give the same rows. A model
    that cannot do it has the example's own size, and gets every request for itself.
    """
    every = [*example.inputs.values(), *example.outputs.values()]
    sizes = {array.shape[0] if array.ndim else 0 for array in every}
    rows = len(sizes) == 1 and 0 not in sizes
    if rows and predict is not None:
        rows = _rows_are_free(example, predict)
    return Signature(
        inputs=tuple(_spec(name, array, rows) for name, array in example.inputs.items()),
        outputs=tuple(_spec(name, array, rows) for name, array in example.outputs.items()),
        batches=rows,
    )


def to_bytes(example: Example) -> bytes:
    """The example as the bytes of its file."""
    numpy_file = require_extra("safetensors.numpy", "serve")
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    shapes: dict[str, Sequence[int]] = {}
    for prefix, arrays in ((_INPUT, example.inputs), (_OUTPUT, example.outputs)):
        for name, array in arrays.items():
            if array.dtype.kind in "OSU":
                shapes[prefix + name] = array.shape
                tensors[prefix + name] = np.frombuffer(_packed(array), np.uint8)
            else:
                plain = array.astype(array.dtype.newbyteorder("="), copy=False)
                tensors[prefix + name] = np.asarray(plain, order="C")
    data: bytes = numpy_file.save(tensors, metadata={_SHAPES: json.dumps(shapes)})
    return data


def read(folder: Path) -> Example | None:
    """The example of the version in `folder`; None if it has none. `Corrupt` if it is damaged."""
    path = folder / EXAMPLE
    if not path.exists():
        return None
    safetensors = require_extra("safetensors", "serve")
    found: dict[str, dict[str, np.ndarray[Any, Any]]] = {_INPUT: {}, _OUTPUT: {}}
    try:
        with safetensors.safe_open(path, framework="np") as file:
            shapes = json.loads((file.metadata() or {}).get(_SHAPES, "{}"))
            for key in file.keys():  # noqa: SIM118  it is no dictionary
                prefix, dot, name = key.partition(".")
                array = file.get_tensor(key)
                if key in shapes:
                    array = _unpacked(array.tobytes(), shapes[key])
                found[prefix + dot][name] = array
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise Corrupt(
            f"{path} is not the example of a version", why=str(error), fix="publish it again"
        ) from error
    return Example(found[_INPUT], found[_OUTPUT])


def compare(version: str, signature: Signature, expected: Arrays, found: Arrays) -> None:
    """`BadModel`, with what differs and by how much, unless both are the same within rounding."""
    for spec in signature.outputs:
        if spec.name not in expected:
            continue
        difference = _difference(spec, expected[spec.name], found.get(spec.name))
        if difference:
            raise BadModel(
                f"{version} does not give what its example says",
                why=f"output {spec.name!r}: {difference}",
                fix="publish it again from the code and the weights that belong together",
            )


def named(given: Any, names: Sequence[str], what: str) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays by name: from a mapping, or from a tuple with `names` in order."""
    if isinstance(given, Mapping):
        found = {str(name): np.asarray(value) for name, value in given.items()}
    else:
        each = tuple(given) if isinstance(given, tuple | list) else (given,)
        if len(each) > len(names):
            raise Usage(
                f"{len(each)} {what} were given, and {len(names)} names are known",
                fix="give a dict: its keys are the names",
            )
        found = {name: np.asarray(value) for name, value in zip(names, each, strict=False)}
    if not found:
        raise Usage(f"there are no {what}", fix="give at least one array")
    return found


# --- private --------------------------------------------------------------------------------------


def _rows_are_free(example: Example, predict: Callable[[Arrays], Arrays]) -> bool:
    pick = [0] if example.rows > 1 else [0, 0]
    expected = {name: array[pick] for name, array in example.outputs.items()}
    try:
        found = predict({name: array[pick] for name, array in example.inputs.items()})
        specs = tuple(_spec(name, array, False) for name, array in expected.items())
        compare("the model", Signature((), specs), expected, found)
    except Exception as error:
        log.info("the model takes batches of one size only", reason=str(error))
        return False
    return True


def _spec(name: str, array: np.ndarray[Any, Any], rows: bool) -> TensorSpec:
    shape = (-1, *array.shape[1:]) if rows else array.shape
    return TensorSpec(name, datatype_of(array.dtype, f"tensor {name!r}"), shape)


def _difference(
    spec: TensorSpec, expected: np.ndarray[Any, Any], found: np.ndarray[Any, Any] | None
) -> str:
    if found is None:
        return "it is missing"
    if found.shape != expected.shape:
        return f"its shape is {list(found.shape)}, not {list(expected.shape)}"
    if spec.datatype == BYTES:
        same = [_text(a) == _text(b) for a, b in zip(expected.flat, found.flat, strict=True)]
        return "" if all(same) else f"{same.count(False)} of {len(same)} elements differ"
    if spec.datatype not in _TOLERANCE:
        wrong = int(np.count_nonzero(expected != found))
        return f"{wrong} of {expected.size} elements differ" if wrong else ""
    return _float_difference(_TOLERANCE[spec.datatype], expected, found)


def _float_difference(
    tolerance: float, expected: np.ndarray[Any, Any], found: np.ndarray[Any, Any]
) -> str:
    before, after = expected.astype(np.float64), found.astype(np.float64)
    if not np.array_equal(np.isfinite(before), np.isfinite(after)):
        return "it has infinities or NaNs at other places"
    finite = np.isfinite(before)
    if not finite.any():
        return ""
    scale = float(np.abs(before[finite]).max()) or 1.0
    far = float(np.abs(before[finite] - after[finite]).max())
    allowed = tolerance * scale
    return "" if far <= allowed else f"it is off by {far:.3g}, and {allowed:.3g} would be rounding"


def _text(element: Any) -> bytes:
    return element.encode() if isinstance(element, str) else bytes(element)


def _packed(array: np.ndarray[Any, Any]) -> bytes:
    texts = [_text(element) for element in array.flat]
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def _unpacked(data: bytes, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    texts, at = [], 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        texts.append(data[at + 4 : end])
        at = end
    made = np.empty(len(texts), np.object_)
    made[:] = texts
    return made.reshape(tuple(shape))
