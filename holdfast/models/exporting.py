"""A version as plain files, for people and programs that know nothing of Holdfast."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from holdfast.models.differences import spelled
from holdfast.models.files_kind import files_kind
from holdfast.models.loading import CODE, fetch
from holdfast.models.records import CODE_KINDS, EXAMPLE, WEIGHTS, ModelKind, Version
from holdfast.storage import Blobs
from holdfast.wire.documents import document
from holdfast.wire.errors import Occupied

_RECORD = "version.json"
_README = "README.txt"


def export(version: Version, blobs: Blobs, target: Path) -> list[str]:
    """Write the version to a new or empty folder: its files, verified, its code, its record, and
    how to load it. The names of what was written."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise Occupied(
            f"{target} is there already, and not empty", fix="name a new or an empty folder"
        )
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=target.parent) as cache:
        found = fetch(version, blobs, Path(cache))
        for name in version.files:
            (found / name).rename(target / name)
        if version.bundle:
            shutil.copytree((found / CODE).resolve(), target / CODE)
    (target / _RECORD).write_text(json.dumps(document(version), indent=2, sort_keys=True) + "\n")
    (target / _README).write_text(readme(version))
    return sorted(path.name for path in target.iterdir())


def readme(version: Version) -> str:
    """How to load it, in a few lines."""
    signature = version.signature
    lines = [
        f"{version.model}, version {version.number}",
        "",
        "takes    " + ", ".join(spelled(spec) for spec in signature.inputs),
        "gives    " + ", ".join(spelled(spec) for spec in signature.outputs),
        f"{_RECORD} is its record; a dimension of -1 may have any size.",
    ]
    if EXAMPLE in version.files:
        lines.append(f"{EXAMPLE} is one batch: tensors input.NAME and output.NAME.")
    return "\n".join([*lines, "", "To load it:", "", *_loading(version), ""])


def _loading(version: Version) -> list[str]:
    if version.kind not in CODE_KINDS:
        return [f"    {line}" for line in files_kind(version.kind).lines(version)]
    where, _, name = version.entry.partition(":")
    inside, _, module = where.rpartition("/")
    folder = f"{CODE}/{inside}" if inside else CODE
    arguments = ", ".join(f"{key}={value!r}" for key, value in version.arguments.items())
    top = name.partition(".")[0]
    head = ["import sys", f'sys.path.insert(0, "{folder}")', f"from {module} import {top}"]
    if version.kind is ModelKind.TORCH:
        lines = [
            *head,
            "from safetensors.torch import load_file",
            f"model = {name}({arguments})",
            f'model.load_state_dict(load_file("{WEIGHTS}"))',
            "model.eval()",
        ]
    elif version.kind is ModelKind.PYTHON:
        given = f", {arguments}" if arguments else ""
        lines = [
            *head,
            "from pathlib import Path",
            f"model = {name}()",
            f'model.load(Path("."){given})   # if it has a load',
            "outputs = model.predict(inputs)   # inputs: arrays by name",
        ]
    else:
        given = f", {arguments}" if arguments else ""
        lines = [*head, f"outputs = {name}(inputs{given})   # inputs: arrays by name"]
    return [f"    {line}" for line in lines]
