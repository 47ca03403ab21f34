"""The work that all contestants do, and how a reply is checked. Needs nothing but numpy, and torch
for the heavier model: it is imported in the peers' environments too.

- `small`: 16 -> 32 -> 10 in numpy. Almost all of a request is the server's own work.
- `heavy`: 64 -> 1024 -> 1024 -> 1024 -> 1024 -> 10 in torch, on one thread. A row alone costs about
  a millisecond to read all weights; 32 rows together cost little more. So batching matters.

Both take `x` and give `y`, in 32-bit floats, with weights from a fixed seed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

INPUT, OUTPUT = "x", "y"
WIDTHS: Final = {"small": (16, 32, 10), "heavy": (64, 1024, 1024, 1024, 1024, 10)}
BATCH_MAX: Final = 64  # for everyone who batches
# Batches are summed in another order than single rows.
TOLERANCE: Final = 1e-3


def weights(name: str) -> list[Array]:
    chance = np.random.default_rng(5)
    sizes = WIDTHS[name]
    shapes = pairwise(sizes)
    return [
        (chance.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32) for shape in shapes
    ]


class Small:
    """The small model."""

    def __init__(self) -> None:
        self._first, self._second = weights("small")

    def __call__(self, rows: Array) -> Array:
        hidden = np.maximum(rows @ self._first, 0.0)
        found: Array = hidden @ self._second
        return found


class Heavy:
    """The heavier one."""

    def __init__(self) -> None:
        torch = import_module("torch")  # not where only the small one is served
        torch.set_num_threads(1)
        layers: list[Any] = []
        for matrix in weights("heavy"):
            layer = torch.nn.Linear(*matrix.shape, bias=False)
            layer.weight.data = torch.from_numpy(np.ascontiguousarray(matrix.T))
            layers += [layer, torch.nn.ReLU()]
        self._torch = torch
        self._model = torch.nn.Sequential(*layers[:-1]).eval()

    def __call__(self, rows: Array) -> Array:
        with self._torch.inference_mode():
            found: Array = self._model(self._torch.from_numpy(np.ascontiguousarray(rows))).numpy()
            return found


def model(name: str) -> Small | Heavy:
    return Small() if name == "small" else Heavy()


def row(name: str) -> Array:
    """The one row that is asked for."""
    chance = np.random.default_rng(7)
    return chance.standard_normal((1, WIDTHS[name][0])).astype(np.float32)


# --- Open Inference Protocol v2, as far as peers need help with it -------------------------------


def json_body(name: str) -> bytes:
    rows = row(name)
    tensor = {"name": INPUT, "shape": list(rows.shape), "datatype": "FP32"}
    return json.dumps({"inputs": [{**tensor, "data": rows.ravel().tolist()}]}).encode()


def binary_body(name: str) -> tuple[bytes, dict[str, str]]:
    """A body with the tensor's bytes behind the JSON, and its headers; the answer shall be so."""
    rows = row(name)
    tensor: dict[str, Any] = {"name": INPUT, "shape": list(rows.shape), "datatype": "FP32"}
    tensor["parameters"] = {"binary_data_size": rows.nbytes}
    wanted = [{"name": OUTPUT, "parameters": {"binary_data": True}}]
    head = json.dumps({"inputs": [tensor], "outputs": wanted}).encode()
    headers = {"content-type": "application/octet-stream"}
    headers["inference-header-content-length"] = str(len(head))
    return head + rows.tobytes(), headers


def rows_of(plain: Mapping[str, Any]) -> Array:
    """The rows of a request that a server has parsed."""
    tensor = plain["inputs"][0]
    return np.asarray(tensor["data"], dtype=np.float32).reshape(tensor["shape"])


def reply_of(name: str, rows: Array) -> dict[str, Any]:
    data = rows.ravel().tolist()
    tensor = {"name": OUTPUT, "shape": list(rows.shape), "datatype": "FP32", "data": data}
    return {"model_name": name, "model_version": "1", "outputs": [tensor]}


def fixed_reply(name: str) -> bytes:
    """The right answer as bytes, for a server that computes nothing."""
    return json.dumps(reply_of(name, model(name)(row(name)))).encode()
