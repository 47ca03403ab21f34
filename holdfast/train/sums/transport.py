"""What every way of combining has: who is there, whose chunk is where, words beside sums."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final

from holdfast.train.members.mesh import Mesh
from holdfast.train.sums.exchange_plan import ExchangePlan
from holdfast.train.sums.gradients import Flat, GradientSums, Layout

ALIGN: Final = 16  # elements: chunks begin where vector instructions like it
# Tags of the mesh's messages.
BULK: Final = 21
SMALL: Final = 22
# What members say of a step travels with its last sum: its length, and so many bytes of it.
_SIZE: Final = 8
_SHORT: Final = 1016


class Transport(ABC):
    """One way, between the members of one meeting. One thread calls it: `stage` for each of
    `stages` when its buckets are ready, then `end`, step by step. Both raise `PeerLost`."""

    def __init__(
        self,
        mesh: Mesh,
        plan: ExchangePlan,
        layout: Layout,
        total: Flat,
        stages: Sequence[range],
    ) -> None:
        self.total, self.stages = total, stages
        self._mesh, self._plan, self._layout = mesh, plan, layout
        self._me, self._brought = mesh.worker, plan.brought
        self._peers = [worker for worker in plan.members if worker != mesh.worker]

    @abstractmethod
    def stage(self, number: int, sums: GradientSums) -> None:
        """The buckets of this stage are final here. When all are through, `total` has their sum,
        here and everywhere."""

    @abstractmethod
    def end(self, words: bytes) -> dict[int, bytes]:
        """All stages are through: say my words of the step, and hear everyone's."""

    @abstractmethod
    def look(self) -> None:
        """While the thread waits for something else: raise `PeerLost` if what was begun will never
        be through."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is a peer's. Nobody calls it any more."""


def say(mesh: Mesh, peers: Sequence[int], words: bytes) -> dict[int, bytes]:
    """Say it to all peers, and hear what each says."""
    mine, buffers = opening(words), {peer: opening_buffer() for peer in peers}
    mesh.exchange(
        {peer: [mine] for peer in peers}, {peer: [buffers[peer]] for peer in peers}, tag=SMALL
    )
    return rest(mesh, peers, words, buffers)


def opening(words: bytes) -> bytes:
    """Their length and how they begin: always so many bytes."""
    return len(words).to_bytes(_SIZE, "little") + words[:_SHORT].ljust(_SHORT, b"\0")


def opening_buffer() -> bytearray:
    return bytearray(_SIZE + _SHORT)


def rest(
    mesh: Mesh, peers: Sequence[int], words: bytes, openings: Mapping[int, bytearray]
) -> dict[int, bytes]:
    """All that each peer has said, from how it begins. Words are mostly short: only the rest of
    long ones takes a message more."""
    mine, received, receives = words[_SHORT:], {}, dict[int, list[bytearray]]()
    for peer, buffer in openings.items():
        size = int.from_bytes(buffer[:_SIZE], "little")
        received[peer] = buffer[_SIZE : _SIZE + size]
        if size > _SHORT:
            receives[peer] = [bytearray(size - _SHORT)]
    if mine or receives:
        sends = {peer: [mine] for peer in peers} if mine else {}
        mesh.exchange(sends, receives, tag=SMALL)
    for peer, (more,) in receives.items():
        received[peer] += more
    return {peer: bytes(data) for peer, data in received.items()}
