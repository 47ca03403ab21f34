"""What is about to become a version: checked, and known again when it comes twice. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from holdfast.models.records import (
    CODE_KINDS,
    ONNX,
    WEIGHTS,
    ModelKind,
    Signature,
    check_model,
    is_example,
)
from holdfast.wire.errors import Usage
from holdfast.wire.plain import plain_of
from holdfast.wire.reports import Part

# Files of a version; weights, an example and a few of the model's own.
MODEL_FILES_MAX: Final = 64

Content = bytes | memoryview | Path


@dataclass(frozen=True, slots=True)
class VersionDraft:
    """A version that is to be published. A file is its bytes, or a path."""

    model: str
    kind: ModelKind
    signature: Signature
    files: Mapping[str, Content]
    bundle: str = ""
    entry: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    job: str = ""
    step: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


def check(draft: VersionDraft) -> VersionDraft:
    """The draft, if a version can be made of it; else `Usage` with what is wrong."""
    check_model(draft.model)
    _check_names("inputs", [spec.name for spec in draft.signature.inputs])
    _check_names("outputs", [spec.name for spec in draft.signature.outputs])
    if len(draft.files) > MODEL_FILES_MAX:
        raise Usage(
            f"{draft.model}: {len(draft.files)} files are too many",
            why=f"a version has at most {MODEL_FILES_MAX}",
            fix="put them into one archive, or into the code's folder",
        )
    needed = {ModelKind.TORCH: WEIGHTS, ModelKind.ONNX: ONNX}.get(draft.kind)
    code = draft.kind in CODE_KINDS
    if needed is not None and needed not in draft.files:
        raise Usage(
            f"{draft.model}: a version of the kind {draft.kind.value} needs the file {needed}",
            fix="give it: --onnx FILE"
            if draft.kind is ModelKind.ONNX
            else "give it: --weights FILE",
        )
    if not code and not draft.files:
        raise Usage(
            f"{draft.model}: a version of the kind {draft.kind.value} needs its files",
            fix="give them: --model PATH",
        )
    if code and not (draft.bundle and draft.entry):
        raise Usage(
            f"{draft.model}: a version of the kind {draft.kind.value} needs code and an entry",
            why="a replica builds it from its bundle",
            fix="give both: --code DIR --entry MODULE:NAME",
        )
    try:
        json.dumps([plain_of(draft.arguments), plain_of(draft.metrics)], allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Usage(
            f"{draft.model}: its arguments or metrics cannot be written down",
            why=str(error),
            fix="use what JSON can say: texts, finite numbers, lists, objects",
        ) from error
    return draft


def publication(draft: VersionDraft, parts: Mapping[str, Part]) -> str:
    """The same for whoever publishes the same thing again. Metrics do not count; nor does what a
    job's step made of its example, whose last bits another machine may round differently."""
    plain = {
        "model": draft.model,
        "kind": draft.kind.value,
        "entry": draft.entry,
        "arguments": plain_of(draft.arguments),
        "files": {
            name: part.digest
            for name, part in parts.items()
            if not is_example(name) or draft.step is None
        },
        "bundle": draft.bundle,
        "signature": _plain_signature(draft.signature),
        "job": draft.job,
        "step": draft.step,
    }
    spelled = json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()
    return f"sha256:{hashlib.sha256(spelled).hexdigest()}"


def _plain_signature(signature: Signature) -> Any:
    """As it was written down before tensors said more of themselves: what says nothing is left out,
    so that whatever was published then is known again."""
    plain = plain_of(signature)
    for spec in (*plain["inputs"], *plain["outputs"]):
        for name, empty in (("text", None), ("dims", [])):
            if spec[name] == empty:
                del spec[name]
    return plain


def _check_names(what: str, names: list[str]) -> None:
    if not names or len(set(names)) != len(names) or not all(names):
        raise Usage(
            f"the {what} of the signature are {names}",
            why="each has a name of its own, and there is at least one",
            fix="give an example whose tensors have names",
        )
