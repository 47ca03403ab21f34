"""Lanes that are read in order: what a lane reads in a step, and where it then is.

A stream is entered at a position: `Sharded` files, or an `IterableDataset` that has
`start(lane, lanes, epoch, at)`. With each step's words a lane says its *mark*: in which of its
files the next sample is. Everyone keeps the marks of all lanes (they are part of the position), so
whoever gets a lane enters it there, without reading what was before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from holdfast.train.chance import random_numbers_kept, seed_of
from holdfast.train.data.order import Size, cut
from holdfast.train.data.sharded import Mark
from holdfast.train.sameness import same
from holdfast.wire.errors import Usage


class Enterable(Protocol):
    """Data whose lanes can be read from any position on; each sample with its mark."""

    def enter(
        self, lane: int, lanes: int, epoch: int, seed: int, at: int = 0, mark: Mark | None = None
    ) -> Iterator[tuple[Any, Mark | None]]: ...


class RestartedStream:
    """An `IterableDataset` with `start`: it finds its own way, so its lanes have no marks."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def enter(
        self, lane: int, lanes: int, epoch: int, seed: int, at: int = 0, mark: Mark | None = None
    ) -> Iterator[tuple[Any, Mark | None]]:
        return ((item, None) for item in self._dataset.start(lane, lanes, epoch, at))


@dataclass(frozen=True, slots=True)
class Read:
    """One lane's batch of a stream, or one of the parts of it; its samples are here already."""

    epoch: int
    index: int
    lane: int
    part: int
    items: tuple[Any, ...]
    seed: int
    count: int
    data: Any = field(default=None, compare=False)  # collated already, by a loader process

    @property
    def samples(self) -> tuple[Any, ...]:
        return self.items


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """A step of a lane: `at` samples of it are taken. `together`: so many of this size at once."""

    epoch: int
    index: int
    at: int
    size: Size
    together: int = 1

    @property
    def next(self) -> StreamPlace:
        taken = self.size.samples * self.together
        return StreamPlace(self.epoch, self.index + 1, self.at + taken, self.size, self.together)


@dataclass(frozen=True, slots=True)
class LaneShare:
    """What a lane reads in a step. `more`: it has samples behind these. `mark`: of the next one,
    or of its end."""

    reads: tuple[Read, ...]
    more: bool
    mark: Mark | None


class Streams:
    """The lanes of a stream as this process reads them. With `drop_last` a lane's last step, if it
    is not whole, is left out."""

    def __init__(self, data: Enterable, lanes: int, seed: int, *, drop_last: bool = False) -> None:
        self._data, self._lanes, self._seed = data, lanes, seed
        self._drop_last = drop_last
        self._open: dict[int, _LaneStream] = {}
        self._entered = False  # whether it was seen that entering gives what reading on gives

    def read(self, place: StreamPlace, lane: int, mark: Mark | None) -> LaneShare:
        """The lane's share of this step; `mark`: where the position says that the lane is."""
        found = self._open.get(lane)
        if found is None or not found.has(place.epoch, place.at):
            mark = mark if place.at else None
            samples = self._data.enter(lane, self._lanes, place.epoch, self._seed, place.at, mark)
            found = self._open[lane] = _LaneStream(place.epoch, place.at, samples, mark)
        step = place.size.samples
        least = step if self._drop_last else 1  # so many make one more step
        read_on = found.read_on(place.at)
        items = found.take(place.at, step * place.together, least)
        if read_on and items and not self._entered:
            self._entered = True
            self._check_entering(place, lane, mark, items)
        if self._drop_last:
            del items[len(items) // step * step :]
        more, then = found.after(len(items), least)
        return LaneShare(tuple(self._cut(place, lane, items)), more, then)

    def _check_entering(
        self, place: StreamPlace, lane: int, mark: Mark | None, items: list[Any]
    ) -> None:
        """A lane that moves is entered where it is: that must give what reading on has given."""
        with random_numbers_kept():
            samples = self._data.enter(lane, self._lanes, place.epoch, self._seed, place.at, mark)
            again = [item for item, _ in islice(samples, len(items))]
        if not same(again, items):
            raise Usage(
                f"the data gives other samples when it is entered at sample {place.at} of a lane "
                "than when it is read up to there",
                why="a lane whose worker dies goes on elsewhere, from its position: what is drawn "
                "or shuffled must not depend on what was read before",
                fix="draw in collate, before which all generators are seeded, or in start(lane, "
                "lanes, epoch, at) from random.Random(f'{epoch} {lane} {at}') for each sample",
            )

    def keep(self, lanes: set[int]) -> None:
        """Let go of all other lanes."""
        self._open = {lane: found for lane, found in self._open.items() if lane in lanes}

    def _cut(self, place: StreamPlace, lane: int, items: list[Any]) -> Iterator[Read]:
        """A lane's batches."""
        rest, step = iter(items), place.size.samples
        for number in range(-(-len(items) // step)):
            index = place.index * place.together + number
            for part, count in enumerate(cut(min(step, len(items) - number * step), place.size)):
                seed = seed_of(self._seed, "data", place.epoch, index, lane, part)
                batch = tuple(islice(rest, count))
                yield Read(place.epoch, index, lane, part, batch, seed, count)


class _LaneStream:
    """One lane's stream: the samples of the step under way, and a few behind them."""

    def __init__(
        self,
        epoch: int,
        at: int,
        samples: Iterator[tuple[Any, Mark | None]],
        mark: Mark | None,
    ) -> None:
        self._epoch, self._at, self._samples = epoch, at, samples
        self._ahead: deque[tuple[Any, Mark | None]] = deque()
        self._end = mark  # that of the end, if nothing more comes
        self._known = at  # samples up to here are read
        self._over = False

    def has(self, epoch: int, at: int) -> bool:
        """Whether it can go on from there without reading what lies between."""
        near = self._over or at <= self._at + len(self._ahead)
        return self._epoch == epoch and self._at <= at and near

    def read_on(self, at: int) -> bool:
        """Whether samples from `at` on come behind others that this stream has given."""
        return self._at < at

    def take(self, at: int, count: int, least: int) -> list[Any]:
        """The next `count` samples; `least` behind them are read too, if they are there."""
        while self._at < at and self._ahead:
            self._ahead.popleft()
            self._at += 1
        self._at = at
        wanted = max(0, count + least - len(self._ahead))
        for item, mark in islice(self._samples, wanted):
            self._ahead.append((item, mark))
            self._known += 1
            if mark is not None:
                self._end = (mark[0] + 1, self._known)
        self._over = len(self._ahead) < count + least
        return [item for item, _ in islice(self._ahead, count)]

    def after(self, count: int, least: int) -> tuple[bool, Mark | None]:
        """Behind so many samples: whether there is more, and the mark."""
        if len(self._ahead) >= count + least:
            return True, self._ahead[count][1]
        return False, self._end
