"""What is different between two versions: what they take and give, how they are built, their
numbers, their code and their weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from holdfast.models.loading import CODE
from holdfast.models.records import WEIGHTS, TensorSpec, Version
from holdfast.wire.errors import Corrupt


@dataclass(frozen=True, slots=True)
class Difference:
    """`facts`: name -> before, after. `files`: of the code and of the version, with what happened
    to each. `same_tensors`: how many have not changed."""

    facts: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    metrics: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)
    tensors: tuple[Change, ...] = ()
    same_tensors: int = 0

    @property
    def none(self) -> bool:
        """Whether both would answer every request alike."""
        return not (self.facts or self.files or self.code or self.tensors)


def compared(
    before: Version, after: Version, before_folder: Path, after_folder: Path
) -> Difference:
    """Compare two versions that were fetched to these folders."""
    names = sorted(before.metrics.keys() | after.metrics.keys())
    numbers = {name: (before.metrics.get(name), after.metrics.get(name)) for name in names}
    changed: tuple[Change, ...] = ()
    same = 0
    if WEIGHTS in before.files and WEIGHTS in after.files:
        old, new = before_folder / WEIGHTS, after_folder / WEIGHTS
        if before.files[WEIGHTS].digest != after.files[WEIGHTS].digest:
            changed = tuple(changes(old, new))
        same = len(tensors(new)) - sum(not c.what.startswith("gone") for c in changed)
    return Difference(
        facts=_facts(before, after),
        metrics={name: pair for name, pair in numbers.items() if pair[0] != pair[1]},
        files=_between(_digests(before), _digests(after)),
        code=_code(before, after, before_folder / CODE, after_folder / CODE),
        tensors=changed,
        same_tensors=same,
    )


def spelled(spec: TensorSpec) -> str:
    """`x FP32 [-1, 4]`, `t BYTES (text) [-1]`; a free dimension that has a name is called so."""
    names = spec.dims or ("",) * len(spec.shape)
    sizes = [
        name if size < 0 and name else str(size)
        for size, name in zip(spec.shape, names, strict=True)
    ]
    text = " (text)" if spec.text else ""
    return f"{spec.name} {spec.datatype}{text} [{', '.join(sizes)}]"


def _facts(before: Version, after: Version) -> dict[str, tuple[Any, Any]]:
    pairs = {
        "kind": (before.kind.value, after.kind.value),
        "entry": (before.entry, after.entry),
        "arguments": (dict(before.arguments), dict(after.arguments)),
        "inputs": (_specs(before.signature.inputs), _specs(after.signature.inputs)),
        "outputs": (_specs(before.signature.outputs), _specs(after.signature.outputs)),
        "batches": (before.signature.batches, after.signature.batches),
    }
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _specs(specs: tuple[TensorSpec, ...]) -> str:
    return ", ".join(spelled(spec) for spec in specs)


def _digests(version: Version) -> dict[str, str]:
    return {name: part.digest for name, part in version.files.items()}


def _code(before: Version, after: Version, old: Path, new: Path) -> dict[str, str]:
    if before.bundle == after.bundle:
        return {}
    return _between(_hashes(old), _hashes(new))


def _hashes(folder: Path) -> dict[str, str]:
    if not folder.exists():
        return {}
    every = (path for path in folder.resolve().rglob("*") if path.is_file())
    return {
        path.relative_to(folder.resolve()).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in every
        if "__pycache__" not in path.parts
    }


def _between(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name in sorted(old.keys() | new.keys()):
        if name not in old:
            found[name] = "new"
        elif name not in new:
            found[name] = "gone"
        elif old[name] != new[name]:
            found[name] = "changed"
    return found


# --- tensors --------------------------------------------------------------------------------------
# The tensors of a safetensors file as numpy arrays, mapped; and how two files differ.


# What safetensors calls its types. numpy has no bfloat16: it is widened, exactly.
_TYPES: Final[Mapping[str, str]] = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "U32": "<u4",
    "I32": "<i4",
    "U64": "<u8",
    "I64": "<i8",
    "F16": "<f2",
    "BF16": "<u2",
    "F32": "<f4",
    "F64": "<f8",
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a file, as it stands there."""

    dtype: str
    shape: tuple[int, ...]
    raw: np.ndarray[Any, Any]

    def values(self) -> np.ndarray[Any, Any] | None:
        """Its numbers; None for a type that numpy cannot count with."""
        kind = _TYPES.get(self.dtype)
        if kind is None:
            return None
        found = self.raw.view(kind)
        if self.dtype == "BF16":
            found = (found.astype(np.uint32) << 16).view(np.float32)
        return found.reshape(self.shape)


@dataclass(frozen=True, slots=True)
class Change:
    """How a tensor differs: `what` in words; by how much at most, and relative to its size."""

    name: str
    what: str
    largest: float | None = None
    relative: float | None = None


def tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of the file, mapped: nothing is read before it is used. `Corrupt` if it is not
    a safetensors file."""
    whole: np.ndarray[Any, Any] = np.memmap(path, np.uint8, mode="r")
    try:
        length = int.from_bytes(whole[:8].tobytes(), "little")
        if length > whole.size - 8:
            raise ValueError("its header is cut off")  # noqa: TRY301
        header = json.loads(whole[8 : 8 + length].tobytes())
        body = whole[8 + length :]
        found = {}
        for name, row in header.items():
            if name != "__metadata__":
                begin, end = row["data_offsets"]
                found[name] = Tensor(row["dtype"], tuple(row["shape"]), body[begin:end])
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"{path.name} is not a safetensors file", why=str(error)) from error
    return found


def changes(before: Path, after: Path) -> Iterator[Change]:
    """The tensors that are not the same in both files, in the order of their names."""
    old, new = tensors(before), tensors(after)
    for name in sorted(old.keys() | new.keys()):
        if name not in old:
            yield Change(name, f"new: {_shape(new[name])}")
        elif name not in new:
            yield Change(name, f"gone: {_shape(old[name])}")
        elif (change := _change(name, old[name], new[name])) is not None:
            yield change


def _change(name: str, old: Tensor, new: Tensor) -> Change | None:
    if (old.dtype, old.shape) != (new.dtype, new.shape):
        return Change(name, f"{_shape(old)} became {_shape(new)}")
    if np.array_equal(old.raw, new.raw):
        return None
    before, after = old.values(), new.values()
    if before is None or after is None:
        return Change(name, "changed")
    gap = after.astype(np.float64) - before.astype(np.float64)
    size = float(np.linalg.norm(before.astype(np.float64)))
    far = float(np.linalg.norm(gap))
    return Change(name, "changed", float(np.abs(gap).max()), far / size if size else None)


def _shape(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"
