"""Which samples a lane sees in which step: a pure function, the same for every worker.

An epoch goes once through the data in a shuffled order. A step takes the next `lanes * parts *
lane_batch` places of it; each lane has an equal, contiguous share of them. The last step of an
epoch has what is left: its places are divided as evenly as they can be, so some lanes may have
fewer samples, or none. Every sample of an epoch is in exactly one lane of exactly one step (with
`drop_last`: of the whole steps only).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from holdfast.train.chance import seed_of, shuffled
from holdfast.wire.errors import Usage
from holdfast.wire.limits import SHUFFLE_STORED_SAMPLES_MAX


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


@dataclass(frozen=True)
class Order:
    """The order of a data set of `size` samples over `lanes`."""

    size: int
    lanes: int
    lane_batch: int
    parts: int = 1
    shuffle: bool = True
    drop_last: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.lane_batch < 1 or self.parts < 1:
            raise Usage(
                f"lane_batch={self.lane_batch} with accumulate({self.parts})",
                why="a lane needs at least one sample a step",
                fix="give numbers from 1 on",
            )
        if not self.steps:
            raise Usage(
                f"the data has {self.size} samples, not enough for one step",
                why=f"a whole step takes {self.step_samples}, and drop_last drops a smaller one"
                if self.size
                else "it is empty",
                fix="give a smaller lane_batch, or drop_last=False" if self.size else "give data",
            )

    @property
    def step_samples(self) -> int:
        """Samples of a whole step, of all lanes together."""
        return self.lanes * self.parts * self.lane_batch

    @cached_property
    def steps(self) -> int:
        """How many steps an epoch has."""
        whole, left = divmod(self.size, self.step_samples)
        return whole + (1 if left and not self.drop_last else 0)

    def places(self, index: int, lane: int) -> range:
        """The lane's places in the epoch's order."""
        begin = index * self.step_samples
        count = min(self.step_samples, self.size - begin)
        return range(begin + lane * count // self.lanes, begin + (lane + 1) * count // self.lanes)

    def tickets(self, epoch: int, index: int, lane: int) -> list[Ticket]:
        """What the lane computes in this step, in this order; empty when the data has run out."""
        places = self.places(index, lane)
        samples = self._samples(epoch, places)
        return [
            Ticket(
                epoch,
                index,
                lane,
                part,
                tuple(samples[part * self.lane_batch : (part + 1) * self.lane_batch]),
                seed_of(self.seed, "data", epoch, index, lane, part),
            )
            for part in range(-(-len(places) // self.lane_batch))
        ]

    def _samples(self, epoch: int, places: range) -> list[int]:
        if not self.shuffle:
            return list(places)
        if self.size > SHUFFLE_STORED_SAMPLES_MAX:
            return self._shuffled(epoch, torch.arange(places.start, places.stop)).tolist()
        stored = self._stored
        if epoch not in stored:
            stored.clear()
            stored[epoch] = self._shuffled(epoch, torch.arange(self.size))
        return stored[epoch][places.start : places.stop].tolist()

    def _shuffled(self, epoch: int, places: torch.Tensor) -> torch.Tensor:
        return shuffled(places, self.size, seed_of(self.seed, "order", epoch))

    @cached_property
    def _stored(self) -> dict[int, torch.Tensor]:
        return {}
