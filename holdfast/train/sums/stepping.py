"""One step of a run: its lanes are computed, summed over everyone, and become an update.

The lanes that this worker has to compute are asked for one after the other. What was computed is
kept until the step is complete: when the view changes in between, only the lanes that nobody holds
any more are computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

import torch

from holdfast.train.members.conversation import Conversation
from holdfast.train.members.membership import Membership
from holdfast.train.members.mesh import Mesh
from holdfast.train.rehearsal import Print, printed
from holdfast.train.states.tracked import Tracked
from holdfast.train.sums import sharing, words
from holdfast.train.sums.buckets import bucket_bytes
from holdfast.train.sums.buffers import Buffers
from holdfast.train.sums.compression import Code
from holdfast.train.sums.exchange import Alone, Exchange, MeshExchange
from holdfast.train.sums.exchange_plan import Way
from holdfast.train.sums.gradients import Flat, Layout, Sums
from holdfast.wire.errors import Usage


class Stepping:
    """The gradients of the tracked models, from lanes to the sum."""

    def __init__(
        self, tracked: Tracked, lanes: int, member: Membership, code: Code | None = None
    ) -> None:
        self._lanes = lanes
        self._member = member
        self.parameters = tracked.parameters()
        self._code, self._under_way = code, 0
        if code is None:
            self.layout = Layout(self.parameters, bucket_bytes(lanes))
        else:
            self.layout = Layout(code.summed(), block=code.block)
        self.layout.memory = None if member.is_alone else sharing.memory_of(self.layout.device)
        self.sums = Sums(self.layout, lanes, code)
        self.buffers = Buffers(tracked.models)
        self.records: dict[int, words.Lane] = {}
        self._scalars: list[tuple[words.Lane, str, torch.Tensor, int]] = []
        self._host: Flat = []
        self._device: Flat = []
        self._exchange: Exchange | None = None
        self._mesh: Mesh | None = None  # the one that the exchange is over
        self._begun = False
        self._folding = False
        self.prints: dict[int, Print] | None = None  # of the gradients taken; None: nobody asks
        for parameter in self.parameters:
            parameter.grad = None  # one that was thawed may have what nobody has summed
        self.on_stray: Callable[[], None] | None = None  # for a gradient outside of `backward`
        self._handles = [
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                self._hook(number)
            )
            for number, parameter in enumerate(self.parameters)
        ]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self.disconnect()

    def fits(self, tracked: Tracked) -> bool:
        """Whether the same parameters are trained, and the models have the same buffers: a hook may
        thaw, freeze, or change a module."""
        now = tracked.parameters()
        same = len(now) == len(self.parameters) and all(map(is_, now, self.parameters))
        return same and self.buffers.fit(tracked.models)

    # --- the view ------------------------------------------------------------------------------

    def connect(self, talk: Conversation) -> None:
        """Combine over the member's mesh. Nothing happens when that is the one of before: this is
        called at every boundary, and an exchange has a thread and buffers of its own."""
        member = self._member
        if self._exchange is not None and self._mesh is member.mesh:
            return
        self.disconnect()
        self._begun, self._mesh = False, member.mesh
        if len(member.view.lanes) <= 1:
            self._exchange = Alone(self._lanes)
            return
        self._exchange = MeshExchange(
            member.mesh,
            talk,
            member.view.lanes,
            self._lanes,
            self.layout,
            self._total,
            self._code,
            self.layout.memory,
        )

    def _total(self, way: Way) -> Flat:
        """Where the sum is to be: over TCP it comes to the host."""
        if way is Way.TCP and self.layout.device.type != "cpu":
            self._host = self._host or self.layout.room(torch.device("cpu"), pinned=True)
            return self._host
        self._device = self._device or self.layout.room()
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
        self._scalars.clear()
        self.buffers.forget()

    # --- lanes ---------------------------------------------------------------------------------

    def missing(self) -> list[int]:
        return self.sums.missing(self._member.lanes)

    def empty(self, lane: int, *, more: bool) -> None:
        """The lane has no samples in this step: it counts as zero."""
        self.buffers.before_lane()
        self.sums.begin(lane)
        self.sums.end()
        self.records[lane] = words.Lane(more=more)
        self.buffers.after_lane(lane)

    def backward(
        self, lane: int, loss: torch.Tensor, *, final: bool, step: int, notes: bytes
    ) -> None:
        """One part of a lane; with `final` its last. The last lane's gradients travel while the
        backward pass goes on."""
        if final:
            last = self.missing() == [lane]
            if last:
                self._begin(step, notes)
            assert self._exchange is not None
            self.begin(lane, self._exchange.ready if last else None)
            self._folding = True
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        finally:
            self._folding = False
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

    def scalar(self, record: words.Lane, name: str, value: Any, count: int) -> None:
        """A value of a lane. A tensor is read when the step is complete: on a GPU that waits."""
        if isinstance(value, torch.Tensor):
            # A copy: what a captured graph gives is overwritten by the next lane.
            kept = value.detach() if value.device.type == "cpu" else value.detach().clone()
            self._scalars.append((record, name, kept, count))
        else:
            record.add(name, float(value), count)

    def read(self) -> None:
        """Read the values of all lanes. On a GPU this waits until they are there, once."""
        values = [value for _, _, value, _ in self._scalars]
        if len({(value.device, value.dtype, value.shape) for value in values}) == 1:
            numbers = torch.stack(values).tolist()  # of one shape: numbers, or lists of one each
        else:
            numbers = [float(value) for value in values]
        for (record, name, _, count), number in zip(self._scalars, numbers, strict=True):
            record.add(name, number if isinstance(number, float) else _single(number), count)
        self._scalars.clear()

    # --- the sum -------------------------------------------------------------------------------

    def complete(
        self, step: int, notes: bytes, prints: Sequence[Print] | None = None
    ) -> words.Step:
        """Wait until the sum over all lanes is here. Raises `PeerLost`; nothing is lost then."""
        self._begin(step, notes)
        self.read()
        assert self._exchange is not None
        # Alone, what lane 0 made of the buffers is where it is needed already.
        outcome = None if isinstance(self._exchange, Alone) else self.buffers.outcome()
        mine = words.spell(self.records, outcome, self._member.digest, prints)
        heard = self._exchange.finish(mine)
        found = words.gather([mine, *heard.values()], self._lanes)
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
        if divisor != 1:  # a whole step: dividing would pass over memory and change nothing
            for bucket in total:
                bucket.div_(divisor)
        found = [self.layout.view(total, number) for number in range(len(self.parameters))]
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

    def _hook(self, number: int) -> Callable[[torch.Tensor], None]:
        def taken(parameter: torch.Tensor) -> None:
            if self._folding:
                self._take(number, parameter)
            elif self.on_stray is not None:
                self.on_stray()

        return taken

    def printed(self, number: int) -> Print:
        """What is compared of the gradient of the batch just computed, folded already or not."""
        assert self.prints is not None
        return self.prints.get(number) or printed(self.parameters[number].grad)

    def _take(self, number: int, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        if gradient is None:
            raise Usage(
                "a hook of a parameter took its gradient away while run.step computed it",
                why="run.step sums it over all lanes first, and then updates",
                fix="remove the hook that steps an optimizer in the backward pass, and its "
                "zero_grad(): run.step does both",
            )
        if self.prints is not None:
            self.prints[number] = printed(gradient)
        if self._code is not None:
            gradient = self._code.shrink(self._under_way, number, gradient)
        self.sums.take(number, gradient)
        parameter.grad = None


def _single(number: Any) -> float:
    """The one number in lists of one."""
    while isinstance(number, list):
        (number,) = number
    return float(number)
