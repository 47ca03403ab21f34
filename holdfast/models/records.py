"""A model's versions and aliases as values, and where they lie in the coordination plane.

    /holdfast/models/MODEL                   Model: changes with whatever is below; watch it
        /versions/N                          a version: its existence IS the publication
        /publications/DIGEST                 which version it became: the same again is the same one
        /aliases/ALIAS                       which version it names, and which it named before

A version never changes but for being retired. An alias moves by compare-and-set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from holdfast.wire.errors import Usage
from holdfast.wire.history import HistoryPage
from holdfast.wire.limits import EXAMPLES_MAX
from holdfast.wire.names import MODELS_PATH
from holdfast.wire.reports import Part

MODELS: Final = MODELS_PATH

# The files of a version that have a meaning for every kind.
WEIGHTS: Final = "weights.safetensors"
ONNX: Final = "model.onnx"
# One batch: tensors `input.NAME` and `output.NAME`. What a replica must reproduce to be ready.
EXAMPLE: Final = "example.safetensors"


def example_name(number: int) -> str:
    """The file of a version's first, second, ... example."""
    return EXAMPLE if number == 1 else f"example-{number}.safetensors"


def is_example(name: str) -> bool:
    return any(name == example_name(number) for number in range(1, EXAMPLES_MAX + 1))


def model_path(model: str) -> str:
    return f"{MODELS}/{model}"


def publication_path(model: str, publication: str) -> str:
    return f"{MODELS}/{model}/publications/{publication.rpartition(':')[2]}"


def versions_path(model: str) -> str:
    return f"{MODELS}/{model}/versions"


def version_path(model: str, number: int) -> str:
    return f"{MODELS}/{model}/versions/{number}"


def aliases_path(model: str) -> str:
    return f"{MODELS}/{model}/aliases"


def alias_path(model: str, alias: str) -> str:
    return f"{MODELS}/{model}/aliases/{alias}"


class ModelKind(Enum):
    """How a version is loaded."""

    TORCH = "torch"  # `entry` builds an nn.Module, which takes WEIGHTS; called with the inputs
    PYTHON = "python"  # `entry` is a class: `load(folder, **arguments)` and `predict(inputs)`
    FUNCTION = "function"  # `entry` is a function: inputs as a dict of arrays in, outputs out
    # Files and no bundle: each is a module `KIND_kind`, as `files_kind` says.
    ONNX = "onnx"  # by onnxruntime
    TORCHSCRIPT = "torchscript"
    EXPORTED = "exported"  # a program of torch.export
    SKLEARN = "sklearn"
    XGBOOST = "xgboost"
    LIGHTGBM = "lightgbm"
    HUGGINGFACE = "huggingface"  # safetensors, a configuration, a tokenizer: by transformers
    MLFLOW = "mlflow"  # whatever MLflow loads as a Python function


# Built from a bundle, by an entry.
CODE_KINDS: Final = frozenset({ModelKind.TORCH, ModelKind.PYTHON, ModelKind.FUNCTION})
# Computed by torch: it is worth importing beforehand, and computes on a GPU if there is one.
TORCH_KINDS: Final = frozenset(
    {ModelKind.TORCH, ModelKind.TORCHSCRIPT, ModelKind.EXPORTED, ModelKind.HUGGINGFACE}
)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor by name. `datatype` is the Open Inference Protocol's (FP32, INT64, BYTES, ...); a
    dimension of -1 may have any size. The first dimension is the batch's, where `batches` says so.

    `text`, of BYTES: whether the model sees `str` or `bytes`; None: of numbers, or from before that
    was written down. `dims`: the names of free dimensions, empty for the others; those of equal
    names have equal sizes. No names at all: nothing was said of them."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    text: bool | None = None
    dims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Signature:
    """What a model takes and gives. `batches`: rows of several requests may be computed together,
    because each row of an output depends only on the same row of the inputs."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batches: bool = True


@dataclass(frozen=True, slots=True)
class Version:
    """A published version. `publication` is the same for everybody who publishes the same thing
    again (after a lost reply, from another worker): it becomes one version."""

    model: str
    number: int
    kind: ModelKind
    signature: Signature
    files: Mapping[str, Part]
    publication: str
    published_s: float
    by: str = ""
    bundle: str = ""
    entry: str = ""  # MODULE:NAME in the bundle
    arguments: Mapping[str, Any] = field(default_factory=dict)
    job: str = ""
    step: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    retired: str = ""  # why nobody may serve it any more; empty: it may be

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.files.values())


@dataclass(frozen=True, slots=True)
class Model:
    """A model. Every change of its versions and aliases is one transaction that also adds one to
    `changes`: this node is the announcement, and what makes the changes come one after the other.
    `last` says in words what the newest change was, and `history` has the newest of them."""

    newest: int = 0
    changes: int = 0
    last: str = ""
    at_s: float = 0.0
    history: HistoryPage = field(default_factory=HistoryPage)


# What a change of a model is called in its history. `data` has the version, the alias, and for one
# that was moved the versions `from` and `to`.
PUBLISHED: Final = "Published"
ALIAS_MOVED: Final = "AliasMoved"
ALIAS_REMOVED: Final = "AliasRemoved"
RETIRED: Final = "Retired"


@dataclass(frozen=True, slots=True)
class Publication:
    """Which version a publication became."""

    number: int


@dataclass(frozen=True, slots=True)
class AliasMove:
    """An alias was moved: who did it, when, why, from which version to which."""

    at_s: float
    by: str
    before: int | None
    after: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class Alias:
    """A name for a version. `moves`: the newest ones, oldest first."""

    version: int
    moves: tuple[AliasMove, ...] = ()


# --- names ----------------------------------------------------------------------------------------
# Names of models and aliases, and references to versions. Pure.


# It becomes a part of paths, of clusters' names and of headers.
MODEL_NAME_CHARACTERS_MAX: Final = 63

PROD: Final = "prod"  # what a model's plain name means, once there is one
_MODEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# An alias begins with a letter: so it is never taken for a number.
_ALIAS: Final = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")


def check_model(name: str) -> str:
    return _checked("model", name, _MODEL, "beginning with a letter or a digit")


def check_alias(name: str) -> str:
    return _checked("alias", name, _ALIAS, "beginning with a letter")


def split_reference(reference: str) -> tuple[str, str | int | None]:
    """`MODEL`, `MODEL@ALIAS` or `MODEL@NUMBER`: the model, and what was asked of it."""
    model, at, which = reference.partition("@")
    check_model(model)
    if not at:
        return model, None
    if which.isascii() and which.isdecimal():
        return model, int(which)
    return model, check_alias(which)


def _checked(what: str, name: str, pattern: re.Pattern[str], begin: str) -> str:
    if len(name) > MODEL_NAME_CHARACTERS_MAX or not pattern.fullmatch(name):
        kind = "an" if what[0] in "aeiou" else "a"
        raise Usage(
            f"not the name of {kind} {what}: {name[:100]!r}",
            fix=f"use at most {MODEL_NAME_CHARACTERS_MAX} letters, digits, dots, dashes and"
            f" underscores, {begin}",
        )
    return name
