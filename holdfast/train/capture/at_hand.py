"""What a function that computes a lane has to know of the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from holdfast.train.data.source import BatchSource
from holdfast.train.leftovers import Body
from holdfast.train.sums.stepping import Stepping


@dataclass(frozen=True, slots=True)
class AtHand:
    """The batch that is with the user's code."""

    stepping: Stepping
    source: BatchSource
    body: Body
    count: int  # its samples
    rehearsed: bool  # whether it counts for nothing, and comes again
    scaled: Callable[[torch.Tensor], torch.Tensor]  # its loss, as it goes into the backward pass

    @property
    def weight(self) -> float:
        """Its part in the step's mean."""
        return self.count / self.source.step_samples

    @property
    def is_whole(self) -> bool:
        """Whether it has as many samples as those of a whole step."""
        return self.source.is_whole(self.count)
