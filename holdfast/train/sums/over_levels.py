"""Sums in two levels: over memory within groups of members, and over a carrier between them.

The agent of a chunk in a group combines what the group's members have of it, as far as the tree's
order allows, and sends the outcome to the chunk's owner in its group. The owner combines what
groups have sent, and sends the sum back to the agents, from whom their groups copy it. What is sent
back of a stage travels with a later one. `exchange_plan.Levels` says who does what.

A carrier that works by itself is handed a stage before the one before is through (`ahead`): else it
would stand still while what has arrived is added. So there are as many places for what arrives and
what leaves, and the sum of a stage is sent back as much later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import torch

from holdfast.train.members.mesh import Mesh
from holdfast.train.states.memory import view_bytes
from holdfast.train.sums.exchange_plan import ExchangeLevel, ExchangePlan, Levels
from holdfast.train.sums.gradients import Flat, GradientSums, Layout
from holdfast.train.sums.over_memory import Found, OverMemory, Values
from holdfast.train.sums.shared_memory import MemoryLease, PeerLease, PeerMemory
from holdfast.train.sums.transport import BULK

# What travels between groups does so while the backward pass goes on: in stages of at most this.
LEVEL_STAGE_BYTES: Final = 32 * 1024 * 1024

Messages = dict[int, list[torch.Tensor]]  # to or from each peer


class Carrier(Protocol):
    """What bytes travel over between groups. All members have the same kind."""

    ahead: int  # so many exchanges may be under way when another one begins

    def begin(self, sends: Messages, receives: Messages) -> None:
        """Behind those that were begun before. The memory is the carrier's until it is through.
        Raises `PeerLost`."""

    def finish(self) -> None:
        """Return when the first of those under way is through. Raises `PeerLost`."""

    def look(self) -> None:
        """Raise `PeerLost` if what is under way will never be through: then it ends, too."""

    def close(self) -> None:
        """Let go, whatever is under way."""


class MeshCarrier:
    """The mesh's own connections, in the thread that asks."""

    ahead = 0

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    def begin(self, sends: Messages, receives: Messages) -> None:
        self._mesh.exchange(
            {peer: list(map(view_bytes, each)) for peer, each in sends.items()},
            {peer: list(map(view_bytes, each)) for peer, each in receives.items()},
            tag=BULK,
        )

    def finish(self) -> None:
        """What was begun is through."""

    def look(self) -> None:
        """Nothing is under way."""

    def close(self) -> None:
        """The mesh is somebody else's."""


class StageUnderWay(NamedTuple):
    """A stage with the carrier, and for each of its spans what all groups have made of my chunk, as
    far as it is there. Without: only sums that are sent back."""

    number: int
    leaving: list[Values]


class OverLevels(OverMemory):
    """`leases`: those of my group."""

    def __init__(
        self,
        mesh: Mesh,
        plan: ExchangePlan,
        layout: Layout,
        total: Flat,
        memory: PeerMemory,
        lease: MemoryLease,
        leases: Mapping[int, PeerLease],
        levels: Levels,
        carrier: Carrier,
    ) -> None:
        super().__init__(mesh, plan, layout, total, memory, lease, leases)
        self._owners, self._levels, self._carrier = levels.owners, levels, carrier
        self._group = levels.group_of(self._me)
        self._others = [group for group in levels.groups if group is not self._group]
        self._buffers: dict[tuple[object, ...], torch.Tensor] = {}
        self._under_way = deque[StageUnderWay]()

    def _stage_bytes(self, memory: PeerMemory) -> int:
        return min(memory.stage_bytes, LEVEL_STAGE_BYTES)

    def stage(self, number: int, sums: GradientSums) -> None:
        found, ahead = self._found(number, sums), self._carrier.ahead
        sends, receives = Messages(), Messages()
        leaving: list[Values] = []  # of my own chunk: what every group has made of it
        turn = number % (ahead + 1)
        with self._memory.at_work():
            for span, whole in enumerate(self._wholes[number]):
                leaving.append({})
                for owner in self._owners:
                    if self._source(owner) != self._me:
                        continue
                    made = self._reduced(found, (turn, span), whole, owner)
                    if owner == self._me:
                        leaving[-1] |= made
                    else:
                        sends.setdefault(owner, []).extend(made.values())
                for group in self._others if self._me in self._owners else ():
                    buffers = self._arriving(group, (turn, span), whole)
                    receives.setdefault(self._levels.agent(group, self._me), []).extend(
                        buffers.values()
                    )
                    leaving[-1] |= buffers
            # Added are the stages that are not under way; of `ahead` fewer the sums are here.
            if number > ahead:
                self._pass_on(number - 1 - ahead, sends, receives)
            if number > 1 + 2 * ahead:
                self._copy([number - 2 - 2 * ahead])
        self._memory.settle()
        self._carrier.begin(sends, receives)
        self._under_way.append(StageUnderWay(number, leaving))
        while len(self._under_way) > ahead:
            self._finish()

    def end(self, words: bytes) -> dict[int, bytes]:
        count, ahead = len(self.stages), self._carrier.ahead
        for number in range(count)[-1 - ahead :]:
            while any(each.number == number and each.leaving for each in self._under_way):
                self._finish()
            sends, receives = Messages(), Messages()
            self._pass_on(number, sends, receives)
            self._carrier.begin(sends, receives)
            self._under_way.append(StageUnderWay(number, []))
        while self._under_way:
            self._finish()
        return self._end(words, range(count)[-2 - 2 * ahead :])

    def look(self) -> None:
        if self._under_way:
            self._carrier.look()

    def _finish(self) -> None:
        """The first stage under way is through: add what has arrived of my chunk."""
        self._carrier.finish()
        number, leaving = self._under_way.popleft()
        if not leaving or self._me not in self._owners:
            return
        with self._memory.at_work():
            for whole, values in zip(self._wholes[number], leaving, strict=True):
                into = whole[self._chunk(whole, self._me)]
                self._add(into, slice(0, into.numel()), values, self._levels.combines)
        self._memory.settle()

    def close(self) -> None:
        self._carrier.close()
        super().close()
        self._buffers.clear()

    def _pass_on(self, stage: int, sends: Messages, receives: Messages) -> None:
        """The sums of my chunks to the agents of other groups; those of theirs, for my group."""
        for whole in self._wholes[stage]:
            for group in self._others if self._me in self._owners else ():
                agent = self._levels.agent(group, self._me)
                sends.setdefault(agent, []).append(whole[self._chunk(whole, self._me)])
            for owner in self._owners:
                if owner not in self._group.members and self._source(owner) == self._me:
                    receives.setdefault(owner, []).append(whole[self._chunk(whole, owner)])

    def _source(self, owner: int) -> int:
        return self._levels.agent(self._group, owner)

    def _reduced(
        self, found: Found, place: tuple[int, int], whole: torch.Tensor, owner: int
    ) -> Values:
        """What my group has of an owner's chunk, in the partial sums that leave it. `place`: whose
        turn it is, and the span's number in its stage."""
        chunk, group, made = self._chunk(whole, owner), self._group, Values()
        width, own = chunk.stop - chunk.start, set(self._brought[self._me])
        values = {piece: found[piece, place[1]][chunk] for piece in group.brought}
        for leaf, holder in group.leaves.items():
            if holder in own:  # it is as it was brought, by me: nothing is to be done
                made[leaf] = values[holder]
                continue
            steps = [step for step in group.combines if _is_in(step.into, leaf)]
            names = {each for step in steps for each in (step.left, step.right)} or {holder}
            needed = {piece: values[piece] for piece in names & values.keys()}
            into = self._buffer(("out", owner, leaf, place), whole, width)
            self._add(into, slice(0, width), needed, steps)
            made[leaf] = into
        return made

    def _arriving(
        self, group: ExchangeLevel, place: tuple[int, int], whole: torch.Tensor
    ) -> Values:
        """Where what another group has made of my chunk is to arrive."""
        chunk = self._chunk(whole, self._me)
        width = chunk.stop - chunk.start
        return {leaf: self._buffer(("in", leaf, place), whole, width) for leaf in group.leaves}

    def _buffer(self, key: tuple[object, ...], like: torch.Tensor, width: int) -> torch.Tensor:
        """Memory of my own, which is used again in every stage."""
        key = (*key, like.dtype)
        if key not in self._buffers or self._buffers[key].numel() < width:
            self._buffers[key] = like.new_empty(width)
        return self._buffers[key][:width]


def _is_in(piece: Sequence[int], other: Sequence[int]) -> bool:
    first, size = piece
    return other[0] <= first and first + size <= other[0] + other[1]
