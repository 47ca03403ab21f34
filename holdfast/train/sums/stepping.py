"""One step of a run: its lanes are computed, summed over everyone, and become an update.

The lanes that this worker has to compute are asked for one after the other. What was computed is
kept until the step is complete: when the view changes in between, only the lanes that nobody holds
any more are computed again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import is_
from typing import Any, Final

import torch

from holdfast.system import logs
from holdfast.system.job_credentials import TRUSTED
from holdfast.train.members.conversation import Conversation
from holdfast.train.members.membership import RunMember
from holdfast.train.members.mesh import Mesh
from holdfast.train.rehearsal import Print, printed
from holdfast.train.states.tracked import Tracked
from holdfast.train.states.unchanged import Unchanged
from holdfast.train.sums import step_records
from holdfast.train.sums.buffers import Buffers
from holdfast.train.sums.checking import Checking, answer_of, bit_sums, steps_configured
from holdfast.train.sums.compression import Code
from holdfast.train.sums.cuda_memory import CudaMemory
from holdfast.train.sums.exchange import Exchange, MeshExchange, NoExchange
from holdfast.train.sums.exchange_plan import Way, bucket_bytes
from holdfast.train.sums.gradients import Flat, GradientSums, Layout
from holdfast.train.sums.lending import Lending
from holdfast.train.sums.nccl import nccl_version
from holdfast.train.sums.shared_memory import HostMemory, PeerMemory
from holdfast.train.sums.values import Late, Values
from holdfast.wire import worker_messages
from holdfast.wire.errors import BugError, Usage

# Up to this size, those of a whole lane wait for its end: one fold, and no call for each of them.
# What is larger would take too much of a device's memory beside the sums.
WHOLE_GRADIENTS_BYTES_MAX: Final = 1024 * 1024 * 1024

log = logs.get(__name__)
Gradients = Sequence[torch.Tensor | None]  # of all parameters; None: it has none


class Stepping:
    """The gradients of the tracked models, from lanes to the sum."""

    def __init__(
        self, tracked: Tracked, lanes: int, member: RunMember, code: Code | None = None
    ) -> None:
        self._lanes = lanes
        self._member = member
        self._tracked, self._unchanged = tracked, Unchanged(tracked)
        self.parameters = tracked.parameters()
        self._code, self._under_way = code, 0
        if code is None:
            self.layout = Layout(self.parameters, bucket_bytes(lanes))
        else:
            self.layout = Layout(code.summed(), block=code.block)
        self.layout.memory = None if member.is_alone else memory_of(self.layout.device)
        self.sums = GradientSums(self.layout, lanes, code)
        self.buffers = Buffers(tracked.models)
        self.records: dict[int, step_records.LaneRecord] = {}
        self.lends = False  # whether lanes may move within a view, and be computed twice
        self._lending: Lending | None = None
        self.checking: Checking | None = None
        self.answers: dict[int, str] = {}  # mine, to lanes that others compute as well
        self._dealt: Mapping[int, Sequence[int]] = {}  # that the exchange is made for
        self._values = Values()  # of lanes, that are not read yet
        self._host: Flat = []
        self._device: Flat = []
        self._exchange: Exchange | None = None
        self._mesh: Mesh | None = None  # the one that the exchange is over
        self._begun = False
        self._folding = False  # a gradient is folded in as soon as it is there
        self._counting = False  # or it waits for all others of the lane
        self._waits = (
            self.sums.gathers and code is None and _size(self.layout) <= (WHOLE_GRADIENTS_BYTES_MAX)
        )
        self.prints: dict[int, Print] | None = None  # of the gradients taken; None: nobody asks
        self.bits: dict[int, torch.Tensor | None] | None = None  # the same, exactly
        for parameter in self.parameters:
            parameter.grad = None  # one that was thawed may have what nobody has summed
        self.on_stray: Callable[[], None] | None = None  # for a gradient outside of `backward`
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._hook(number))
            for number, parameter in enumerate(self.parameters)
        ]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self.disconnect()

    def fits(self, tracked: Tracked) -> bool:
        """Whether the same parameters are trained, and the models have the same buffers: a hook may
        thaw, freeze, or change a module."""
        if tracked is self._tracked and self._unchanged.holds():
            return True
        now = tracked.parameters()
        same = len(now) == len(self.parameters) and all(map(is_, now, self.parameters))
        return same and self.buffers.fit(tracked.models)

    # --- the view ------------------------------------------------------------------------------

    def connect(self, talk: Conversation) -> None:
        """Combine over the member's mesh. Nothing happens when that is the one of before: this is
        called at every boundary, and an exchange has a thread and buffers of its own."""
        member = self._member
        if self._mesh is not member.mesh:
            self._lending = Lending(member.view.lanes) if self.lends else None
            steps = steps_configured() if self.lends else 0
            self.checking = Checking(steps) if steps else None
        dealt = self.dealt
        if self._exchange is not None and self._mesh is member.mesh and self._dealt == dealt:
            return
        self.disconnect()
        self._begun, self._mesh, self._dealt = False, member.mesh, dealt
        if len(member.view.lanes) <= 1:
            self._exchange = NoExchange(self._lanes)
            return
        self._exchange = MeshExchange(
            member.mesh,
            talk,
            dealt,
            self._lanes,
            self.layout,
            self._total,
            self._code,
            self.layout.memory,
        )

    @property
    def dealt(self) -> Mapping[int, Sequence[int]]:
        """Who computes which lanes in the step under way."""
        return self._member.view.lanes if self._lending is None else self._lending.dealt

    @property
    def lanes(self) -> Sequence[int]:
        """Those of this worker in the step under way."""
        if self._lending is None:
            return self._member.lanes
        return self._lending.dealt[self._member.mesh.worker]

    def lend(self, lane_ms: Mapping[int, float]) -> None:
        """A step is complete, and a lane took each so long: see `lending`."""
        if self._lending is None:
            return
        before = self._lending.dealt
        self._lending.take(lane_ms)
        if self._lending.dealt is not before and self._member.mesh.worker == min(before):
            log.info("lanes are dealt anew", lanes=self._lending.dealt, lane_ms=lane_ms)

    def _total(self, way: Way) -> Flat:
        """Where the sum is to be: over TCP it comes to the host."""
        if way is Way.TCP and self.layout.device.type != "cpu":
            self._host = self._host or self.layout.allocate(torch.device("cpu"), pinned=True)
            return self._host
        self._device = self._device or self.layout.allocate()
        return self._device

    def disconnect(self) -> None:
        """The mesh is of no use any more; it is closed already."""
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None

    def keep(self, held: Sequence[int]) -> None:
        """The lanes are these now: forget what was computed of others."""
        self.sums.keep(held)
        if self._code is not None:
            self._code.keep(held)
        missing = set(self.sums.missing(held))
        self.records = {
            lane: record
            for lane, record in self.records.items()
            if lane in held and lane not in missing
        }
        if 0 not in self.records:
            self.buffers.forget()

    def clear(self) -> None:
        """Nothing of the step under way is of use; or it is complete."""
        self.sums.clear()
        self.records.clear()
        self.answers.clear()
        self._values = Values()
        self.buffers.forget()

    # --- lanes ---------------------------------------------------------------------------------

    def missing(self) -> list[int]:
        return self.sums.missing(self.lanes)

    def empty(self, lane: int, *, more: bool) -> None:
        """The lane has no samples in this step: it counts as zero."""
        self.buffers.before_lane()
        self.sums.begin(lane)
        self.sums.end()
        self.records[lane] = step_records.LaneRecord(more=more)
        self.buffers.after_lane(lane)

    def backward(
        self, lane: int, loss: torch.Tensor | Gradients, *, final: bool, step: int, notes: bytes
    ) -> None:
        """One part of a lane, its loss or its gradients; with `final` its last. The last lane's
        gradients travel while the backward pass goes on."""
        ready = None
        if final:
            if self.missing() == [lane]:
                self._begin(step, notes)
                ready = self._ready()
            self.begin(lane, ready)
        if isinstance(loss, torch.Tensor):
            self._counting = final and ready is None and self._waits and not self._has_parts()
            self._folding = final and not self._counting
            try:
                loss.backward()
            finally:
                counted, self._folding, self._counting = self._counting, False, False
            if counted:
                self._take_all([parameter.grad for parameter in self.parameters])
        elif final and self._waits and not self._looked_at and not self._has_parts():
            self.sums.take_all(loss)
        else:
            self._pile(loss, final=final)
        if final:
            self.end(lane)

    def begin(self, lane: int, ready: Callable[[int], None] | None = None) -> None:
        """The lane's gradients are about to be there; `ready(bucket)` is called for each."""
        self._under_way = lane
        self.sums.begin(lane, ready)

    def end(self, lane: int) -> None:
        """The lane's gradients are there. A part before the last may have touched what the last has
        not, so some are still to be taken."""
        for number, parameter in enumerate(self.parameters):
            if parameter.grad is not None:
                self._take(number, parameter)
        seen = self.sums.end()
        if len(seen) < len(self.parameters):
            self.records[lane].untouched = sorted(set(range(len(self.parameters))) - seen)
        self.buffers.after_lane(lane)

    def _has_parts(self) -> bool:
        """Whether parts of the lane before this one have left gradients, which are added to."""
        return any(parameter.grad is not None for parameter in self.parameters)

    def _take_all(self, gradients: Gradients) -> None:
        """The backward pass of a whole lane is over, and its hooks have counted."""
        if self._looked_at:
            for number, gradient in enumerate(gradients):
                self._look_at(number, gradient)
        for number, gradient in enumerate(gradients):
            if gradient is None and self.sums.has(number):
                raise _taken_away()
        self.sums.take_all(gradients)
        for parameter in self.parameters:
            parameter.grad = None

    def _pile(self, gradients: Gradients, *, final: bool) -> None:
        """As a backward pass does: onto what the parts before have left. What stays until the next
        part is a copy: a graph writes its gradients to the same place each time."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            if gradient is None:
                continue
            if parameter.grad is not None:
                parameter.grad.add_(gradient)
            else:
                parameter.grad = gradient.detach() if final else gradient.detach().clone()

    def scalar(
        self,
        record: step_records.LaneRecord,
        name: str,
        value: Any,
        count: int,
        *,
        own: bool = False,
    ) -> None:
        """A value of a lane. A tensor is read when the step is complete: on a GPU that waits.
        `own`: nobody else writes to it."""
        if isinstance(value, torch.Tensor):
            self._values.add(record, name, value, count, own=own)
        else:
            record.add(name, float(value), count)

    def read(self) -> None:
        """Read the values of all lanes. On a GPU this waits until they are there, once. Alone it is
        not done before somebody asks: see `means`."""
        if not self._is_late:
            self._values.settle()

    def means(self, step: step_records.StepRecord) -> Late:
        """The step's means. Alone on a device they are read when somebody looks at them: the next
        step need not wait for them."""
        values, self._values = self._values, Values()
        return values.means(step)

    @property
    def _is_late(self) -> bool:
        return self.layout.device.type == "cuda" and self._member.is_alone

    # --- the sum -------------------------------------------------------------------------------

    def complete(
        self,
        step: int,
        notes: bytes,
        prints: Sequence[Print] | None = None,
        lane_ms: float | None = None,
    ) -> step_records.StepRecord:
        """Wait until the sum over all lanes is here. Raises `PeerLost`; nothing is lost then."""
        self._begin(step, notes)
        self.read()
        assert self._exchange is not None
        if isinstance(self._exchange, NoExchange):
            # Nobody is to be told: and what lane 0 made of buffers is where it is needed already.
            self._exchange.finish(b"")
            found = step_records.alone(self.records, self._lanes, self._member.digest, prints)
        else:
            answers = {str(lane): answer for lane, answer in self.answers.items()}
            beside = step_records.Beside(self._member.mesh.worker, lane_ms, answers)
            outcome, digest = self.buffers.outcome(), self._member.digest
            mine = step_records.spell(self.records, outcome, digest, prints, beside)
            received = self._exchange.finish(mine)
            found = step_records.gather([mine, *received.values()], self._lanes)
        self._begun = False
        return found

    def gradients(self, divisor: float) -> list[torch.Tensor]:
        """The mean gradient of each parameter. Valid until the next step is summed."""
        assert self._exchange is not None
        total = self._exchange.total
        if self._host and total is self._host:
            total = self._total(Way.SHARED)
            for device, host in zip(total, self._host, strict=True):
                device.copy_(host, non_blocking=True)
        alone = isinstance(self._exchange, NoExchange)
        if divisor != 1:  # a whole step: dividing would pass over memory and change nothing
            for part in self.sums.wholes(total) if alone else total:
                part.div_(divisor)
        numbers = range(len(self.parameters))
        # Of memory that is the sums' own its views are known.
        found = self.sums.views(total) if alone else [self.layout.view(total, n) for n in numbers]
        if self._code is None:
            return found
        self._code.complete()
        return [self._code.grow(number, each) for number, each in enumerate(found)]

    # --- inside --------------------------------------------------------------------------------

    def _begin(self, step: int, notes: bytes) -> None:
        if not self._begun:
            self._begun = True
            assert self._exchange is not None
            self._exchange.begin(step, self.sums, notes)

    def _ready(self) -> Callable[[int], None] | None:
        """Who is to be told of buckets that are final; nobody, where nobody waits for them."""
        if isinstance(self._exchange, NoExchange):
            return None
        if self._exchange is None:
            raise BugError("a step without anybody to combine it with")
        return self._exchange.ready

    def _hook(self, number: int) -> Callable[[torch.Tensor], None]:
        def taken(parameter: torch.Tensor) -> None:
            if self._folding:
                self._take(number, parameter)
            elif self._counting:
                self.sums.note(number)
            elif self.on_stray is not None:
                self.on_stray()

        return taken

    def printed(self) -> list[Print]:
        """What is compared of the gradients of the batch just computed, folded already or not."""
        found = self.prints or {}
        each = enumerate(self.parameters)
        return [found.get(number) or printed(parameter.grad) for number, parameter in each]

    @property
    def _looked_at(self) -> bool:
        return self.prints is not None or self.bits is not None

    def _look_at(self, number: int, gradient: torch.Tensor | None) -> None:
        if self.prints is not None:
            self.prints[number] = printed(gradient)
        if self.bits is not None:
            self.bits[number] = bit_sums(gradient)

    def answer(self, lane: int, gradients: Iterable[torch.Tensor | None] | None = None) -> None:
        """What the lane came to: these, or the gradients that were taken while `bits` was set."""
        if gradients is not None:
            self.answers[lane] = answer_of([bit_sums(each) for each in gradients])
        elif self.bits is not None:
            numbers = range(len(self.parameters))
            self.answers[lane] = answer_of([self.bits.get(number) for number in numbers])

    def _take(self, number: int, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        if gradient is None:
            raise _taken_away()
        self._look_at(number, gradient)
        if self._code is not None:
            gradient = self._code.shrink(self._under_way, number, gradient)
        self.sums.take(number, gradient)
        parameter.grad = None


def _size(layout: Layout) -> int:
    """Bytes of one gradient."""
    return sum(
        size * dtype.itemsize for size, dtype in zip(layout.sizes, layout.dtypes, strict=True)
    )


def _taken_away() -> Usage:
    return Usage(
        "a hook of a parameter took its gradient away while run.step computed it",
        why="run.step sums it over all lanes first, and then updates",
        fix="remove the hook that steps an optimizer in the backward pass, and its "
        "zero_grad(): run.step does both",
    )


def memory_of(device: torch.device) -> PeerMemory | None:
    """What peers on the same machine can open; None: nothing is to be shared, all goes over TCP
    (`HOLDFAST_EXCHANGE=tcp`, to compare, or to look for a fault)."""
    if os.environ.get(worker_messages.EXCHANGE_VARIABLE) == "tcp":
        return None
    if device.type == "cpu":
        return HostMemory()
    if device.type == "cuda":
        trusted = os.environ.get(worker_messages.NETWORK_VARIABLE) == TRUSTED
        return CudaMemory(device, nccl=nccl_version() if trusted else "")
    return None
