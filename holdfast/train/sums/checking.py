"""Does everybody compute right? Now and then a lane is computed by a second worker. Pure.

A processor that flips bits, without any error, spoils the sum for all: they take it over, and so no
comparison of states shows it. But lanes have the same bits wherever they are computed. So one
worker after the other is checked: another one computes a lane of it too, and both say with the
step's words what it came to. If that differs, the step waits, and a third one computes it: who is
alone with its answer is wrong, and ends with this error; its lanes are computed again by others,
before anything was updated. With two workers both compute it again, and who does not come to the
same as before is wrong.

With `steps` each worker is checked once in so many. So one that is always wrong is found within so
many; a single wrong lane with probability (workers / (steps * lanes)), and 1 / lanes where `steps`
is not more than there are workers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from holdfast.wire import worker_messages
from holdfast.wire.errors import GpuFault, Unavailable, Usage

Answers = Mapping[int, str]  # of workers, to one lane


class WrongResult(Unavailable):
    """This worker has computed a lane to other bits than others have. Another computes it right."""


class NoVerdict(Unavailable):
    """Workers come to different results, and nobody can say who is wrong."""


@dataclass(frozen=True, slots=True)
class Check:
    """A lane that these compute beside its holder."""

    lane: int
    holder: int
    checkers: tuple[int, ...]


def steps_configured() -> int:
    """0: nobody is checked."""
    text = os.environ.get(worker_messages.CHECK_VARIABLE) or "0"
    if not text.isdecimal():
        raise Usage(
            f"{worker_messages.CHECK_VARIABLE}={text!r}",
            why="it is in how many steps each worker is checked once",
            fix=f"{worker_messages.CHECK_VARIABLE}: 1000, or 0 for never",
        )
    return int(text)


def due(step: int, steps: int, dealt: Mapping[int, Sequence[int]]) -> Check | None:
    """What is checked in this step, if anything."""
    members = sorted(worker for worker, lanes in dealt.items() if lanes)
    if not steps or len(members) < 2:
        return None
    every = max(1, steps // len(members))
    turn, rest = divmod(step, every)
    if rest:
        return None
    holder = members[turn % len(members)]
    others = [worker for worker in members if worker != holder]
    rounds = turn // len(members)
    lanes = sorted(dealt[holder])
    return Check(lanes[rounds % len(lanes)], holder, (others[rounds % len(others)],))


class Checking:
    """The checks of the members of one meeting. All are told the same, so all conclude the same."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._at: int | None = None  # the step that `_check` is of
        self._check: Check | None = None
        self._first: Answers = {}  # what was disputed
        self.settled = False  # who was wrong is known, and ends

    def now(self, step: int, dealt: Mapping[int, Sequence[int]]) -> Check | None:
        """What is to be computed by more than one in the step under way."""
        if step != self._at:
            self._at, self._check, self._first = step, due(step, self._steps, dealt), {}
        return None if self.settled else self._check

    def judge(self, members: Iterable[int], received: Mapping[int, Answers]) -> int | None:
        """Everyone's answers of the step. None: all is well, or there was nothing to compare. A
        worker: it was wrong. -1: it is disputed, and to be computed once more (see `now`). Raises
        `NoVerdict`."""
        check = self._check
        answers = (
            dict(received.get(check.lane, {})) if check is not None and not self.settled else {}
        )
        if check is None or len(answers) < 2:
            return None
        if not self._first:
            if len(set(answers.values())) == 1:
                return None
            self._first = answers
            third = sorted(set(members) - answers.keys())[:1]
            self._check = Check(check.lane, check.holder, tuple(third or sorted(answers)))
            return -1
        wrong = _wrong(self._first, {worker: answers[worker] for worker in check.checkers})
        if wrong is None:
            names = ", ".join(map(str, sorted(answers)))
            raise NoVerdict(
                f"workers {names} come to different gradients of lane {check.lane}",
                why="computed once more there was still no majority: a processor is wrong, or the "
                "script is not a function of its batch",
                fix="run it with other machines; see `holdfast doctor`, and nvidia-smi -q for GPUs",
            )
        self.settled = True
        return wrong

    def fault(self, me: int, step: int, device: torch.device) -> Unavailable:
        """What the one ends with that was wrong."""
        assert self._check is not None
        others = ", ".join(str(each) for each in sorted(self._first) if each != me)
        where = f"GPU {device.index or 0}" if device.type == "cuda" else "processor"
        kind = GpuFault if device.type == "cuda" else WrongResult
        return kind(
            f"the {where} of worker {me} has computed lane {self._check.lane} of step {step + 1} "
            "wrongly",
            why=f"worker {others} came to other bits, and to the same as whoever computed it once "
            f"more; of the {self._steps} steps before not all of its lanes were checked",
            fix="nothing: its lanes are computed again by others. If it repeats, have the machine "
            "looked at",
        )


def _wrong(first: Answers, again: Answers) -> int | None:
    """Who of the first two was wrong, from what it came to once more."""
    right = set(again.values())
    if len(right) != 1:
        return None
    wrong = [worker for worker, answer in first.items() if answer not in right]
    return wrong[0] if len(wrong) == 1 else None


_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bit_sums(gradient: torch.Tensor | None) -> torch.Tensor | None:
    """What a gradient's bits come to as whole numbers: no flipped bit leaves this as it was, and
    the order of adding does not matter."""
    if gradient is None:
        return None
    dense = gradient.detach().to_dense() if gradient.is_sparse else gradient.detach()
    if dense.is_complex():
        dense = torch.view_as_real(dense)
    bits = dense.contiguous().view(-1).view(_WHOLE[dense.element_size()])
    return torch.stack([bits.sum(dtype=torch.int64), bits[::2].sum(dtype=torch.int64)])


def answer_of(sums: Sequence[torch.Tensor | None]) -> str:
    """Of all gradients of a lane. On a device it waits, once."""
    there = [each for each in sums if each is not None]
    numbers = iter(torch.stack(there).tolist() if there else ())
    return ";".join("" if each is None else "{:x},{:x}".format(*next(numbers)) for each in sums)
