"""Workers of trainings at the edges of what is promised, forked from `training_host`.

    {"scenario", "kills": [[worker, step, lane], ...], "hold": [step, file]}

Worker W is killed in the body of that step and lane. Whoever comes to `hold` waits, in a hook of
that step, until the file is there. What a worker has to say goes to its output as one JSON line.
"""

from __future__ import annotations

import copy
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader

from holdfast import train
from tests.faults.training_scenarios import Points, _say
from tests.waiting import eventually

Scenario = Callable[[train.Run, "Body"], dict[str, nn.Module]]


class Body:
    """The loop that all scenarios share, with its kills."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._kills = options.get("kills", [])
        self._hold = options.get("hold")
        self._worker = int(os.environ.get("HOLDFAST_WORKER", "-1"))
        self.data = Points((6, 4), 120)

    def __call__(self, run: train.Run, model: nn.Module, epochs: int = 3, **options: Any) -> None:
        for batch in run.batches(self.data, lane_batch=4, epochs=epochs, **options):
            loss = functional.cross_entropy(model(batch.x), batch.y)
            if [self._worker, run.completed + 1, batch.lane] in self._kills:
                os.kill(os.getpid(), signal.SIGKILL)
            run.step(loss)

    def hold(self, run: train.Run) -> None:
        """In a hook: wait here if this is the step."""
        if self._hold is not None and run.completed == self._hold[0]:
            _say("holds", {"step": run.completed})
            eventually(Path(self._hold[1]).exists, "it is let go on")


def _net() -> Any:  # for torch's types a layer's weight may be a module
    return nn.Sequential(
        nn.Flatten(), nn.Linear(24, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)
    )


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def average(run: train.Run, body: Body) -> dict[str, nn.Module]:
    """torch's average, updated in a hook, with its batch norm's buffers; evaluated there too."""
    model = _net()
    mean = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    run.track(model=model, optimizer=_adam(model), mean=mean)

    @run.every(1)
    def update(run: train.Run) -> None:
        mean.update_parameters(model)
        if run.completed % 4 == 0:
            body.hold(run)
            # On what the hook itself has just changed: whoever joins here must not change it twice.
            found = run.evaluate(lambda batch: {"loss": mean(batch.x).square().sum()}, body.data)
            run.log("mean", found["loss"])

    body(run, model)
    assert int(mean.n_averaged) == run.completed, "once after each step"
    return {"model": model, "mean": mean}


def behind(run: train.Run, body: Body) -> dict[str, nn.Module]:
    """What torch's documentation does behind its loop: `update_bn`, with dropout in the way."""
    model = nn.Sequential(nn.Dropout(0.3), _net())
    mean = AveragedModel(model)
    run.track(model=model, optimizer=_adam(model), mean=mean)
    run.every(2, lambda _run: mean.update_parameters(model))
    body(run, model)
    update_bn(DataLoader(body.data, batch_size=16), mean)  # type: ignore[arg-type]  # no Dataset
    with torch.no_grad():
        for parameter in mean.parameters():
            parameter.mul_(0.5)  # doing that twice would show
    run.publish(mean, "mean")
    return {"model": model, "mean": mean}


def loops(run: train.Run, body: Body) -> dict[str, nn.Module]:
    """Two loops, and between them a change that would show if it were made twice."""
    model = _net()
    run.track(model=model, optimizer=_adam(model))
    begun = run.once(lambda: 0.75)
    with torch.no_grad():
        model[1].weight.mul_(begun)
    body(run, model, epochs=2)
    found = run.evaluate(lambda batch: {"size": model(batch.x).abs().sum()}, body.data)
    with torch.no_grad():
        model[4].weight.mul_(0.5 + min(found["size"], 1.0)).add_(0.01 * torch.randn(2, 16))
    body(run, model, epochs=2)
    return {"model": model}


class Langevin(torch.optim.SGD):
    """Noise in the update, from every generator that there is. It counts by itself, too."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        found = super().step(closure)
        own = self.state["own"]  # type: ignore[index]  # torch takes any key
        own["steps"] = own.get("steps", 0) + 1
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(torch.randn_like(parameter), alpha=0.01 / own["steps"])
                parameter.add_(0.01 * float(np.random.normal()) + 0.01 * random.random())
        return found


def noise(run: train.Run, body: Body) -> dict[str, nn.Module]:
    """Chance outside of lanes: in the optimizer, and in a hook that makes units anew."""
    model = _net()
    run.track(model=model, optimizer=Langevin(model.parameters(), lr=0.05))

    @run.every(3)
    def renew(_run: train.Run) -> None:
        with torch.no_grad():
            unit = int(np.random.randint(16))
            model[1].weight[unit] = torch.randn(24) * (0.1 + random.random())
            model[2].running_mean[unit] = 0.0

    body(run, model)
    return {"model": model}


def thaw(run: train.Run, body: Body) -> dict[str, nn.Module]:
    """Only the head is trained at first; a hook thaws a layer, then adds one to the optimizer."""
    model = _net()
    for layer in (model[1], model[2]):
        layer.requires_grad_(False)
    head = [*model[1].parameters(), *model[4].parameters()]
    optimizer = torch.optim.AdamW(head, lr=0.01)
    run.track(model=model, optimizer=optimizer)

    @run.every(1)
    def thaws(run: train.Run) -> None:
        if run.completed == 4:
            model[1].requires_grad_(True)
        if run.completed == 7:
            model[2].requires_grad_(True)
            optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.002})

    body(run, model)
    return {"model": model}


def alone_in_a_hook(run: train.Run, body: Body) -> dict[str, nn.Module]:
    """A script that is wrong: one worker changes what all share."""
    model = _net()
    run.track(model=model, optimizer=_adam(model))

    @run.every(7)
    def spoil(_run: train.Run) -> None:
        if int(os.environ.get("HOLDFAST_WORKER", "0")) == 1:
            with torch.no_grad():
                model[4].bias.add_(1.0)

    body(run, model)
    run.publish(model)
    return {"model": model}


def alone_behind_the_loop(run: train.Run, body: Body) -> dict[str, nn.Module]:
    """The same behind the loop, before it is published."""
    model = _net()
    run.track(model=model, optimizer=_adam(model))
    body(run, model, epochs=1)
    with torch.no_grad():
        model[4].bias.add_(float(os.environ.get("HOLDFAST_WORKER", "0")))
    run.publish(model)
    return {"model": model}


SCENARIOS: dict[str, Scenario] = {
    each.__name__: each
    for each in (average, behind, loops, noise, thaw, alone_in_a_hook, alone_behind_the_loop)
}


def scenario(options: dict[str, Any]) -> None:
    train.launch(lambda run: _main(run, options), lanes=6)


def _main(run: train.Run, options: dict[str, Any]) -> None:
    models = SCENARIOS[options["scenario"]](run, Body(options))
    digests = {name: train.digest_of(copy.deepcopy(model)) for name, model in models.items()}
    metrics = {name: value.hex() for name, value in run.metrics.items()}
    _say("answer", {"step": run.completed, "digests": digests, "metrics": metrics})
