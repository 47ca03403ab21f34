"""A setting that is changed while the job runs reaches the optimizers by itself.

A setting with the name of something that an optimizer keeps for its groups (`lr`, `weight_decay`)
is given to all tracked optimizers; `NAME.lr` to the one that is tracked as NAME. Where the value is
no longer the one that was set (a scheduler has moved it, or groups differ), it is scaled by the
same ratio, and so is what the schedulers start from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from holdfast.train.settings import Settings
from holdfast.train.states.tracked import Tracked


def apply(
    tracked: Tracked, settings: Settings, before: Mapping[str, str], now: Mapping[str, str]
) -> None:
    """The tracked objects know the settings `before`; let them know those of `now`."""
    old = {name: settings.typed(name, text) for name, text in before.items()}
    settings.take(now)
    for name, text in now.items():
        title, _, key = name.rpartition(".")
        value = settings.typed(name, text)
        for each, optimizer in tracked.optimizers.items():
            if (title and each != title) or isinstance(value, str) or not _has(optimizer, key):
                continue
            settings.took(name)
            if before.get(name) != text:
                _adjust(tracked, optimizer, key, old.get(name), value)


def _has(optimizer: Optimizer, key: str) -> bool:
    """Whether a group of it keeps something of this name that can be set."""
    return any(
        key in group and not isinstance(group[key], (tuple, list))
        for group in optimizer.param_groups
    )


def _adjust(tracked: Tracked, optimizer: Optimizer, key: str, before: Any, now: Any) -> None:
    for group in optimizer.param_groups:
        for each in (key, f"initial_{key}"):
            if each in group and not isinstance(group[each], (tuple, list)):
                group[each] = _moved(group[each], before, now)
    if key != "lr":
        return
    for thing in tracked.objects.values():
        if isinstance(thing, LRScheduler) and thing.optimizer is optimizer:
            thing.base_lrs = [_moved(rate, before, now) for rate in thing.base_lrs]


def _moved(value: Any, before: Any, now: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.fill_(_moved(float(value), before, now))
    if isinstance(value, bool) or not isinstance(before, (int, float)) or value == before:
        return now
    return value * (now / before) if before else now
