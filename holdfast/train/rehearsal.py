"""Is the loop's body a function of its batch? Now and then it is asked twice, and must agree.

What a body remembers by itself (a counter in a module or a global, a generator of its own, the
time, a cache that the first batch fills) makes a lane's gradient depend on what its worker computed
before. All workers still agree on the sum, so no comparison of states shows it: the weights are
only not those that another number of workers would have come to.

So each worker of a job gives its first batch of a loop twice, and then one of every `EVERY_STEPS`
steps: the same samples, the same random numbers, buffers as they were. The first time counts for
nothing. Gradients are compared by two sums each, which are exact and need no room.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import nn

from holdfast.wire.errors import Usage

EVERY_STEPS: Final = 512

Print = tuple[float, float] | None


class Rehearsal:
    """Of one loop on one worker."""

    def __init__(self) -> None:
        self.under_way = False  # the body has a batch that counts for nothing
        self._last: int | None = None  # the step of the last one
        self._expected: list[Print] | None = None
        self._fetched: bytes | None = None  # where the generators stood when the batch was there

    def is_due(self, step: int) -> bool:
        return self._last is None or (step % EVERY_STEPS == 0 and step != self._last)

    def begin(self, step: int) -> None:
        self.under_way, self._last = True, step

    def take(self, parameters: Sequence[nn.Parameter]) -> None:
        """The gradients are there; they are dropped."""
        self.under_way = False
        self._expected = [printed(parameter.grad) for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None

    def fetched(self, stand: bytes) -> None:
        """The batch was fetched, for the first or the second time, and the generators stand so.
        Raise `Usage` if the data drew other numbers the second time."""
        if self._fetched is None:
            self._fetched = stand
            return
        before, self._fetched = self._fetched, None
        if before != stand:
            raise Usage(
                "the data set drew other random numbers for the same samples, when they were asked "
                "for twice",
                why="it keeps what it drew (a cache around an augmentation): a sample depends on "
                "who has asked for it before",
                fix="cache what is read, and draw anew each time that a sample is asked for",
            )

    @property
    def awaits(self) -> bool:
        """Whether the same batch is to be compared now."""
        return self._expected is not None

    def compare(self, found: Sequence[Print], names: Sequence[str]) -> None:
        """Raise `Usage` if the body came to something else for the same batch."""
        expected, self._expected = self._expected, None
        assert expected is not None
        for name, one, other in zip(names, expected, found, strict=True):
            if one != other and not (_is_nan(one) and _is_nan(other)):
                raise Usage(
                    f"the loop's body gave another gradient of {name} for the same batch, when it "
                    "was given twice",
                    why="it depends on something that this worker has for itself: a counter or a "
                    "cache in a module or a global, a generator of the script's own, the time",
                    fix="let it depend on the batch, tracked objects, run.settings and "
                    "run.completed alone; count in a buffer, draw with torch.rand and the like",
                )


def printed(gradient: torch.Tensor | None) -> Print:
    """What is compared of a gradient."""
    if gradient is None:
        return None
    plain = gradient.detach()
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    wide = plain.double()
    return float(wide.sum()), float(wide.abs().sum())


def _is_nan(each: Print) -> bool:
    return each is not None and each[1] != each[1]
