"""Sums over memory that all members share: those of one machine, or of one GPU.

Nothing travels but small messages over the mesh's connections. Each member says which of its memory
holds its pieces of a stage. The owner of a chunk reads everyone's pieces of it there, adds them in
tree order, and writes the sum where the others find it: into its own total. They copy it from
there. A message of a stage also says that the sums of the stage before are there.

A step ends when all have said that they have copied: from then on nobody reads what is another's,
and everyone may write to what is its own. A member that loses its peers before that withdraws its
lease before it writes again, so whoever was left behind in the middle looks at the leases before it
believes what it has read (see `shared_memory`). One that dies takes nothing with it: what others
have mapped of it stays.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, Final

import torch

from holdfast.train.members.mesh import Mesh
from holdfast.train.sums.exchange_plan import Plan, stages
from holdfast.train.sums.gradients import Flat, Layout, Sums
from holdfast.train.sums.shared_memory import Lease, Memory, Offer, PeerLease, Unshared
from holdfast.train.sums.transport import SMALL, Transport, opening, opening_room, rest
from holdfast.train.sums.tree import Piece
from holdfast.wire.errors import PeerLost, Refused

_TAG: Final = 23
_U32: Final = struct.Struct("<I")


def lease_number(mesh: Mesh) -> int:
    """Of a meeting; never 0, which is that of none."""
    return (mesh.view << 32) + mesh.round + 1


class OverMemory(Transport):
    """All members' memory is open to all. `lease`: mine, granted; `leases`: those of the peers."""

    def __init__(
        self,
        mesh: Mesh,
        plan: Plan,
        layout: Layout,
        total: Flat,
        memory: Memory,
        lease: Lease,
        leases: Mapping[int, PeerLease],
    ) -> None:
        groups = stages([bucket.nbytes for bucket in total], memory.stage_bytes)
        super().__init__(mesh, plan, layout, total, groups)
        self._memory, self._lease, self._leases = memory, lease, leases
        self._scratch: dict[torch.dtype, list[torch.Tensor]] = {}
        # What I have offered, by where it is: its number, and itself. It must not be given back
        # while peers know it: other memory at the same address would be taken for it.
        self._offered: dict[tuple[int, int], tuple[int, torch.Tensor]] = {}
        self._opened: dict[int, list[torch.Tensor]] = {peer: [] for peer in self._peers}
        self._holders: dict[int, dict[str, torch.Tensor]] = {peer: {} for peer in self._peers}

    def stage(self, number: int, sums: Sums) -> None:
        buckets, offers = self.stages[number], list[Offer]()
        if not self._offered:
            for tensor in self.total:
                self._number(tensor, offers)
        own = {
            (piece, bucket): sums.final(piece, bucket)
            for piece in self._brought[self._me]
            for bucket in buckets
        }
        numbers = [self._number(tensor, offers) for tensor in own.values()]
        found = own | self._meet(buckets, numbers, offers)
        with self._memory.at_work():
            for bucket in buckets:
                self._combine(bucket, found)
            if number:
                self._copy(self.stages[number - 1])
        self._memory.settle()

    def end(self, words: bytes) -> dict[int, bytes]:
        mine, openings = opening(words), {peer: opening_room() for peer in self._peers}
        self._mesh.exchange(
            {peer: [mine] for peer in self._peers},
            {peer: [openings[peer]] for peer in self._peers},
            tag=_TAG,
        )
        heard = rest(self._mesh, self._peers, words, openings)
        if self.stages:
            with self._memory.at_work():
                self._copy(self.stages[-1])
            self._memory.settle()
        self._check_leases()
        nothing: dict[int, list[bytes]] = {peer: [] for peer in self._peers}
        self._mesh.exchange(nothing, nothing, tag=_TAG)
        return heard

    def close(self) -> None:
        """From now on what is ours may be written, and what was a peer's is given back."""
        self._lease.withdraw()
        self._offered.clear()
        for peer in self._peers:
            self._opened[peer].clear()
            self._holders[peer].clear()

    # --- what is where -------------------------------------------------------------------------

    def _meet(
        self, buckets: range, numbers: list[int], offers: list[Offer]
    ) -> dict[tuple[Piece, int], torch.Tensor]:
        """Say where my pieces of these buckets are, and hear where everyone's are."""
        known = json.dumps(offers).encode() if offers else b""
        mine = struct.pack(f"<{len(numbers) + 1}I", len(known), *numbers)
        rooms = {
            peer: bytearray(_U32.size * (1 + len(self._brought[peer]) * len(buckets)))
            for peer in self._peers
        }
        self._mesh.exchange(
            {peer: [mine] for peer in self._peers},
            {peer: [room] for peer, room in rooms.items()},
            tag=_TAG,
        )
        said = {peer: struct.unpack(f"<{len(room) // 4}I", room) for peer, room in rooms.items()}
        self._open({peer: size for peer, (size, *_) in said.items() if size}, known)
        found: dict[tuple[Piece, int], torch.Tensor] = {}
        for peer, (_, *where) in said.items():
            keys = [(piece, bucket) for piece in self._brought[peer] for bucket in buckets]
            for (piece, bucket), number in zip(keys, where, strict=True):
                found[piece, bucket] = self._peer_tensor(peer, number, bucket)
        return found

    def _number(self, tensor: torch.Tensor, offers: list[Offer]) -> int:
        """Under which peers know it; it is offered when it is new."""
        key = tensor.data_ptr(), tensor.nbytes
        if key not in self._offered:
            try:
                offers.append(self._memory.offer(tensor))
            except Unshared as error:
                raise self._give_up(error) from error
            self._offered[key] = len(self._offered), tensor
        return self._offered[key][0]

    def _open(self, sizes: Mapping[int, int], mine: bytes) -> None:
        """Hear what peers offer anew, and open it."""
        rooms = {peer: bytearray(size) for peer, size in sizes.items()}
        if mine or rooms:
            sends = {peer: [mine] for peer in self._peers} if mine else {}
            self._mesh.exchange(sends, {peer: [room] for peer, room in rooms.items()}, tag=SMALL)
        for peer, room in rooms.items():
            for offer in map(Offer.of, json.loads(room)):
                self._opened[peer].append(self._mapped(peer, offer))

    def _mapped(self, peer: int, offer: Offer) -> torch.Tensor:
        holders, key = self._holders[peer], json.dumps(offer.holder)
        if key not in holders:
            try:
                holders[key] = self._memory.open(offer.holder)
            except Unshared as error:
                raise self._give_up(error) from error
        end = offer.offset + offer.size
        if not 0 <= offer.offset <= end <= holders[key].numel():
            raise Refused(f"worker {peer} offers memory beyond its end")
        return holders[key][offer.offset : end]

    def _peer_tensor(self, peer: int, number: int, bucket: int) -> torch.Tensor:
        found, mine = self._opened[peer][number], self.total[bucket]
        if found.numel() != mine.nbytes:
            raise Refused(f"worker {peer} offers {found.numel()} bytes for {mine.nbytes}")
        return found.view(mine.dtype)

    def _give_up(self, error: Unshared) -> PeerLost:
        """Meet again, and take another way there."""
        self._memory.refuse(f"{error}: {error.why}" if error.why else str(error))
        lost = PeerLost("this worker cannot share memory any more", why=str(error))
        self._mesh.close(lost)
        return lost

    def _check_leases(self) -> None:
        """Whether what was read is of this step: nobody has gone on without this member."""
        right = lease_number(self._mesh)
        for peer, lease in self._leases.items():
            if lease.number != right:
                lost = PeerLost(f"worker {peer} has gone on without this one", peer=peer)
                self._mesh.close(lost)
                raise lost

    # --- sums ----------------------------------------------------------------------------------

    def _combine(self, bucket: int, found: Mapping[tuple[Piece, int], torch.Tensor]) -> None:
        """My chunk of the bucket, from where everyone's pieces lie, in tree order."""
        chunk, combines = self._mine(bucket), self._plan.combines
        into = self.total[bucket][chunk]
        pieces = [piece for brought in self._brought.values() for piece in brought]
        values = {piece: found[piece, bucket][chunk] for piece in pieces}
        if not combines:
            into.copy_(values[self._plan.first])
        spare = [*(each[: into.numel()] for each in self._spare(bucket)), into]
        mine: dict[Piece, torch.Tensor] = {}  # what may be written
        for number, step in enumerate(combines, 1):
            left, right = values.pop(step.left), values.pop(step.right)
            used = [mine.pop(each) for each in (step.left, step.right) if each in mine]
            # Adding commutes, so it does not matter whose memory takes the sum.
            out = into if number == len(combines) else used.pop() if used else spare.pop()
            values[step.into] = mine[step.into] = torch.add(left, right, out=out)
            spare.extend(used)

    def _spare(self, bucket: int) -> list[torch.Tensor]:
        """Memory of my own for sums between the pieces and the last one, beside the place of that:
        each as large as the widest chunk of the type."""
        dtype = self._layout.dtypes[bucket]
        if dtype not in self._scratch:
            widths = [
                self._mine(each).stop - self._mine(each).start
                for each, other in enumerate(self._layout.dtypes)
                if other == dtype
            ]
            like, count = self.total[bucket], max(0, self._plan.between - 1)
            self._scratch[dtype] = [like.new_empty(max(widths)) for _ in range(count)]
        return self._scratch[dtype]

    def _copy(self, buckets: range) -> None:
        """The others' chunks of the sum."""
        into, values = list[torch.Tensor](), list[torch.Tensor]()
        for peer in self._peers:
            for bucket in buckets:
                chunk = self._chunks[bucket][peer]
                into.append(self.total[bucket][chunk])
                values.append(self._peer_tensor(peer, bucket, bucket)[chunk])
        torch._foreach_copy_(into, values)


def opened_leases(holders: Mapping[int, Any]) -> dict[int, PeerLease]:
    """Those of the peers: the proof that they are on this machine. Raises `Unshared`."""
    return {peer: PeerLease(holder) for peer, holder in holders.items()}
