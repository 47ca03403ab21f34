"""The local mode: lanes train by themselves for some steps, then meet (DiLoCo).

A *round* takes the place of a step. In it every lane begins with the shared weights and takes
`local_steps` steps of its own, with the script's optimizers, on its own samples. The difference
between the shared weights and those that a lane came to is what the lane contributes. The mean of
the differences (weighted by samples) goes to an outer optimizer, which moves the shared weights.
So members talk once a round, and everything that is said of a step holds for a round: it is
complete when one member has the sum, and a death costs the lanes of the dead in that round.

*A lane, not a worker, trains by itself.* DiLoCo has one copy for each worker; then every join and
every death would change what is computed. Here what a lane contributes is a pure function of the
shared state, the round and the lane. So the result does not depend on who ran what: the same bits
on any number of workers, as in the synchronous mode. A worker with several lanes goes back to the
shared weights for each. Give the job as many lanes as it shall have copies.

*The inner optimizers.* What lane 0 makes of them (and of schedulers that step with every batch, and
of a scaler) is what the round leaves behind, for all lanes: the rule that buffers have. To keep one
for each lane would cost a lane's state on every move, and would be lost with a worker; to begin
anew would cost Adam its moments in every round. A joiner gets the same as everybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from holdfast.train.chance import seed_everything
from holdfast.train.data.order import Ticket
from holdfast.train.data.source import Source
from holdfast.train.data.streams import Read
from holdfast.train.modes import updating
from holdfast.train.modes.outer import Outer
from holdfast.train.modes.rounds import Parts, Rounds
from holdfast.train.states.state import State
from holdfast.train.states.tracked import Tracked, is_scheduler
from holdfast.train.sums import words
from holdfast.train.sums.buffers import Buffers
from holdfast.train.sums.stepping import Gradients, Stepping
from holdfast.wire.errors import BugError, Usage

# Steps of a lane between two meetings. DiLoCo's is 500, for large models over slow lines; this is
# still within an epoch of a small one, and talks 16 times less than every step does.
LOCAL_STEPS: Final = 16
# DiLoCo's outer optimizer, with the values of its paper.
OUTER_LR: Final = 0.7
OUTER_MOMENTUM: Final = 0.9

_SIZE_BYTES: Final = 8  # of the number before the buffers in what lane 0 says


class LaneState(Buffers):
    """Weights, buffers and inner optimizers: every lane of a round begins with the same."""

    def __init__(self, tracked: Tracked, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = parameters
        self._inner = Tracked()
        for name, thing in tracked.objects.items():
            if _is_inner(thing):
                self._inner.add(name, thing)
        self._shared: list[torch.Tensor] = []
        self._snapshot = b""
        self._begun = False  # whether the two are those of the round under way
        self._moved = False  # whether a lane has changed something since
        self._kept = b""  # what lane 0 made of the inner optimizers
        super().__init__(tracked.models)

    def begin(self) -> None:
        """A lane begins, `before_lane` was called. If it is the first of the round, the others will
        begin with what there is now."""
        if not self._begun:
            self._begun = True
            self._shared = [each.detach().clone() for each in self._parameters]
            self._snapshot = self._spelled_inner()
        self._moved = True

    @torch.no_grad()
    def difference(self, number: int) -> torch.Tensor:
        """How far the lane has moved this parameter from the shared weights, as a gradient is:
        to be subtracted."""
        return self._shared[number] - self._parameters[number]

    def release(self) -> None:
        """Go back to what the round began with. That may change before the next lane begins."""
        self.before_lane()
        self._begun = False

    def settle(self) -> None:
        self._begun, self._kept = False, b""
        super().settle()

    def before_lane(self) -> None:
        super().before_lane()
        if self._begun and self._moved:
            self._moved = False
            with torch.no_grad():
                for parameter, shared in zip(self._parameters, self._shared, strict=True):
                    parameter.copy_(shared)
            self._adopt_inner(self._snapshot)

    def after_lane(self, lane: int) -> None:
        super().after_lane(lane)
        if lane == 0:
            self._kept = self._spelled_inner()

    def outcome(self) -> bytes | None:
        buffers = super().outcome()
        if buffers is None:
            return None
        return len(buffers).to_bytes(_SIZE_BYTES, "little") + buffers + self._kept

    def take(self, spelled: bytes) -> None:
        size = int.from_bytes(spelled[:_SIZE_BYTES], "little")
        # Nothing is spelled where one worker has all lanes: it kept what lane 0 left.
        inner = spelled[_SIZE_BYTES + size :] or self._kept
        super().take(spelled[_SIZE_BYTES : _SIZE_BYTES + size])
        self._adopt_inner(inner)
        self._begun, self._kept = False, b""

    def _spelled_inner(self) -> bytes:
        entries, skeletons = self._inner.entries()
        return b"".join(State.of(0, entries, skeletons).buffers())

    def _adopt_inner(self, spelled: bytes) -> None:
        state = State.read(memoryview(spelled))
        self._inner.adopt(state, state.notes)


class LocalRounds(Rounds):
    """The rounds of a run in the local mode."""

    mode = "local"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # How many it begins with is part of where the data is: a later change has no effect.
        self.local_steps = int(self.settings.get("local_steps", LOCAL_STEPS))
        if self.local_steps < 1:
            raise Usage(f"local_steps={self.local_steps}", fix="give a number from 1 on")
        self._outer = Outer()
        self._inner_parts: list[tuple[int, int]] = []  # what is left of the lane: parts, samples
        self._touched: set[int] = set()  # parameters that had a gradient in this lane

    # --- the state -----------------------------------------------------------------------------

    def state(self) -> State:
        held = super().state()
        notes = {**held.notes, "local_steps": self.local_steps}
        return State.of(held.step, [*held.entries, *self._outer.entries()], notes)

    def adopt(self, state: State) -> None:
        if (theirs := state.notes.get("local_steps")) != self.local_steps:
            raise Usage(
                f"the job's state is of {theirs} local steps a round, this run has "
                f"{self.local_steps}",
                why="where a run is in its data is counted in rounds",
                fix="run it with the same local_steps, or start a new job",
            )
        super().adopt(state)
        self._outer.adopt(state)

    # --- a lane of a round ---------------------------------------------------------------------

    def begin_lane(self, lane: int, parts: Parts, *, source: Source, more: bool) -> None:
        super().begin_lane(lane, parts, source=source, more=more)
        self._lane_state().begin()
        steps = [list(each) for _, each in groupby(parts, lambda part: part.index)]
        self._inner_parts = [(len(each), sum(part.count for part in each)) for each in steps]
        self._touched.clear()

    def before_batch(self, ticket: Ticket | Read) -> None:
        self._body.forget()  # each batch may end with a step of the lane's own
        super().before_batch(ticket)
        step, place = self.member.step, (ticket.lane, ticket.part, ticket.index)
        seed_everything(self.seed_of("lane", step, *place))

    def _is_last_batch(self) -> bool:
        return True

    def _descend(
        self, loss: torch.Tensor, count: int, only: list[str] | None, _gradients: Gradients | None
    ) -> None:
        parts, samples = self._inner_parts[0]
        share = loss if count == samples else loss * (count / samples)
        updating.scaled(self.tracked, share).backward()  # type: ignore[no-untyped-call]
        self._inner_parts[0] = parts - 1, samples
        if parts == 1:
            del self._inner_parts[0]
            self._inner_step(only)
        if not self._left:
            self._contribute()

    def _inner_step(self, only: list[str] | None) -> None:
        """A step of this lane alone."""
        parameters = self._at_step().parameters
        gradients = [each.grad for each in parameters]
        untouched = {number for number, found in enumerate(gradients) if found is None}
        self._touched |= set(range(len(parameters))) - untouched
        updating.update(
            self.tracked,
            parameters,
            [parameters[0] if found is None else found for found in gradients],
            untouched,
            only=only,
            clip=self.clip,
        )
        self._step_schedulers("step")

    def _contribute(self) -> None:
        """The lane has taken its steps: what it came to is its part of the round's sum."""
        stepping, lane, record = self._at_step(), self._lane_number, self._lane
        assert record is not None
        weight = record.count / self._at_source().step_samples
        stepping.begin(lane)
        for number in self._touched:
            found = self._lane_state().difference(number)
            stepping.parameters[number].grad = found if weight == 1 else found.mul_(weight)
        stepping.end(lane)

    def _update(self, gradients: list[torch.Tensor], step: words.Step) -> torch.Tensor | None:
        names = self.tracked.parameter_names()
        self._outer.step(
            {names[id(each)]: each for each in self._at_step().parameters},
            gradients,
            step.untouched(),
            lr=float(self.settings.get("outer_lr", OUTER_LR)),
            momentum=float(self.settings.get("outer_momentum", OUTER_MOMENTUM)),
        )
        return None

    # --- around it -----------------------------------------------------------------------------

    def _new_stepping(self) -> Stepping:
        stepping = super()._new_stepping()
        stepping.buffers = LaneState(self.tracked, stepping.parameters)
        return stepping

    def _after_meeting(self) -> None:
        # Settings change the optimizers, so these must not be in the middle of a lane.
        if self._stepping is not None:
            self._lane_state().release()
        super()._after_meeting()

    def _close_stepping(self) -> None:
        if self._stepping is not None:
            self._lane_state().release()
        super()._close_stepping()

    def _lane_state(self) -> LaneState:
        found = self._at_step().buffers
        if not isinstance(found, LaneState):
            raise BugError("a local round without the state of its lanes")
        return found


def _is_inner(thing: object) -> bool:
    """Whether a lane's own steps change it."""
    return isinstance(thing, (Optimizer, torch.amp.GradScaler)) or is_scheduler(thing)
