"""Sums over the mesh's connections: the way between machines, and wherever no other works.

Stage by stage a member sends the others its partial sums of their chunks, combines what it gets for
its own chunk in tree order, and sends the result around with the next stage. With aligned lanes a
member has one piece, and the traffic is that of an all-reduce.
"""

from __future__ import annotations

import torch

from holdfast.train.members.mesh import Mesh
from holdfast.train.states.memory import view_bytes
from holdfast.train.sums import tree
from holdfast.train.sums.compression import Code
from holdfast.train.sums.exchange_plan import ExchangePlan, chunks
from holdfast.train.sums.gradients import Flat, GradientSums, Layout
from holdfast.train.sums.transport import ALIGN, BULK, Transport, opening, opening_buffer, rest
from holdfast.train.sums.tree import PartialSum

Messages = dict[int, list[memoryview]]  # to or from each peer


class OverTcp(Transport):
    """A stage is a bucket."""

    def __init__(
        self, mesh: Mesh, plan: ExchangePlan, layout: Layout, total: Flat, code: Code | None
    ) -> None:
        self._code = None if code is None or code.exact else code
        stages = [range(number, number + 1) for number in range(len(layout.sizes))]
        block = ALIGN if self._code is None else self._code.block
        super().__init__(mesh, plan, layout, total, stages)
        self._chunks = [chunks(size, plan.members, block) for size in layout.sizes]
        self._staging = self._staging_buffers()
        self._arriving: list[tuple[torch.Tensor, int, torch.Tensor]] = []  # bytes, lanes, buffer
        self._mirrors: dict[PartialSum, Flat] = {}
        if layout.device.type != "cpu":
            own = self._brought[self._me]
            self._mirrors = {
                piece: layout.allocate(torch.device("cpu"), pinned=True) for piece in own
            }

    def stage(self, number: int, sums: GradientSums) -> None:
        for piece, mirror in self._mirrors.items():
            mirror[number].copy_(sums.final(piece, number))
        self._send(number, sums)
        self._combine(number, sums)

    def end(self, words: bytes) -> dict[int, bytes]:
        """The sum of the last bucket, and what each member has to say of the step."""
        mine, openings = opening(words), {peer: opening_buffer() for peer in self._peers}
        sends: Messages = {}
        receives: Messages = {}
        for peer in self._peers:
            sends[peer], receives[peer] = [memoryview(mine)], [memoryview(openings[peer])]
        if self.stages:
            self._pass_on(len(self.stages) - 1, sends, receives)
        self._mesh.exchange(sends, receives, tag=BULK)
        self._decode()
        return rest(self._mesh, self._peers, words, openings)

    def look(self) -> None:
        """Nothing is under way behind a call that has returned."""

    def close(self) -> None:
        """It has nothing of a peer's."""

    def _send(self, bucket: int, sums: GradientSums) -> None:
        """Send the partial sums of this bucket and the sum of the one before; receive the same.

        One thread does both: a second one for what goes out was measured, and was slower.
        """
        chunks, mine = self._chunks[bucket], self._mine(bucket)
        sends: Messages = {}
        receives: Messages = {}
        for peer in self._peers:
            width = mine.stop - mine.start
            sends[peer] = [
                self._out(self._own(piece, bucket, sums)[chunks[peer]], piece)
                for piece in self._brought[self._me]
            ]
            receives[peer] = [
                self._in(buffer[bucket][:width], piece)
                for piece, buffer in self._staging[peer].items()
            ]
        if bucket:
            self._pass_on(bucket - 1, sends, receives)
        self._mesh.exchange(sends, receives, tag=BULK)
        self._decode()

    def _pass_on(self, bucket: int, sends: Messages, receives: Messages) -> None:
        """Everybody's chunk of the sum, to everybody."""
        total, chunks, root = self.total[bucket], self._chunks[bucket], tree.root(self._plan.lanes)
        mine = self._out(total[self._mine(bucket)], root)
        for peer in self._peers:
            sends[peer].append(mine)
            receives[peer].append(self._in(total[chunks[peer]], root))

    def _combine(self, bucket: int, sums: GradientSums) -> None:
        """My chunk of this bucket, from everyone's partial sums of it, in tree order."""
        chunk, combines = self._mine(bucket), self._plan.combines
        width, into = chunk.stop - chunk.start, self.total[bucket][chunk]
        own = self._brought[self._me]
        values = {piece: self._own(piece, bucket, sums)[chunk] for piece in own}
        written: set[PartialSum] = set()  # those whose memory is ours to write
        for buffers in self._staging.values():
            for piece, buffer in buffers.items():
                values[piece] = buffer[bucket][:width]
                written.add(piece)
        if not combines:
            into.copy_(values[self._plan.first])
        for number, step in enumerate(combines, 1):
            left, right = values.pop(step.left), values.pop(step.right)
            # Adding commutes, so it does not matter whose memory takes the sum.
            out = left if step.left in written else right
            if number == len(combines) or not {step.left, step.right} & written:
                out = into
            values[step.into] = torch.add(left, right, out=out)
            if self._code is not None:
                self._code.snap(out)
            written.add(step.into)

    # --- on the wire ---------------------------------------------------------------------------

    def _out(self, value: torch.Tensor, piece: PartialSum) -> memoryview:
        if self._code is None:
            return view_bytes(value)
        return view_bytes(self._code.encode(value, self._width(piece)))

    def _in(self, buffer: torch.Tensor, piece: PartialSum) -> memoryview:
        if self._code is None:
            return view_bytes(buffer)
        width = self._width(piece)
        raw = torch.empty(self._code.bytes_of(buffer.numel(), width), dtype=torch.uint8)
        self._arriving.append((raw, width, buffer))
        return view_bytes(raw)

    def _decode(self) -> None:
        """What has arrived, to where it belongs."""
        for raw, width, buffer in self._arriving:
            assert self._code is not None
            self._code.decode(raw, width, buffer)
        self._arriving.clear()

    def _width(self, piece: PartialSum) -> int:
        """The lanes in it."""
        return min(sum(piece), self._plan.lanes) - piece.first

    # --- memory --------------------------------------------------------------------------------

    def _mine(self, bucket: int) -> slice:
        """The chunk that I own."""
        return self._chunks[bucket][self._me]

    def _own(self, piece: PartialSum, bucket: int, sums: GradientSums) -> torch.Tensor:
        if self._mirrors:
            return self._mirrors[piece][bucket]
        return sums.final(piece, bucket)

    def _staging_buffers(self) -> dict[int, dict[PartialSum, list[torch.Tensor]]]:
        """For each piece of each peer, memory for my chunk; buckets of one type share it."""
        widest = dict[torch.dtype, int]()
        for bucket, dtype in enumerate(self._layout.dtypes):
            chunk = self._mine(bucket)
            widest[dtype] = max(chunk.stop - chunk.start, widest.get(dtype, 0))
        made: dict[int, dict[PartialSum, list[torch.Tensor]]] = {}
        for peer in self._peers:
            made[peer] = {}
            for piece in self._brought[peer]:
                buffers = {
                    dtype: torch.empty(width, dtype=dtype) for dtype, width in widest.items()
                }
                made[peer][piece] = [buffers[dtype] for dtype in self._layout.dtypes]
        return made
