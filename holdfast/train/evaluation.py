"""Evaluation on all workers: each lane goes through its part of the data, sums are exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch.utils.data import default_collate

from holdfast.train.chance import seed_everything
from holdfast.train.data import kinds
from holdfast.train.data.batch import Batch, moved
from holdfast.train.data.fetching import Collate
from holdfast.train.data.sharded import Sharded
from holdfast.train.data.streams import RestartedStream
from holdfast.train.modes.training_loop import TrainingLoop
from holdfast.train.states.tracked import Tracked
from holdfast.wire.errors import Usage

Measure = Callable[[Batch], Mapping[str, Any] | torch.Tensor | float]


class Evaluation(dict[str, float]):
    """Means over all samples, by name; `totals` are the sums, `samples` how many there were."""

    def __init__(self, totals: Mapping[str, float], samples: int) -> None:
        super().__init__({name: total / samples for name, total in totals.items()})
        self.totals = dict(totals)
        self.samples = samples


def evaluate(
    loop: TrainingLoop, fn: Measure, data: Any, batch: int, collate: Collate | None
) -> Evaluation:
    """See `Run.evaluate`."""
    kinds.check(data)
    with _still(loop.held.tracked):
        found = loop.collective.together(lambda lane: _lane(loop, fn, data, lane, batch, collate))
    totals: dict[str, float] = {}
    samples = 0
    for _, row in sorted(found.items()):
        samples += row["samples"]
        for name, value in row["sums"].items():
            totals[name] = totals.get(name, 0.0) + value
    if not samples:
        raise Usage("there is nothing to evaluate", why="the data is empty", fix="give samples")
    return Evaluation(totals, samples)


def _lane(
    loop: TrainingLoop, fn: Measure, data: Any, lane: int, size: int, collate: Collate | None
) -> dict[str, Any]:
    """A lane's sums over its part of the data, in double precision, batch after batch."""
    sums: dict[str, float] = {}
    samples = 0
    batches = _rows(data, lane, loop.held.lanes, size, loop.held.seed)
    for number in count():
        # Before the samples are fetched: a data set may draw too.
        seed_everything(loop.held.seed_of("evaluate", loop.held.member.step, lane, number))
        if (rows := next(batches, None)) is None:
            break
        whole = moved((collate or default_collate)(rows), loop.held.device)
        found = fn(Batch(whole, count=len(rows), lane=lane, epoch=loop.held.position.epoch))
        samples += len(rows)
        for name, value in (found if isinstance(found, Mapping) else {"value": found}).items():
            sums[name] = sums.get(name, 0.0) + float(value)
    return {"samples": samples, "sums": sums}


def _rows(data: Any, lane: int, lanes: int, size: int, seed: int) -> Iterator[list[Any]]:
    samples: Iterator[Any]
    if kinds.in_order(data):
        stream = data if isinstance(data, Sharded) else RestartedStream(data)
        samples = (item for item, _ in stream.enter(lane, lanes, 0, seed))
    else:
        size_of = len(data)
        mine = range(lane * size_of // lanes, (lane + 1) * size_of // lanes)
        samples = (data[each] for each in mine)
    rows: list[Any] = []
    for sample in samples:
        rows.append(sample)
        if len(rows) == size:
            yield rows
            rows = []
    if rows:
        yield rows


@contextmanager
def _still(tracked: Tracked) -> Iterator[None]:
    """Models in eval mode, without gradients; afterwards each module as it was."""
    with tracked.evaluating(), torch.no_grad():
        yield
