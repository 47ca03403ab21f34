"""Is the loop's body a function of its batch? Now and then it is asked twice, and must agree.

What a body remembers by itself (a counter in a module or a global, a generator of its own, the
time, a cache that the first batch fills) makes a lane's gradient depend on what its worker computed
before. All workers still agree on the sum, so no comparison of states shows it: the weights are
only not those that another number of workers would have come to.

So in the first step of a loop (for each of its updates), and then in one of every `EVERY_STEPS`,
all workers of a job compute the first batch of lane 0: the same samples, the same random numbers,
buffers as they were. It counts for nothing. Whoever has the lane does it again for the step, and
must come to the same; and what each has come to it says with the words of the step, so that all
find out when it was not the same: a process id, a host name, what this worker computed before.
Gradients are compared by two sums each, which need no room: exactly in one process, and between
workers so that another kind of processor, which rounds otherwise, passes.

Data that is read in order, or by loader processes, is not asked for what is another's: there each
worker gives a batch of its own twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import nn

from holdfast.wire.errors import Usage

EVERY_STEPS: Final = 512
# Of all gradients: how far those of two workers may be from each other, for another rounding.
_ROUNDING: Final = 0.01

Print = tuple[float, float] | None


class Rehearsal:
    """Of one loop on one worker."""

    def __init__(self) -> None:
        self.under_way = False  # the body has a batch that counts for nothing
        self._last: int | None = None  # the step of the last one
        self._updates: set[int] = set()  # of those of a batch, the ones that had theirs
        self._update = 0  # of them, the last
        self._again = True  # whether the batch comes a second time here
        self._reported: tuple[int, list[Print]] | None = None  # the step, and what lane 0 came to
        self._expected: list[Print] | None = None
        self._fetched: bytes | None = None  # where the generators stood when the batch was there

    def is_due(self, step: int, update: int = 0) -> bool:
        return update not in self._updates or (step % EVERY_STEPS == 0 and step != self._last)

    def begin(self, step: int, update: int = 0) -> None:
        self.under_way, self._last, self._again = True, step, True
        self._updates.add(update)
        self._update = update

    def for_another(self) -> None:
        """The batch is of lane 0, which is another's, or computed already."""
        self._again = False

    def take(self, parameters: Sequence[nn.Parameter], *, lane: int) -> None:
        """The gradients of a batch of this lane are there; they are dropped."""
        self.under_way = False
        found = [printed(parameter.grad) for parameter in parameters]
        self._expected = found if self._again else None
        if lane == 0 and self._last is not None:
            self._reported = self._last, found
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

    def reported(self, step: int) -> list[Print] | None:
        """What lane 0's first batch came to here, for the others; None: it was not computed."""
        return (
            self._reported[1] if self._reported is not None and self._reported[0] == step else None
        )

    def interrupt(self, step: int, *, stale: bool) -> None:
        """Somebody was lost before this step was through; `stale`: what was computed in it is of no
        use any more. If it was one with a rehearsal, that is due again: whoever has lane 0 now has
        not computed it twice, and whoever had it may be gone with what it knew."""
        if stale:
            self._reported = None
        if self._last == step:
            self._last = None
            self._updates.discard(self._update)

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


def agree(reported: Sequence[Sequence[Any]], names: Sequence[str]) -> None:
    """Raise `Usage` if workers came to something else for the same batch."""
    for other in reported[1:]:
        rows = [(one or (0.0, 0.0), two or (0.0, 0.0)) for one, two in zip(reported[0], other)]  # noqa: B905
        apart = [abs(one[0] - two[0]) + abs(one[1] - two[1]) for one, two in rows]
        whole = sum(max(one[1], two[1]) for one, two in rows)
        if math.isfinite(whole) and sum(apart) > _ROUNDING * whole:
            name = names[apart.index(max(apart))]
            raise Usage(
                f"the workers came to different gradients of {name} for one and the same batch",
                why="the loop's body depends on something that each worker has for itself: its "
                "process id, its host, an environment variable, what it computed or kept before",
                fix="let it depend on the batch, tracked objects, run.settings and run.completed "
                "alone; for chance draw with torch.rand and the like",
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
