"""For loops that are written already: only the elastic group, or a whole Lightning-like module.

for turn in train.turns(run, steps=1000):          # your data, your loop
    loss = compute(model, my_batch(turn.step, turn.lane))
    run.step(loss)

train.fit(run, module, data, lane_batch=32, epochs=3)   # training_step, configure_optimizers
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import nn
from torch.optim import Optimizer

from holdfast.train.run import Run
from holdfast.wire.errors import Usage


class LaneStep(NamedTuple):
    """It is this lane's turn in this step (counted from 0); with `run.accumulate(k)` with part
    number `part` of `k`."""

    step: int
    lane: int
    part: int = 0


class _StepNumbers:
    """A data set of lane steps and nothing else, whatever the job's settings say."""

    one_size = True

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        return index


Turn = LaneStep  # its name until the next release


def turns(run: Run, steps: int) -> Iterator[LaneStep]:
    """The steps of the lanes that this worker holds; call `run.step(loss)` once for each. With
    `run.accumulate(k)` each lane has `k` turns in a step, one for each part of its loss's mean.

    What a turn computes must depend on its step, lane and part alone: after a death another worker
    gets the same turn.
    """
    parts = run.parts
    places = _StepNumbers(steps * run.lanes * parts)
    for batch in run.batches(places, lane_batch=1, shuffle=False, collate=lambda rows: rows[0]):
        yield LaneStep(batch.data // (run.lanes * parts), batch.lane, batch.data % parts)


def fit(run: Run, module: nn.Module, data: Any, **options: Any) -> None:
    """Train a module that has `training_step(batch, index)`, or `training_step(batch)`, and
    `configure_optimizers()`.

    `options` are those of `run.batches`. If the module has `on_train_epoch_end()` it is called on
    every worker after each epoch.
    """
    optimizers, schedulers = _configured(module)
    objects: dict[str, Any] = {f"optimizer{n}": it for n, it in enumerate(optimizers)}
    run.track(module=module, **objects)
    for number, (scheduler, interval) in enumerate(schedulers):
        objects = {f"scheduler{number}": scheduler}
        if interval == "step":
            run.track(every="step", **objects)
        else:
            run.track(every="epoch", **objects)
    ended = getattr(module, "on_train_epoch_end", None)
    if ended is not None:
        run.every_epoch(lambda _run: ended())
    training_step: Any = module.training_step
    takes_index = len(inspect.signature(training_step).parameters) > 1
    for batch in run.batches(data, **options):
        given = (batch.data, run.completed) if takes_index else (batch.data,)
        found = training_step(*given)
        run.step(found["loss"] if isinstance(found, Mapping) else found)


def _configured(module: nn.Module) -> tuple[list[Optimizer], list[tuple[Any, str]]]:
    """The optimizers and the schedulers (with when they step) in the forms that Lightning takes."""
    configure: Any = module.configure_optimizers
    found = configure()
    if isinstance(found, Optimizer):
        return [found], []
    if isinstance(found, Mapping):
        return [found["optimizer"]], _schedulers([found.get("lr_scheduler")])
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], list):
        return found[0], _schedulers(found[1])
    if isinstance(found, (list, tuple)) and all(isinstance(each, Optimizer) for each in found):
        return list(found), []
    raise Usage(
        f"configure_optimizers() gave a {type(found).__name__}",
        fix="return an optimizer, a list of them, (optimizers, schedulers), or a dictionary",
    )


def _schedulers(given: list[Any]) -> list[tuple[Any, str]]:
    found = []
    for each in given:
        if isinstance(each, Mapping):
            found.append((each["scheduler"], each.get("interval", "epoch")))
        elif each is not None:
            found.append((each, "epoch"))
    return found
