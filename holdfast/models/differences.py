"""What is different between two versions: what they take and give, how they are built, their
numbers, their code and their weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.models import tensors
from holdfast.models.loading import CODE
from holdfast.models.records import WEIGHTS, TensorSpec, Version
from holdfast.models.tensors import Change


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
            changed = tuple(tensors.changes(old, new))
        same = len(tensors.tensors(new)) - sum(not c.what.startswith("gone") for c in changed)
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
