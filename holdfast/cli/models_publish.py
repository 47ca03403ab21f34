"""`holdfast models publish`: from files and code to a version, through a trial load."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.models import describing, making
from holdfast.models.describing import Dynamic
from holdfast.models.drafts import Content, Draft
from holdfast.models.names import check_alias, check_model
from holdfast.models.records import ONNX, WEIGHTS, Kind, Version
from holdfast.models.registry import Registry
from holdfast.storage import Blobs, bundles
from holdfast.wire.errors import Missing, Usage


@dataclass(frozen=True, slots=True)
class Asked:
    """The command's words."""

    name: str
    kind: Kind
    weights: Path | None
    onnx: Path | None
    code: Path | None
    entry: str
    examples: tuple[str, ...]
    dynamic: Dynamic = describing.NONE
    arguments: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)

    def contents(self) -> dict[str, Path]:
        """The version's files by name."""
        found = {path.name: path for path in self.files}
        if self.weights is not None:
            found[WEIGHTS] = self.weights
        if self.onnx is not None:
            found[ONNX] = self.onnx
        return found


def kind_of(text: str | None, weights: Path | None, onnx: Path | None) -> Kind:
    """The kind that was named, or the one that the files show."""
    if text is None:
        if onnx is not None:
            return Kind.ONNX
        return Kind.TORCH if weights is not None else Kind.PYTHON
    try:
        return Kind(text)
    except ValueError:
        kinds = ", ".join(kind.value for kind in Kind)
        raise Usage(f"there is no kind {text!r}", fix=f"one of {kinds}") from None


def check(asked: Asked, alias: str | None) -> None:
    """What can be known before anything is read or connected."""
    check_model(asked.name)
    if alias is not None:
        check_alias(alias)
    for path in asked.contents().values():
        if not path.is_file():
            raise Missing(f"there is no file {path}", fix="look at its name")
    if asked.kind is not Kind.ONNX:
        if asked.code is None or not asked.entry:
            raise Usage(
                f"a model of the kind {asked.kind.value} needs its code",
                why="a replica builds it from there",
                fix="give both: --code DIR --entry MODULE:NAME",
            )
        if not asked.code.is_dir():
            raise Missing(f"there is no folder {asked.code}", fix="name the folder of its modules")
        if not asked.examples:
            raise Usage(
                "an example is needed: one batch of inputs",
                why="what the model takes and gives comes from it",
                fix="""--example batch.npz, or: --example '{"x": [[1.0, 2.0]]}'""",
            )
    if asked.kind is Kind.TORCH and asked.weights is None:
        raise Usage("a torch model needs its weights", fix="--weights FILE.safetensors")
    if asked.kind is Kind.ONNX and asked.onnx is None:
        raise Usage("an ONNX model needs its file", fix="--onnx FILE.onnx")


def published(registry: Registry, blobs: Blobs, asked: Asked) -> Version:
    """Load it once, describe it, publish it."""
    with tempfile.TemporaryDirectory(prefix="holdfast-publish-") as held:
        folder = Path(held) / "files"
        folder.mkdir()
        for name, path in asked.contents().items():
            _placed(path, folder / name)
        code, bundle = Path(held), ""
        if asked.kind is not Kind.ONNX and asked.code is not None:
            # The bundle as a replica will see it: without what git ignores.
            bundle = bundles.push(blobs, asked.code.absolute()).digest
            code = bundles.unpack(blobs, bundle, Path(held) / "bundles")
        recipe = making.Recipe(asked.name, asked.kind, folder, code, asked.entry, asked.arguments)
        files: dict[str, Content] = dict(asked.contents())
        if asked.examples:
            given = [_inputs(example) for example in asked.examples]
            signature, known = making.described(recipe, given, asked.dynamic)
            files |= making.example_files(known)
        else:
            signature = making.onnx_signature(folder / ONNX)
        return registry.publish(
            Draft(
                model=asked.name,
                kind=asked.kind,
                signature=signature,
                files=files,
                bundle=bundle,
                entry=asked.entry,
                arguments=asked.arguments,
                metrics=asked.metrics,
            )
        )


def _inputs(example: str) -> dict[str, Any]:
    if not example.lstrip().startswith("{"):
        return making.read_inputs(Path(example))
    try:
        return making.inputs_from(json.loads(example))
    except ValueError as error:
        raise Usage(f"--example is not JSON: {example[:80]!r}", why=str(error)) from error


def _placed(path: Path, target: Path) -> None:
    try:
        target.hardlink_to(path)
    except OSError:  # another file system
        shutil.copyfile(path, target)
