"""What every kind of model that is files, and not code, has in common.

Each such kind is one module, `holdfast/models/KIND_kind.py`, with the functions of `FilesKind`.
`kinds` finds it by the kind's name: to add one is to add its name to `records.ModelKind`, and its
file.
"""

from __future__ import annotations

import importlib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, cast

import numpy as np

from holdfast.models import datatypes
from holdfast.models.datatypes import numpy_of
from holdfast.models.records import (
    CODE_KINDS,
    TORCH_KINDS,
    ModelKind,
    Signature,
    TensorSpec,
    Version,
)
from holdfast.system.extras import require_extra
from holdfast.wire.errors import BadModel, BugError, Refused

Array = np.ndarray[Any, Any]
Dynamic = Mapping[str, Mapping[int, str]]
PICKLES: Final = (".pkl", ".pickle", ".joblib", ".bin", ".pth", ".ckpt")
ALLOW_PICKLE: Final = "allow_pickle"  # among a version's arguments: somebody has said so
CALL: Final = "predict"  # the output of what has but one method, as other servers call it


class Servable(Protocol):
    """A loaded version. `predict` may be called from any thread, one call at a time for each
    thread; what the model's own code raises passes through it."""

    def predict(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs of the signature, in its order and of its types."""

    def close(self) -> None:
        """Give everything back. Nobody may predict any more."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """What becomes of a file or folder that a user gave: the version's files by name, and whether
    loading them runs a pickle. `arguments`: what was found out about it."""

    kind: ModelKind
    files: Mapping[str, Path]
    pickled: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KnownFiles:
    """What a version's files say by themselves: one batch of inputs, and which dimensions vary.
    `signature`: all of it, for those that need no example."""

    inputs: Mapping[str, Array] | None = None
    dynamic: Dynamic = field(default_factory=dict)
    signature: Signature | None = None


class FilesKind(Protocol):
    """A kind of model. `FILE` is the file that every version of it has."""

    FILE: str

    def gather(self, path: Path) -> Gathered:
        """From what the user gave. `BadModel` if it is something else."""

    def load(self, version: Version, folder: Path, device: str | None) -> Servable:
        """See `loading.load`."""

    def known(self, folder: Path, arguments: Mapping[str, Any]) -> KnownFiles:
        """What its files say of themselves."""

    def lines(self, version: Version) -> Sequence[str]:
        """The Python lines that load an export of it."""


def files_kind(kind: ModelKind) -> FilesKind:
    """The module of a kind that is files."""
    if kind in CODE_KINDS:
        raise BugError(f"models of the kind {kind.value} are code")
    if kind in TORCH_KINDS:
        require_extra("torch", "train")
    return cast(FilesKind, importlib.import_module(f"holdfast.models.{kind.value}_kind"))


def check_pickle(gathered: Gathered, allowed: bool) -> None:
    """`Refused` if loading it would run a pickle and nobody has said that it may."""
    if gathered.pickled and not allowed:
        names = ", ".join(sorted(gathered.files))
        raise Refused(
            f"{names}: loading this model runs a pickle",
            why="a pickle is a program: whoever wrote it decides what it does",
            fix="save it in a format that is only data (docs/models.md), or, if you trust who "
            "wrote it: --allow-pickle",
        )


def wrong(path: Path, what: str, why: str, fix: str) -> BadModel:
    return BadModel(f"{path.name} is not {what}", why=why, fix=fix)


def members(path: Path, what: str, fix: str) -> list[str]:
    """The names in a zip archive; `BadModel` if it is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, OSError) as error:
        raise wrong(path, what, str(error), fix) from error


def only(inputs: Mapping[str, Array]) -> Array:
    """The one input of a model that has one."""
    if len(inputs) != 1:
        raise BadModel(
            f"the model takes one input, and its example has {', '.join(inputs)}",
            fix="give an example with one array: a row for each row",
        )
    return next(iter(inputs.values()))


# --- what a model returned
# -------------------------------------------------------------------------


def shaped(signature: Signature, result: Any) -> dict[str, Array]:
    """What a model returned, as the outputs of its signature; `BadModel` if it is not. Without
    outputs in the signature: whatever it gave, with names."""
    specs = signature.outputs
    if not specs:
        return named(result)
    if isinstance(result, Mapping):
        values = [result.get(spec.name) for spec in specs]
    elif isinstance(result, tuple) or (isinstance(result, list) and len(specs) > 1):
        values = list(result)
    else:
        values = [result]
    if len(values) != len(specs) or any(value is None for value in values):
        names = ", ".join(spec.name for spec in specs)
        got = sorted(result) if isinstance(result, Mapping) else f"{len(values)} of them"
        raise BadModel(
            "the model did not give the outputs of its signature",
            why=f"they are {names}; it gave {got}",
            fix="return a dict with these names, or a tuple in this order",
        )
    found = {}
    for spec, value in zip(specs, values, strict=True):
        array = np.asarray(value)
        if array.dtype != (wanted := numpy_of(spec.datatype)):
            array = array.astype(wanted)
        if spec.text is not None:
            array = _as_recorded(spec, array)
        if array.ndim != len(spec.shape):
            raise BadModel(
                f"the model's output {spec.name!r} has the shape {list(array.shape)}",
                why=f"its signature says {list(spec.shape)}",
                fix="publish it again with an example that shows what it gives",
            )
        found[spec.name] = array
    return found


def _as_recorded(spec: TensorSpec, array: Array) -> Array:
    try:
        return datatypes.fitted(spec, array)
    except (UnicodeError, TypeError) as error:
        raise BadModel(
            f"the model's output {spec.name!r} is not of {'texts' if spec.text else 'bytes'}",
            why=str(error),
            fix="return what it returned for its example",
        ) from error


def named(result: Any) -> dict[str, Array]:
    """Names for what a model returned, where nobody has given any: `output`, or `output_0`, ..."""
    if isinstance(result, Mapping):
        return {str(name): np.asarray(value) for name, value in result.items()}
    if isinstance(result, tuple):
        return {f"output_{at}": np.asarray(value) for at, value in enumerate(result)}
    return {"output": np.asarray(result)}
