"""Where the batches of a loop come from: a map-style data set, or files that are read in order."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils.data import default_collate

from holdfast.train.data.batch import Batch, moved
from holdfast.train.data.fetching import Collate, Fetcher, Samples
from holdfast.train.data.order import Order, Ticket
from holdfast.train.data.sharded import Read, Sharded, Streams
from holdfast.wire.errors import Usage

SAMPLE_LOG_VARIABLE: Final = "HOLDFAST_SAMPLE_LOG"


class Source:
    """The tickets of every lane, and their data."""

    def __init__(
        self,
        data: Samples | Sharded,
        *,
        lanes: int,
        lane_batch: int,
        parts: int,
        shuffle: bool,
        drop_last: bool,
        seed: int,
        loader_workers: int,
        collate: Collate | None,
        device: torch.device,
        held: Callable[[], Sequence[int]],
        local_steps: int = 1,
        updates: int = 1,
    ) -> None:
        self.updates = updates  # how often each batch is given, one update after the other
        self._update = 0  # the one that batches are given for now
        self.step_samples = lane_batch * parts * local_steps  # of one lane
        self._together = local_steps  # steps of the data that are one of the run's
        self._device = device
        self._held = held
        self._collate = collate or default_collate
        self._order: Order | None = None
        self._streams: Streams | None = None
        if isinstance(data, Sharded):
            if loader_workers or drop_last:
                raise Usage(
                    "loader_workers and drop_last are for data with a length",
                    why="files are read in their order by the worker itself, up to their end",
                    fix="leave them out",
                )
            self._streams = Streams(data, lanes, lane_batch, parts, seed)
            return
        if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
            raise Usage(
                f"a {type(data).__name__} is no data set for run.batches",
                why="it has no length, or its samples cannot be asked for by number",
                fix="give a map-style data set, or train.Sharded(files, read=...)",
            )
        self._order = Order(len(data), lanes, lane_batch, parts, shuffle, drop_last, seed)
        self._fetcher = Fetcher(
            data,
            self._upcoming,
            loader_workers=loader_workers,
            collate=collate,
            pin=device.type == "cuda" and loader_workers > 0,
        )

    @property
    def steps(self) -> int | None:
        """Steps of an epoch; None: it ends when every lane has read all its files."""
        return -(-self._order.steps // self._together) if self._order else None

    @property
    def samples(self) -> int:
        """Samples of a whole step; 0: not known beforehand."""
        return self._order.step_samples * self._together if self._order else 0

    def tickets(self, epoch: int, index: int, lane: int) -> Sequence[Ticket | Read]:
        first, found = index * self._together, list[Ticket | Read]()
        for each in range(first, first + self._together):
            if self._order is not None:
                found += self._order.tickets(epoch, each, lane) if each < self._order.steps else ()
            else:
                assert self._streams is not None
                found += self._streams.tickets(epoch, each, lane)
        return found

    def more(self, index: int, lane: int) -> bool:
        """Whether the epoch goes on after this step, as far as this lane knows."""
        if self._order is not None:
            return (index + 1) * self._together < self._order.steps
        assert self._streams is not None
        return self._streams.more(lane)

    def get(self, ticket: Ticket | Read, update: int = 0) -> Batch:
        """The ticket's batch, the same for each of its updates."""
        self._update = update
        data = (
            self._fetcher.get(ticket)
            if isinstance(ticket, Ticket)
            else self._collate(list(ticket.items))
        )
        data = moved(data, self._device) if self._device.type != "cpu" else data
        place = {"lane": ticket.lane, "epoch": ticket.epoch, "update": update}
        return Batch(data, count=ticket.count, **place)

    def _upcoming(self, first: Ticket) -> Iterator[Ticket]:
        """The tickets from this one on, if nothing disturbs us. Loader processes take from it only
        as far as they fetch ahead."""
        assert self.steps is not None
        held, steps = sorted(self._held()), self.steps
        epoch, index, update = first.epoch, first.index // self._together, self._update
        place = attrgetter("lane", "index", "part")
        for number in count():
            for lane in held:
                for ticket in self.tickets(epoch, index, lane):
                    if number or place(ticket) >= place(first):
                        assert isinstance(ticket, Ticket)
                        yield ticket
            update = (update + 1) % self.updates
            if not update:
                epoch, index = (epoch, index + 1) if index + 1 < steps else (epoch + 1, 0)


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
