"""LightGBM boosters in their own format, `.txt`, which is data."""

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

FILE: Final = "model.txt"
_WHAT: Final = "a LightGBM model"
_FIX: Final = "save it with booster.save_model('model.txt'); of an estimator: model.booster_"


def gather(path: Path) -> Gathered:
    if path.suffix in PICKLES:
        raise wrong(path, _WHAT, "it is a pickle", _FIX)
    with path.open("rb") as file:
        if file.readline().strip() != b"tree":
            raise wrong(path, _WHAT, "its first line is not `tree`", _FIX)
        if b"end of trees" not in file.read():
            raise wrong(path, _WHAT, "it is cut off: its trees have no end", _FIX)
    return Gathered(ModelKind.LIGHTGBM, {FILE: path})


def load(version: Version, folder: Path, _device: str | None) -> LightgbmServable:
    return LightgbmServable(version.signature, _booster(folder))


def known(folder: Path, _arguments: Mapping[str, Any]) -> KnownFiles:
    return KnownFiles({"x": np.zeros((2, int(_booster(folder).num_feature())), np.float64)})


def lines(_version: Version) -> list[str]:
    return ["import lightgbm", f'model = lightgbm.Booster(model_file="{FILE}")']


class LightgbmServable:
    """A booster; `predict` of rows of numbers, where NaN is what is missing."""

    def __init__(self, signature: Signature, booster: Any) -> None:
        self._signature = signature
        self._booster = booster
        self._threads = int(os.environ.get("OMP_NUM_THREADS", "1"))

    def predict(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        rows = np.ascontiguousarray(only(inputs))
        found = self._booster.predict(rows, num_threads=self._threads)
        return shaped(self._signature, {CALL: found})

    def close(self) -> None:
        del self._booster


def _booster(folder: Path) -> Any:
    lightgbm = require_extra("lightgbm", "lightgbm")
    try:
        return lightgbm.Booster(model_file=str(folder / FILE))
    except lightgbm.basic.LightGBMError as error:
        why = str(error).strip().partition("\n")[0]
        raise BadModel(f"{FILE} cannot be loaded", why=why, fix=_FIX) from error
