"""XGBoost boosters in their own formats, `.ubj` and `.json`, which are data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from holdfast.models.files_kind import (
    CALL,
    PICKLES,
    Array,
    Gathered,
    KnownFiles,
    only,
    shaped,
    wrong,
)
from holdfast.models.records import ModelKind, Signature, Version
from holdfast.system.extras import require_extra
from holdfast.wire.errors import BadModel

FILE: Final = "model.ubj"
_JSON: Final = "model.json"
_WHAT: Final = "an XGBoost model"
_FIX: Final = "save it with model.save_model('model.ubj')"


def gather(path: Path) -> Gathered:
    if path.suffix in PICKLES:
        raise wrong(path, _WHAT, "it is a pickle", _FIX)
    with path.open("rb") as file:
        first = file.read(1)
    if first != b"{":
        raise wrong(path, _WHAT, "it is neither UBJSON nor JSON", _FIX)
    return Gathered(ModelKind.XGBOOST, {_JSON if path.suffix == ".json" else FILE: path})


def load(version: Version, folder: Path, _device: str | None) -> XgboostServable:
    return XgboostServable(version.signature, _booster(folder))


def known(folder: Path, _arguments: Mapping[str, Any]) -> KnownFiles:
    return KnownFiles({"x": np.zeros((2, int(_booster(folder).num_features())), np.float32)})


def lines(version: Version) -> list[str]:
    name = FILE if FILE in version.files else _JSON
    return ["import xgboost", f'model = xgboost.Booster(model_file="{name}")']


class XgboostServable:
    """A booster; `predict` of rows of numbers, where NaN is what is missing."""

    def __init__(self, signature: Signature, booster: Any) -> None:
        self._signature = signature
        self._booster = booster
        booster.set_param({"nthread": int(os.environ.get("OMP_NUM_THREADS", "1"))})

    def predict(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        rows = np.ascontiguousarray(only(inputs))
        found = self._booster.inplace_predict(rows, validate_features=False)
        return shaped(self._signature, {CALL: found})

    def close(self) -> None:
        del self._booster


def _booster(folder: Path) -> Any:
    xgboost = require_extra("xgboost", "xgboost")
    path = folder / (FILE if (folder / FILE).exists() else _JSON)
    try:
        return xgboost.Booster(model_file=str(path))
    except xgboost.core.XGBoostError as error:
        why = str(error).strip().partition("\n")[0]
        raise BadModel(f"{path.name} cannot be loaded", why=why, fix=_FIX) from error
