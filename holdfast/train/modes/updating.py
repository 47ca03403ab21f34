"""From the mean gradient of a step to new weights. Every worker does it, and all get the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from holdfast.train.modes.update_hooks import Script
from holdfast.train.states.tracked import Tracked
from holdfast.wire.errors import Usage


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
        or any(not hook.__module__.startswith("holdfast.") for hook in _step_hooks(each))
        for each in tracked.optimizers.values()
    )


def _step_hooks(optimizer: Optimizer) -> Iterable[Any]:
    yield from optimizer._optimizer_step_pre_hooks.values()
    yield from optimizer._optimizer_step_post_hooks.values()


def update(
    tracked: Tracked,
    parameters: Sequence[nn.Parameter],
    gradients: Sequence[torch.Tensor],
    untouched: set[int],
    *,
    only: Sequence[str] | None,
    clip: float | None,
    script: Script | None = None,
    look: bool = False,
) -> torch.Tensor | None:
    """Step the optimizers. A parameter that had a gradient in no lane has none here either, so its
    optimizer passes it over. The norm of the gradient, where it was computed. `look`: whether an
    optimizer keeps a gradient that is not its own."""
    script = script or Script()
    optimizers = {
        name: each for name, each in tracked.optimizers.items() if only is None or name in only
    }
    chosen = {id(each) for each in _held(optimizers.values())}
    for number, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        takes = number not in untouched and id(parameter) in chosen
        parameter.grad = gradient if takes else None
    scaler = scaler_of(tracked)
    if scaler is not None:
        # One that has nothing to step would make the scaler stop: it saw no numbers to judge.
        optimizers = {name: each for name, each in optimizers.items() if _has_gradient(each)}
        for optimizer in optimizers.values():
            scaler.unscale_(optimizer)
    for hook in script.before:
        hook()
    used = [each for each in parameters if each.grad is not None]
    norm = None
    if clip is not None and used:
        norm = nn.utils.clip_grad_norm_(used, clip)  # a tensor: reading it would wait for a device
    if script.instead is not None:
        script.instead()
    else:
        _step(optimizers.values(), scaler)
    if look:
        _refuse_kept_gradients(tracked.optimizers, gradients)
    for parameter in parameters:
        parameter.grad = None
    return norm


def _step(optimizers: Iterable[Optimizer], scaler: torch.amp.GradScaler | None) -> None:
    stepped = False
    for optimizer in optimizers:
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            stepped = True
    if scaler is not None and stepped:
        scaler.update()


def _held(optimizers: Iterable[Optimizer]) -> Iterable[torch.Tensor]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]


def _has_gradient(optimizer: Optimizer) -> bool:
    return any(each.grad is not None for each in _held([optimizer]))


def _refuse_kept_gradients(
    optimizers: Mapping[str, Optimizer], gradients: Sequence[torch.Tensor]
) -> None:
    """The memory of gradients is used again for the next sum, so nobody may keep it."""
    storages = {each.untyped_storage().data_ptr() for each in gradients}
    storages.discard(0)
    for name, optimizer in optimizers.items():
        for kept in optimizer.state.values():
            for key, value in kept.items() if isinstance(kept, Mapping) else ():
                if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
                    continue
                if value.untyped_storage().data_ptr() in storages:
                    raise Usage(
                        f"{name} ({type(optimizer).__name__}) keeps a gradient as its state "
                        f"{key!r}, without a copy",
                        why="the memory of gradients is used again for the next step",
                        fix="copy it in the optimizer: p.grad.clone()",
                    )
