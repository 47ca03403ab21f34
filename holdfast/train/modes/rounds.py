"""The rounds of a run: lane after lane, step after step, view after view.

Between two batches everything may have changed: the view, the lanes, even the state. All of that is
dealt with here, so that neither the user's loop nor the arithmetic has to know.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any

import torch

from holdfast.train import refusals, rehearsal
from holdfast.train.capture.at_hand import AtHand
from holdfast.train.chance import random_numbers_kept, seed_everything, seed_of
from holdfast.train.compiling import make_compiler_deterministic
from holdfast.train.data.order import Ticket
from holdfast.train.data.source import SampleLog, Source
from holdfast.train.data.streams import Read
from holdfast.train.hook_reads import HookReads
from holdfast.train.hook_writes import HookWrites, stored_by
from holdfast.train.leftovers import Body
from holdfast.train.members.conversation import END, Conversation, known
from holdfast.train.members.membership import Membership
from holdfast.train.members.replacing import Replaced, left_behind
from holdfast.train.modes import adjusting, updating
from holdfast.train.modes.update_hooks import UpdateHooks
from holdfast.train.pace import Pace
from holdfast.train.position import Position
from holdfast.train.rehearsal import Rehearsal
from holdfast.train.settings import Settings
from holdfast.train.states import verifying
from holdfast.train.states.resuming import Resuming
from holdfast.train.states.state import State
from holdfast.train.states.tracked import Tracked, is_scheduler
from holdfast.train.sums import codes, words
from holdfast.train.sums.buffers import Buffers
from holdfast.train.sums.compression import Code
from holdfast.train.sums.stepping import Gradients, Stepping
from holdfast.wire.errors import BugError, PeerLost, Unavailable, Usage


class Where(Enum):
    """Which code of the script runs."""

    OUTSIDE = "outside of loops"
    BODY = "the loop's body"
    UPDATE = "an update, or a hook before it"
    HOOK = "a hook"


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
        self._lane_number = self._given_lane = 0  # the second: of the batch that is with the user
        self._left = 0  # parts of it that are to come
        self._count = 0  # samples of the batch that is with the user; 0: none is
        self._source: Source | None = None
        self._asked = 0  # results that the hooks of this step have asked for
        self._where = Where.OUTSIDE  # which code of the script runs now
        self.resuming = Resuming()
        self._epochs: int | None = None  # of the loop under way
        self._unfit = False  # whether what is trained may have changed
        self._body = Body(self.tracked)
        self._rehearsal = Rehearsal()
        self._hook_reads = HookReads()
        self._log = SampleLog(worker)
        self._pace = Pace()
        self.computed = 0  # lanes in loops that are through: a proof of what was computed again

    @property
    def given(self) -> int:
        """Samples of the batch that is with the user's code; 0: none is."""
        return self._count

    def seed_of(self, *parts: int | str) -> int:
        return seed_of(self.seed, *parts)

    # --- tracked objects -----------------------------------------------------------------------

    def track(self, objects: Mapping[str, object], every: str) -> None:
        if not self._may_track():
            raise Usage(
                "run.track in a loop, in a hook, or behind the first loop of a run that compresses",
                why="what a run keeps is part of its state from the loop's beginning",
                fix="track everything before the loop that uses it",
            )
        for name, thing in objects.items():
            self.tracked.add(name, thing)
            if is_scheduler(thing):
                self._every[name] = every

    def _may_track(self) -> bool:
        return not self._joined or (self._where is Where.OUTSIDE and self._code is None)

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
        entries, skeletons, applied = self.resuming.offered or (
            *self.tracked.entries(),
            self._applied,
        )
        notes = {
            "objects": skeletons,
            "position": self.position.notes(),
            "applied": applied,
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
        self.position = Position.of(notes["position"])
        self._adopted = self._moved = True
        self.resuming.adopted(state, self.position, inside=self._where is not Where.OUTSIDE)
        self.member.unsettled = not self.position.settled
        if self._where is not Where.OUTSIDE or not self.position.begun:
            self._fill(state)
        if self._stepping is not None:
            self._stepping.clear()
            self._unfit = True

    def _fill(self, state: State) -> None:
        """Let the tracked objects be those of this state."""
        self.tracked.adopt(state, state.notes["objects"])
        self._applied = dict(state.notes["applied"])
        if self._stepping is not None:
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

    def enter(self, loop: int, epochs: int | None) -> None:
        """The script has come to this loop."""
        self._not_in_a_loop()
        self._check()
        refusals.check_trains(self.tracked, own_update=bool(self.update_hooks))
        self.join()
        given = self.resuming.again
        if self.position.loop < loop:
            self.settle()
            self.position.enter(loop)
        elif given is not None and self.position.loop == loop and self.position.begun:
            self._fill(given)  # what the script did on its way here was done before that
        self._epochs = epochs
        if self.position.loop == loop:
            self.position.begun = True
            self.resuming.inside()
            self._where = Where.BODY
            self._stepping = self._new_stepping()
            self._body.open()
            self._rehearsal = Rehearsal()
            self._hook_reads = HookReads([hook for _, hook, _ in self.hooks])
            for _, hook, _ in self.hooks:
                self.tracked.carry(stored_by(hook))
            self._after_meeting()

    def watch_hooks(self, read: frozenset[str], data: object) -> None:
        """The loop's body reads these names, and its samples come from this."""
        if self.mode == "sync" and self.member.is_shared and self.hooks:
            self._hook_reads.writes = HookWrites(read, data, self.tracked)

    def _new_stepping(self) -> Stepping:
        found = Stepping(self.tracked, self.lanes, self.member, self._code)
        found.on_stray = self._body.stray_gradient
        return found

    def finish(self) -> None:
        """The script is through: stay until that is committed."""
        self._not_in_a_loop()
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
        self._rehearsal.interrupt(self.member.step, stale=stale)
        self._after_meeting()

    def _after_meeting(self) -> None:
        """Go on with the mesh, the lanes and the settings that there are now."""
        self._body.forget()
        if self._talk is None:
            self._talk = Conversation(self.member.mesh)
        if self._unfit:
            self._refit()
        if self._stepping is not None:
            self._stepping.connect(self._talk)
            self._stepping.keep(self.member.lanes)
        adjusting.apply(self.tracked, self.settings, self._applied, self.member.settings)
        self._applied = dict(self.member.settings)

    # --- lanes ---------------------------------------------------------------------------------

    def leave(self, loop: int) -> None:
        """The loop is over, or was long before. Code that follows is run by every worker, and again
        by each that begins anew; it begins with what the loop has left behind."""
        self._close_stepping()
        if self._where is Where.BODY and self.member.is_shared:
            self.resuming.keep(self.tracked, self._applied)
        self._where = Where.OUTSIDE
        self.resuming.leave()
        seed_everything(self.seed_of("after", loop))

    def _not_in_a_loop(self) -> None:
        if self._where is not Where.OUTSIDE:
            raise Usage(
                "the loop was left before it was over, with break or return",
                why="the body runs once a lane, so workers would leave it at different steps",
                fix="call run.stop_early() before run.step(loss), or in a hook",
            )

    def between_batches(self) -> None:
        self._body.end()
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

    def rehearses(self, ticket: Ticket | Read) -> bool:
        """Whether this batch is to be given twice; see `rehearsal`."""
        due = self.mode == "sync" and not self.member.is_alone and not ticket.part
        place = self.member.step, self.position.update
        if due and not self._rehearsal.awaits and self._rehearsal.is_due(*place):
            self._rehearsal.begin(*place)
        return self._rehearsal.under_way

    def rehearses_first_lane(self) -> None:
        """The batch is one of lane 0, which this worker does not compute now."""
        self._rehearsal.for_another()

    def after_fetch(self, ticket: Ticket | Read, source: Source) -> None:
        """The batch is here. If it is given twice, look whether its data is a function of it."""
        first = self._rehearsal.under_way
        if first or self._rehearsal.awaits:
            for stand in source.drawn(ticket, first=first):
                self._rehearsal.fetched(stand)

    def skip_rehearsal(self) -> None:
        """The batch cannot be given twice."""
        self._rehearsal.under_way = False

    def before_batch(self, ticket: Ticket | Read) -> None:
        """The user's code is about to see this batch."""
        step = self.member.step
        if self._rehearsal.under_way:
            self._hook_reads.before()
        else:
            self._log.note(step + 1, ticket)
        self._count, self._given_lane = ticket.count, ticket.lane
        seed_everything(self.seed_of("lane", step, ticket.lane, ticket.part))
        self._body.give(ticket.part)

    def backward(
        self, loss: torch.Tensor, only: list[str] | None, gradients: Gradients | None = None
    ) -> None:
        """The user's code has the loss of the batch; its gradients, too, where it was captured."""
        count, self._count, record = self._count, 0, self._lane
        if not count or record is None:
            raise refusals.without_batch()
        self._body.take(last=self._is_last_batch())
        if gradients is None and not loss.requires_grad:
            raise refusals.without_gradient()
        if self._rehearsal.under_way:
            self._scaled(loss, count).backward()  # type: ignore[no-untyped-call]
            self._body.after_backward()
            self._hook_reads.after()
            self._rehearsal.take(self._at_step().parameters, lane=self._given_lane)
            self._at_step().buffers.before_lane()
            self._body.resume()
            return
        stepping = self._at_step()
        stepping.scalar(record, "loss", loss, count, own=gradients is not None)
        record.take_part(count, only)
        self._left -= 1
        self._descend(loss, count, only, gradients)
        if not self._left and not stepping.missing():
            self.complete(self._at_source())
        self._body.resume()

    def at_hand(self) -> AtHand:
        """The batch that is with the user's code, for a function that computes it."""
        scaled, rehearsed = partial(self._scaled, count=self._count), self._rehearsal.under_way
        where = self._at_step(), self._at_source(), self._body
        return AtHand(*where, count=self._count, rehearsed=rehearsed, scaled=scaled)

    def _is_last_batch(self) -> bool:
        """Whether the batch that is with the user is the last of this worker's in the step."""
        return self._left == 1 and self._at_step().missing() == [self._lane_number]

    def _scaled(self, loss: torch.Tensor, count: int) -> torch.Tensor:
        """The loss with the part that this batch has in the step's mean."""
        weight = count / self._at_source().step_samples
        return updating.scaled(self.tracked, loss if weight == 1 else loss * weight)

    def _descend(
        self, loss: torch.Tensor, count: int, only: list[str] | None, gradients: Gradients | None
    ) -> None:
        given, stepping = gradients or self._scaled(loss, count), self._at_step()
        lane, final, step = self._lane_number, not self._left, self.member.step
        awaits = self._rehearsal.awaits
        stepping.prints = {} if awaits else None
        stepping.backward(lane, given, final=final, step=step, notes=self._known())
        self._body.after_backward()
        if awaits:
            self._rehearsal.compare(stepping.printed(), self._trained_names())
            stepping.prints = None

    def _trained_names(self) -> list[str]:
        """Those of the parameters that are trained."""
        names = self.tracked.parameter_names()
        return [names[id(parameter)] for parameter in self._at_step().parameters]

    def complete(self, source: Source) -> None:
        """All lanes of this worker are there: wait for the sum, and update."""
        stepping = self._at_step()
        source.mark(stepping.records)
        stepping.read()
        self._pace.end()
        try:
            said = self._rehearsal.said(self.member.step)
            step = stepping.complete(self.member.step, self._known(), said)
        except PeerLost:
            self._renew()
            return
        if len(step.digests) > 1:
            self.member.diverge()
        if len(step.prints) > 1:
            rehearsal.agree(step.prints, self._trained_names())
        if not step.count:
            raise Usage("the data has no samples", fix="look at what its files hold")
        self._moved = True
        stepping.buffers.take(step.buffers)
        gradients = stepping.gradients(step.count / source.step_samples)
        metrics = self.position.metrics = stepping.means(step)
        self._where = Where.UPDATE
        own = bool(self.update_hooks) or updating.may_draw(self.tracked)
        if own:
            seed_everything(self.seed_of("update", self.member.step))
        norm = self._update(gradients, step)
        if own:
            self._absorb()
        self._where = Where.BODY
        if norm is not None:
            metrics["gradient_norm"] = norm
        stepping.clear()
        source.forward(self.position, step)
        self.member.count()
        self.settle()

    def _update(self, gradients: list[torch.Tensor], step: words.Step) -> torch.Tensor | None:
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
        if self._rehearsal.under_way:
            return
        if self._count and self._lane is not None:
            self._at_step().scalar(self._lane, name, value, self._count)
        else:
            self._not_behind_a_step("run.log")
            self.position.metrics[name] = float(value)

    def stop(self) -> None:
        if self._rehearsal.under_way:
            return
        if self._count and self._lane is not None:
            self._lane.stop = True
        else:
            self._not_behind_a_step("run.stop_early")
            self.position.stop = True

    def _not_behind_a_step(self, what: str) -> None:
        if self._where is Where.BODY:
            raise Usage(
                f"{what} was called in the loop's body behind run.step",
                why="the step may be complete by then: it depends on how many workers there are",
                fix=f"call {what} before run.step(loss), or in a hook: run.every(1, hook)",
            )

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
            self._asked, where = 0, self._where
            self._where = Where.HOOK
            try:
                self._run_hooks()
            except Replaced:
                continue  # the position is that of the new state
            finally:
                self._where = where
            self.resuming.middle = None
            self.position.settle()
            # The metrics last: what is looked at first is all that is looked at, mostly.
            shown = self.settings.metrics(), self._pace.metrics(), dict(self.outlook())
            self.member.boundary(ChainMap(*shown, self.position.metrics))
            self._after_meeting()

    def _run_hooks(self) -> None:
        step, ended = self.member.step, self.position.ended
        ran = False
        for number, (every, hook, run) in enumerate(self.hooks):
            if (every is None and ended) or (every is not None and step % every == 0):
                seed_everything(self.seed_of("hook", step, number))
                self._hook_reads.run(number, hook, run, self.tracked)
                self._absorb()
                self._forget_gradients()
                ran = True
        if ended:
            self._step_schedulers("epoch")
        if ran:
            self._refit()
        if self.position.over(self._epochs):
            self.verify(f"after step {step}, the last of the loop,", self.state)

    def verify(self, when: str, state: Callable[[], State]) -> None:
        """All workers hold the same. `Diverged`: they do not."""
        if not self.member.is_alone:
            verifying.verify(self, when, state)

    def _forget_gradients(self) -> None:
        """A step begins without gradients, whatever a hook has computed."""
        for parameter in self._stepping.parameters if self._stepping is not None else ():
            parameter.grad = None

    def _absorb(self) -> None:
        """What the script has made of buffers, on every worker, stays."""
        if self._stepping is not None:
            self._stepping.buffers.absorb()

    def _refit(self) -> None:
        """A hook may have thawed parameters, or changed a module; so may the state of another."""
        self._unfit = False
        if self._stepping is None or self._stepping.fits(self.tracked):
            return
        if self._code is not None:
            raise Usage(
                f"what is trained has changed, and gradients are compressed ({self.compress})",
                why="what the compression has left out belongs to the parameters of before",
                fix="leave compress out, or train the same parameters all the time",
            )
        self._close_stepping()
        self._stepping = self._new_stepping()
        self._body.open()
        assert self._talk is not None
        self._stepping.connect(self._talk)

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
        self.update_hooks.refuse_question()
        if self._where is Where.BODY:
            raise Usage(
                "something for all workers was asked for in the loop's body",
                why="the body runs once a lane, so workers would ask for it at different times",
                fix="do it in a hook: run.every_epoch(hook) or run.every(steps, hook)",
            )
        self.join()
        if self._where is Where.HOOK:
            number, self._asked = self._asked, self._asked + 1
            label: tuple[int | str, ...] = ("asked in a hook", self.member.step, number)
        else:
            if self.resuming.offered is None and self.member.is_shared:
                self.resuming.keep(self.tracked, self._applied)
            number, found = self.resuming.ask(self.position)
            label = ("asked", self.resuming.region, number)
            if found is not None:
                return _by_lane(found)
            number += self.position.asked
        wanted = range(self.lanes) if lanes is None else lanes
        while number >= len(self.position.results):
            if (state := self.resuming.middle) is not None:
                self.resuming.middle = None
                self._fill(state)  # whoever gave it stands here too
            try:
                with random_numbers_kept():  # workers have done work for different lanes
                    found = self._answered(number, label, work, wanted)
            except PeerLost:
                self._renew()
                if self._adopted:
                    raise self._superseded() from None
                continue
            self.position.results.append(found)
        return _by_lane(self.position.results[number])

    def _answered(
        self,
        number: int,
        label: tuple[int | str, ...],
        work: Callable[[int], Any],
        wanted: Sequence[int],
    ) -> dict[str, Any]:
        done: dict[int, Any] = {}
        stepping = self._stepping
        buffers = Buffers(self.tracked.models) if stepping is None else stepping.buffers
        buffers.absorb()
        for lane in self.member.lanes:
            if lane in wanted:
                seed_everything(self.seed_of(*label, "lane", lane))
                done[lane] = work(lane)
                buffers.before_lane()  # what one lane does to them others have not done
        return self._ask(number, done, wanted)

    def _ask(self, number: int, mine: Mapping[int, Any], wanted: Sequence[int]) -> dict[str, Any]:
        assert self._talk is not None
        place = (self.member.step, number)
        return self._talk.ask(place, self.position.results, mine, wanted)

    def _superseded(self) -> BaseException:
        if not self.position.settled or self._stepping is not None:
            return Replaced()
        return left_behind()


def _by_lane(found: Mapping[str, Any]) -> dict[int, Any]:
    return {int(lane): value for lane, value in found.items()}
