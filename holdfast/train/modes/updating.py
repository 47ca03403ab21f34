"""From the mean gradient of a step to new weights. Every worker does it, and all get the same."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from holdfast.train.states.tracked import Tracked


def scaler_of(tracked: Tracked) -> torch.amp.GradScaler | None:
    """The scaler of half-precision gradients, if one is tracked."""
    for thing in tracked.objects.values():
        if isinstance(thing, torch.amp.GradScaler) and thing.is_enabled():
            return thing
    return None


def scaled(tracked: Tracked, loss: torch.Tensor) -> torch.Tensor:
    scaler = scaler_of(tracked)
    return loss if scaler is None else scaler.scale(loss)


def may_draw(tracked: Tracked) -> bool:
    """Whether an update may draw random numbers. torch's own optimizers never do, and seeding takes
    a part of a small step that can be noticed."""
    return any(
        not type(each).__module__.startswith("torch.optim.")
        or each._optimizer_step_pre_hooks
        or each._optimizer_step_post_hooks
        for each in tracked.optimizers.values()
    )


def update(
    tracked: Tracked,
    parameters: Sequence[nn.Parameter],
    gradients: Sequence[torch.Tensor],
    untouched: set[int],
    *,
    only: Sequence[str] | None,
    clip: float | None,
) -> float | None:
    """Step the optimizers. A parameter that had a gradient in no lane has none here either, so its
    optimizer passes it over. The norm of the gradient, where it was computed."""
    optimizers = {
        name: each for name, each in tracked.optimizers.items() if only is None or name in only
    }
    chosen = {
        id(parameter)
        for optimizer in optimizers.values()
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    used = []
    for number, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        takes = number not in untouched and id(parameter) in chosen
        parameter.grad = gradient if takes else None
        if takes:
            used.append(parameter)
    scaler = scaler_of(tracked)
    if scaler is not None:
        for optimizer in optimizers.values():
            scaler.unscale_(optimizer)
    norm = None
    if clip is not None and used:
        norm = float(nn.utils.clip_grad_norm_(used, clip))
    for optimizer in optimizers.values():
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
    if scaler is not None:
        scaler.update()
    for parameter in used:
        parameter.grad = None
    return norm
