"""The models as Holdfast serves them: the bundle is this file beside `work.py`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import numpy as np


class Served:
    """A model by its name. `rank` only makes versions different."""

    def load(self, folder: Path, name: str, rank: int = 1) -> None:
        self.model = import_module("work").model(name)

    def predict(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"y": self.model(inputs["x"])}
