"""The iterator behind `for batch in run.batches(...)`: what it gives, and how much at a time.

What a loop reads is part of the state: how many samples, in which order, how many at a time. A
state that goes on with something else would take some samples twice and others never, and nobody
would notice. So that is refused, with what has changed. What may change is announced: the settings
`lane_batch` and `accumulate` are live. `holdfast set JOB lane_batch=64 --at-step 500` takes effect
at that step, on every worker, and the epoch goes on with the samples that are left.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.train import counting
from holdfast.train.data.batch import Batch
from holdfast.train.data.order import Size, Ticket
from holdfast.train.data.source import BatchSource
from holdfast.train.data.streams import Read
from holdfast.train.members.solo import Solo
from holdfast.train.modes.asynchronous.loop import AsyncLoop
from holdfast.train.modes.training_loop import TrainingLoop
from holdfast.train.settings import Settings
from holdfast.wire.errors import Usage
from holdfast.wire.reports import SAMPLES_METRIC, TOTAL_METRIC
from holdfast.wire.worker_messages import SIZE_SETTINGS


class Sizes:
    """`sizes()` is the size of the step under way. `lane_batch` None: a batch sampler decides.
    `live` False: the settings are looked at once, now."""

    def __init__(
        self, settings: Settings, lane_batch: int | None, parts: int, *, live: bool = True
    ) -> None:
        self._settings = settings
        self._batch, self._parts = lane_batch, parts
        self._last: tuple[int | None, int, Size] | None = None
        self._looked = -1  # at the settings, when they had changed so often
        self._fixed: Size | None = None
        self._fixed = None if live else self()

    def __call__(self) -> Size:
        if self._fixed is not None:
            return self._fixed
        if self._last is not None and self._looked == self._settings.changes:
            return self._last[2]
        batch = None if self._batch is None else self._given("lane_batch", self._batch)
        parts = self._given("accumulate", self._parts)
        if self._last is None or self._last[:2] != (batch, parts):
            self._last = (batch, parts, Size(1 if batch is None else batch, parts))
        self._looked = self._settings.changes
        return self._last[2]

    def _given(self, name: str, otherwise: int) -> int:
        value = self._settings.given(name)
        if value is None:
            return otherwise
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise Usage(
                f"the setting {name}={value!r}",
                why="a step takes a whole number of samples, from 1 on",
                fix=f"holdfast set JOB {name}=32",
            )
        return value


class Batches(Iterator[Batch]):
    """Those of loop `number` of the script. Where it stands is the run's position, not its own: it
    may begin in the middle, go back to a lost lane, jump ahead, or have nothing to do at all."""

    def __init__(
        self, loop: TrainingLoop, source: BatchSource, number: int, epochs: int | None
    ) -> None:
        self._loop = loop
        self._source = source
        self._number = number
        self._epochs = epochs
        self._parts: deque[Ticket | Read] = deque()  # of the lane under way, still to be computed
        self._kept: Batch | None = None  # what loader processes have fetched, for the second time
        self._entered = self._left = False

    def __next__(self) -> Batch:
        loop, held, current = self._loop, self._loop.held, self._loop.lane
        if not self._entered:
            self._entered = True
            frame = sys._getframe(1)
            counting.check(frame)
            loop.outlook, loop.updates = self._outlook, self._source.updates
            loop.enter(self._number, self._epochs)
            if held.position.loop == self._number:
                _check_data(loop, {"seed": held.seed, **self._source.facts})
                loop.watch_hooks(counting.names_read(frame), self._source.data)
        current.end_batch()
        while not self._left and not self._over():
            if self._parts:
                return self._give(self._parts.popleft())
            if self._begins_check():
                continue
            lane = loop.next_lane()
            if lane is None:
                loop.complete(self._source)
                continue
            position = held.position
            tickets = self._source.tickets(position, lane)
            more = self._source.more(position, lane)
            if tickets:
                current.begin(lane, tickets, source=self._source, more=more)
                self._parts.extend(tickets)
            else:
                current.empty(lane, more=more)
        if not self._left:
            self._left = True
            loop.leave(self._number)
            self._source.close()
        raise StopIteration

    def _begins_check(self) -> bool:
        """Whether a lane of another worker is to be computed first, to compare with it."""
        lane = self._loop.lane_to_check(self._source)
        tickets = self._source.tickets(self._loop.held.position, lane) if lane is not None else ()
        if lane is not None and tickets:
            self._loop.lane.begin_check(lane, tickets, source=self._source)
            self._parts.extend(tickets)
        return bool(tickets)

    def _give(self, ticket: Ticket | Read) -> Batch:
        lane, position = self._loop.lane, self._loop.held.position
        update, rehearses = position.update, lane.rehearses(ticket)
        if rehearses and ticket.lane and (first := self._source.first(position)):
            self._parts.appendleft(ticket)
            lane.rehearsal.for_another()  # of lane 0, which this worker does not compute now
            batch = self._source.get(first, update)
            lane.give(first)
            return batch
        batch = self._kept or self._source.get(ticket, update)
        self._kept = None
        lane.after_fetch(ticket, self._source)
        if rehearses:
            mine = batch if self._source.repeats else batch.copied()
            if mine is None:
                lane.rehearsal.under_way = False  # it cannot be given twice
            else:
                self._parts.appendleft(ticket)
                self._kept = None if self._source.repeats else batch
                batch = mine
        lane.give(ticket)
        return batch

    def _outlook(self) -> dict[str, float]:
        """What people are told of the way ahead, as far as it is known."""
        position, steps = self._loop.held.position, self._source.steps
        now = self._source.left(position)
        if steps is None or now is None or self._epochs is None:
            return {}
        batches = now + steps * (self._epochs - position.epoch - 1)
        left = batches * self._source.updates - position.update
        total = float(self._loop.held.member.step + max(0, left))
        return {TOTAL_METRIC: total, SAMPLES_METRIC: float(self._source.samples)}

    def _over(self) -> bool:
        """Settle what the last step has left to do; whether that was all."""
        held = self._loop.held
        if held.position.loop != self._number:
            return True
        self._loop.settle()
        position = held.position
        return position.loop != self._number or position.over(self._epochs)


# --- the same data as before ----------------------------------------------------------------------


def sizes_of(
    loop: TrainingLoop, data: Any, lane_batch: int | None, parts: int, batch_sampler: Any
) -> Sizes:
    """What a step of this loop takes, live where the mode allows it."""
    if (lane_batch is None) == (batch_sampler is None):
        raise Usage(
            "run.batches needs lane_batch=, or batch_sampler=, and not both",
            why="either a number of samples makes a lane's batch, or each list of the sampler does",
            fix="run.batches(data, lane_batch=32)",
        )
    live = not isinstance(loop, AsyncLoop) and not hasattr(data, "one_size")
    settings = type(loop.held.settings)() if hasattr(data, "one_size") else loop.held.settings
    return Sizes(settings, lane_batch, parts, live=live)


def _check_data(loop: TrainingLoop, now: Mapping[str, Any]) -> None:
    """The script has come to the loop that the position is in: `Usage` if it reads other data than
    the state comes from. A loop that begins writes down what it reads."""
    position, held = loop.held.position, loop.held
    if isinstance(loop, AsyncLoop):
        # There is no common position: the ledger keeps what the first one has said.
        position.data = loop.first_said("data", dict(now))
    elif not position.data:
        position.data = dict(now)
    alone = isinstance(held.member, Solo)
    live = not alone and not isinstance(loop, AsyncLoop)
    changed = []
    for name in sorted({*position.data, *now}):
        before, after = position.data.get(name), now.get(name)
        announced = live and name in SIZE_SETTINGS and held.settings.given(name) is not None
        if before != after and not announced:
            changed.append((name, before, after))
    if not changed:
        return
    raise Usage(
        f"the script reads other data than it did until step {held.member.step}",
        why="; ".join(_describe(*each) for each in changed),
        fix=_fix(held.job, [name for name, _, _ in changed], now, alone=alone),
    )


def _describe(name: str, before: Any, after: Any) -> str:
    if isinstance(before, str) and before.startswith("sha256:"):
        return f"{name} have changed"
    return f"{name}: {_shown(before)} -> {_shown(after)}"


def _shown(value: Any) -> str:
    return "not given" if value is None else str(value)


def _fix(job: str, names: list[str], now: Mapping[str, Any], *, alone: bool) -> str:
    if alone:
        return "give it what it had, or begin anew with an empty folder: HOLDFAST_CHECKPOINTS=OTHER"
    live = [f"holdfast set {job} {name}={now[name]}" for name in names if name in SIZE_SETTINGS]
    if live and len(live) == len(names):
        return f"leave the script as it was, and say {' and '.join(live)}; or begin anew: a new job"
    return "give it what it had, or begin anew: start it as a new job, under another name"
