"""Do models and optimizers still have what they had? By identity, and without a walk through the
models, which takes as long as a small lane does: the tables of their modules are looked at.
"""

from __future__ import annotations

from operator import attrgetter, is_
from typing import Any

import torch

from holdfast.train.states.tracked import Tracked

_requires = attrgetter("requires_grad")


class Unchanged:
    """Of what is tracked: its modules, their parameters and buffers by name, what optimizers hold,
    and what wants a gradient."""

    def __init__(self, tracked: Tracked) -> None:
        self._tracked = tracked
        modules = [module for model in tracked.models.values() for module in model.modules()]
        self._tables: list[dict[str, Any]] = [
            table
            for module in modules
            for table in (module._modules, module._parameters, module._buffers)
        ]
        self._before = self._now()
        self._tensors = [each for each in self._before if isinstance(each, torch.Tensor)]
        self._required = list(map(_requires, self._tensors))

    def holds(self) -> bool:
        """False: something may have changed."""
        now = self._now()
        return (
            len(now) == len(self._before)
            and all(map(is_, now, self._before))
            and list(map(_requires, self._tensors)) == self._required
        )

    def _now(self) -> list[Any]:
        found: list[Any] = list(self._tracked.objects.values())
        for table in self._tables:
            found.extend(table.keys())  # those of a scripted module are no dicts
            found.extend(table.values())
        for optimizer in self._tracked.optimizers.values():
            for group in optimizer.param_groups:
                found.extend(group["params"])
        return found
