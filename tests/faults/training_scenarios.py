"""Small trainings that tests run on any number of workers: three models, with all that may differ.

What a scenario's worker has to say goes to its output as one JSON line, `answer {...}`.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from holdfast import train
from holdfast.train.states.state import TrainingState

SAMPLES = 300


class Points:
    """Points of a plane with noise, and on which side of a line they are."""

    def __init__(self, shape: tuple[int, ...], samples: int = SAMPLES) -> None:
        chance = torch.Generator().manual_seed(11)
        self.x = torch.randn(samples, *shape, generator=chance)
        self.y = (self.x.flatten(1).sum(1) > 0).long()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        # An augmentation: drawn at random, and yet the same whoever fetches it.
        return self.x[index] + 0.1 * torch.randn(self.x[index].shape), self.y[index]


class Transformer(nn.Module):
    """Attention, dropout, one weight in two places, a parameter that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)
        self.into = nn.Linear(4, 16)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.again = self.body.layers[0].linear1  # one weight, two names
        self.head = nn.Linear(32, 2)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.again(self.body(self.into(x))).mean(1))
        return found


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(24, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 2)
    )


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.Flatten(),
        nn.Linear(8 * 24, 2),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (6, 4)),
    "convnet": (convnet, (1, 6, 4)),
    "transformer": (Transformer, (6, 4)),
}


def scenario(options: dict[str, Any]) -> None:
    """One worker's part, or all of it without a cluster."""
    worker = int(os.environ.get("HOLDFAST_WORKER", "-1"))
    if options.get("model") == "digits":
        train.launch(_digits, settings={"lr": 3e-3, "epochs": 20})
        return
    train.launch(lambda run: _main(run, worker, options), settings={"lr": 0.01})


def _main(run: train.Run, worker: int, options: dict[str, Any]) -> None:
    make, shape = MODELS[options.get("model", "mlp")]
    data = Points(shape, options.get("samples", SAMPLES))
    model = make().to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=run.settings.lr, weight_decay=0.05)
    run.track(model=model, optimizer=optimizer)
    run.track(scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40))
    run.clip(0.5)
    run.accumulate(options.get("parts", 1))
    if options.get("gates"):
        _meet(run, worker, options["gates"])
    if not options.get("silent"):
        run.every_epoch(lambda run: _look(run, model, data))
    slow_s = options.get("slow", {}).get(str(worker), 0.0)
    if str(worker) in options.get("flips", {}):
        _flip(run, model, options["flips"][str(worker)])
    for batch in run.batches(
        data,
        lane_batch=options.get("lane_batch", 4),
        epochs=options.get("epochs", 3),
        loader_workers=options.get("loader_workers", 0),
    ):
        loss = functional.cross_entropy(model(batch.x), batch.y)
        run.log("right", (model(batch.x).argmax(1) == batch.y).float().mean())
        if slow_s:
            time.sleep(slow_s)  # pause: it is slow
        if [worker, run.completed + 1, batch.lane] in options.get("kills", ()):
            os.kill(os.getpid(), signal.SIGKILL)
        run.step(loss)
    _answer(run)


def _meet(run: train.Run, worker: int, gates: dict[str, str]) -> None:
    """Come to a barrier: when the worker's file is there, or never, if that is named `kill`."""
    gate = gates.get(str(worker), "")
    run.barrier("begin")  # all have met
    if gate == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    while gate and not os.path.exists(gate):  # noqa: PTH110
        time.sleep(0.01)  # pause: between two looks
    _say("arrived", {})
    run.barrier("ready")
    _say("passed", {})


def _flip(run: train.Run, model: nn.Module, steps: list[int]) -> None:
    """A processor that gets a bit of a gradient wrong in these steps: from the first, up to the
    second. The bit is a large one of the largest number: a sum rounds a small one away, on one kind
    of processor if not on another."""

    def wrong(gradient: torch.Tensor) -> torch.Tensor:
        if not steps[0] <= run.completed + 1 < steps[1]:
            return gradient
        flipped = gradient.clone()
        at = flipped.view(-1).abs().argmax()
        flipped.view(-1).view(torch.int32)[at] ^= 1 << 22
        return flipped

    next(model.parameters()).register_hook(wrong)


def _digits(run: train.Run) -> None:
    """The example, as people run it."""
    # Only here: it imports scikit-learn, which takes a while.
    importlib.import_module("examples.digits").main(run)
    _answer(run)


def _look(run: train.Run, model: nn.Module, data: Points) -> None:
    found = run.evaluate(lambda batch: {"right": (model(batch.x).argmax(1) == batch.y).sum()}, data)
    run.log("seen", found["right"])
    _say("look", {"epoch": run.epoch, "step": run.completed, "right": found["right"].hex()})


def _answer(run: train.Run) -> None:
    state = run._held.state()
    metrics = {name: value.hex() for name, value in run.metrics.items()}
    _say(
        "answer",
        {
            "digest": TrainingState(state.step, state.entries).digest(),
            "step": run.completed,
            "metrics": metrics,
            "computed": run._held.computed,
        },
    )


def _say(kind: str, what: dict[str, Any]) -> None:
    print(kind, json.dumps(what, sort_keys=True), flush=True)
