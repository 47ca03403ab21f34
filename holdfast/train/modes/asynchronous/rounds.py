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
from typing import Any, Final

import torch
from torch import nn

from holdfast.storage import Blobs
from holdfast.train import refusals
from holdfast.train.chance import seed_everything
from holdfast.train.data.order import Ticket
from holdfast.train.data.source import Source
from holdfast.train.data.streams import Read
from holdfast.train.link import Link
from holdfast.train.modes import adjusting
from holdfast.train.modes.asynchronous.ledger import Credit
from holdfast.train.modes.asynchronous.member import AsyncMember
from holdfast.train.modes.rounds import Parts, Rounds
from holdfast.train.states.state import State
from holdfast.train.sums.stepping import Gradients
from holdfast.wire.errors import Usage

# Batches that a worker goes on with alone while a server is away; then it waits for it.
ASYNC_ALONE_BATCHES_MAX: Final = 64


class AsyncRounds(Rounds):
    """The machinery of one `Run` in the asynchronous mode."""

    mode = "async"
    _part: AsyncMember  # the same as `member`

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._texts = dict(options["texts"])
        self._loops: dict[int, tuple[Source, int, int | None]] = {}
        self._names: dict[str, nn.Parameter] = {}
        self._in_hook = False
        self._samples = 0  # of the lane under way, so far
        self._sums: dict[str, tuple[float, int]] = {}  # what was logged since the last report
        self._reported = -1  # the step that was last told
        self._stepped = [0, 0]  # steps and epochs that schedulers know

    def attach(self, link: Link, blobs: Blobs | None) -> None:
        """This run is a worker of a job."""
        self._part = AsyncMember(
            link, blobs, lanes=self.lanes, tracked=self.tracked, setting=self._whole
        )
        self.member = self._part  # type: ignore[assignment]  # nobody sets what it tells

    def _whole(self, name: str, default: int) -> int:
        value = self.settings.get(name, default)
        if not isinstance(value, int) or value < 0:
            raise Usage(f"the setting {name}={value!r}", fix="give a whole number")
        return value

    def prepare(
        self, number: int, source: Source, epochs: int | None, *, loader_workers: int
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
        if self._joined:
            return
        self._check()
        self._joined = True
        if self.compress not in ("none", "bf16"):
            raise Usage(
                f"the asynchronous mode does not know the compression {self.compress!r}",
                why="servers add pushes of any age, so nothing that is left out can come later",
                fix="take bf16 or none",
            )
        # The script's own optimizer never steps here: a copy of it does, at the servers.
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        self._part.join(narrow=self.compress == "bf16")
        self._names = dict(self._part.traffic.names.parameters)
        self._catch_up()

    def _may_track(self) -> bool:
        return not self._joined

    def enter(self, loop: int, epochs: int | None) -> None:
        self._check()
        self.join()
        _, steps, _ = self._loops[loop]
        if self.position.loop < loop:
            self.position.enter(loop)
        self._stepped[1] = 0
        self._body.open()
        self._part.tickets.enter(loop, steps, epochs)

    def finish(self) -> None:
        self.join()
        self._finished = True
        self._part.finish()

    def leave(self, loop: int) -> None:
        """The loop is over; `next_lane` has done what there was to do."""
        self._body.close()

    def settle(self) -> None:
        """There is no common boundary of a step: hooks run where `next_lane` finds that they are
        due."""

    def complete(self, source: Source) -> None:
        """Nothing waits for a sum."""

    def verify(self, when: str, state: Callable[[], State]) -> None:
        """Nobody holds the same as another."""

    # --- tickets -------------------------------------------------------------------------------

    def next_lane(self) -> int | None:
        part, tickets = self._part, self._part.tickets
        while not tickets.held:
            owed: list[Credit] = []
            part.until(lambda owed=owed: self._more(owed))  # type: ignore[misc]
            for credit in owed:
                self._run_due(credit)
            if tickets.over and not owed and not tickets.held:
                part.flush()
                self._report()
                self.position.epoch, self.position.stop = tickets.epoch, True
                return None
        if part.leaving:
            part.leave()
        if part.traffic.alone >= ASYNC_ALONE_BATCHES_MAX:
            part.until(lambda: part.traffic.pull(part.homes()))
        ticket = tickets.begin()
        step, lane = divmod(ticket, self.lanes)
        source, steps, _ = self._loops[self.position.loop]
        self.position.epoch, self.position.index = divmod(step, steps)
        self.position.at = self.position.index * source.taken
        return lane

    def _more(self, owed: list[Credit]) -> bool:
        """Ask for tickets; whether there is something to do."""
        tickets = self._part.tickets
        credit = tickets.ask()
        self._catch_up()
        if credit is not None and credit.completes:
            owed.append(credit)
        elif tickets.step != self._reported:
            self._report()
        return bool(tickets.held or tickets.over or owed)

    def _catch_up(self) -> None:
        """Schedulers, settings and metrics follow what the job has come to."""
        tickets = self._part.tickets
        while self._stepped[0] < tickets.step:
            self._stepped[0] += 1
            self._step_schedulers("step")
        while tickets.inside and self._stepped[1] < tickets.epoch:
            self._stepped[1] += 1
            self._step_schedulers("epoch")
        now = {**self._texts, **self._part.settings}
        if now != self._applied:
            adjusting.apply(self.tracked, self.settings, self._applied, now)
            self._applied = now
        self.position.metrics.update(tickets.metrics)

    def _run_due(self, credit: Credit) -> None:
        """Run the hooks of what this worker's batch has completed."""
        self._report()
        ended = credit.epoch > credit.first_epoch
        due = [
            (hook, run)
            for every, hook, run in self.hooks
            if (every is None and ended)
            or (
                every is not None
                and any(step % every == 0 for step in range(credit.first_step + 1, credit.step + 1))
            )
        ]
        if not due:
            return
        self.position.epoch = credit.epoch
        self._part.traffic.pull(self._part.homes())
        self._in_hook = True
        try:
            for hook, run in due:
                hook(run)
        finally:
            self._in_hook = False

    def _report(self) -> None:
        """The means since the last report, for people."""
        means = {name: total / count for name, (total, count) in self._sums.items() if count}
        self._sums.clear()
        self.position.metrics.update(means)
        part = self._part
        self._reported = part.step
        counts = {
            "refused_pushes": part.traffic.refused,
            "batches_alone": part.traffic.alone_ever,
            "batches_given_out_again": part.tickets.counts.get("lost", 0),
            "batches_done_twice": part.tickets.counts.get("repeated", 0),
        }
        part.boundary({**self.position.metrics, **counts, **self.settings.metrics()})

    # --- a batch -------------------------------------------------------------------------------

    def begin_lane(self, lane: int, parts: Parts, *, source: Source, more: bool) -> None:
        self._lane_number, self._left, self._samples = lane, len(parts), 0
        self._source = source

    def empty_lane(self, lane: int, *, more: bool) -> None:
        self._part.tickets.end()

    def before_batch(self, ticket: Ticket | Read) -> None:
        _, steps, _ = self._loops[self.position.loop]
        step = ticket.epoch * steps + ticket.index
        self._log.note(step + 1, ticket)
        self._count = ticket.count
        seed_everything(self.seed_of("lane", step, ticket.lane, ticket.part))
        self._body.forget()
        self._body.give(ticket.part)

    def backward(
        self, loss: torch.Tensor, only: list[str] | None, gradients: Gradients | None = None
    ) -> None:
        count, self._count = self._count, 0
        if not count:
            raise refusals.without_batch()
        self._body.take(last=True)
        self._add("loss", float(loss.detach()), count)
        (loss * count).backward()  # type: ignore[no-untyped-call]
        self._samples += count
        self._left -= 1
        if not self._left:
            self.computed += 1
            self._push(only)
            self._part.tickets.end()
        self._body.resume()

    @torch.no_grad()
    def _push(self, only: list[str] | None) -> None:
        chosen = {
            id(each)
            for name, optimizer in self.tracked.optimizers.items()
            if only is None or name in only
            for group in optimizer.param_groups
            for each in group["params"]
        }
        used = {
            name: each
            for name, each in self._names.items()
            if each.grad is not None and id(each) in chosen
        }
        for each in used.values():
            assert each.grad is not None
            each.grad /= self._samples
        if self.clip is not None and used:
            nn.utils.clip_grad_norm_(list(used.values()), self.clip)
        gradients = {name: each.grad for name, each in used.items() if each.grad is not None}
        self._part.traffic.push(gradients, self._samples, self._part.homes())
        for each in self._names.values():
            each.grad = None

    def _add(self, name: str, value: float, count: int) -> None:
        total, samples = self._sums.get(name, (0.0, 0))
        self._sums[name] = (total + value * count, samples + count)

    # --- what the script says ------------------------------------------------------------------

    def log(self, name: str, value: float | torch.Tensor) -> None:
        if self._count:
            self._add(name, float(value), self._count)
        else:
            self.position.metrics[name] = float(value)
            self._part.tickets.said[name] = float(value)

    def stop(self) -> None:
        self._part.tickets.stop = True

    def first_said(self, what: str, value: Any) -> Any:
        """What the first worker of the job has said of this for the present loop: this, if nobody
        has. Checkpoints keep it."""
        return self._part.once(f"{what} {self.position.loop}", lambda: value)

    def together(
        self, work: Callable[[int], Any], lanes: Sequence[int] | None = None
    ) -> dict[int, Any]:
        if self._count:
            raise Usage(
                "something for all workers was asked for in the loop's body",
                why="the body runs once a batch, so workers would ask for it at different times",
                fix="do it in a hook: run.every_epoch(hook) or run.every(steps, hook)",
            )
        self.join()
        wanted = range(self.lanes) if lanes is None else lanes

        def do() -> Any:
            return json.loads(json.dumps({str(lane): work(lane) for lane in wanted}))

        if self._in_hook:
            found = do()
        else:
            number, self._asked = self._asked, self._asked + 1
            found = self._part.once(f"{self.position.loop} {number}", do)
        return {int(lane): value for lane, value in found.items()}
