"""Data that can only be read from its beginning: files, or whatever else, divided over the lanes.

    data = train.Sharded(sorted(folder.glob("*.jsonl")), read=read_lines, by="range")
    for batch in run.batches(data, lane_batch=32, epochs=3): ...

Each file belongs to one lane, by one of three rules, so a lane's samples are the same whichever
worker holds it. A lane that has read all its files has empty batches until the others are through:
then the epoch ends. A lane that moves to another worker is read again from its beginning there, and
passed over up to where it was.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal

from holdfast.train.chance import seed_of
from holdfast.wire.errors import Usage
from holdfast.wire.limits import RING_POINTS_PER_LANE

By = Literal["range", "hash", "ring"]
_WAYS: Final = ("range", "hash", "ring")


@dataclass(frozen=True)
class Sharded:
    """`read(file)` gives the samples of one file, always the same in the same order.

    `by`: "range" gives each lane an equal run of the list; "hash" places a file by its name alone,
    so a new file moves no other; "ring" does so by consistent hashing, which also moves few files
    when the number of lanes is another.
    """

    files: Sequence[Any]
    read: Callable[[Any], Iterable[Any]]
    by: By = "range"
    shuffle_files: bool = False

    def __post_init__(self) -> None:
        if self.by not in _WAYS:
            raise Usage(
                f"files cannot be divided by {self.by!r}", fix=f"use one of {', '.join(_WAYS)}"
            )

    def files_of(self, lane: int, lanes: int, epoch: int = 0, seed: int = 0) -> list[Any]:
        """The lane's files in the order in which it reads them."""
        mine = list(self._divided(lane, lanes))
        if self.shuffle_files:
            mine.sort(key=lambda file: seed_of(seed, "file", epoch, str(file)))
        return mine

    def samples(self, lane: int, lanes: int, epoch: int, seed: int) -> Iterator[Any]:
        for file in self.files_of(lane, lanes, epoch, seed):
            yield from self.read(file)

    def _divided(self, lane: int, lanes: int) -> Sequence[Any]:
        count = len(self.files)
        if self.by == "range":
            return self.files[lane * count // lanes : (lane + 1) * count // lanes]
        if self.by == "hash":
            return [file for file in self.files if seed_of(str(file)) % lanes == lane]
        points = sorted(
            (seed_of("lane", each, point), each)
            for each in range(lanes)
            for point in range(RING_POINTS_PER_LANE)
        )
        places = [place for place, _ in points]
        return [
            file
            for file in self.files
            if points[bisect(places, seed_of("file", str(file))) % len(points)][1] == lane
        ]


@dataclass(frozen=True, slots=True)
class Read:
    """One lane's batch of a stream, or one of the parts of it; its samples are here already."""

    epoch: int
    index: int
    lane: int
    part: int
    items: tuple[Any, ...]
    seed: int

    @property
    def count(self) -> int:
        return len(self.items)

    @property
    def samples(self) -> tuple[Any, ...]:
        return self.items


class Streams:
    """The lanes of `Sharded` data as this worker reads them."""

    def __init__(self, data: Sharded, lanes: int, lane_batch: int, parts: int, seed: int) -> None:
        self._data, self._lanes, self._seed = data, lanes, seed
        self._lane_batch, self._parts = lane_batch, parts
        self._open: dict[int, _Lane] = {}

    def tickets(self, epoch: int, index: int, lane: int) -> list[Read]:
        """What the lane computes in this step; empty when it has read everything."""
        at = self._open.get(lane)
        if at is None or (at.epoch, at.index) not in ((epoch, index), (epoch, index - 1)):
            at = self._open[lane] = self._begin(epoch, index, lane)
        if at.index < index:
            at.forward(self._lane_batch * self._parts)
        size = self._lane_batch
        return [
            Read(epoch, index, lane, part, tuple(at.now[part * size : (part + 1) * size]), seed)
            for part in range(-(-len(at.now) // size))
            for seed in [seed_of(self._seed, "data", epoch, index, lane, part)]
        ]

    def more(self, lane: int) -> bool:
        """Whether the lane has samples behind those of its last tickets."""
        return bool(self._open[lane].ahead)

    def _begin(self, epoch: int, index: int, lane: int) -> _Lane:
        step = self._lane_batch * self._parts
        samples = self._data.samples(lane, self._lanes, epoch, self._seed)
        for _ in islice(samples, index * step):
            pass
        return _Lane(epoch, index, samples, step)


class _Lane:
    """One lane's stream: the samples of a step, and those of the next."""

    def __init__(self, epoch: int, index: int, samples: Iterator[Any], step: int) -> None:
        self.epoch, self.index, self._samples = epoch, index, samples
        self.now = list(islice(samples, step))
        self.ahead = list(islice(samples, step))

    def forward(self, step: int) -> None:
        self.index += 1
        self.now, self.ahead = self.ahead, list(islice(self._samples, step))
