"""From code, weights and one batch of inputs to a version's signature and example.

Nothing is published that was not loaded once, exactly as a replica will load it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from holdfast.models import describing, examples, kinds
from holdfast.models.describing import Dynamic
from holdfast.models.examples import Arrays, Example
from holdfast.models.records import ModelKind, Signature, Version, example_name
from holdfast.wire.errors import BadModel, Full, HoldfastError, Usage

# An example is one batch, fetched and computed by every replica before it serves.
EXAMPLE_BYTES_MAX: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is built: `files` is a folder with its files, `code` one with its modules."""

    model: str
    kind: ModelKind
    files: Path
    code: Path
    entry: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def version(self, signature: Signature) -> Version:
        """A version that was never published, to be loaded."""
        name, kind, entry = self.model, self.kind, self.entry
        return Version(name, 0, kind, signature, {}, "", 0.0, entry=entry, arguments=self.arguments)

    def load(self, signature: Signature, device: str | None = None) -> kinds.Servable:
        return kinds.load(self.version(signature), self.files, self.code, device)


def described(
    recipe: Recipe,
    given: Sequence[Arrays],
    dynamic: Dynamic = describing.NONE,
    shown: Dynamic = describing.NONE,
) -> tuple[Signature, tuple[Example, ...]]:
    """Load the model, let it predict each batch of inputs, and say what it takes and gives.
    `shown`: the dimensions that vary by what its own files say, besides what somebody said."""
    first = Example(describing.settled(given[0]), {})
    servable = recipe.load(Signature(describing.signature_of([first]).inputs, ()))
    try:
        try:
            return describing.describe(given, servable.predict, dynamic, shown)
        except HoldfastError:
            raise
        except Exception as error:
            raise _failed(recipe, error) from error
    finally:
        servable.close()


def checked(
    recipe: Recipe, signature: Signature, known: Sequence[Example], device: str | None = None
) -> None:
    """Load the model, and compare what it gives with the examples: `BadModel` with what differs."""
    servable = recipe.load(signature, device)
    try:
        for example in known:
            found = _predicted(recipe, servable, example.inputs)
            examples.compare(recipe.model, signature, example.outputs, found)
    finally:
        servable.close()


def example_files(known: Sequence[Example]) -> dict[str, bytes]:
    """The files of a version's examples."""
    return {example_name(at): example_file(example) for at, example in enumerate(known, 1)}


def example_file(example: Example) -> bytes:
    """The bytes of one; `Full` if nobody would want to compute it."""
    data = examples.to_bytes(example)
    if len(data) > EXAMPLE_BYTES_MAX:
        raise Full(
            f"the example has {len(data)} bytes",
            why=f"every replica computes it before it serves; it may have {EXAMPLE_BYTES_MAX}",
            fix="give fewer rows",
        )
    return data


def read_inputs(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Inputs from a file: `.npz`, or `.json` as `{"NAME": nested lists}`. Floats of JSON are FP32,
    whole numbers INT64, texts BYTES."""
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        if path.suffix == ".json":
            return inputs_from(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise Usage(
            f"the example {path} cannot be read", why=str(error), fix="look at the file"
        ) from error
    raise Usage(f"{path} is not an example", fix="give a .npz or a .json file")


def inputs_from(plain: Any) -> dict[str, np.ndarray[Any, Any]]:
    """The same from what JSON says; `ValueError` if it is something else."""
    if not isinstance(plain, dict) or not plain:
        raise ValueError("it is not an object of names and values")
    return {name: _array(value) for name, value in plain.items()}


# --- private --------------------------------------------------------------------------------------


def _predicted(recipe: Recipe, servable: kinds.Servable, inputs: Arrays) -> Arrays:
    try:
        return servable.predict(inputs)
    except HoldfastError:
        raise
    except Exception as error:
        raise _failed(recipe, error) from error


def _failed(recipe: Recipe, error: Exception) -> BadModel:
    return BadModel(
        f"{recipe.model} fails on its example",
        why=f"{type(error).__name__}: {error}",
        fix="correct the model, or the example",
        story=kinds.last_lines(error),
    )


def _array(value: Any) -> np.ndarray[Any, Any]:
    found = np.asarray(value)
    if found.dtype.kind == "f":
        return found.astype(np.float32)
    if found.dtype.kind == "U":
        return found.astype(np.object_)
    return found
