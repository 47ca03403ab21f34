"""The loop of the asynchronous mode: a ticket, a batch, a push; and again.

Hooks run on one worker only: the one whose batch completed the step or the epoch, while the others
go on. What it evaluates there it evaluates alone, on the newest weights. What it logs there reaches
all. Outside the loop `once`, `publish` and `evaluate` are done by one worker, and all get the
result.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import torch
from torch import nn

from holdfast.train import refusals
from holdfast.train.chance import seed_everything
from holdfast.train.data.order import Ticket
from holdfast.train.data.source import BatchSource
from holdfast.train.data.streams import Read
from holdfast.train.modes import adjusting
from holdfast.train.modes.asynchronous.ledger import Credit
from holdfast.train.modes.asynchronous.member import AsyncMember
from holdfast.train.modes.collective import Collective, by_lane
from holdfast.train.modes.current_lane import CurrentLane, Parts
from holdfast.train.modes.run_state import RunState
from holdfast.train.modes.training_loop import TrainingLoop
from holdfast.train.states.state import TrainingState
from holdfast.train.sums.stepping import Gradients
from holdfast.wire.errors import Usage
from holdfast.wire.sharing import check_name

# Batches that a worker goes on with alone while a server is away; then it waits for it.
ASYNC_ALONE_BATCHES_MAX: Final = 64


class AsyncLane(CurrentLane):
    """The batch of a ticket: its gradient is pushed to those who serve the names."""

    gives_twice = False

    def __init__(self, held: RunState, loop: AsyncLoop) -> None:
        super().__init__(held, loop.hooks)
        self._loop, self._member = loop, loop.member
        self.names: dict[str, nn.Parameter] = {}
        self.sums: dict[str, tuple[float, int]] = {}  # what was logged since the last report
        self._samples = 0  # so far

    def begin(self, lane: int, parts: Parts, *, source: BatchSource, more: bool) -> None:
        self._number, self._left, self._samples = lane, len(parts), 0
        self.source = source

    def empty(self, lane: int, *, more: bool) -> None:
        self._member.tickets.end()

    def give(self, ticket: Ticket | Read) -> None:
        step = ticket.epoch * self._loop.steps + ticket.index
        self._log.note(step + 1, ticket)
        self.count = ticket.count
        seed_everything(self._held.seed_of("lane", step, ticket.lane, ticket.part))
        self.body.forget()
        self.body.give(ticket.part)

    def backward(
        self, loss: torch.Tensor, only: list[str] | None, gradients: Gradients | None
    ) -> bool:
        count, self.count = self.count, 0
        if not count:
            raise refusals.without_batch()
        self.body.take(last=True)
        self._add("loss", float(loss.detach()), count)
        (loss * count).backward()
        self._samples += count
        self._left -= 1
        if not self._left:
            self._held.computed += 1
            self._push(only)
            self._member.tickets.end()
        return False  # nothing waits for a sum

    @torch.no_grad()
    def _push(self, only: list[str] | None) -> None:
        chosen = {
            id(each)
            for name, optimizer in self._held.tracked.optimizers.items()
            if only is None or name in only
            for group in optimizer.param_groups
            for each in group["params"]
        }
        used = {
            name: each
            for name, each in self.names.items()
            if each.grad is not None and id(each) in chosen
        }
        for each in used.values():
            assert each.grad is not None
            each.grad /= self._samples
        if self._loop.clip is not None and used:
            nn.utils.clip_grad_norm_(list(used.values()), self._loop.clip)
        gradients = {name: each.grad for name, each in used.items() if each.grad is not None}
        self._member.traffic.push(gradients, self._samples, self._member.homes())
        for each in self.names.values():
            each.grad = None

    def _add(self, name: str, value: float, count: int) -> None:
        total, samples = self.sums.get(name, (0.0, 0))
        self.sums[name] = (total + value * count, samples + count)

    def log(self, name: str, value: float | torch.Tensor) -> None:
        if self.count:
            self._add(name, float(value), self.count)
        else:
            self._held.position.metrics[name] = float(value)
            self._member.tickets.to_report[name] = float(value)

    def stop(self) -> None:
        self._member.tickets.stop = True


class AsyncCollective(Collective):
    """One worker answers, and all get the result; in a hook it is alone."""

    in_hook = False

    def __init__(self, held: RunState, loop: AsyncLoop) -> None:
        super().__init__(held, loop.views, loop.update_hooks)
        self._loop = loop

    def together(
        self, work: Callable[[int], Any], lanes: Sequence[int] | None = None
    ) -> dict[int, Any]:
        if self._loop.lane.count:
            raise Usage(
                "something for all workers was asked for in the loop's body",
                why="the body runs once a batch, so workers would ask for it at different times",
                fix="do it in a hook: run.every_epoch(hook) or run.every(steps, hook)",
            )
        self._loop.join()
        wanted = range(self._held.lanes) if lanes is None else lanes

        def do() -> Any:
            return json.loads(json.dumps({str(lane): work(lane) for lane in wanted}))

        if self.in_hook:
            found = do()
        else:
            number, self.asked = self.asked, self.asked + 1
            found = self._loop.member.once(f"{self._held.position.loop} {number}", do)
        return by_lane(found)

    def barrier(self, name: str, loops: int) -> None:
        raise Usage(
            f"the barrier {check_name('barrier', name)!r} in the asynchronous mode",
            why="its workers never wait for each other",
            fix="write `mode: sync`, or use run.once for what one worker has to do first",
        )

    def verify(self, when: str, state: Callable[[], TrainingState]) -> None:
        """Nobody holds the same as another."""


class AsyncLoop(TrainingLoop):
    """The loops of one `Run` in the asynchronous mode."""

    mode = "async"
    lane: AsyncLane
    collective: AsyncCollective

    def __init__(self, held: RunState) -> None:
        self.member = cast(AsyncMember, held.member)
        super().__init__(held)
        self.collective = AsyncCollective(held, self)
        self._texts = dict(held.applied)
        self._loops: dict[int, tuple[BatchSource, int, int | None]] = {}
        self._reported = -1  # the step that was last told
        self._stepped = [0, 0]  # steps and epochs that schedulers know

    def _new_lane(self) -> AsyncLane:
        return AsyncLane(self.held, self)

    @property
    def steps(self) -> int:
        """Steps of an epoch of the loop under way."""
        return self._loops[self.held.position.loop][1]

    def prepare(
        self, number: int, source: BatchSource, epochs: int | None, *, loader_workers: int
    ) -> None:
        """The script is about to enter this loop."""
        steps = source.steps
        if steps is None or loader_workers:
            raise Usage(
                "the asynchronous mode takes data with a length, without loader_workers",
                why="any batch may come to any worker, one at a time, so none reads ahead",
                fix="give a map-style data set, or write `mode: sync`",
            )
        self._loops[number] = (source, steps, epochs)

    # --- joining and ending --------------------------------------------------------------------

    def join(self) -> None:
        views = self.views
        if views.joined:
            return
        views.check()
        views.joined = self.held.sealed = True
        if views.compress not in ("none", "bf16"):
            raise Usage(
                f"the asynchronous mode does not know the compression {views.compress!r}",
                why="servers add pushes of any age, so nothing that is left out can come later",
                fix="take bf16 or none",
            )
        # The script's own optimizer never steps here: a copy of it does, at the servers.
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        self.member.join(narrow=views.compress == "bf16")
        self.lane.names = dict(self.member.traffic.names.parameters)
        self._catch_up()

    def enter(self, loop: int, epochs: int | None) -> None:
        self.views.check()
        self.join()
        if self.held.position.loop < loop:
            self.held.position.enter(loop)
        self._stepped[1] = 0
        self.lane.body.open()
        self.member.tickets.enter(loop, self._loops[loop][1], epochs)

    def finish(self) -> None:
        self.join()
        self.member.finish()

    def leave(self, loop: int) -> None:
        """The loop is over; `next_lane` has done what there was to do."""
        self.lane.body.close()

    def settle(self) -> None:
        """There is no common boundary of a step: hooks run where `next_lane` finds that they are
        due."""

    def complete(self, source: BatchSource) -> None:
        """Nothing waits for a sum."""

    def first_said(self, what: str, value: Any) -> Any:
        """What the first worker of the job has said of this for the present loop: this, if nobody
        has. Checkpoints keep it."""
        return self.member.once(f"{what} {self.held.position.loop}", lambda: value)

    # --- tickets -------------------------------------------------------------------------------

    def lane_to_check(self, source: BatchSource) -> int | None:
        return None  # batches are not divided among workers by their lanes

    def next_lane(self) -> int | None:
        member, tickets, position = self.member, self.member.tickets, self.held.position
        while not tickets.held:
            owed: list[Credit] = []
            member.until(lambda owed=owed: self._more(owed))  # type: ignore[misc]
            for credit in owed:
                self._run_due(credit)
            if tickets.over and not owed and not tickets.held:
                member.flush()
                self._report()
                position.epoch, position.stop = tickets.epoch, True
                return None
        if member.leaving:
            member.leave()
        if member.traffic.alone >= ASYNC_ALONE_BATCHES_MAX:
            member.until(lambda: member.traffic.pull(member.homes()))
        ticket = tickets.begin()
        step, lane = divmod(ticket, self.held.lanes)
        source, steps, _ = self._loops[position.loop]
        position.epoch, position.index = divmod(step, steps)
        position.at = position.index * source.taken
        return lane

    def _more(self, owed: list[Credit]) -> bool:
        """Ask for tickets; whether there is something to do."""
        tickets = self.member.tickets
        credit = tickets.ask()
        self._catch_up()
        if credit is not None and credit.completes:
            owed.append(credit)
        elif tickets.step != self._reported:
            self._report()
        return bool(tickets.held or tickets.over or owed)

    def _catch_up(self) -> None:
        """Schedulers, settings and metrics follow what the job has come to."""
        held, tickets = self.held, self.member.tickets
        while self._stepped[0] < tickets.step:
            self._stepped[0] += 1
            held.step_schedulers("step")
        while tickets.inside and self._stepped[1] < tickets.epoch:
            self._stepped[1] += 1
            held.step_schedulers("epoch")
        now = {**self._texts, **self.member.settings}
        if now != held.applied:
            adjusting.apply(held.tracked, held.settings, held.applied, now)
            held.applied = now
        held.position.metrics.update(tickets.metrics)

    def _run_due(self, credit: Credit) -> None:
        """Run the hooks of what this worker's batch has completed."""
        self._report()
        ended = credit.epoch > credit.first_epoch
        due = list(self.hooks.due(credit.first_step, credit.step, ended=ended))
        if not due:
            return
        self.held.position.epoch = credit.epoch
        self.member.traffic.pull(self.member.homes())
        self.collective.in_hook = True
        try:
            for _, hook, run in due:
                hook(run)
        finally:
            self.collective.in_hook = False

    def _report(self) -> None:
        """The means since the last report, for people."""
        member, metrics, sums = self.member, self.held.position.metrics, self.lane.sums
        metrics.update({name: total / count for name, (total, count) in sums.items() if count})
        sums.clear()
        self._reported = member.step
        counts = {
            "refused_pushes": member.traffic.refused,
            "batches_alone": member.traffic.alone_ever,
            "batches_given_out_again": member.tickets.counts.get("lost", 0),
            "batches_done_twice": member.tickets.counts.get("repeated", 0),
        }
        if self.held.metric_topic is not None:
            self.held.metric_topic.step(member.step, metrics)
        member.boundary({**metrics, **counts, **self.held.settings.metrics()})
