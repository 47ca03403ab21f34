"""What a model takes and gives, from examples: which dimensions are fixed, which may have any size.

A dimension is free
- where examples differ in it;
- where somebody said so (`dynamic`): the model is then tried with another size, and whatever of its
  outputs changes with it is free too;
- where it is the batch's: one row alone (or a row twice) gives the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from holdfast.models import datatypes, examples
from holdfast.models.datatypes import datatype_of
from holdfast.models.examples import Arrays, Example
from holdfast.models.records import Signature, TensorSpec
from holdfast.system import logs
from holdfast.wire.errors import BadModel, Usage
from holdfast.wire.limits import EXAMPLES_MAX

log = logs.get(__name__)
Array = np.ndarray[Any, Any]
Predict = Callable[[Arrays], Arrays]
# Tensor -> axis -> the dimension's name; empty: it has none.
Dynamic = Mapping[str, Mapping[int, str]]
NONE: Final[Dynamic] = {}


def describe(
    given: Sequence[Arrays], predict: Predict, dynamic: Dynamic = NONE, shown: Dynamic = NONE
) -> tuple[Signature, tuple[Example, ...]]:
    """Let the model compute each batch of inputs: its signature, and the batches with their
    outputs. What the model's own code raises on them passes through.

    `dynamic` is what somebody said, and is not believed if the model cannot do it; `shown` is what
    the model's files say, and is."""
    if not 1 <= len(given) <= EXAMPLES_MAX:
        raise Usage(
            f"{len(given)} examples were given",
            why=f"a version has one to {EXAMPLES_MAX}; every replica computes them",
            fix="give the smallest and the largest that you expect",
        )
    inputs = [settled(each) for each in given]
    _check_alike(inputs)
    found = tuple(Example(each, settled(predict(each), "output")) for each in inputs)
    every = {
        name: {**shown.get(name, {}), **dynamic.get(name, {})} for name in {**shown, **dynamic}
    }
    try:
        tried = _probed(found[0], predict, every)
    except BadModel:
        if dynamic:
            raise
        tried = []  # of a size that its files allow, but not these
    return signature_of(found, predict, every, [*found, *tried]), found


def settled(arrays: Arrays, what: str = "input") -> dict[str, Array]:
    """The arrays as a replica would give them to the model, or get them from it."""
    return {name: datatypes.settled(array, f"{what} {name!r}")[0] for name, array in arrays.items()}


def signature_of(
    found: Sequence[Example],
    predict: Predict | None = None,
    dynamic: Dynamic = NONE,
    seen: Sequence[Example] | None = None,
) -> Signature:
    """The signature that the examples show. Rows may be computed together if every tensor has as
    many rows as the others; with `predict` that is tried. `seen`: examples that count for the
    shapes alone, besides these."""
    rows = all(_has_rows(each) for each in found)
    if rows and predict is not None:
        rows = all(_rows_are_free(each, predict) for each in found)
    every = seen or found
    names = [*found[0].inputs, *found[0].outputs]
    for name in dynamic:
        if name not in names:
            raise Usage(
                f"there is no tensor {name!r} whose dimensions could vary",
                why=f"the model has {', '.join(names)}",
                fix="name an input or an output",
            )
    takes = [each.inputs for each in every]
    gives = [each.outputs for each in every]
    return Signature(
        inputs=tuple(_spec(name, takes, rows, dynamic) for name in takes[0]),
        outputs=tuple(_spec(name, gives, rows, dynamic) for name in gives[0]),
        batches=rows,
    )


# --- what was said of dimensions ------------------------------------------------------------------


def dynamic_of(given: Any) -> Dynamic:
    """From Python: `{"x": (0, 1)}`, `{"x": 1}`, or with names `{"x": {1: "tokens"}}`, where
    `torch.export.Dim` objects are names too."""
    found: dict[str, dict[int, str]] = {}
    if not isinstance(given or {}, Mapping):
        raise _odd_dynamic(given)
    for tensor, axes in (given or {}).items():
        each = axes if isinstance(axes, Mapping) else None
        if each is None:
            several = axes if isinstance(axes, tuple | list | set | frozenset) else (axes,)
            each = dict.fromkeys(several)
        if not all(type(axis) is int for axis in each):
            raise _odd_dynamic({tensor: axes})
        found[str(tensor)] = {axis: _dimension(name) for axis, name in each.items()}
    return found


def spoken(words: Sequence[str]) -> Dynamic:
    """From a command line: `x:1,3`, or with names `x:1=tokens`."""
    found: dict[str, dict[int, str]] = {}
    for word in words:
        tensor, colon, axes = word.rpartition(":")
        for each in axes.split(","):
            axis, _, name = each.partition("=")
            digits = axis.strip().removeprefix("-")
            if not (tensor and colon and digits.isascii() and digits.isdecimal()):
                raise Usage(
                    f"--dynamic {word!r} does not say which dimensions may vary",
                    fix="write it as --dynamic x:1,3 or --dynamic x:1=tokens",
                )
            found.setdefault(tensor, {})[int(axis)] = name.strip()
    return found


def _dimension(given: Any) -> str:
    """The name of a dimension. A `torch.export.Dim` has one, its AUTO and DYNAMIC have none."""
    return given if isinstance(given, str) else str(getattr(given, "__name__", ""))


def _odd_dynamic(given: Any) -> Usage:
    return Usage(
        f"dynamic={str(given)[:80]} does not say which dimensions may vary",
        fix='write it as dynamic={"x": (0, 1)} or dynamic={"x": {1: "tokens"}}',
    )


# --- private --------------------------------------------------------------------------------------


def _check_alike(inputs: Sequence[Arrays]) -> None:
    first = inputs[0]
    for number, other in enumerate(inputs[1:], 2):
        if set(other) != set(first):
            raise Usage(
                f"example {number} has the inputs {', '.join(other)}",
                why=f"the first one has {', '.join(first)}",
                fix="give examples with the same inputs",
            )
        for name, array in first.items():
            same = datatype_of(array.dtype, name) == datatype_of(other[name].dtype, name)
            if not same or array.ndim != other[name].ndim:
                raise Usage(
                    f"example {number} has {name!r} as {other[name].dtype} with "
                    f"{other[name].ndim} dimensions",
                    why=f"the first one has {array.dtype} with {array.ndim}",
                    fix="give examples that differ in sizes only",
                )


def _axes(name: str, rank: int, dynamic: Dynamic) -> dict[int, str]:
    """The axes of a tensor that were said to vary."""
    found = {}
    for axis, dimension in dynamic.get(name, {}).items():
        if not -rank <= axis < rank:
            raise Usage(
                f"{name!r} has no dimension {axis}",
                why=f"it has {rank} of them, counted from 0",
                fix="look at the example's shape",
            )
        found[axis % rank] = dimension
    return found


def _probed(example: Example, predict: Predict, dynamic: Dynamic) -> list[Example]:
    """The model with other sizes of the dimensions that were said to vary: twice as large, or where
    it cannot take that, half as large."""
    said = {
        name: sorted(_axes(name, array.ndim, dynamic))
        for name, array in example.inputs.items()
        if name in dynamic
    }
    if not any(said.values()):
        return []
    trouble: Exception | None = None
    for larger in (True, False):
        changed = {
            name: _resized(array, said.get(name, ()), larger)
            for name, array in example.inputs.items()
        }
        if all(changed[name].shape == example.inputs[name].shape for name in said):
            continue  # nothing is smaller than one
        try:
            return [Example(changed, settled(predict(changed), "output"))]
        except Exception as error:
            trouble = trouble or error
    raise BadModel(
        "the model does not take other sizes of the dimensions that were said to vary",
        why=f"{type(trouble).__name__}: {trouble}",
        fix="leave them out of what is dynamic, or correct the model",
    ) from trouble


def _resized(array: Array, axes: Sequence[int], larger: bool) -> Array:
    """Twice as large along these axes, or half; its elements are its own."""
    for axis in axes:
        size = array.shape[axis]
        wanted = 2 * size if larger else max(1, size // 2)
        array = np.take(array, np.arange(wanted) % max(1, size), axis=axis)
    return array


def _has_rows(example: Example) -> bool:
    every = [*example.inputs.values(), *example.outputs.values()]
    sizes = {array.shape[0] if array.ndim else 0 for array in every}
    return len(sizes) == 1 and 0 not in sizes


def _rows_are_free(example: Example, predict: Predict) -> bool:
    pick = [0] if example.rows > 1 else [0, 0]
    expected = {name: array[pick] for name, array in example.outputs.items()}
    try:
        found = predict({name: array[pick] for name, array in example.inputs.items()})
        specs = tuple(_spec(name, [expected], False, NONE) for name in expected)
        examples.compare("the model", Signature((), specs), expected, found)
    except Exception as error:
        log.info("the model takes batches of one size only", reason=str(error))
        return False
    return True


def _spec(name: str, every: Sequence[Arrays], rows: bool, dynamic: Dynamic) -> TensorSpec:
    """`every`: the tensor in each example, among others."""
    array, text = datatypes.settled(every[0][name], f"tensor {name!r}")
    if any(each[name].ndim != array.ndim for each in every):
        raise BadModel(
            f"output {name!r} has another number of dimensions for another example",
            fix="let the model return as many dimensions each time",
        )
    said = _axes(name, array.ndim, dynamic)
    free = {
        axis for axis in range(array.ndim) if len({each[name].shape[axis] for each in every}) > 1
    }
    free |= {*said, *((0,) if rows else ())}
    shape = tuple(-1 if axis in free else size for axis, size in enumerate(array.shape))
    named = any(said.values())
    dims = tuple(said.get(axis, "") for axis in range(array.ndim)) if named else ()
    return TensorSpec(name, datatype_of(array.dtype, f"tensor {name!r}"), shape, text, dims)
