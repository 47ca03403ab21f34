"""Scripts of every kind that people bring, each to end with the same bits on any number of workers.

    {"script": name, "samples": ..., "kills": [[worker, step, lane], ...]}

Their workers are forked from `training_host`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune

from holdfast import train
from tests.faults.training_scenarios import Points, _answer

# Eight lanes of four: two whole steps and one with two samples, so that some workers have none.
SAMPLES = 66
Body = Callable[[train.Batch], torch.Tensor]


def loop(run: train.Run, options: dict[str, Any], body: Body, **more: Any) -> None:
    """Over points of a plane, with the deaths that a test wants."""
    data = Points((1, 6, 4), options.get("samples", SAMPLES))
    settings = {"lane_batch": 4, "epochs": options.get("epochs", 2), **more}
    settings["loader_workers"] = options.get("loader_workers", 0)
    worker = int(os.environ.get("HOLDFAST_WORKER", "-1"))
    for batch in run.batches(data, **settings):
        loss = body(batch)
        if [worker, run.completed + 1, batch.lane] in options.get("kills", ()):
            os.kill(os.getpid(), signal.SIGKILL)
        run.step(loss, only=getattr(body, "only", None))


def mlp(width: int = 16) -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(24, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 2)
    )


# --- several updates on a batch -----------------------------------------------------------------


def gan(run: train.Run, options: dict[str, Any]) -> None:
    generator = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 24))
    judge = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(32, 1))
    g_optimizer = torch.optim.Adam(generator.parameters(), lr=0.01)
    d_optimizer = torch.optim.RMSprop(judge.parameters(), lr=0.01)
    rate = torch.optim.lr_scheduler.ExponentialLR(d_optimizer, 0.9)
    run.track(generator=generator, judge=judge, g=g_optimizer, d=d_optimizer, rate=rate)

    def made(batch: train.Batch) -> torch.Tensor:
        found: torch.Tensor = generator(torch.randn(len(batch), 5))
        return found.view(-1, 1, 6, 4)

    def says(x: torch.Tensor, answer: float) -> torch.Tensor:
        found = judge(x)
        return functional.binary_cross_entropy_with_logits(found, torch.full_like(found, answer))

    def body(batch: train.Batch) -> torch.Tensor:
        if batch.update == 0:
            body.only = d_optimizer  # type: ignore[attr-defined]
            return says(batch.x, 1.0) + says(made(batch).detach(), 0.0)
        body.only = g_optimizer  # type: ignore[attr-defined]
        return says(made(batch), 1.0)

    loop(run, options, body, updates=2)


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimization around an optimizer; the perturbation is in its state."""

    def __init__(self, parameters: Any, base: type, rho: float = 0.05, **options: Any) -> None:
        super().__init__(parameters, {"rho": rho, **options})
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups

    def _all(self) -> list[torch.Tensor]:
        found = [each for group in self.param_groups for each in group["params"]]
        return [each for each in found if each.grad is not None]

    @torch.no_grad()
    def first_step(self) -> None:
        norm = torch.stack([each.grad.norm() for each in self._all()]).norm()  # type: ignore[union-attr]
        for each in self._all():
            assert each.grad is not None
            away = each.grad * (self.param_groups[0]["rho"] / (norm + 1e-12))
            each.add_(away)
            self.state[each]["away"] = away

    @torch.no_grad()
    def second_step(self) -> None:
        for each in self._all():
            each.sub_(self.state[each]["away"])
        self.base.step()


def sam(run: train.Run, options: dict[str, Any]) -> None:
    model = mlp()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    run.track(model=model, sam=optimizer, base=optimizer.base)

    @run.update_with
    def update(run: train.Run) -> None:
        optimizer.first_step() if run.update_index == 0 else optimizer.second_step()

    def body(batch: train.Batch) -> torch.Tensor:
        return functional.cross_entropy(model(batch.x), batch.y)

    loop(run, options, body, updates=2)


# --- whatever torch has -------------------------------------------------------------------------

# What is refused by name is not here.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "ASGD": {},
    "Adadelta": {},
    "Adafactor": {},
    "Adagrad": {},
    "Adam": {"amsgrad": True},
    "AdamW": {},
    "Adamax": {},
    "Muon": {},
    "NAdam": {"decoupled_weight_decay": True},
    "RAdam": {},
    "RMSprop": {"centered": True, "momentum": 0.9},
    "Rprop": {},
    "SGD": {"momentum": 0.9, "nesterov": True},
}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "fused": ("AdamW", {"fused": True}),
    "foreach": ("AdamW", {"foreach": True}),
    "maximize": ("Adam", {"maximize": True, "lr": 1e-4}),
    "tensor_lr": ("Adam", {"lr": torch.tensor(0.01), "foreach": False}),
}


def optimizers(run: train.Run, options: dict[str, Any]) -> None:
    models: list[nn.Module] = []
    kinds = {name: (name, more) for name, more in OPTIMIZERS.items()}
    for name, (kind, more) in {**kinds, **FORMS}.items():
        model = nn.Sequential(nn.Flatten(), nn.Linear(24, 8, bias=False), nn.Tanh())
        model.append(nn.Linear(8, 2, bias=False))
        optimizer = getattr(torch.optim, kind)(model.parameters(), **{"lr": 0.01, **more})
        run.track(**{name: model, f"{name}_optimizer": optimizer})
        models.append(model)
    loop(
        run,
        options,
        lambda batch: torch.stack(
            [functional.cross_entropy(each(batch.x), batch.y) for each in models]
        ).sum(),
    )


class Complex(nn.Module):
    """A complex weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(24, 2, dtype=torch.complex64) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.flatten(1).to(torch.complex64) @ self.weight).abs()


class Tied(nn.Module):
    """One weight in two places, the second transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(24, 24), nn.Linear(24, 24)
        self.two.weight = self.one.weight
        self.head = nn.Linear(24, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.two(self.one(x.flatten(1))))
        return found


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.LSTM(4, 8, num_layers=2, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.body(x.squeeze(1))[0][:, -1])
        return found


class Words(nn.Module):
    """Embeddings, of rows and of bags."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.bags = nn.Embedding(8, 6, padding_idx=0), nn.EmbeddingBag(8, 6, mode="sum")
        self.head = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = (x.flatten(1) > 0).long() + torch.arange(24) % 7
        found: torch.Tensor = self.head(self.rows(words).mean(1) + self.bags(words))
        return found


def zoo() -> dict[str, nn.Module]:
    """Models with something uncommon in them."""
    old_norm, power = nn.Linear(24, 2), nn.Linear(24, 2)
    cut = nn.Linear(24, 2)
    norms = mlp()
    nn.utils.parametrizations.weight_norm(norms[1])
    nn.utils.parametrizations.spectral_norm(norms[4])
    prune.random_unstructured(cut, "weight", 0.5)
    nn.utils.weight_norm(old_norm)
    nn.utils.spectral_norm(power)
    square = nn.Sequential(nn.Flatten(), nn.Linear(24, 24), nn.Linear(24, 2))
    nn.utils.parametrizations.orthogonal(square[1])
    lazy = nn.Sequential(nn.Flatten(), nn.LazyLinear(2))
    lazy(torch.zeros(2, 1, 6, 4))
    return {
        "norms": norms,
        "old_norm": nn.Sequential(nn.Flatten(), old_norm),
        "power": nn.Sequential(nn.Flatten(), power),
        "pruned": nn.Sequential(nn.Flatten(), cut),
        "orthogonal": square,
        "complex": Complex(),
        "tied": Tied(),
        "recurrent": Recurrent(),
        "words": Words(),
        "lazy": lazy,
        "channels_last": nn.Sequential(
            nn.Conv2d(1, 4, 3).to(memory_format=torch.channels_last),  # type: ignore[call-overload]
            nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
            nn.RReLU(),
            nn.Flatten(),
            nn.Linear(32, 2),
        ),
        "averages": nn.Sequential(nn.BatchNorm2d(1, momentum=None), nn.Flatten(), nn.Linear(24, 2)),
        "scripted": torch.jit.script(mlp()),
        "double": nn.Sequential(nn.Flatten(), nn.Linear(24, 2)).double(),
    }


def modules(run: train.Run, options: dict[str, Any]) -> None:
    models = zoo()
    everything = [each for model in models.values() for each in model.parameters()]
    tracked: dict[str, Any] = {**models, "optimizer": torch.optim.AdamW(everything, lr=0.01)}
    run.track(**tracked)

    def body(batch: train.Batch) -> torch.Tensor:
        losses = []
        for name, model in models.items():
            x = batch.x.double() if name == "double" else batch.x
            losses.append(functional.cross_entropy(model(x).float(), batch.y))
        return torch.stack(losses).sum()

    loop(run, options, body)


# --- around the model ---------------------------------------------------------------------------


def compiled(run: train.Run, options: dict[str, Any]) -> None:
    model: Any = torch.compile(mlp(), backend="inductor")
    run.track(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01))
    loop(run, options, lambda batch: functional.cross_entropy(model(batch.x), batch.y))


SCRIPTS: dict[str, Callable[[train.Run, dict[str, Any]], None]] = {
    each.__name__: each for each in (gan, sam, optimizers, modules, compiled)
}


def scenario(options: dict[str, Any]) -> None:
    def script(run: train.Run) -> None:
        SCRIPTS[options["script"]](run, options)
        _answer(run)

    train.launch(script)
