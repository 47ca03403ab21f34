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

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from holdfast.train.chance import seed_everything
from holdfast.train.data.order import Ticket
from holdfast.train.data.source import BatchSource
from holdfast.train.data.streams import Read
from holdfast.train.modes import updating
from holdfast.train.modes.current_lane import CurrentLane, Parts
from holdfast.train.modes.run_state import RunState
from holdfast.train.modes.training_loop import TrainingLoop
from holdfast.train.states.memory import entry, tensor_of
from holdfast.train.states.state import StateEntry, TrainingState
from holdfast.train.states.tracked import Tracked, is_scheduler
from holdfast.train.sums import step_records
from holdfast.train.sums.buffers import Buffers
from holdfast.train.sums.compression import Code
from holdfast.train.sums.stepping import Gradients, Stepping
from holdfast.wire.errors import BugError, Usage

# No tracked object can have this name: theirs have no slash.
_NAME: Final = "/outer"


class Outer:
    """The momentum of every parameter that was ever trained, by name; the same on all members."""

    def __init__(self) -> None:
        self._momenta: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def step(
        self,
        parameters: Mapping[str, nn.Parameter],
        differences: Iterable[torch.Tensor],
        untouched: set[int],
        *,
        lr: float,
        momentum: float,
    ) -> None:
        """Move the parameters. One that no lane has touched stays, and so does its momentum."""
        self._prepare(parameters)
        pairs = zip(parameters.items(), differences, strict=True)
        for number, ((name, parameter), difference) in enumerate(pairs):
            if number in untouched:
                continue
            buffer = self._momenta[name] = self._momenta[name].to(parameter.device)
            found = difference.to(buffer.dtype)
            buffer.mul_(momentum).add_(found)
            parameter.sub_((found + momentum * buffer).mul_(lr))

    def entries(self) -> list[StateEntry]:
        """Its part of the state; nothing before the first round."""
        return [entry(f"{_NAME}/{name}", each) for name, each in self._momenta.items()]

    def adopt(self, state: TrainingState) -> None:
        """Take over what `entries` has said."""
        mine = [each for each in state.entries if each.name.startswith(f"{_NAME}/")]
        self._momenta = {it.name.removeprefix(f"{_NAME}/"): tensor_of(it).clone() for it in mine}

    def _prepare(self, parameters: Mapping[str, nn.Parameter]) -> None:
        for name, each in parameters.items():
            if name not in self._momenta:
                # Momentum is a sum of many small things: half precision would lose them.
                dtype = torch.promote_types(each.dtype, torch.float32)
                self._momenta[name] = torch.zeros_like(each, dtype=dtype)


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
        return b"".join(TrainingState.of(0, entries, skeletons).buffers())

    def _adopt_inner(self, spelled: bytes) -> None:
        state = TrainingState.read(memoryview(spelled))
        self._inner.adopt(state, state.notes)


class LocalState(RunState):
    """What a run in the local mode holds: the momentum of its outer optimizer, too."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # How many it begins with is part of where the data is: a later change has no effect.
        self.local_steps = int(self.settings.get("local_steps", LOCAL_STEPS))
        if self.local_steps < 1:
            raise Usage(f"local_steps={self.local_steps}", fix="give a number from 1 on")
        self.outer = Outer()

    def state(self) -> TrainingState:
        held = super().state()
        notes = {**held.notes, "local_steps": self.local_steps}
        return TrainingState.of(held.step, [*held.entries, *self.outer.entries()], notes)

    def adopt(self, state: TrainingState) -> None:
        if (theirs := state.notes.get("local_steps")) != self.local_steps:
            raise Usage(
                f"the job's state is of {theirs} local steps a round, this run has "
                f"{self.local_steps}",
                why="where a run is in its data is counted in rounds",
                fix="run it with the same local_steps, or start a new job",
            )
        super().adopt(state)
        self.outer.adopt(state)

    def new_stepping(self, code: Code | None) -> Stepping:
        stepping = super().new_stepping(code)
        stepping.buffers = LaneState(self.tracked, stepping.parameters)
        return stepping


class LocalLane(CurrentLane):
    """A lane of a round: it takes steps of its own, and contributes how far it has come."""

    gives_twice = False

    def __init__(self, held: RunState, loop: LocalLoop) -> None:
        super().__init__(held, loop.hooks)
        self._loop = loop
        self._steps: list[tuple[int, int]] = []  # what is left of the lane: parts, samples
        self._touched: set[int] = set()  # parameters that had a gradient in this lane

    def begin(self, lane: int, parts: Parts, *, source: BatchSource, more: bool) -> None:
        super().begin(lane, parts, source=source, more=more)
        self._lane_state().begin()
        steps = [list(each) for _, each in groupby(parts, lambda part: part.index)]
        self._steps = [(len(each), sum(part.count for part in each)) for each in steps]
        self._touched.clear()

    def give(self, ticket: Ticket | Read) -> None:
        self.body.forget()  # each batch may end with a step of the lane's own
        super().give(ticket)
        place = ticket.lane, ticket.part, ticket.index
        seed_everything(self._held.seed_of("lane", self._held.member.step, *place))

    def _is_last_batch(self) -> bool:
        return True

    def _descend(
        self, loss: torch.Tensor, count: int, only: list[str] | None, _gradients: Gradients | None
    ) -> None:
        parts, samples = self._steps[0]
        share = loss if count == samples else loss * (count / samples)
        updating.scaled(self._held.tracked, share).backward()
        self._steps[0] = parts - 1, samples
        if parts == 1:
            del self._steps[0]
            self._step(only)
        if not self._left:
            self._contribute()

    def _step(self, only: list[str] | None) -> None:
        """A step of this lane alone."""
        parameters = self._held.at_step().parameters
        gradients = [each.grad for each in parameters]
        untouched = {number for number, found in enumerate(gradients) if found is None}
        self._touched |= set(range(len(parameters))) - untouched
        updating.update(
            self._held.tracked,
            parameters,
            [parameters[0] if found is None else found for found in gradients],
            untouched,
            only=only,
            clip=self._loop.clip,
        )
        self._held.step_schedulers("step")

    def _contribute(self) -> None:
        """The lane has taken its steps: what it came to is its part of the round's sum."""
        stepping, lane, record = self._held.at_step(), self._number, self._record
        assert record is not None
        weight = record.count / self.at_source().step_samples
        stepping.begin(lane)
        for number in self._touched:
            found = self._lane_state().difference(number)
            stepping.parameters[number].grad = found if weight == 1 else found.mul_(weight)
        stepping.end(lane)

    def _lane_state(self) -> LaneState:
        found = self._held.at_step().buffers
        if not isinstance(found, LaneState):
            raise BugError("a local round without the state of its lanes")
        return found


class LocalLoop(TrainingLoop):
    """The loop of a run in the local mode: a round takes the place of a step."""

    mode = "local"

    def _new_lane(self) -> CurrentLane:
        return LocalLane(self.held, self)

    def _update(
        self, gradients: list[torch.Tensor], step: step_records.StepRecord
    ) -> torch.Tensor | None:
        held = self.held
        assert isinstance(held, LocalState)
        names = held.tracked.parameter_names()
        held.outer.step(
            {names[id(each)]: each for each in held.at_step().parameters},
            gradients,
            step.untouched(),
            lr=float(held.settings.get("outer_lr", OUTER_LR)),
            momentum=float(held.settings.get("outer_momentum", OUTER_MOMENTUM)),
        )
        return None


def _is_inner(thing: object) -> bool:
    """Whether a lane's own steps change it."""
    return isinstance(thing, (Optimizer, torch.amp.GradScaler)) or is_scheduler(thing)
