"""What a signature asks of a request, whatever protocol it came by.

Made once for a version, so that a request is compared and not interpreted. Each refusal names the
tensor, what was expected and what came.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from holdfast.models.records import Signature, TensorSpec
from holdfast.serve.protocol.tensors import DTYPES, described, refused
from holdfast.serve.protocol.values import Array
from holdfast.wire.errors import Usage


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
