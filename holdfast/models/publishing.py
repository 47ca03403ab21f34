"""From files and code to a published version, through a trial load. What `holdfast models publish`
does, for Python:

    given = VersionFiles("digits", source=Path("model.skops"), examples=[{"x": rows}])
    version = publish(registry, blobs, given)
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from holdfast.models import making
from holdfast.models.describing import Dynamic
from holdfast.models.drafts import Content, VersionDraft
from holdfast.models.examples import Arrays, Example
from holdfast.models.files_kind import ALLOW_PICKLE, Gathered, KnownFiles, check_pickle, files_kind
from holdfast.models.records import CODE_KINDS, WEIGHTS, ModelKind, Signature, Version, check_model
from holdfast.models.registry import Registry
from holdfast.storage import Blobs, bundles
from holdfast.wire.errors import Missing, Usage

# The kind that a file's name shows.
SUFFIXES: Final[Mapping[str, ModelKind]] = {
    ".onnx": ModelKind.ONNX,
    ".pt": ModelKind.TORCHSCRIPT,
    ".ts": ModelKind.TORCHSCRIPT,
    ".pt2": ModelKind.EXPORTED,
    ".skops": ModelKind.SKLEARN,
    ".pkl": ModelKind.SKLEARN,
    ".pickle": ModelKind.SKLEARN,
    ".joblib": ModelKind.SKLEARN,
    ".ubj": ModelKind.XGBOOST,
    ".json": ModelKind.XGBOOST,
    ".txt": ModelKind.LIGHTGBM,
}


@dataclass(frozen=True, slots=True)
class VersionFiles:
    """What is to be published. `source`: the file or folder of a model that is files; `weights`,
    `code` and `entry` are of one that is code. `files`: more of them, by name."""

    name: str
    kind: ModelKind | None = None
    source: Path | None = None
    weights: Path | None = None
    code: Path | None = None
    entry: str = ""
    examples: Sequence[Arrays] = ()
    dynamic: Dynamic = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    files: Sequence[Path] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    allow_pickle: bool = False

    @property
    def meant(self) -> ModelKind:
        """The kind that was named, or the one that the files show."""
        if self.kind is not None:
            return self.kind
        if self.source is not None:
            return recognised(self.source)
        return ModelKind.TORCH if self.weights is not None else ModelKind.PYTHON


def recognised(path: Path) -> ModelKind:
    """The kind of a model by its file's name, or by what is in its folder."""
    if (path / "MLmodel").is_file():
        return ModelKind.MLFLOW
    if (path / "config.json").is_file():
        return ModelKind.HUGGINGFACE
    if path.is_file() and path.suffix in SUFFIXES:
        return SUFFIXES[path.suffix]
    if not path.exists():
        raise Missing(f"there is no {path}", fix="look at its name")
    kinds = ", ".join(kind.value for kind in ModelKind if kind not in CODE_KINDS)
    raise Usage(
        f"it is not known what kind of model {path} is",
        why=f"names end with {', '.join(SUFFIXES)}; folders have a config.json or an MLmodel",
        fix=f"say it: --kind, one of {kinds}",
    )


def check(given: VersionFiles) -> ModelKind:
    """What can be known before anything is read or connected. The kind that is meant."""
    check_model(given.name)
    for path in (given.weights, *given.files):
        if path is not None and not path.is_file():
            raise Missing(f"there is no file {path}", fix="look at its name")
    if given.source is not None and not given.source.exists():
        raise Missing(f"there is no {given.source}", fix="look at its name")
    kind = given.meant
    if kind in CODE_KINDS:
        _check_code(given, kind)
    elif given.source is None:
        raise Usage(
            f"a model of the kind {kind.value} needs its file or folder", fix="--model PATH"
        )
    return kind


def publish(registry: Registry, blobs: Blobs, given: VersionFiles) -> Version:
    """Load it once, as a replica will, describe it, publish it."""
    kind = check(given)
    with tempfile.TemporaryDirectory(prefix="holdfast-publish-") as held:
        gathered = _gathered(given, kind, Path(held))
        arguments = {**gathered.arguments, **given.arguments}
        if gathered.pickled:
            check_pickle(gathered, given.allow_pickle)
            arguments[ALLOW_PICKLE] = True
        files: dict[str, Content] = dict(gathered.files)
        folder = Path(held) / "files"
        folder.mkdir()
        for name, path in gathered.files.items():
            _placed(path, folder / name)
        code, bundle = Path(held), ""
        if gathered.kind in CODE_KINDS and given.code is not None:
            # The bundle as a replica will see it: without what git ignores.
            bundle = bundles.push(blobs, given.code.absolute()).digest
            code = bundles.unpack(blobs, bundle, Path(held) / "bundles")
        recipe = making.Recipe(given.name, gathered.kind, folder, code, given.entry, arguments)
        signature, known = _described(recipe, given)
        return registry.publish(
            VersionDraft(
                model=given.name,
                kind=gathered.kind,
                signature=signature,
                files=files | making.example_files(known),
                bundle=bundle,
                entry=given.entry,
                arguments=arguments,
                metrics=given.metrics,
            )
        )


# --- private --------------------------------------------------------------------------------------


def _check_code(given: VersionFiles, kind: ModelKind) -> None:
    if given.code is None or not given.entry:
        raise Usage(
            f"a model of the kind {kind.value} needs its code",
            why="a replica builds it from there",
            fix="give both: --code DIR --entry MODULE:NAME",
        )
    if not given.code.is_dir():
        raise Missing(f"there is no folder {given.code}", fix="name the folder of its modules")
    if not given.examples:
        raise no_example()
    if kind is ModelKind.TORCH and given.weights is None:
        raise Usage("a torch model needs its weights", fix="--weights FILE.safetensors")


def no_example() -> Usage:
    return Usage(
        "an example is needed: one batch of inputs",
        why="what the model takes and gives comes from it",
        fix="""--example batch.npz, or: --example '{"x": [[1.0, 2.0]]}'""",
    )


def _gathered(given: VersionFiles, kind: ModelKind, held: Path) -> Gathered:
    more = {path.name: path for path in given.files}
    if kind in CODE_KINDS:
        weights = {} if given.weights is None else {WEIGHTS: given.weights}
        return Gathered(kind, {**more, **weights})
    assert given.source is not None
    if kind is ModelKind.MLFLOW:
        # Not at the top: few need it.
        from holdfast.models import mlflow_kind  # noqa: PLC0415

        found = mlflow_kind.gather(given.source, held)
    else:
        found = files_kind(kind).gather(given.source)
    return replace(found, files={**more, **found.files})


def _described(recipe: making.Recipe, given: VersionFiles) -> tuple[Signature, tuple[Example, ...]]:
    known = KnownFiles()
    if recipe.kind not in CODE_KINDS and not recipe.arguments.get(ALLOW_PICKLE):
        known = files_kind(recipe.kind).known(recipe.files, recipe.arguments)
    inputs = list(given.examples)
    if not inputs and known.signature is not None:
        return known.signature, ()
    if not inputs and known.inputs is not None:
        inputs = [known.inputs]
    if not inputs:
        raise no_example()
    first = inputs[0]
    # What its files say is of the inputs that they have in mind; an example may be of others.
    shown = {
        name: axes
        for name, axes in known.dynamic.items()
        if name not in first or max(axes, default=0) < first[name].ndim
    }
    return making.described(recipe, inputs, given.dynamic, shown)


def _placed(path: Path, target: Path) -> None:
    try:
        target.hardlink_to(path)
    except OSError:  # another file system
        shutil.copyfile(path, target)
