"""The lane under way on this worker, and the batch of it that is with the user's code."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from holdfast.train import refusals
from holdfast.train.capture.at_hand import AtHand
from holdfast.train.chance import seed_everything
from holdfast.train.data.order import Ticket
from holdfast.train.data.source import BatchSource, SampleLog
from holdfast.train.data.streams import Read
from holdfast.train.hooks import StepHooks
from holdfast.train.leftovers import Body
from holdfast.train.members.conversation import known
from holdfast.train.modes import updating
from holdfast.train.modes.run_state import RunState, Where
from holdfast.train.rehearsal import Rehearsal
from holdfast.train.sums import step_records
from holdfast.train.sums.stepping import Gradients
from holdfast.wire.errors import Usage

Parts = Sequence[Ticket | Read]  # of a lane: the batches that it computes in a step


class CurrentLane:
    """Its batches are given to the user's code one after the other; the gradients of each go into
    the sums of the step."""

    gives_twice = True  # whether the body is asked now and then if it is a function of its batch

    def __init__(self, held: RunState, hooks: StepHooks) -> None:
        self._held, self._hooks = held, hooks
        self.body = Body(held.tracked)
        self.rehearsal = Rehearsal()
        self.source: BatchSource | None = None
        self.count = 0  # samples of the batch that is with the user; 0: none is
        self._record: step_records.LaneRecord | None = None
        self._number = self._given = 0  # the second: the lane of the batch that is with the user
        self._left = 0  # parts of it that are to come
        self._checks: int | None = None  # a lane of another that is computed to compare with it
        self._log = SampleLog(held.worker)

    def open(self) -> None:
        """A loop begins."""
        self.body.open()
        self.rehearsal = Rehearsal()

    def begin(self, lane: int, parts: Parts, *, source: BatchSource, more: bool) -> None:
        self._record, self._number, self._left = (
            step_records.LaneRecord(more=more),
            lane,
            len(parts),
        )
        self.source = source
        stepping = self._held.at_step()
        stepping.records[lane] = self._record
        stepping.buffers.before_lane()

    def begin_check(self, lane: int, parts: Parts, *, source: BatchSource) -> None:
        """Another worker's lane: what it comes to is only said. See `sums.checking`."""
        self._checks, self._left, self.source = lane, len(parts), source
        self._held.at_step().buffers.before_lane()

    def empty(self, lane: int, *, more: bool) -> None:
        """The lane has no samples in this step."""
        self._held.at_step().empty(lane, more=more)

    def at_source(self) -> BatchSource:
        assert self.source is not None, "a batch came from somewhere"
        return self.source

    # --- a batch -------------------------------------------------------------------------------

    def rehearses(self, ticket: Ticket | Read) -> bool:
        """Whether this batch is to be given twice; see `rehearsal`."""
        member, rehearsal = self._held.member, self.rehearsal
        if self._checks is not None:
            return False
        due = self.gives_twice and not member.is_alone and not ticket.part
        place = member.step, self._held.position.update
        if due and not rehearsal.awaits and rehearsal.is_due(*place):
            rehearsal.begin(*place)
        return rehearsal.under_way

    def after_fetch(self, ticket: Ticket | Read, source: BatchSource) -> None:
        """The batch is here. If it is given twice, look whether its data is a function of it."""
        first = self.rehearsal.under_way
        if self._checks is not None:
            return
        if first or self.rehearsal.awaits:
            for stand in source.drawn(ticket, first=first):
                self.rehearsal.fetched(stand)

    def give(self, ticket: Ticket | Read) -> None:
        """The user's code is about to see this batch."""
        step = self._held.member.step
        if self._counts_for_nothing:
            self._hooks.before_body()
        else:
            self._log.note(step + 1, ticket)
        self.count, self._given = ticket.count, ticket.lane
        seed_everything(self._held.seed_of("lane", step, ticket.lane, ticket.part))
        self.body.give(ticket.part)

    def backward(
        self, loss: torch.Tensor, only: list[str] | None, gradients: Gradients | None
    ) -> bool:
        """The user's code has the loss of the batch; its gradients, too, where it was captured.
        Whether all lanes of this worker are computed now."""
        count, self.count, record = self.count, 0, self._record
        if not count or (record is None and self._checks is None):
            raise refusals.without_batch()
        self.body.take(last=self._is_last_batch())
        if gradients is None and not loss.requires_grad:
            raise refusals.without_gradient()
        stepping = self._held.at_step()
        if self.rehearsal.under_way:
            self._scaled(loss, count).backward()
            self.body.after_backward()
            self._hooks.after_body()
            self.rehearsal.take(stepping.parameters, lane=self._given)
            stepping.buffers.before_lane()
            return False
        if self._checks is not None:
            self._compare(self._checks, loss, count)
            return False
        assert record is not None
        stepping.scalar(record, "loss", loss, count, own=gradients is not None)
        record.take_part(count, only)
        self._left -= 1
        self._descend(loss, count, only, gradients)
        return not self._left and not stepping.missing()

    def _compare(self, lane: int, loss: torch.Tensor, count: int) -> None:
        """A part of a lane that another worker has. After the last it is said what all came to."""
        stepping = self._held.at_step()
        self._scaled(loss, count).backward()
        self.body.after_backward()
        self._hooks.after_body()
        self._left -= 1
        if not self._left:
            stepping.answer(lane, [parameter.grad for parameter in stepping.parameters])
            self._held.forget_gradients()
            stepping.buffers.before_lane()
            self._checks = None

    @property
    def _counts_for_nothing(self) -> bool:
        return self.rehearsal.under_way or self._checks is not None

    def end_batch(self) -> None:
        """The body has run to its end."""
        self.body.end()
        if self.count:
            self.count = 0
            raise Usage(
                "a batch was taken, but run.step was not called for it",
                why="a step needs every lane: without it all workers would wait for ever",
                fix="call run.step(loss) once in the loop's body",
            )

    def at_hand(self) -> AtHand:
        """The batch that is with the user's code, for a function that computes it."""
        scaled, rehearsed = partial(self._scaled, count=self.count), self._counts_for_nothing
        where = self._held.at_step(), self.at_source(), self.body
        return AtHand(*where, count=self.count, rehearsed=rehearsed, scaled=scaled)

    def _is_last_batch(self) -> bool:
        """Whether the batch that is with the user is the last of this worker's in the step."""
        if self._checks is not None:
            return False
        return self._left == 1 and self._held.at_step().missing() == [self._number]

    def _scaled(self, loss: torch.Tensor, count: int) -> torch.Tensor:
        """The loss with the part that this batch has in the step's mean."""
        weight = count / self.at_source().step_samples
        return updating.scaled(self._held.tracked, loss if weight == 1 else loss * weight)

    def _descend(
        self, loss: torch.Tensor, count: int, only: list[str] | None, gradients: Gradients | None
    ) -> None:
        given, held = gradients or self._scaled(loss, count), self._held
        stepping, awaits = held.at_step(), self.rehearsal.awaits
        stepping.prints = {} if awaits else None
        notes, step = known(held.position.results), held.member.step
        stepping.bits = {} if not self._left and self._is_checked() else None
        stepping.backward(self._number, given, final=not self._left, step=step, notes=notes)
        stepping.answer(self._number)
        stepping.bits = None
        self.body.after_backward()
        if awaits:
            self.rehearsal.compare(stepping.printed(), held.trained_names())
            stepping.prints = None

    def _is_checked(self) -> bool:
        """Whether another worker computes this lane too."""
        stepping = self._held.at_step()
        if stepping.checking is None or not self.at_source().repeats:
            return False
        check = stepping.checking.now(self._held.member.step, stepping.dealt)
        return check is not None and check.lane == self._number

    # --- what the script says ------------------------------------------------------------------

    def log(self, name: str, value: float | torch.Tensor) -> None:
        if self._counts_for_nothing:
            return
        if self.count and self._record is not None:
            self._held.at_step().scalar(self._record, name, value, self.count)
        else:
            self._not_behind_a_step("run.log")
            self._held.position.metrics[name] = float(value)

    def stop(self) -> None:
        if self._counts_for_nothing:
            return
        if self.count and self._record is not None:
            self._record.stop = True
        else:
            self._not_behind_a_step("run.stop_early")
            self._held.position.stop = True

    def _not_behind_a_step(self, what: str) -> None:
        if self._held.where is Where.BODY:
            raise Usage(
                f"{what} was called in the loop's body behind run.step",
                why="the step may be complete by then: it depends on how many workers there are",
                fix=f"call {what} before run.step(loss), or in a hook: run.every(1, hook)",
            )
