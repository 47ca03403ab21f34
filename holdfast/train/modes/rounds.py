"""The rounds of a run: lane after lane, step after step, view after view.

Between two batches everything may have changed: the view, the lanes, even the state. All of that is
dealt with here, so that neither the user's loop nor the arithmetic has to know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from holdfast.train import refusals
from holdfast.train.chance import seed_everything, seed_of
from holdfast.train.compiling import make_compiler_deterministic
from holdfast.train.data.order import Ticket
from holdfast.train.data.sharded import Read
from holdfast.train.data.source import SampleLog, Source
from holdfast.train.leftovers import Body
from holdfast.train.members.conversation import END, Conversation, known
from holdfast.train.members.membership import Membership
from holdfast.train.members.replacing import Replaced, left_behind
from holdfast.train.modes import adjusting, updating
from holdfast.train.modes.update_hooks import UpdateHooks
from holdfast.train.pace import Pace
from holdfast.train.position import Position
from holdfast.train.settings import Settings
from holdfast.train.states.state import State
from holdfast.train.states.tracked import Tracked, is_scheduler
from holdfast.train.sums import codes, words
from holdfast.train.sums.compression import Code
from holdfast.train.sums.stepping import Stepping
from holdfast.wire.errors import BugError, PeerLost, Unavailable, Usage

Hook = Callable[[Any], None]
Parts = Sequence[Ticket | Read]  # of a lane: the batches that it computes in a step


class Rounds:
    """The machinery of one `Run`; also the holder of the state for its member."""

    member: Membership  # set by whoever makes the run, before anything else
    mode = "sync"
    local_steps = 1  # steps of the data in one round; see `local`
    updates = 1  # on each batch of the loop under way

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
        self.job, self.store = job, store
        self.tracked = Tracked()
        self.position = Position()
        self.hooks: list[tuple[int | None, Hook, Any]] = []
        self.update_hooks = UpdateHooks()
        self.outlook: Callable[[], Mapping[str, float]] = dict  # for people: the way ahead
        self.clip: float | None = None
        # What the job began with: all members have to do the same, also those that join later.
        self.compress = str(settings["compress"]) if "compress" in settings else "none"
        self._code: Code | None = None
        self._every: dict[str, str] = {}
        self._applied = dict(texts)  # the settings that the tracked objects know
        self._joined = self._finished = False
        self._moved = False  # whether the state is another than the one that the script made
        self._adopted = False  # whether the state was replaced in the meeting under way
        self._stepping: Stepping | None = None
        self._talk: Conversation | None = None
        self._lane: words.Lane | None = None  # the one whose batches are given out
        self._lane_number = 0
        self._left = 0  # parts of it that are to come
        self._count = 0  # samples of the batch that is with the user; 0: none is
        self._source: Source | None = None
        self._asked = 0  # results that the code running now has asked for
        self._body = Body(self.tracked)
        self._log = SampleLog(worker)
        self._pace = Pace()
        self.computed = 0  # lanes in loops that are through: a proof of what was computed again

    def seed_of(self, *parts: int | str) -> int:
        return seed_of(self.seed, *parts)

    # --- tracked objects -----------------------------------------------------------------------

    def track(self, objects: Mapping[str, object], every: str) -> None:
        if self._joined:
            raise Usage(
                "run.track after the first batch",
                why="what a run keeps is part of its state from the beginning",
                fix="track everything before the first loop",
            )
        for name, thing in objects.items():
            self.tracked.add(name, thing)
            if is_scheduler(thing):
                self._every[name] = every

    # --- the state (Holder) --------------------------------------------------------------------

    def fresh(self) -> None:
        """The script has made the state of step 0, from the job's seed."""
        if self._moved:
            raise Unavailable(
                "the job begins anew, but this worker has trained already",
                why="only the script itself can make the state of step 0",
                fix="nothing: the worker is started again",
            )

    def state(self) -> State:
        if self._stepping is not None:
            self._stepping.buffers.before_lane()
        entries, skeletons = self.tracked.entries()
        notes = {
            "objects": skeletons,
            "position": self.position.notes(),
            "applied": self._applied,
            "lanes": self.lanes,
        }
        return State.of(self.member.step, entries, notes)

    def adopt(self, state: State) -> None:
        notes = state.notes
        if notes.get("lanes") != self.lanes:
            raise Usage(
                f"the job's state is of {notes.get('lanes')} lanes, this run has {self.lanes}",
                why="the number of lanes shapes the result, so it never changes",
                fix="run it with the same number of lanes, or start a new job",
            )
        self.tracked.adopt(state, notes["objects"])
        self.position = Position.of(notes["position"])
        self._applied = dict(notes["applied"])
        self._adopted = self._moved = True
        self._asked = self.position.asked
        self.member.unsettled = not self.position.settled
        if self._stepping is not None:
            self._stepping.clear()
            self._stepping.buffers.settle()

    # --- views ---------------------------------------------------------------------------------

    def join(self) -> None:
        if not self._joined:
            self._check()
            self._joined = True
            self._code = codes.of(self.compress, self.tracked)
            self.member.join()
            self._after_meeting()

    def _check(self) -> None:
        refusals.check(self.tracked, replaces_update=self.update_hooks.replaces_update)
        make_compiler_deterministic()

    def met(self) -> None:
        """The member calls this at the end of every meeting: there is a new mesh."""
        self._talk = Conversation(self.member.mesh)
        self._pace.anew()
        if self._finished:
            # Whoever still asks for something finds the answer in what we say now.
            self._talk.tell((self.member.step, END), self._known())

    def enter(self, loop: int) -> None:
        """The script has come to this loop."""
        self._check()
        self.join()
        self._close_stepping()
        if self.position.loop < loop:
            self.settle()
            self.position.enter(loop)
        self._stepping = self._new_stepping()
        self._body.open()
        self._stepping.on_stray = self._body.stray_gradient
        self._after_meeting()

    def _new_stepping(self) -> Stepping:
        return Stepping(self.tracked, self.lanes, self.member, self._code)

    def finish(self) -> None:
        """The script is through: stay until that is committed."""
        self.join()
        self.settle()
        self._close_stepping()
        self._finished = True
        self.member.finish()

    def _close_stepping(self) -> None:
        self._body.close()
        if self._stepping is not None:
            self.computed += self._stepping.sums.computed
            self._stepping.close()
            self._stepping = None

    def _renew(self) -> None:
        """The mesh is broken, or a newer view waits."""
        self.member.mesh.close()
        if self._stepping is not None:
            self._stepping.disconnect()
        self._adopted = False
        stale = self.member.renew()
        if stale and self._stepping is not None:
            self._stepping.clear()
        self._after_meeting()

    def _after_meeting(self) -> None:
        """Go on with the mesh, the lanes and the settings that there are now."""
        self._body.forget()
        if self._talk is None:
            self._talk = Conversation(self.member.mesh)
        if self._stepping is not None:
            self._stepping.connect(self._talk)
            self._stepping.keep(self.member.lanes)
        adjusting.apply(self.tracked, self.settings, self._applied, self.member.settings)
        self._applied = dict(self.member.settings)

    # --- lanes ---------------------------------------------------------------------------------

    def leave(self) -> None:
        """The loop is over."""
        self._close_stepping()

    def between_batches(self) -> None:
        if self._count:
            self._count = 0
            raise Usage(
                "a batch was taken, but run.step was not called for it",
                why="a step needs every lane: without it all workers would wait for ever",
                fix="call run.step(loss) once in the loop's body",
            )

    def next_lane(self) -> int | None:
        """The next lane that this worker has to compute; None: the step waits only for the sum."""
        if self.member.mesh.broken is not None:
            self._renew()
        missing = self._at_step().missing()
        if missing:
            self._pace.lane()
        return missing[0] if missing else None

    def begin_lane(self, lane: int, parts: Parts, *, source: Source, more: bool) -> None:
        self._lane, self._lane_number, self._left = words.Lane(more=more), lane, len(parts)
        self._source = source
        self._at_step().records[lane] = self._lane
        self._at_step().buffers.before_lane()

    def empty_lane(self, lane: int, *, more: bool) -> None:
        self._at_step().empty(lane, more=more)

    def before_batch(self, ticket: Ticket | Read) -> None:
        """The user's code is about to see this batch."""
        step = self.member.step
        self._log.note(step + 1, ticket)
        self._count = ticket.count
        seed_everything(self.seed_of("lane", step, ticket.lane, ticket.part))
        self._body.give(ticket.part)

    def backward(self, loss: torch.Tensor, only: list[str] | None) -> None:
        """The user's code has the loss of the batch."""
        count, self._count, record = self._count, 0, self._lane
        if not count or record is None:
            raise Usage(
                "run.step was called without a batch, or twice for one",
                fix="call it once in the body of `for batch in run.batches(...)`",
            )
        self._body.take(last=self._is_last_batch())
        stepping = self._at_step()
        stepping.scalar(record, "loss", loss, count)
        record.take_part(count, only)
        self._left -= 1
        self._descend(loss, count, only)
        if not self._left and not stepping.missing():
            self.complete(self._at_source())

    def _is_last_batch(self) -> bool:
        """Whether the batch that is with the user is the last of this worker's in the step."""
        return self._left == 1 and self._at_step().missing() == [self._lane_number]

    def _descend(self, loss: torch.Tensor, count: int, only: list[str] | None) -> None:
        weight = count / self._at_source().step_samples
        loss = updating.scaled(self.tracked, loss if weight == 1 else loss * weight)
        lane, final, step = self._lane_number, not self._left, self.member.step
        self._at_step().backward(lane, loss, final=final, step=step, notes=self._known())
        self._body.after_backward()

    def complete(self, source: Source) -> None:
        """All lanes of this worker are there: wait for the sum, and update."""
        stepping = self._at_step()
        stepping.read()
        self._pace.end()
        try:
            step = stepping.complete(self.member.step, self._known())
        except PeerLost:
            self._renew()
            return
        if not step.count:
            raise Usage("the data has no samples", fix="look at what its files hold")
        self._moved = True
        stepping.buffers.take(step.buffers)
        gradients = stepping.gradients(step.count / source.step_samples)
        metrics = step.means()
        norm = self._update(gradients, step)
        if norm is not None:
            metrics["gradient_norm"] = norm
        stepping.clear()
        self.position.metrics = metrics
        self.position.forward(more=step.more, stop=step.stop, updates=self.updates)
        self.member.count()
        self.settle()

    def _update(self, gradients: list[torch.Tensor], step: words.Step) -> float | None:
        parameters, untouched = self._at_step().parameters, step.untouched()
        norm = updating.update(
            self.tracked,
            parameters,
            gradients,
            untouched,
            only=step.only,
            clip=self.clip,
            script=self.update_hooks.at(self.seed, self.member.step),
            look=self._body.looks_closely,
        )
        if self.position.update + 1 == self.updates:
            self._step_schedulers("step")
        return norm

    def log(self, name: str, value: float | torch.Tensor) -> None:
        if self._count and self._lane is not None:
            self._at_step().scalar(self._lane, name, value, self._count)
        else:
            self.position.metrics[name] = float(value)

    def stop(self) -> None:
        if self._count and self._lane is not None:
            self._lane.stop = True
        else:
            self.position.stop = True

    def _at_step(self) -> Stepping:
        if self._stepping is None:
            raise BugError("there is no loop under way")
        return self._stepping

    def _at_source(self) -> Source:
        assert self._source is not None, "a batch came from somewhere"
        return self._source

    # --- the boundary of a step ----------------------------------------------------------------

    def settle(self) -> None:
        """Run what belongs to the end of the last step, if that is still to be done. The state of a
        step is what its hooks have left behind."""
        while not self.position.settled:
            self._asked = 0
            try:
                self._run_hooks()
            except Replaced:
                continue  # the position is that of the new state
            self.position.settle()
            shown = {**self.position.metrics, **self.outlook(), **self._pace.metrics()}
            self.member.boundary(shown)
            self._asked = self.position.asked
            self._after_meeting()

    def _run_hooks(self) -> None:
        step, ended = self.member.step, self.position.ended
        for every, hook, run in self.hooks:
            if (every is None and ended) or (every is not None and step % every == 0):
                hook(run)
        if ended:
            self._step_schedulers("epoch")

    def _step_schedulers(self, when: str) -> None:
        for name, every in self._every.items():
            if every == when:
                self.tracked.objects[name].step()  # type: ignore[attr-defined]

    def _known(self) -> bytes:
        """What has been agreed since the last step, for members that are behind."""
        return known(self.position.results)

    def together(
        self, work: Callable[[int], Any], lanes: Sequence[int] | None = None
    ) -> dict[int, Any]:
        """Let each of these lanes do its work at its worker; everyone gets what all have returned.

        What is returned must be JSON. When a worker dies, others do its lanes again.
        """
        if self._count:
            raise Usage(
                "something for all workers was asked for in the loop's body",
                why="the body runs once a lane, so workers would ask for it at different times",
                fix="do it in a hook: run.every_epoch(hook) or run.every(steps, hook)",
            )
        self.update_hooks.refuse_question()
        self.join()
        number, self._asked = self._asked, self._asked + 1
        done: dict[int, Any] = {}
        wanted = range(self.lanes) if lanes is None else lanes
        while number >= len(self.position.results):
            held = [lane for lane in self.member.lanes if lane in wanted]
            for lane in held:
                if lane not in done:
                    done[lane] = work(lane)
            try:
                found = self._ask(number, {lane: done[lane] for lane in held}, wanted)
            except PeerLost:
                self._renew()
                if self._adopted:
                    raise self._superseded() from None
                continue
            self.position.results.append(found)
        return {int(lane): value for lane, value in self.position.results[number].items()}

    def _ask(self, number: int, mine: Mapping[int, Any], wanted: Sequence[int]) -> dict[str, Any]:
        assert self._talk is not None
        place = (self.member.step, number)
        return self._talk.ask(place, self.position.results, mine, wanted)

    def _superseded(self) -> BaseException:
        if not self.position.settled or self._stepping is not None:
            return Replaced()
        return left_behind()
