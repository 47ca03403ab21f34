"""`holdfast models publish`: the words of the command, as what is to be published."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.models import making
from holdfast.models.records import Kind
from holdfast.wire.errors import Usage


def kind_of(text: str | None) -> Kind | None:
    """The kind that was named."""
    if text is None:
        return None
    try:
        return Kind(text)
    except ValueError:
        kinds = ", ".join(kind.value for kind in Kind)
        raise Usage(f"there is no kind {text!r}", fix=f"one of {kinds}") from None


def source_of(model: Path | None, onnx: Path | None) -> Path | None:
    """The file or folder of a model that is files."""
    if model is not None and onnx is not None:
        raise Usage("--model and --onnx both name a model", fix="give one of them")
    return model if model is not None else onnx


def inputs_of(examples: Sequence[str]) -> list[dict[str, Any]]:
    """The batches of inputs: from files, or as JSON."""
    return [_inputs(example) for example in examples]


def _inputs(example: str) -> dict[str, Any]:
    if not example.lstrip().startswith("{"):
        return making.read_inputs(Path(example))
    try:
        return making.inputs_from(json.loads(example))
    except ValueError as error:
        raise Usage(f"--example is not JSON: {example[:80]!r}", why=str(error)) from error
