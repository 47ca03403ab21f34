"""The loop of a run: lane after lane, step after step, view after view.

    run_state      what is held: tracked objects, the position, the sums of the step under way
    current_lane   the lane under way, and the batch that is with the user's code
    view_changes   joining, meeting again, going on with other lanes
    collective     what all workers do together
    hooks          what the script does after a step

Between two batches everything may have changed: the view, the lanes, even the state. All of that is
dealt with here, so that neither the user's loop nor the arithmetic has to know.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping

import torch

from holdfast.system import logs
from holdfast.train import refusals, rehearsal
from holdfast.train.chance import seed_everything
from holdfast.train.data.source import BatchSource
from holdfast.train.hooks import StepHooks
from holdfast.train.members.conversation import known
from holdfast.train.modes import updating
from holdfast.train.modes.collective import Collective, Replaced
from holdfast.train.modes.current_lane import CurrentLane
from holdfast.train.modes.run_state import RunState, Where
from holdfast.train.modes.update_hooks import UpdateHooks
from holdfast.train.modes.view_changes import ViewChanges
from holdfast.train.sums import step_records
from holdfast.train.sums.checking import Check
from holdfast.train.sums.stepping import Gradients
from holdfast.wire.errors import PeerLost, Usage

log = logs.get(__name__)


class TrainingLoop:
    """The loops of one `Run`, one after the other."""

    mode = "sync"
    updates = 1  # on each batch of the loop under way

    def __init__(self, held: RunState) -> None:
        self.held = held
        self.hooks = StepHooks()
        self.update_hooks = UpdateHooks()
        self.lane = self._new_lane()
        self.views = ViewChanges(held, self.lane, self.update_hooks)
        self.collective = Collective(held, self.views, self.update_hooks)
        self.outlook: Callable[[], Mapping[str, float]] = dict  # for people: the way ahead
        self.clip: float | None = None
        self._epochs: int | None = None  # of the loop under way
        self._checked: tuple[int, Check] | None = None  # what this worker has computed to compare

    def _new_lane(self) -> CurrentLane:
        return CurrentLane(self.held, self.hooks)

    def join(self) -> None:
        self.views.join()

    def enter(self, loop: int, epochs: int | None) -> None:
        """The script has come to this loop."""
        held, views = self.held, self.views
        self._refuse_inside()
        views.check()
        refusals.check_trains(held.tracked, own_update=bool(self.update_hooks))
        views.join()
        given = held.resuming.again
        if held.position.loop < loop:
            self.settle()
            held.position.enter(loop)
        elif given is not None and held.position.loop == loop and held.position.begun:
            held.fill(given)  # what the script did on its way here was done before that
        self._epochs = epochs
        if held.position.loop == loop:
            held.position.begun = True
            held.resuming.inside()
            held.where = Where.BODY
            views.open()
            self.lane.open()
            self.hooks.open(held.tracked)
            views.go_on()

    def watch_hooks(self, read: frozenset[str], data: object) -> None:
        """The loop's body reads these names, and its samples come from this."""
        if self.mode == "sync" and self.held.member.is_shared:
            self.hooks.guard(read, data, self.held.tracked)

    def leave(self, loop: int) -> None:
        """The loop is over, or was long before. Code that follows is run by every worker, and again
        by each that begins anew; it begins with what the loop has left behind."""
        held = self.held
        self.views.close()
        if held.where is Where.BODY and held.member.is_shared:
            held.resuming.keep(held.tracked, held.applied)
        held.where = Where.OUTSIDE
        held.resuming.leave()
        seed_everything(held.seed_of("after", loop))

    def finish(self) -> None:
        """The script is through: stay until that is committed."""
        self._refuse_inside()
        self.views.join()
        self.settle()
        self.views.close()
        self.views.finish()

    def _refuse_inside(self) -> None:
        if self.held.where is not Where.OUTSIDE:
            raise Usage(
                "the loop was left before it was over, with break or return",
                why="the body runs once a lane, so workers would leave it at different steps",
                fix="call run.stop_early() before run.step(loss), or in a hook",
            )

    # --- a step --------------------------------------------------------------------------------

    def next_lane(self) -> int | None:
        """The next lane that this worker has to compute; None: the step waits only for the sum."""
        if self.held.member.mesh.broken is not None:
            self.views.renew()
        missing = self.held.at_step().missing()
        if missing:
            self.views.pace.lane()
        return missing[0] if missing else None

    def lane_to_check(self, source: BatchSource) -> int | None:
        """A lane of another worker that this one computes as well, before its own."""
        held, stepping = self.held, self.held.at_step()
        if stepping.checking is None or not source.repeats or held.member.mesh.broken is not None:
            return None
        check = stepping.checking.now(held.member.step, stepping.dealt)
        mine = check is not None and held.member.mesh.worker in check.checkers
        if check is None or not mine or self._checked == (held.member.step, check):
            return None
        self._checked = held.member.step, check
        return check.lane

    def backward(
        self, loss: torch.Tensor, only: list[str] | None, gradients: Gradients | None = None
    ) -> None:
        """The loss of the batch that is with the user's code. The last one completes the step."""
        if self.lane.backward(loss, only, gradients):
            self.complete(self.lane.at_source())
        self.lane.body.resume()

    def complete(self, source: BatchSource) -> None:
        """All lanes of this worker are there: wait for the sum, and update."""
        held, member = self.held, self.held.member
        stepping = held.at_step()
        source.mark(stepping.records)
        stepping.read()
        self.views.pace.end()
        try:
            reported = self.lane.rehearsal.reported(member.step)
            notes, lane_ms = known(held.position.results), self.views.pace.lane_ms
            step = stepping.complete(member.step, notes, reported, lane_ms)
        except PeerLost:
            self.views.renew()
            return
        if self._is_disputed(step):
            return
        if len(step.digests) > 1:
            member.diverge()
        if len(step.prints) > 1:
            rehearsal.agree(step.prints, held.trained_names())
        if not step.count:
            raise Usage("the data has no samples", fix="look at what its files hold")
        held.moved = True
        stepping.buffers.take(step.buffers)
        gradients = stepping.gradients(step.count / source.step_samples)
        metrics = held.position.metrics = stepping.means(step)
        held.where = Where.UPDATE
        own = bool(self.update_hooks) or updating.may_draw(held.tracked)
        if own:
            seed_everything(held.seed_of("update", member.step))
        norm = self._update(gradients, step)
        if own:
            held.absorb()
        held.where = Where.BODY
        if norm is not None:
            metrics["gradient_norm"] = norm
        stepping.clear()
        if source.repeats:
            stepping.lend(step.lane_ms)
        source.forward(held.position, step)
        member.count()
        self.settle()

    def _is_disputed(self, step: step_records.StepRecord) -> bool:
        """Whether workers came to different bits of a lane: then the step is not over. Who was
        wrong ends here; the others lose it, and compute its lanes themselves."""
        held, checking = self.held, self.held.at_step().checking
        if checking is None or not step.answers:
            return False
        member = held.member
        wrong = checking.judge(member.view.lanes, step.answers)
        if wrong is None:
            return False
        if wrong == member.mesh.worker:
            raise checking.fault(wrong, member.step, held.device)
        log.error("workers disagree", step=member.step + 1, answers=step.answers, wrong=wrong)
        return True

    def _update(
        self, gradients: list[torch.Tensor], step: step_records.StepRecord
    ) -> torch.Tensor | None:
        held = self.held
        norm = updating.update(
            held.tracked,
            held.at_step().parameters,
            gradients,
            step.untouched(),
            only=step.only,
            clip=self.clip,
            script=self.update_hooks.at(held.seed, held.member.step),
            look=self.lane.body.looks_closely,
        )
        if held.position.update + 1 == self.updates:
            held.step_schedulers("step")
        return norm

    # --- the boundary of a step ----------------------------------------------------------------

    def settle(self) -> None:
        """Run what belongs to the end of the last step, if that is still to be done. The state of a
        step is what its hooks have left behind."""
        held = self.held
        while not held.position.settled:
            self.collective.asked, where = 0, held.where
            held.where = Where.HOOK
            try:
                self._run_hooks()
            except Replaced:
                continue  # the position is that of the new state
            finally:
                held.where = where
            held.resuming.middle = None
            held.position.settle()
            # The metrics last: what is looked at first is all that is looked at, mostly.
            if held.metric_topic is not None and 0 in held.member.lanes:
                held.metric_topic.step(held.member.step, held.position.metrics)
            shown = held.settings.metrics(), self.views.pace.metrics(), dict(self.outlook())
            held.member.boundary(ChainMap(*shown, held.position.metrics))
            self.views.go_on()

    def _run_hooks(self) -> None:
        held, step, ended = self.held, self.held.member.step, self.held.position.ended
        ran = False
        for number, hook, run in self.hooks.due(step - 1, step, ended=ended):
            seed_everything(held.seed_of("hook", step, number))
            self.hooks.run(number, hook, run, held.tracked)
            held.absorb()
            held.forget_gradients()
            ran = True
        if ended:
            held.step_schedulers("epoch")
        if ran:
            self.views.refit()
        if held.position.over(self._epochs):
            self.collective.verify(f"after step {step}, the last of the loop,", held.state)
