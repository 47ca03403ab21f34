"""Which samples a lane sees in which step: a pure function, the same for every worker.

An epoch goes once through the data in an order of its own: shuffled, as it is, or a sampler's.
Where an epoch stands is counted in samples, not in steps (`at`: so many of each lane), so the size
of a step may change in the middle. A step takes the next `lanes * parts * lane_batch` places of the
order; each lane has an equal, contiguous share of them. The last step of an epoch has what is left,
spread so that no lane gets a single sample where that can be helped: a batch norm cannot train on
one. Every sample of an epoch is in exactly one lane of exactly one step (with `drop_last`: of the
whole steps only).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Final

import torch

from holdfast.partition import even_ranges
from holdfast.train.chance import seed_of, shuffled
from holdfast.wire.errors import Usage

# The shuffled order of a data set up to this size is kept in memory (8 bytes each) for an epoch; of
# a larger one each batch computes its own places, which takes longer.
SHUFFLE_STORED_SAMPLES_MAX: Final = 4_000_000

# Of the seed that samplers are given: 31 bits, so that `seed * 1000 + epoch` suits any generator.
SAMPLER_SEED: Final = 0x7FFFFFFF
Sampler = Callable[[int, int], Sequence[int]]  # (epoch, seed) -> sample numbers
BatchSampler = Callable[[int, int], Sequence[Sequence[int]]]  # -> each lane's batches


@dataclass(frozen=True, slots=True)
class Ticket:
    """One lane's batch, or one of the `parts` of it when gradients are accumulated."""

    epoch: int
    index: int  # of the step within its epoch
    lane: int
    part: int
    samples: tuple[int, ...]
    seed: int  # of whatever the data set draws for it

    @property
    def count(self) -> int:
        return len(self.samples)


@dataclass(frozen=True, slots=True)
class Size:
    """What a step takes of each lane: `parts` batches of `lane_batch` samples."""

    lane_batch: int
    parts: int = 1

    def __post_init__(self) -> None:
        if self.lane_batch < 1 or self.parts < 1:
            raise Usage(
                f"lane_batch={self.lane_batch} with accumulate({self.parts})",
                why="a lane needs at least one sample a step",
                fix="give numbers from 1 on",
            )

    @property
    def samples(self) -> int:
        return self.lane_batch * self.parts


@lru_cache(maxsize=64)
def spread(count: int, lanes: int, size: Size) -> tuple[int, ...]:
    """How many of `count` samples each lane gets, at most `size.samples` each: evenly; and if that
    would leave a batch with one sample, then with fewer lanes, of two or three each. Lanes without
    any are the last: what lane 0 makes of buffers is what a step leaves behind."""
    found = _spread(count, lanes, size)
    return found if 0 not in found else tuple(sorted(found, key=lambda each: not each))


def _spread(count: int, lanes: int, size: Size) -> tuple[int, ...]:
    even = tuple((lane + 1) * count // lanes - lane * count // lanes for lane in range(lanes))
    if size.lane_batch == 1 or not any(1 in cut(each, size) for each in even):
        return even
    if size.lane_batch == 2:
        # Only pairs fit; an odd one stays alone whatever is done.
        pairs, odd = divmod(count, 2)
        found = [2 * each for each in spread(pairs, lanes, Size(1, size.parts))]
        if odd:
            found[max(lane for lane in range(lanes) if found[lane] < size.samples)] += 1
        return tuple(found)
    some = max(1, count // 2)
    return (*spread(count, some, Size(1, count)), *(0,) * (lanes - some))


def cut(count: int, size: Size) -> tuple[int, ...]:
    """A lane's samples as parts of at most `lane_batch`, as equal as they can be."""
    parts = -(-count // size.lane_batch)
    if parts * size.lane_batch == count:
        return (size.lane_batch,) * parts
    return tuple(len(each) for each in even_ranges(count, parts))


@dataclass(frozen=True)
class Order:
    """The order of a data set of `size` samples over `lanes`. With a sampler `size` is the number
    of places that it gives in every epoch, and `numbers` that of the samples there are."""

    size: int
    lanes: int
    shuffle: bool = True
    drop_last: bool = False
    seed: int = 0
    sampler: Sampler | None = None
    numbers: int = 0

    def check(self, size: Size) -> None:
        """`Usage` if an epoch would have no step of this size."""
        if self.left(0, size):
            return
        raise Usage(
            f"the data has {self.size} samples, not enough for one step",
            why=f"a whole step takes {self.lanes * size.samples}, and drop_last drops a smaller one"
            if self.size
            else "it is empty",
            fix="give a smaller lane_batch, or drop_last=False" if self.size else "give data",
        )

    def left(self, at: int, size: Size) -> int:
        """How many steps of this size the epoch still has, when so many samples of each lane are
        taken."""
        rest, step = max(0, self.size - at * self.lanes), self.lanes * size.samples
        return rest // step if self.drop_last else -(-rest // step)

    def places(self, at: int, lane: int, size: Size) -> range:
        """The lane's places in the epoch's order. A step that was not dropped has what there is,
        also if it has become larger since then."""
        begin = at * self.lanes
        count = max(0, min(self.lanes * size.samples, self.size - begin))
        counts = spread(count, self.lanes, size)
        first = begin + sum(counts[:lane])
        return range(first, first + counts[lane])

    def tickets(self, epoch: int, index: int, at: int, lane: int, size: Size) -> list[Ticket]:
        """What the lane computes in this step, in this order; empty when the data has run out."""
        places = self.places(at, lane, size)
        samples = self._samples(epoch, places)
        found, begin = [], 0
        for part, end in enumerate(accumulate(cut(len(places), size))):
            seed = seed_of(self.seed, "data", epoch, index, lane, part)
            found.append(Ticket(epoch, index, lane, part, tuple(samples[begin:end]), seed))
            begin = end
        return found

    def more(self, _epoch: int, at: int, size: Size) -> bool:
        """Whether the epoch goes on when so many samples of each lane are taken."""
        return self.left(at, size) > 0

    def _samples(self, epoch: int, places: range) -> list[int]:
        if self.sampler is None:
            if not self.shuffle:
                return list(places)
            if self.size > SHUFFLE_STORED_SAMPLES_MAX:
                return self._shuffled(epoch, torch.arange(places.start, places.stop)).tolist()
        stored = self._stored
        if epoch not in stored:
            stored.clear()
            stored[epoch] = self._whole(epoch)
        return stored[epoch][places.start : places.stop].tolist()

    def _whole(self, epoch: int) -> torch.Tensor:
        if self.sampler is None:
            return self._shuffled(epoch, torch.arange(self.size))
        return sampled(self.sampler, epoch, self.seed, self.numbers, self.size)

    def _shuffled(self, epoch: int, places: torch.Tensor) -> torch.Tensor:
        return shuffled(places, self.size, seed_of(self.seed, "order", epoch))

    @cached_property
    def _stored(self) -> dict[int, torch.Tensor]:
        return {}


@dataclass(frozen=True)
class Lists:
    """The order that a batch sampler gives: each of its lists is one lane's batch; consecutive
    lists go to consecutive lanes. `at` counts the lists of each lane. An epoch may have another
    number of them than the one before."""

    numbers: int  # of samples that there are
    lanes: int
    sampler: BatchSampler
    drop_last: bool = False
    seed: int = 0

    @cached_property
    def longest(self) -> int:
        """The longest list of the first epoch: what a lane's weight in the mean is relative to."""
        return max(len(each) for each in self._lists(0))

    def check(self, size: Size) -> None:
        if not self.more(0, 0, size):
            raise Usage(
                f"the batch sampler gives {len(self._lists(0))} lists, not enough for one step",
                why=f"a whole step takes {self.lanes * size.parts}, and drop_last drops a smaller",
                fix="give more lists, fewer lanes, or drop_last=False",
            )

    def tickets(self, epoch: int, index: int, at: int, lane: int, size: Size) -> list[Ticket]:
        lists = self._lists(epoch)
        numbers = [(at + part) * self.lanes + lane for part in range(size.parts)]
        return [
            Ticket(
                epoch,
                index,
                lane,
                part,
                tuple(int(each) for each in lists[number]),
                seed_of(self.seed, "data", epoch, index, lane, part),
            )
            for part, number in enumerate(numbers)
            if number < len(lists)
        ]

    def more(self, epoch: int, at: int, size: Size) -> bool:
        rest = len(self._lists(epoch)) - at * self.lanes
        return rest >= self.lanes * size.parts if self.drop_last else rest > 0

    def _lists(self, epoch: int) -> Sequence[Sequence[int]]:
        stored = self._stored
        if epoch not in stored:
            stored.clear()
            found = self.sampler(epoch, self.seed & SAMPLER_SEED)
            if not found or not all(len(each) for each in found):
                raise Usage(
                    f"the batch sampler gives an empty list for epoch {epoch}",
                    why="each of its lists is one lane's batch",
                    fix="leave empty lists out",
                )
            lowest, highest = min(map(min, found)), max(map(max, found))
            _within(lowest, highest, epoch, self.numbers)
            stored[epoch] = found
        return stored[epoch]

    @cached_property
    def _stored(self) -> dict[int, Sequence[Sequence[int]]]:
        return {}


def sampled(
    sampler: Sampler, epoch: int, seed: int, numbers: int, size: int | None = None
) -> torch.Tensor:
    """The sampler's numbers for an epoch; `Usage` if they cannot be."""
    found = torch.as_tensor(sampler(epoch, seed & SAMPLER_SEED), dtype=torch.int64)
    if found.dim() != 1 or not len(found) or (size is not None and len(found) != size):
        raise Usage(
            f"the sampler gives {list(found.shape)} numbers for epoch {epoch}",
            why="it gives one row of them, and as many in every epoch"
            + (f": {size} in the first" if size is not None else ""),
            fix="return a list of sample numbers, of the same length for every epoch",
        )
    _within(int(found.min()), int(found.max()), epoch, numbers)
    return found


def _within(lowest: int, highest: int, epoch: int, numbers: int) -> None:
    if lowest < 0 or highest >= numbers:
        raise Usage(
            f"the sampler gives sample {lowest if lowest < 0 else highest} for epoch {epoch}",
            why=f"the data has the samples 0 to {numbers - 1}",
            fix="let it give numbers of this data set",
        )
