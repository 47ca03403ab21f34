"""What a run holds: tracked objects, where it is in its data, the sums of the step under way.

Its member asks it for the state when a peer or a checkpoint needs it, and gives it another one when
this worker was behind (`members.membership.Holder`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

import torch

from holdfast.train.chance import seed_of
from holdfast.train.members.membership import RunMember
from holdfast.train.metric_topic import MetricTopic
from holdfast.train.position import Position
from holdfast.train.settings import Settings
from holdfast.train.states.state import StateEntry, TrainingState
from holdfast.train.states.tracked import Tracked, is_scheduler
from holdfast.train.sums.compression import Code
from holdfast.train.sums.stepping import Stepping
from holdfast.wire.errors import BugError, Unavailable, Usage


class Where(Enum):
    """Which code of the script runs."""

    OUTSIDE = "outside of loops"
    BODY = "the loop's body"
    UPDATE = "an update, or a hook before it"
    HOOK = "a hook"


class RunState:
    """The state of one `Run`."""

    member: RunMember  # set by whoever makes the run, before anything else
    local_steps = 1  # steps of the data in one of the run's; see `local`

    def __init__(
        self,
        *,
        lanes: int,
        seed: int,
        settings: Settings,
        texts: Mapping[str, str],
        device: torch.device,
        worker: int = 0,
        job: str = "solo",
        store: str | None = None,
    ) -> None:
        self.lanes, self.seed, self.device, self.settings = lanes, seed, device, settings
        self.worker, self.job, self.store = worker, job, store
        self.tracked = Tracked()
        self.position = Position()
        self.resuming = Resuming()
        self.applied = dict(texts)  # the settings that the tracked objects know
        self.where = Where.OUTSIDE  # which code of the script runs now
        self.stepping: Stepping | None = None  # in a loop: the lanes of the step under way
        self.sealed = False  # whether nothing more can be tracked
        self.moved = False  # whether the state is another than the one that the script made
        self.adopted = False  # whether the state was replaced in the meeting under way
        self.unfit = False  # whether what is trained may have changed
        self.metric_topic: MetricTopic | None = None
        self.computed = 0  # lanes in loops that are through: a proof of what was computed again
        self._every: dict[str, str] = {}  # when each scheduler steps

    def seed_of(self, *parts: int | str) -> int:
        return seed_of(self.seed, *parts)

    # --- tracked objects -----------------------------------------------------------------------

    def track(self, objects: Mapping[str, object], every: str) -> None:
        if self.sealed or self.where is not Where.OUTSIDE:
            raise Usage(
                "run.track in a loop, in a hook, or behind the first loop of a run that compresses",
                why="what a run keeps is part of its state from the loop's beginning",
                fix="track everything before the loop that uses it",
            )
        for name, thing in objects.items():
            self.tracked.add(name, thing)
            if is_scheduler(thing):
                self._every[name] = every

    def step_schedulers(self, when: str) -> None:
        for name, every in self._every.items():
            if every == when:
                self.tracked.objects[name].step()  # type: ignore[attr-defined]

    # --- the state (Holder) --------------------------------------------------------------------

    def fresh(self) -> None:
        """The script has made the state of step 0, from the job's seed."""
        if self.moved:
            raise Unavailable(
                "the job begins anew, but this worker has trained already",
                why="only the script itself can make the state of step 0",
                fix="nothing: the worker is started again",
            )

    def state(self) -> TrainingState:
        if self.stepping is not None:
            self.stepping.buffers.before_lane()
        entries, skeletons, applied = self.resuming.offered or (
            *self.tracked.entries(),
            self.applied,
        )
        notes = {
            "objects": skeletons,
            "position": self.position.notes(),
            "applied": applied,
            "lanes": self.lanes,
        }
        return TrainingState.of(self.member.step, entries, notes)

    def adopt(self, state: TrainingState) -> None:
        notes = state.notes
        if notes.get("lanes") != self.lanes:
            raise Usage(
                f"the job's state is of {notes.get('lanes')} lanes, this run has {self.lanes}",
                why="the number of lanes shapes the result, so it never changes",
                fix="run it with the same number of lanes, or start a new job",
            )
        self.position = Position.of(notes["position"])
        self.adopted = self.moved = True
        self.resuming.adopted(state, self.position, inside=self.where is not Where.OUTSIDE)
        self.member.unsettled = not self.position.settled
        if self.where is not Where.OUTSIDE or not self.position.begun:
            self.fill(state)
        if self.stepping is not None:
            self.stepping.clear()
            self.unfit = True

    def fill(self, state: TrainingState) -> None:
        """Let the tracked objects be those of this state."""
        self.tracked.adopt(state, state.notes["objects"])
        self.applied = dict(state.notes["applied"])
        if self.stepping is not None:
            self.stepping.buffers.settle()

    # --- the step under way --------------------------------------------------------------------

    def new_stepping(self, code: Code | None) -> Stepping:
        """Sums of what is trained now."""
        return Stepping(self.tracked, self.lanes, self.member, code)

    def at_step(self) -> Stepping:
        if self.stepping is None:
            raise BugError("there is no loop under way")
        return self.stepping

    def trained_names(self) -> list[str]:
        """Those of the parameters that are trained."""
        names = self.tracked.parameter_names()
        return [names[id(parameter)] for parameter in self.at_step().parameters]

    def absorb(self) -> None:
        """What the script has made of buffers, on every worker, stays."""
        if self.stepping is not None:
            self.stepping.buffers.absorb()

    def forget_gradients(self) -> None:
        """A step begins without gradients, whatever a hook has computed."""
        for parameter in self.stepping.parameters if self.stepping is not None else ():
            parameter.grad = None


# --- resuming -------------------------------------------------------------------------------------
# A script that begins anew in the middle of a job finds everything as it was.
#
# A worker that joins, and every worker of a job that is started again, runs the script from its
# first line: loops that are through are passed over, and the code before, between and behind them
# is run again. It comes to the same as it did before, by three rules:
#
# - What it asks of all workers there (`once`, `evaluate`, `publish`) is answered with what was
#   agreed on then.
# - Outside of loops a worker offers others the state as the loop before has left it (or, before the
#   first loop, as it was made), not as the code that runs now has changed it: whoever takes it runs
#   that code too.
# - Whoever was given the state of a loop takes it over when the script has come to that loop. In a
#   hook it does so once more at the first question which nobody has answered yet: whoever gave it
#   stood there.


# Arrays and the rest of the tracked objects, and the settings that these know.
Offered = tuple[list[StateEntry], dict[str, Any], dict[str, str]]
# What a script comes to that looks for something in an empty list, a None or an unbound name.
_OF_MISSING_VALUES: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    TypeError,
    ValueError,
)


class Resuming:
    """What one worker remembers of where its script is and what it was given."""

    def __init__(self) -> None:
        self.late = False  # whether others made steps that this worker's script did not see
        self.region = 0  # loops that the script has left behind
        self._asked = 0  # in this region
        self.offered: Offered | None = None  # while the script is outside of its loop
        self.again: TrainingState | None = None  # to be taken over at the loop that it is of
        self.middle: TrainingState | None = None  # the same in the middle of hooks

    def adopted(self, state: TrainingState, position: Position, *, inside: bool) -> None:
        """This state has replaced what there was. `inside`: the script is in a loop."""
        self.middle = None if position.settled else state
        if not inside:
            self.again = state
            self.late = self.late or position.begun
            # What begins with a slash belongs to the mode, not to what the script tracks.
            mine = [each for each in state.entries if not each.name.startswith("/")]
            self.offered = mine, dict(state.notes["objects"]), dict(state.notes["applied"])

    def keep(self, tracked: Tracked, applied: Mapping[str, str]) -> None:
        """Offer what there is now, whatever the code that follows makes of it."""
        entries, skeletons = tracked.entries()
        copies = [StateEntry(it.name, it.dtype, it.shape, _copied(it.data)) for it in entries]
        self.offered = copies, skeletons, dict(applied)

    def explained(self, error: BaseException) -> BaseException:
        """The same error. At one of the script's own is noted why it may have come here."""
        if self.late and isinstance(error, _OF_MISSING_VALUES):
            error.add_note(
                "why: perhaps because this worker's script began in the middle of the job: what it "
                "would have kept in variables of its own, in a loop or a hook, is not here\n"
                "fix: keep such values in a tracked object (run.track)"
            )
        return error

    def inside(self) -> None:
        """The script is in the loop that the state is of."""
        self.offered = self.again = None

    def leave(self) -> None:
        """The script has left a loop behind."""
        self.region += 1
        self._asked = 0

    def ask(self, position: Position) -> tuple[int, Any]:
        """The number of the next question outside of loops, and what the answer was if the job has
        passed it; else None."""
        number, self._asked = self._asked, self._asked + 1
        if len(position.before) <= self.region:
            return number, None
        known = position.before[self.region]
        if number >= len(known):
            raise Usage(
                f"before loop {self.region} the script asks for more than it did at first",
                why=f"{len(known)} results of once, evaluate and publish are known from then",
                fix="run the same script, or start a new job",
            )
        return number, known[number]


def _copied(data: memoryview) -> memoryview:
    return memoryview(bytearray(data))
