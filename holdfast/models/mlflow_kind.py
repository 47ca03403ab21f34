"""MLflow's model folders. What has a format that we know becomes a model of that kind; the rest is
loaded as MLflow's Python function, which runs a pickle.

`gather` is called with a folder to write to: a folder of a Python function travels as one archive.
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from holdfast.models.files_kind import Array, Gathered, KnownFiles, files_kind, only, shaped
from holdfast.models.records import ModelKind, Signature, Version
from holdfast.system.extras import require_extra
from holdfast.wire.errors import BadModel

FILE: Final = "mlflow.tar"
_MLMODEL: Final = "MLmodel"
_INSIDE: Final = "model"
# A flavor, and where it says which file or folder is the model's.
_FLAVORS: Final = {
    "onnx": (ModelKind.ONNX, "data"),
    "xgboost": (ModelKind.XGBOOST, "data"),
    "lightgbm": (ModelKind.LIGHTGBM, "data"),
    "sklearn": (ModelKind.SKLEARN, "pickled_model"),
    "transformers": (ModelKind.HUGGINGFACE, "model_binary"),
}


def gather(path: Path, held: Path | None = None) -> Gathered:
    """`held`: a folder for what must be written."""
    flavors = _flavors(path)
    for name, (kind, key) in _FLAVORS.items():
        inner = path / str(flavors.get(name, {}).get(key) or "")
        if name in flavors and inner != path and _within(inner, path):
            try:
                return files_kind(kind).gather(inner)
            except BadModel:
                continue  # an estimator of it as a pickle, for example
    if "python_function" not in flavors:
        raise BadModel(
            f"{path.name} has the flavors {', '.join(flavors)}",
            why=f"known are {', '.join(_FLAVORS)} and python_function",
            fix="log the model with one of these",
        )
    assert held is not None
    with tarfile.open(held / FILE, "w") as archive:
        archive.add(path, _INSIDE, filter=_plain)
    return Gathered(ModelKind.MLFLOW, {FILE: held / FILE}, pickled=True)


def load(version: Version, folder: Path, _device: str | None) -> MlflowServable:
    pyfunc = require_extra("mlflow.pyfunc", "mlflow")
    place = tempfile.TemporaryDirectory(prefix="holdfast-mlflow-")
    try:
        with tarfile.open(folder / FILE) as archive:
            archive.extractall(place.name, filter="data")
        return MlflowServable(
            version.signature, pyfunc.load_model(f"{place.name}/{_INSIDE}"), place
        )
    except BaseException:
        place.cleanup()
        raise


def known(_folder: Path, _arguments: Mapping[str, Any]) -> KnownFiles:
    return KnownFiles()


def lines(_version: Version) -> list[str]:
    return [
        "import tarfile, mlflow.pyfunc",
        f'tarfile.open("{FILE}").extractall(".", filter="data")',
        f'model = mlflow.pyfunc.load_model("{_INSIDE}")   # a pickle: it runs code',
    ]


class MlflowServable:
    """A Python function of MLflow: one array, or a table of several columns."""

    def __init__(
        self, signature: Signature, model: Any, place: tempfile.TemporaryDirectory[str]
    ) -> None:
        self._signature = signature
        self._model = model
        self._place = place

    def predict(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        if len(inputs) == 1:
            given: Any = only(inputs)
        else:
            pandas = require_extra("pandas", "mlflow")
            given = pandas.DataFrame({name: each.reshape(-1) for name, each in inputs.items()})
        found = self._model.predict(given)
        return shaped(self._signature, found.to_numpy() if hasattr(found, "to_numpy") else found)

    def close(self) -> None:
        del self._model
        self._place.cleanup()


def _flavors(path: Path) -> dict[str, dict[str, Any]]:
    try:
        found = yaml.safe_load((path / _MLMODEL).read_text())["flavors"]
        return {str(name): dict(each or {}) for name, each in found.items()}
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise BadModel(
            f"{path.name} is not a model folder of MLflow",
            why=f"its {_MLMODEL} cannot be read: {error}",
            fix="name the folder that mlflow.*.save_model wrote",
        ) from error


def _within(inner: Path, path: Path) -> bool:
    return inner.exists() and inner.resolve().is_relative_to(path.resolve())


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Files and folders, the same archive each time: the same model is the same version."""
    if not (member.isfile() or member.isdir()):
        return None
    member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
    return member
