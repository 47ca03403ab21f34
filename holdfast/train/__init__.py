"""What a user's script imports to train.

    from holdfast import train

- `launch`, `Run`   a PyTorch loop as an elastic job; these import torch, when they are first used
- `Sharded`         files divided over lanes
- `WeightedSampler`, `LengthBuckets`   orders of samples; `checked`, `digests_of`   data that rots
- `turns`, `fit`    for loops that are written already
- `digest_of`       SHA-256 of a model's weights

Below it: `data` (which samples a lane gets), `sums` (one order of summation), `states` (what is
saved, restored and handed over), `members` (a worker among others, without torch), `modes` (the
ways to combine).

It imports nothing of the control plane or the agent.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from holdfast.system.extras import require_extra

if TYPE_CHECKING:
    from holdfast.train.adapters import LaneStep, Turn, fit, turns
    from holdfast.train.data.batch import Batch
    from holdfast.train.data.digests import checked, digests_of
    from holdfast.train.data.samplers import LengthBuckets, WeightedSampler
    from holdfast.train.data.sharded import Sharded
    from holdfast.train.evaluation import Evaluation
    from holdfast.train.launching import launch
    from holdfast.train.publishing import Published
    from holdfast.train.run import Run
    from holdfast.train.states.memory import digest_of

__all__ = [
    "Batch",
    "Evaluation",
    "LaneStep",
    "LengthBuckets",
    "Published",
    "Run",
    "Sharded",
    "Turn",
    "WeightedSampler",
    "checked",
    "digest_of",
    "digests_of",
    "fit",
    "launch",
    "turns",
]

_HOMES: Final = {
    "Batch": "data.batch",
    "Evaluation": "evaluation",
    "LaneStep": "adapters",
    "LengthBuckets": "data.samplers",
    "Published": "publishing",
    "Run": "run",
    "Sharded": "data.sharded",
    "Turn": "adapters",
    "WeightedSampler": "data.samplers",
    "checked": "data.digests",
    "digest_of": "states.memory",
    "digests_of": "data.digests",
    "fit": "adapters",
    "launch": "launching",
    "turns": "adapters",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_extra("torch", "train")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
