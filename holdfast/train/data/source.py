"""Where the batches of a loop come from: data with a length, or data that is read in order."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils.data import default_collate

from holdfast.train import chance
from holdfast.train.data import kinds
from holdfast.train.data.batch import Batch, moved
from holdfast.train.data.fetching import Collate, Fetcher
from holdfast.train.data.loaders import StreamLoaders
from holdfast.train.data.order import Lists, Order, Size, Ticket, sampled
from holdfast.train.data.samplers import batch_sampler_of, name_of, sampler_of
from holdfast.train.data.sharded import Sharded
from holdfast.train.data.streams import LaneShare, Read, RestartedStream, StreamPlace, Streams
from holdfast.train.position import Position
from holdfast.train.sums import step_records

SAMPLE_LOG_VARIABLE: Final = "HOLDFAST_SAMPLE_LOG"


class BatchSource:
    """The tickets of every lane, and their data."""

    def __init__(
        self,
        data: Any,
        *,
        lanes: int,
        sizes: Callable[[], Size],
        shuffle: bool,
        drop_last: bool,
        seed: int,
        loader_workers: int,
        collate: Collate | None,
        device: torch.device,
        held: Callable[[], Sequence[int]],
        local_steps: int = 1,
        updates: int = 1,
        sampler: Any = None,
        batch_sampler: Any = None,
    ) -> None:
        kinds.check(data, sampler=sampler, batch_sampler=batch_sampler)
        self.data = data
        self.updates = updates  # how often each batch is given, one update after the other
        self._update = 0  # the one that batches are given for now
        self._sizes = sizes  # what a step takes now: it may change from one to the next
        self._together = local_steps  # steps of the data that are one of the run's
        self.repeats = False  # whether a ticket may be asked for twice, and is fetched twice
        self._device = device
        self._held = held
        self._collate = collate or default_collate
        self._order: Order | Lists | None = None
        self._streams: Streams | StreamLoaders | None = None
        self._shares: dict[
            int, LaneShare
        ] = {}  # of each lane, in the step that it was asked for last
        self._place = (0, 0, 0)  # epoch, index and samples of the last tickets
        self._facts: dict[str, Any] = {"drop_last": drop_last}
        if kinds.in_order(data):
            stream = data if isinstance(data, Sharded) else RestartedStream(data)
            self._facts.update(getattr(data, "facts", {"data": type(data).__name__}))
            self._streams = Streams(stream, lanes, seed, drop_last=drop_last)
            if loader_workers:
                log = SAMPLE_LOG_VARIABLE in os.environ
                self._streams = StreamLoaders(
                    self._streams, self._collate, loader_workers, keep_items=log
                )
            return
        self.repeats = not loader_workers
        self._order = self._ordered(data, lanes, shuffle, drop_last, seed, sampler, batch_sampler)
        self._order.check(sizes())
        self._fetcher = Fetcher(
            data,
            self._upcoming,
            loader_workers=loader_workers,
            collate=collate,
            pin=device.type == "cuda",
        )

    def _ordered(
        self,
        data: Any,
        lanes: int,
        shuffle: bool,
        drop_last: bool,
        seed: int,
        sampler: Any,
        batch_sampler: Any,
    ) -> Order | Lists:
        numbers = len(data)
        named = sampler if batch_sampler is None else batch_sampler
        self._facts.update({"samples": numbers, "sampler": name_of(named)})
        if batch_sampler is not None:
            lists = batch_sampler_of(batch_sampler, seed)
            return Lists(numbers, lanes, lists, drop_last, seed)
        if sampler is not None:
            chosen = sampler_of(sampler, seed)
            size = len(sampled(chosen, 0, seed, numbers))
            self._facts["places of the sampler"] = size
            return Order(size, lanes, False, drop_last, seed, chosen, numbers)
        self._facts["shuffle"] = shuffle
        return Order(numbers, lanes, shuffle, drop_last, seed)

    # --- how much ------------------------------------------------------------------------------

    @property
    def facts(self) -> dict[str, Any]:
        """What must stay the same for a job to go on, by the names that people know."""
        size = self._sizes()
        sizes = {} if isinstance(self._order, Lists) else {"lane_batch": size.lane_batch}
        return {**self._facts, **sizes, "accumulate": size.parts, "updates": self.updates}

    @property
    def taken(self) -> int:
        """How far a step of the run moves a lane: samples, or lists of a batch sampler."""
        size = self._sizes()
        return self._together * (size.parts if isinstance(self._order, Lists) else size.samples)

    @property
    def step_samples(self) -> int:
        """Samples of a lane that count as one in the step's mean: those of a whole step."""
        each = self._order.longest if isinstance(self._order, Lists) else 1
        return self.taken * each

    @property
    def steps(self) -> int | None:
        """Steps of an epoch; None: not known beforehand."""
        return self.left(Position())

    def left(self, position: Position) -> int | None:
        """Steps that the position's epoch still has; None: not known beforehand."""
        if not isinstance(self._order, Order):
            return None
        return -(-self._order.left(self._at(position), self._sizes()) // self._together)

    @property
    def samples(self) -> int:
        """Samples of a whole step; 0: not known beforehand."""
        return self.step_samples * self._order.lanes if isinstance(self._order, Order) else 0

    def _at(self, position: Position) -> int:
        return position.at if position.at >= 0 else position.index * self.taken

    # --- a lane of a step ----------------------------------------------------------------------

    def tickets(self, position: Position, lane: int) -> Sequence[Ticket | Read]:
        """What the lane computes in the position's step."""
        epoch, index, at, size = position.epoch, position.index, self._at(position), self._sizes()
        if self._streams is not None:
            self._streams.keep(set(self._held()))
            place = StreamPlace(epoch, index, at, size, self._together)
            mark = position.marks.get(str(lane))
            found = self._streams.read(place, lane, None if mark is None else (mark[0], mark[1]))
            self._shares[lane] = found
            return found.reads
        self._place = (epoch, index, at)
        return list(self._numbered(epoch, index, at, lane, size))

    def first(self, position: Position) -> Ticket | None:
        """The first batch of lane 0 in the position's step, for any worker to compute; None: it has
        none, or samples cannot be had for the asking."""
        if not self.repeats or self._order is None:
            return None
        place = position.epoch, position.index, self._at(position), 0, self._sizes()
        return next(self._numbered(*place), None)

    def _numbered(self, epoch: int, index: int, at: int, lane: int, size: Size) -> Iterator[Ticket]:
        order, step = self._order, self.taken // self._together
        assert order is not None
        for number in range(self._together):
            if number and not order.more(epoch, at + number * step, size):
                return
            place = (epoch, index * self._together + number, at + number * step)
            yield from order.tickets(*place, lane, size)

    def more(self, position: Position, lane: int) -> bool:
        """Whether the epoch goes on after this step, as far as this lane knows."""
        if self._order is None:
            return self._shares[lane].more
        return self._order.more(position.epoch, self._at(position) + self.taken, self._sizes())

    def mark(self, records: Mapping[int, step_records.LaneRecord]) -> None:
        """Let these lanes say where they are after the step."""
        for lane, record in records.items():
            if lane in self._shares:
                mark = self._shares[lane].mark
                record.mark = None if mark is None else list(mark)

    def forward(self, position: Position, step: step_records.StepRecord) -> None:
        """The step is complete: the position moves on."""
        position.forward(
            more=step.more,
            stop=step.stop,
            taken=self.taken,
            marks=step.marks,
            updates=self.updates,
        )

    def is_whole(self, count: int) -> bool:
        """Whether a batch of so many samples is one of a whole step: the last may be smaller. What
        a batch sampler gives is always whole."""
        return isinstance(self._order, Lists) or count == self._sizes().lane_batch

    def get(self, ticket: Ticket | Read, update: int = 0) -> Batch:
        """The ticket's batch, the same for each of its updates."""
        self._update = update
        if isinstance(ticket, Ticket):
            data = self._fetcher.get(ticket)
        elif ticket.data is not None:
            data = ticket.data
        else:
            chance.seed_everything(ticket.seed)  # what is drawn while samples are put together
            data = self._collate(list(ticket.items))
        data = moved(data, self._device) if self._device.type != "cpu" else data
        place = {"lane": ticket.lane, "epoch": ticket.epoch, "update": update}
        return Batch(data, count=ticket.count, **place)

    def drawn(self, ticket: Ticket | Read, *, first: bool) -> tuple[bytes, ...]:
        """Where the generators stand now that the ticket's samples were fetched in this process,
        for the first of two times or the second. What loader processes fetch otherwise is fetched
        here twice, the first time. Nothing if that cannot be asked, or nothing is drawn."""
        if self.repeats:
            return (chance.drawn(),) if self._fetcher.draws else ()
        if not first or not isinstance(ticket, Ticket):
            return ()
        with chance.random_numbers_kept():
            return self._fetcher.drawn_twice(ticket)

    def close(self) -> None:
        """The loop is over: end what reads ahead."""
        if isinstance(self._streams, StreamLoaders):
            self._streams.close()
        elif self._order is not None:
            self._fetcher.close()

    def _upcoming(self, first: Ticket) -> Iterator[Ticket]:
        """The tickets from this one on, if nothing disturbs us. Loader processes take from it only
        as far as they fetch ahead."""
        order, size, taken = self._order, self._sizes(), self.taken
        assert order is not None
        held, (epoch, index, at) = sorted(self._held()), self._place
        place = attrgetter("lane", "index", "part")

        def ahead(epoch: int, index: int, at: int, update: int) -> Iterator[Ticket]:
            begun = False
            while True:
                for lane in held:
                    for ticket in self._numbered(epoch, index, at, lane, size):
                        if begun or place(ticket) >= place(first):
                            yield ticket
                begun, update = True, (update + 1) % self.updates
                if update:
                    continue
                if order.more(epoch, at + taken, size):
                    index, at = index + 1, at + taken
                else:
                    epoch, index, at = epoch + 1, 0, 0

        return ahead(epoch, index, at, self._update)


class SampleLog:
    """What this worker has computed: one line a batch, in a file of its own below the folder that
    `HOLDFAST_SAMPLE_LOG` names. Without it nothing is written."""

    def __init__(self, worker: int) -> None:
        folder = os.environ.get(SAMPLE_LOG_VARIABLE)
        self._worker = worker
        self._file: Any = None
        if folder:
            path = Path(folder)
            path.mkdir(parents=True, exist_ok=True)
            # Line by line to the system: what a killed worker has computed is still told.
            self._file = (path / f"{worker}-{os.getpid()}.jsonl").open("a", buffering=1)

    def note(self, step: int, ticket: Ticket | Read) -> None:
        if self._file is not None:
            samples = [each if isinstance(each, int) else str(each) for each in ticket.samples]
            row = {"step": step, "epoch": ticket.epoch, "lane": ticket.lane, "part": ticket.part}
            self._file.write(json.dumps({"worker": self._worker, **row, "samples": samples}) + "\n")
