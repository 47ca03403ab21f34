"""Samplers: an order of sample numbers for each epoch, as a pure function of (epoch, seed).

    run.batches(data, lane_batch=32, sampler=train.WeightedSampler(weights))
    run.batches(data, batch_sampler=train.LengthBuckets(lengths, lane_batch=32))
    run.batches(data, lane_batch=32, sampler=lambda epoch, seed: numbers_of(epoch, seed))

Every worker calls them, so they must give all the same. torch's own sampler objects draw from a
generator: each epoch gets one of its own, seeded by (seed, epoch).
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data import Sampler as TorchSampler

from holdfast.train.chance import seed_of, shuffled
from holdfast.train.data import order
from holdfast.wire.errors import Usage

_SEEDED = (WeightedRandomSampler, SubsetRandomSampler, RandomSampler, SequentialSampler)


class WeightedSampler:
    """Draws `count` samples (as many as there are weights), each as often as its weight says.

    Without replacement every sample comes once at most, the heavier ones earlier.
    """

    def __init__(
        self, weights: Sequence[float], count: int | None = None, *, replacement: bool = True
    ) -> None:
        self._weights = torch.as_tensor(weights, dtype=torch.float64)
        positive = int((self._weights > 0).sum()) if self._weights.dim() == 1 else 0
        self._count = len(self._weights) if count is None else count
        if not positive or bool((~torch.isfinite(self._weights) | (self._weights < 0)).any()):
            raise Usage(
                "the weights of a WeightedSampler are no weights",
                why="they are one row of numbers from 0 on, and not all are 0",
                fix="give one number for each sample",
            )
        if self._count < 1 or (not replacement and self._count > positive):
            raise Usage(
                f"a WeightedSampler of {self._count} out of {positive} samples",
                why="without replacement each sample with a weight comes once at most",
                fix=f"give a count from 1 to {positive}, or replacement=True",
            )
        self._replacement = replacement

    @property
    def name(self) -> str:
        how = "with" if self._replacement else "without"
        digest = _digest(self._weights.numpy().tobytes())
        return f"WeightedSampler({self._count}, {how} replacement, weights {digest})"

    def __call__(self, epoch: int, seed: int) -> torch.Tensor:
        chance = _generator(seed, epoch)
        if self._replacement:
            sums = self._weights.cumsum(0)
            drawn = torch.rand(self._count, generator=chance, dtype=torch.float64) * sums[-1]
            found = torch.searchsorted(sums, drawn, right=True)
            # What rounding carries beyond the last weight belongs to it.
            last = int(self._weights.nonzero()[-1])
            return found.clamp_(max=last)
        drawn = torch.rand(len(self._weights), generator=chance, dtype=torch.float64)
        # The order of exponential times with these rates is a draw without replacement.
        times = -torch.log1p(-drawn) / self._weights
        times[self._weights == 0] = torch.inf
        return torch.sort(times, stable=True).indices[: self._count]


class LengthBuckets:
    """Lists of `lane_batch` samples of about the same length, so that little is padded.

    The samples are sorted into so many buckets by length; each bucket is shuffled and cut into
    lists, and the lists are shuffled. Every sample of the data comes once in an epoch.
    """

    def __init__(self, lengths: Sequence[int], buckets: int = 8, *, lane_batch: int) -> None:
        if buckets < 1 or lane_batch < 1 or not len(lengths):
            raise Usage(
                f"LengthBuckets of {len(lengths)} lengths, {buckets} buckets, lists of "
                f"{lane_batch}",
                fix="give one length for each sample, and numbers from 1 on",
            )
        self._lengths = torch.as_tensor(lengths, dtype=torch.int64)
        self._order = torch.sort(self._lengths, stable=True).indices
        self._buckets, self._batch = min(buckets, len(lengths)), lane_batch

    @property
    def name(self) -> str:
        digest = _digest(self._lengths.numpy().tobytes())
        return f"LengthBuckets({self._buckets}, lists of {self._batch}, lengths {digest})"

    def __call__(self, epoch: int, seed: int) -> list[list[int]]:
        total, size = len(self._order), self._batch
        lists: list[list[int]] = []
        rest: list[int] = []
        for number in range(self._buckets):
            bucket = self._order[
                number * total // self._buckets : (number + 1) * total // self._buckets
            ]
            mixed = _mixed(bucket, seed_of(seed, "bucket", epoch, number))
            whole = len(mixed) // size * size
            lists += [mixed[at : at + size] for at in range(0, whole, size)]
            rest += mixed[whole:]  # of neighbours in length: what is left of all is joined
        lists += [rest[at : at + size] for at in range(0, len(rest), size)]
        if len(lists) > 1 and len(lists[-1]) == 1 and size > 2:
            lists[-1].insert(0, lists[-2].pop())  # a batch norm cannot train on one
        places = _mixed(torch.arange(len(lists)), seed_of(seed, "lists", epoch))
        return [lists[place] for place in places]


def sampler_of(given: Any, seed: int) -> order.Sampler:
    """What was given as `sampler=`, as a function of (epoch, seed); `Usage` if it cannot be."""
    if isinstance(given, _SEEDED):
        return _Seeded(given)
    function = _function(given, "sampler")
    _try_twice(function, seed, given)
    return function


def batch_sampler_of(given: Any, seed: int) -> order.BatchSampler:
    """The same for `batch_sampler=`."""
    if type(given) is BatchSampler and isinstance(given.sampler, _SEEDED):
        return _SeededLists(given)
    function = _function(given, "batch_sampler")
    _try_twice(function, seed, given)
    return function


def name_of(sampler: Any) -> str:
    """What the state's notes call it: another name is another order."""
    if sampler is None:
        return "none"
    if isinstance(found := getattr(sampler, "name", None), str):
        return found
    return str(getattr(sampler, "__qualname__", type(sampler).__name__))


class _Seeded:
    """torch's own sampler, with a generator for each epoch."""

    def __init__(self, sampler: TorchSampler[int]) -> None:
        self._sampler = sampler
        self.name = type(sampler).__name__

    def __call__(self, epoch: int, seed: int) -> list[int]:
        return [int(each) for each in _seeded(self._sampler, epoch, seed)]


class _SeededLists:
    def __init__(self, sampler: BatchSampler) -> None:
        self._sampler = sampler
        self.name = (
            f"BatchSampler({type(sampler.sampler).__name__}, {sampler.batch_size}, "
            f"drop_last={sampler.drop_last})"
        )

    def __call__(self, epoch: int, seed: int) -> list[list[int]]:
        inner: Any = self._sampler.sampler
        one = BatchSampler(
            _seeded(inner, epoch, seed), self._sampler.batch_size, self._sampler.drop_last
        )
        return [[int(each) for each in found] for found in one]


def _seeded(sampler: TorchSampler[int], epoch: int, seed: int) -> TorchSampler[int]:
    one = copy.copy(sampler)
    if hasattr(one, "generator"):
        one.generator = _generator(seed, epoch)
    return one


def _function(given: Any, what: str) -> Callable[[int, int], Any]:
    if isinstance(given, DistributedSampler):
        raise Usage(
            f"a DistributedSampler as {what}=",
            why="it divides the data over processes by rank; here lanes do that, and stay the same",
            fix=f"leave {what}= out: run.batches(data, shuffle={given.shuffle}) divides and "
            "shuffles",
        )
    if isinstance(given, TorchSampler):
        raise Usage(
            f"a {type(given).__name__} as {what}=",
            why="it draws its order from what it remembers, so workers would draw different ones",
            fix=f"give a function: {what}=lambda epoch, seed: [...], or one of "
            + ", ".join(each.__name__ for each in _SEEDED),
        )
    if not callable(given):
        raise Usage(
            f"a {type(given).__name__} as {what}=",
            why="it is a function of (epoch, seed), called on every worker",
            fix=f"{what}=lambda epoch, seed: [...]",
        )
    function: Callable[[int, int], Any] = given
    return function


def _try_twice(function: Callable[[int, int], Any], seed: int, given: Any) -> None:
    """A function of one's own is asked twice: whoever gives two answers would give every worker
    another."""
    if isinstance(given, (WeightedSampler, LengthBuckets)):
        return
    seed &= order.SAMPLER_SEED
    one, other = function(0, seed), function(0, seed)
    if not hasattr(one, "__len__"):
        raise Usage(
            f"the sampler {name_of(given)} gives a {type(one).__name__}",
            fix="return a list",
        )
    same = len(one) == len(other) and all(
        list(a) == list(b) if hasattr(a, "__len__") else a == b
        for a, b in zip(one, other, strict=True)
    )
    if not same:
        raise Usage(
            f"the sampler {name_of(given)} gives two orders for one epoch and seed",
            why="every worker asks it, and all must get the same",
            fix="draw with random.Random(f'{seed} {epoch}') or "
            "torch.Generator().manual_seed(seed + epoch)",
        )


def _generator(seed: int, epoch: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed_of(seed, "sampler", epoch))


def _mixed(numbers: torch.Tensor, seed: int) -> list[int]:
    found: list[int] = numbers[shuffled(torch.arange(len(numbers)), len(numbers), seed)].tolist()
    return found


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
