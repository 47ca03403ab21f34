"""scikit-learn estimators and pipelines: `.skops` files, which are data; pickles only where said.

Each output is a method's: `predict`, and `predict_proba` where the estimator has it; what only
transforms has `transform`. `arguments={"methods": [...]}` chooses others. One input is given as it
is; several are the columns of a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from holdfast.models.files_kind import Array, Gathered, KnownFiles, shaped, wrong
from holdfast.models.records import ModelKind, Signature, Version
from holdfast.system.extras import require_extra
from holdfast.wire.errors import BadModel, Refused

FILE: Final = "model.skops"
_PICKLES: Final = {".pkl": "model.pkl", ".pickle": "model.pkl", ".joblib": "model.joblib"}
_WHAT: Final = "a scikit-learn model"
_FIX: Final = "save it with skops.io.dump(model, 'model.skops')"


def gather(path: Path) -> Gathered:
    if path.suffix in _PICKLES:
        return Gathered(ModelKind.SKLEARN, {_PICKLES[path.suffix]: path}, pickled=True)
    if path.suffix != ".skops":
        raise wrong(path, _WHAT, "its name ends neither with .skops nor with .pkl", _FIX)
    return Gathered(ModelKind.SKLEARN, {FILE: path})


def load(version: Version, folder: Path, _device: str | None) -> SklearnServable:
    estimator = _estimator(folder, version.arguments)
    return SklearnServable(version.signature, estimator, version.arguments)


def known(folder: Path, arguments: Mapping[str, Any]) -> KnownFiles:
    if not (folder / FILE).exists():
        return KnownFiles()  # a pickle is loaded once, in a process of its own
    count = getattr(_estimator(folder, arguments), "n_features_in_", None)
    return (
        KnownFiles() if count is None else KnownFiles({"x": np.zeros((2, int(count)), np.float64)})
    )


def lines(version: Version) -> list[str]:
    if FILE in version.files:
        return ["import skops.io", f'model = skops.io.load("{FILE}")']
    name = next(name for name in _PICKLES.values() if name in version.files)
    return ["import joblib", f'model = joblib.load("{name}")   # a pickle: it runs code']


class SklearnServable:
    """An estimator and the methods that are its outputs."""

    def __init__(self, signature: Signature, estimator: Any, arguments: Mapping[str, Any]) -> None:
        self._signature = signature
        self._estimator = estimator
        self._methods = list(arguments.get("methods") or _methods(estimator))
        for name in self._methods:
            if not callable(getattr(estimator, name, None)):
                raise BadModel(
                    f"{type(estimator).__name__} has no method {name!r}",
                    fix="""name others: --arguments '{"methods": ["predict"]}'""",
                )

    def predict(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        given = next(iter(inputs.values())) if len(inputs) == 1 else _table(inputs)
        outputs = {name: _dense(getattr(self._estimator, name)(given)) for name in self._methods}
        return shaped(self._signature, outputs)

    def close(self) -> None:
        del self._estimator


def _methods(estimator: Any) -> list[str]:
    if hasattr(estimator, "predict"):
        return ["predict", *(["predict_proba"] if hasattr(estimator, "predict_proba") else [])]
    return ["transform"]


def _table(inputs: Mapping[str, Array]) -> Any:
    pandas = require_extra("pandas", "sklearn")
    return pandas.DataFrame({name: array.reshape(len(array)) for name, array in inputs.items()})


def _dense(result: Any) -> Array:
    """Sparse matrices and tables become arrays."""
    if hasattr(result, "toarray"):
        result = result.toarray()
    return np.asarray(result)


def _estimator(folder: Path, arguments: Mapping[str, Any]) -> Any:
    require_extra("sklearn", "sklearn")
    if not (folder / FILE).exists():
        joblib = require_extra("joblib", "sklearn")
        found = next(name for name in _PICKLES.values() if (folder / name).exists())
        return joblib.load(folder / found)
    skops = require_extra("skops.io", "sklearn")
    trusted = [str(name) for name in arguments.get("trusted", ())]
    try:
        strangers = sorted(set(skops.get_untrusted_types(file=folder / FILE)) - set(trusted))
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise BadModel(f"{FILE} cannot be loaded", why=why, fix=_FIX) from error
    if strangers:
        raise Refused(
            f"{FILE} names types that nobody has said to trust: {', '.join(strangers)}",
            why="loading it would import and call them",
            fix=f"""if you do: --arguments '{{"trusted": ["{strangers[0]}"]}}'""",
        )
    return skops.load(folder / FILE, trusted=trusted)
