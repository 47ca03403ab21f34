"""What a user's script imports to train.

    from holdfast import train

- `launch`, `Run`   a PyTorch loop as an elastic job; these import torch, when they are first used
- `Sharded`         files divided over lanes
- `turns`, `fit`    for loops that are written already
- `digest_of`       SHA-256 of a model's weights
- `link`            a worker's line to its agent; absent under a plain `python train.py`
- `member`, `solo`  a worker's part in its job, and the same for one that is alone; without torch

It imports nothing of the control plane or the agent.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from holdfast.wire.extras import require_extra

if TYPE_CHECKING:
    from holdfast.train.adapters import Turn, fit, turns
    from holdfast.train.batch import Batch
    from holdfast.train.evaluation import Evaluation
    from holdfast.train.launching import launch
    from holdfast.train.publishing import Published, digest_of
    from holdfast.train.run import Run
    from holdfast.train.sharded import Sharded

__all__ = [
    "Batch",
    "Evaluation",
    "Published",
    "Run",
    "Sharded",
    "Turn",
    "digest_of",
    "fit",
    "launch",
    "turns",
]

_HOMES: Final = {
    "Batch": "batch",
    "Evaluation": "evaluation",
    "Published": "publishing",
    "Run": "run",
    "Sharded": "sharded",
    "Turn": "adapters",
    "digest_of": "publishing",
    "fit": "adapters",
    "launch": "launching",
    "turns": "adapters",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_extra("torch", "train")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
