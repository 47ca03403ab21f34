"""Sums over memory that all members share: those of one machine, or of one GPU.

Nothing travels but small messages over the mesh's connections. Each member says which of its memory
holds its partial sums of a stage. The owner of a chunk reads everyone's partial sums of it there,
adds them in tree order, and writes the sum where the others find it: into its own total. They copy
it from there. A message of a stage also says that the sums of the stage before are there.

The buckets of a stage lie side by side in memory, those of one type: they are a span, which is
added and copied as a whole. On a device each bucket by itself would cost as many launches, and
those took most of the time.

A step ends when all have said that they have copied: from then on nobody reads what is another's,
and everyone may write to what is its own. A member that loses its peers before that withdraws its
lease before it writes again, so whoever was left behind in the middle looks at the leases before it
believes what it has read (see `shared_memory`). One that dies takes nothing with it: what others
have mapped of it stays.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from holdfast.train.members.mesh import Mesh
from holdfast.train.sums.exchange_plan import ExchangePlan, blocks, chunks, stages
from holdfast.train.sums.gradients import Flat, GradientSums, Layout, one_piece
from holdfast.train.sums.shared_memory import MemoryLease, Offer, PeerLease, PeerMemory, Unshared
from holdfast.train.sums.transport import ALIGN, SMALL, Transport, opening, opening_buffer, rest
from holdfast.train.sums.tree import Combine, PartialSum
from holdfast.wire.errors import PeerLost, Refused

_TAG: Final = 23
_U32: Final = struct.Struct("<I")

Found = dict[
    tuple[PartialSum, int], torch.Tensor
]  # partial sums, by the number of a span in its stage
Values = dict[PartialSum, torch.Tensor]


def lease_number(mesh: Mesh) -> int:
    """Of a meeting; never 0, which is that of none."""
    return (mesh.view << 32) + mesh.round + 1


class OverMemory(Transport):
    """`near`: the peers whose memory is open to me, as mine is to them; here all of them. `lease`:
    mine, granted; `leases`: theirs."""

    def __init__(
        self,
        mesh: Mesh,
        plan: ExchangePlan,
        layout: Layout,
        total: Flat,
        memory: PeerMemory,
        lease: MemoryLease,
        leases: Mapping[int, PeerLease],
    ) -> None:
        groups = stages([bucket.nbytes for bucket in total], self._stage_bytes(memory))
        self._spans = [list(layout.spans(group)) for group in groups]
        self._wholes = [[one_piece(total, span) for span in spans] for spans in self._spans]
        super().__init__(mesh, plan, layout, total, groups)
        self._near, self._owners = sorted(leases), plan.members
        self._memory, self._lease, self._leases = memory, lease, leases
        self._scratch: dict[torch.dtype, list[torch.Tensor]] = {}
        # What I have offered, by where it is: its number, and itself. It must not be given back
        # while peers know it: other memory at the same address would be taken for it.
        self._offered: dict[tuple[int, int], tuple[int, torch.Tensor]] = {}
        self._opened: dict[int, list[torch.Tensor]] = {peer: [] for peer in self._near}
        self._holders: dict[int, dict[str, torch.Tensor]] = {peer: {} for peer in self._near}

    def _stage_bytes(self, memory: PeerMemory) -> int:
        return memory.stage_bytes

    def stage(self, number: int, sums: GradientSums) -> None:
        found = self._found(number, sums)
        with self._memory.at_work():
            self._combine(number, found)
            if number:
                self._copy([number - 1])
        self._memory.settle()

    def end(self, words: bytes) -> dict[int, bytes]:
        return self._end(words, range(len(self.stages))[-1:])

    def _end(self, words: bytes, uncopied: Sequence[int]) -> dict[int, bytes]:
        """My part of the last sums is there: say so with my words, and copy what is the others'."""
        mine, openings = opening(words), {peer: opening_buffer() for peer in self._peers}
        self._mesh.exchange(
            {peer: [mine] for peer in self._peers},
            {peer: [openings[peer]] for peer in self._peers},
            tag=_TAG,
        )
        received = rest(self._mesh, self._peers, words, openings)
        if uncopied:
            with self._memory.at_work():
                self._copy(uncopied)
            self._memory.settle()
        self._check_leases()
        nothing: dict[int, list[bytes]] = {peer: [] for peer in self._near}
        self._mesh.exchange(nothing, nothing, tag=_TAG)
        return received

    def look(self) -> None:
        """Nothing is under way behind a call that has returned."""

    def close(self) -> None:
        """From now on what is ours may be written, and what was a peer's is given back."""
        self._lease.withdraw()
        self._offered.clear()
        for peer in self._near:
            self._opened[peer].clear()
            self._holders[peer].clear()

    # --- what is where -------------------------------------------------------------------------

    def _found(self, stage: int, sums: GradientSums) -> Found:
        """Where the partial sums of the stage are: mine, and those of whoever is near."""
        offers = list[Offer]()
        if not self._offered:
            for tensor in self._every_whole():
                self._number(tensor, offers)
        own: Found = {}
        for piece in self._brought[self._me]:
            for span, buckets in enumerate(self._spans[stage]):
                finals = {bucket: sums.final(piece, bucket) for bucket in buckets}
                own[piece, span] = one_piece(finals, buckets)
        numbers = [self._number(tensor, offers) for tensor in own.values()]
        return own | self._meet(stage, numbers, offers)

    def _every_whole(self) -> list[torch.Tensor]:
        """The spans of the total, stage after stage: peers know them by their place in this."""
        return [whole for wholes in self._wholes for whole in wholes]

    def _meet(self, stage: int, numbers: list[int], offers: list[Offer]) -> Found:
        """Say where my partial sums of this stage are, and hear where everyone's are."""
        wholes = self._wholes[stage]
        known = json.dumps(offers).encode() if offers else b""
        mine = struct.pack(f"<{len(numbers) + 1}I", len(known), *numbers)
        buffers = {
            peer: bytearray(_U32.size * (1 + len(self._brought[peer]) * len(wholes)))
            for peer in self._near
        }
        self._mesh.exchange(
            {peer: [mine] for peer in self._near},
            {peer: [buffer] for peer, buffer in buffers.items()},
            tag=_TAG,
        )
        announced = {
            peer: struct.unpack(f"<{len(buffer) // 4}I", buffer) for peer, buffer in buffers.items()
        }
        self._open({peer: size for peer, (size, *_) in announced.items() if size}, known)
        found: Found = {}
        for peer, (_, *where) in announced.items():
            keys = [(piece, span) for piece in self._brought[peer] for span in range(len(wholes))]
            for (piece, span), number in zip(keys, where, strict=True):
                found[piece, span] = self._peer_tensor(peer, number, wholes[span])
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
        buffers = {peer: bytearray(size) for peer, size in sizes.items()}
        if mine or buffers:
            sends = {peer: [mine] for peer in self._near} if mine else {}
            self._mesh.exchange(
                sends, {peer: [buffer] for peer, buffer in buffers.items()}, tag=SMALL
            )
        for peer, buffer in buffers.items():
            for offer in map(Offer.of, json.loads(buffer)):
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

    def _peer_tensor(self, peer: int, number: int, mine: torch.Tensor) -> torch.Tensor:
        """What the peer calls so, which has to be as large as mine."""
        found = self._opened[peer][number]
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

    def _combine(self, stage: int, found: Found) -> None:
        """My chunks of the stage, from where everyone's partial sums lie, in tree order."""
        for span, whole in enumerate(self._wholes[stage]):
            values = {piece: each for (piece, of), each in found.items() if of == span}
            self._add(whole, self._chunk(whole, self._me), values, self._plan.combines)

    def _add(
        self, whole: torch.Tensor, chunk: slice, values: Values, combines: Sequence[Combine]
    ) -> None:
        """This chunk of what the values come to, in this order, into the same chunk of `whole`."""
        for part in blocks(chunk, self._memory.block_bytes // whole.element_size()):
            self._add_part(whole[part], {key: each[part] for key, each in values.items()}, combines)

    def _add_part(self, into: torch.Tensor, values: Values, combines: Sequence[Combine]) -> None:
        mine = dict[PartialSum, torch.Tensor]()  # what may be written
        if not combines:
            (value,) = values.values()
            into.copy_(value)
        spare = [*(each[: into.numel()] for each in self._spare(into)), into]
        for number, step in enumerate(combines, 1):
            left, right = values.pop(step.left), values.pop(step.right)
            used = [mine.pop(each) for each in (step.left, step.right) if each in mine]
            # Adding commutes, so it does not matter whose memory takes the sum.
            out = into if number == len(combines) else used.pop() if used else spare.pop()
            values[step.into] = mine[step.into] = torch.add(left, right, out=out)
            spare.extend(used)

    def _spare(self, into: torch.Tensor) -> list[torch.Tensor]:
        """Memory of my own for sums between the partial sums and the last one, beside the place of
        that: each as large as the widest part of the type so far."""
        count = max(0, self._plan.between - 1)
        made = self._scratch.get(into.dtype, [])
        if count and (not made or made[0].numel() < into.numel()):
            made = self._scratch[into.dtype] = [torch.empty_like(into) for _ in range(count)]
        return made

    def _copy(self, numbers: Sequence[int]) -> None:
        """The others' chunks of the sum in these stages, from who has them in its total."""
        into, values = list[torch.Tensor](), list[torch.Tensor]()
        for stage in numbers:
            before = sum(map(len, self._wholes[:stage]))
            for owner in self._owners:
                if (peer := self._source(owner)) == self._me:
                    continue
                for number, whole in enumerate(self._wholes[stage], before):
                    chunk = self._chunk(whole, owner)
                    into.append(whole[chunk])
                    values.append(self._peer_tensor(peer, number, whole)[chunk])
        if into:
            torch._foreach_copy_(into, values)

    def _source(self, owner: int) -> int:
        """Who near here has the sum of this owner's chunk."""
        return owner

    def _chunk(self, whole: torch.Tensor, owner: int) -> slice:
        """The owner's part of a span."""
        return chunks(whole.numel(), self._owners, ALIGN)[owner]


def opened_leases(holders: Mapping[int, Any]) -> dict[int, PeerLease]:
    """Those of the peers: the proof that they are on this machine. Raises `Unshared`."""
    return {peer: PeerLease(holder) for peer, holder in holders.items()}
