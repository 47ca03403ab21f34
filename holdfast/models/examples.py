"""A version's examples: batches of inputs and what the model made of them, each a safetensors file.

    input.NAME   output.NAME

A tensor of BYTES is kept as U8: each element as its length in four bytes and itself, as the Open
Inference Protocol sends it; the file's metadata has its shape.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from holdfast.models import datatypes
from holdfast.models.datatypes import BYTES
from holdfast.models.records import Signature, TensorSpec, example_name
from holdfast.system.extras import require_extra
from holdfast.wire.errors import BadModel, Corrupt, Usage
from holdfast.wire.limits import EXAMPLES_MAX

Arrays = Mapping[str, np.ndarray[Any, Any]]
_INPUT, _OUTPUT = "input.", "output."
_SHAPES: Final = "holdfast.bytes"
_WHOLE: Final = ""  # among these: which are of `str`, and in which order all are
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


def to_bytes(example: Example, *, whole: bool = False) -> bytes:
    """The example as the bytes of its file. `whole`: `from_bytes` gives the tensors back in the
    order that they have here, and those of texts as texts."""
    numpy_file = require_extra("safetensors.numpy", "serve")
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    notes: dict[str, Any] = {}
    spelled: list[str] = []
    for prefix, arrays in ((_INPUT, example.inputs), (_OUTPUT, example.outputs)):
        for name, array in arrays.items():
            if array.dtype.kind in "OSU":
                notes[prefix + name] = array.shape
                if datatypes.settled(array, name)[1]:
                    spelled.append(prefix + name)
                tensors[prefix + name] = np.frombuffer(packed(array), np.uint8)
            else:
                plain = array.astype(array.dtype.newbyteorder("="), copy=False)
                tensors[prefix + name] = np.asarray(plain, order="C")
    if whole:
        notes[_WHOLE] = {"texts": spelled, "order": list(tensors)}
    # One entry: several would be written in any order, and the same example would be another file.
    data: bytes = numpy_file.save(tensors, metadata={_SHAPES: json.dumps(notes)})
    return data


def from_bytes(data: bytes) -> Example:
    """What `to_bytes` wrote as a whole."""
    numpy_file = require_extra("safetensors.numpy", "serve")
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    notes = json.loads(header["__metadata__"][_SHAPES])
    spelled, order = notes[_WHOLE]["texts"], notes[_WHOLE]["order"]
    found: dict[str, dict[str, np.ndarray[Any, Any]]] = {_INPUT: {}, _OUTPUT: {}}
    every = numpy_file.load(data)
    for key in order:
        held = array = every[key]
        prefix, dot, name = key.partition(".")
        if key in notes:
            spec = TensorSpec(name, BYTES, (), key in spelled)
            array = datatypes.fitted(spec, unpacked(held.tobytes(), notes[key]))
        found[prefix + dot][name] = array
    return Example(found[_INPUT], found[_OUTPUT])


def read(folder: Path, signature: Signature | None = None) -> Example | None:
    """The first example of the version in `folder`; None if it has none. See `read_all`."""
    return next(iter(read_all(folder, signature)), None)


def read_all(folder: Path, signature: Signature | None = None) -> tuple[Example, ...]:
    """The examples of the version in `folder`, as its signature says that the model sees them:
    texts where it takes texts. `Corrupt` if one is damaged."""
    return tuple(
        from_file(path, signature)
        for path in (folder / example_name(number) for number in range(1, EXAMPLES_MAX + 1))
        if path.exists()
    )


def from_file(path: Path, signature: Signature | None = None) -> Example:
    """The example in a file that `to_bytes` wrote."""
    safetensors = require_extra("safetensors", "serve")
    found: dict[str, dict[str, np.ndarray[Any, Any]]] = {_INPUT: {}, _OUTPUT: {}}
    try:
        with safetensors.safe_open(path, framework="np") as file:
            shapes = json.loads((file.metadata() or {}).get(_SHAPES, "{}"))
            for key in file.keys():  # noqa: SIM118  it is no dictionary
                prefix, dot, name = key.partition(".")
                array = file.get_tensor(key)
                if key in shapes:
                    array = unpacked(array.tobytes(), shapes[key])
                found[prefix + dot][name] = array
        example = Example(found[_INPUT], found[_OUTPUT])
        return example if signature is None else _as_recorded(example, signature)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise Corrupt(
            f"{path} is not the example of a version", why=str(error), fix="publish it again"
        ) from error


def _as_recorded(example: Example, signature: Signature) -> Example:
    specs = {spec.name: spec for spec in signature.inputs}
    inputs = {
        name: datatypes.fitted(specs[name], array) if name in specs else array
        for name, array in example.inputs.items()
    }
    return Example(inputs, example.outputs)


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


def packed(array: np.ndarray[Any, Any]) -> bytes:
    held = [_text(element) for element in array.flat]
    return b"".join(len(each).to_bytes(4, "little") + each for each in held)


def unpacked(data: bytes, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    elements, at = [], 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        elements.append(data[at + 4 : end])
        at = end
    made = np.empty(len(elements), np.object_)
    made[:] = elements
    return made.reshape(tuple(shape))
