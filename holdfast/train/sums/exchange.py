"""How everyone's pieces of a step become the one sum, over the mesh of a view.

Each member owns a chunk of every bucket. Stage by stage it sends the others its pieces of their
chunks, combines what it gets for its own chunk in tree order, and sends the result around with the
next stage. With aligned lanes a member has one piece, and the traffic is that of an all-reduce. The
stages run in a thread of their own while the backward pass still works on the buckets to come.

The pieces themselves are only read. When the mesh breaks in the middle they are as valid as before.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import torch

from holdfast.train.members.conversation import STEP, Conversation
from holdfast.train.members.mesh import Mesh
from holdfast.train.states.memory import view_bytes
from holdfast.train.sums import tree
from holdfast.train.sums.compression import Code
from holdfast.train.sums.gradients import Flat, Layout, Sums
from holdfast.train.sums.tree import Piece
from holdfast.wire.errors import BugError
from holdfast.wire.tasks import WAITED, start_thread

# Tags of the mesh's messages.
_BULK: Final = 21
_SMALL: Final = 22
Messages = dict[int, list[memoryview]]  # to or from each peer
# What members say of a step travels with its last sum: its length, and so many bytes of it.
_SIZE: Final = 8
_SHORT: Final = 1016
_ALIGN: Final = 16  # elements: chunks begin where vector instructions like it


class Exchange(Protocol):
    """What the loop needs of a way to combine. One thread calls it; `ready` may come from another.

    `begin` a step; `ready(bucket)` when the pieces of a bucket are final, in any order; `finish`
    waits until `total` holds the sum over all lanes, here and (soon) everywhere, and gives what
    each member said. Both raise `PeerLost`, after which the exchange is of no use any more.
    """

    total: Flat

    def begin(self, step: int, sums: Sums, notes: bytes) -> None: ...

    def ready(self, bucket: int) -> None: ...

    def finish(self, words: bytes) -> dict[int, bytes]: ...

    def close(self) -> None: ...


class Alone:
    """Nobody else: the sum is the root, and it is here."""

    def __init__(self, lanes: int) -> None:
        self.total: Flat = []
        self._root = tree.root(lanes)
        self._sums: Sums | None = None

    def begin(self, step: int, sums: Sums, notes: bytes) -> None:
        self._sums = sums

    def ready(self, bucket: int) -> None:
        """Nothing to do early."""

    def finish(self, words: bytes) -> dict[int, bytes]:
        assert self._sums is not None
        self.total = self._sums.pieces[self._root]
        return {}

    def close(self) -> None:
        """Nothing is open."""


class MeshExchange:
    """Over TCP, between the members of one meeting."""

    def __init__(
        self,
        mesh: Mesh,
        talk: Conversation,
        held: Mapping[int, Sequence[int]],
        lanes: int,
        layout: Layout,
        total: Flat,
        code: Code | None = None,
    ) -> None:
        self.total = total
        self._lanes, self._code = lanes, None if code is None or code.exact else code
        self._mesh, self._talk, self._layout = mesh, talk, layout
        self._members = sorted(held)
        self._peers = [worker for worker in self._members if worker != mesh.worker]
        self._brought = {worker: tree.pieces(sorted(has), lanes) for worker, has in held.items()}
        every = [piece for brought in self._brought.values() for piece in brought]
        self._plan = tree.plan(every, lanes)
        self._first = min(every)
        self._chunks = [_chunks(size, self._members, self._block) for size in layout.sizes]
        self._staging = self._stage_room()
        self._arriving: list[tuple[torch.Tensor, int, torch.Tensor]] = []  # bytes, lanes, room
        self._mirrors: dict[Piece, Flat] = {}
        if layout.device.type != "cpu":
            own = self._brought[mesh.worker]
            self._mirrors = {piece: layout.room(torch.device("cpu"), pinned=True) for piece in own}
        self._sums: Sums | None = None
        self._changed = threading.Condition()
        self._job: tuple[int, bytes] | None = None
        self._ready: set[int] = set()
        self._words: bytes | None = None
        self._heard: dict[int, bytes] | None = None
        self._failed: BaseException | None = None
        self._closed = False
        self._thread = start_thread(self._serve, "holdfast-exchange", WAITED)  # by `finish`

    # --- what the loop calls -------------------------------------------------------------------

    def begin(self, step: int, sums: Sums, notes: bytes) -> None:
        with self._changed:
            self._sums, self._words, self._heard = sums, None, None
            self._ready.clear()
            self._job = (step, notes)
            self._changed.notify_all()

    def ready(self, bucket: int) -> None:
        with self._changed:
            self._ready.add(bucket)
            self._changed.notify_all()

    def finish(self, words: bytes) -> dict[int, bytes]:
        with self._changed:
            self._words = words
            self._ready.update(range(len(self._layout.sizes)))
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._heard is not None or self._failed is not None)
            if self._failed is not None:
                raise self._failed
            assert self._heard is not None
            return self._heard

    def close(self) -> None:
        """End the thread. Close the mesh first: that wakes it wherever it waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    # --- the thread ----------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while (job := self._next_job()) is not None:
                heard = self._step(*job)
                with self._changed:
                    self._heard = heard
                    self._changed.notify_all()
        except BaseException as error:  # whatever it is, the loop has to hear of it
            with self._changed:
                self._failed = error
                self._changed.notify_all()

    def _next_job(self) -> tuple[int, bytes] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._job is not None or self._closed)
            job, self._job = self._job, None
            return None if self._closed else job

    def _step(self, step: int, notes: bytes) -> dict[int, bytes]:
        if not self._talk.level:
            self._talk.lead((step, STEP), notes)
        buckets = len(self._layout.sizes)
        for bucket in range(buckets):
            self._await(bucket)
            self._stage(bucket)
            self._combine(bucket)
        return self._say(buckets - 1)

    def _await(self, bucket: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: bucket in self._ready or self._closed)
            if self._closed:
                raise BugError("an exchange was closed in the middle of a step")
        for piece, mirror in self._mirrors.items():
            mirror[bucket].copy_(self._final(piece, bucket))

    def _stage(self, bucket: int) -> None:
        """Send the pieces of this bucket and the sum of the one before; receive the same.

        One thread does both: a second one for what goes out was measured, and was slower.
        """
        me, chunks = self._mesh.worker, self._chunks[bucket]
        sends: Messages = {}
        receives: Messages = {}
        for peer in self._peers:
            width = chunks[me].stop - chunks[me].start
            sends[peer] = [
                self._out(self._own(piece, bucket)[chunks[peer]], piece)
                for piece in self._brought[me]
            ]
            receives[peer] = [
                self._in(room[bucket][:width], piece) for piece, room in self._staging[peer].items()
            ]
        if bucket:
            self._pass_on(bucket - 1, sends, receives)
        self._mesh.exchange(sends, receives, tag=_BULK)
        self._decode()

    def _pass_on(self, bucket: int, sends: Messages, receives: Messages) -> None:
        """Everybody's chunk of the sum, to everybody."""
        total, chunks, root = self.total[bucket], self._chunks[bucket], tree.root(self._lanes)
        mine = self._out(total[chunks[self._mesh.worker]], root)
        for peer in self._peers:
            sends[peer].append(mine)
            receives[peer].append(self._in(total[chunks[peer]], root))

    def _combine(self, bucket: int) -> None:
        """My chunk of this bucket, from everyone's pieces of it, in tree order."""
        me, chunk = self._mesh.worker, self._chunks[bucket][self._mesh.worker]
        width, into = chunk.stop - chunk.start, self.total[bucket][chunk]
        values = {piece: self._own(piece, bucket)[chunk] for piece in self._brought[me]}
        written: set[Piece] = set()  # those whose memory is ours to write
        for rooms in self._staging.values():
            for piece, room in rooms.items():
                values[piece] = room[bucket][:width]
                written.add(piece)
        if not self._plan:
            into.copy_(values[self._first])
        for number, step in enumerate(self._plan, 1):
            left, right = values.pop(step.left), values.pop(step.right)
            # Adding commutes, so it does not matter whose memory takes the sum.
            out = left if step.left in written else right
            if number == len(self._plan) or not {step.left, step.right} & written:
                out = into
            values[step.into] = torch.add(left, right, out=out)
            if self._code is not None:
                self._code.snap(out)
            written.add(step.into)

    def _say(self, last: int) -> dict[int, bytes]:
        """The sum of the last bucket, and what each member has to say of the step."""
        with self._changed:
            self._changed.wait_for(lambda: self._words is not None or self._closed)
            words = self._words
        if words is None:
            raise BugError("an exchange was closed in the middle of a step")
        mine = len(words).to_bytes(_SIZE, "little") + words[:_SHORT].ljust(_SHORT, b"\0")
        begun = {peer: bytearray(_SIZE + _SHORT) for peer in self._peers}
        sends: Messages = {}
        receives: Messages = {}
        for peer in self._peers:
            sends[peer], receives[peer] = [memoryview(mine)], [memoryview(begun[peer])]
        if last >= 0:
            self._pass_on(last, sends, receives)
        self._mesh.exchange(sends, receives, tag=_BULK)
        self._decode()
        return self._rest(words[_SHORT:], begun)

    def _rest(self, mine: bytes, begun: Mapping[int, bytearray]) -> dict[int, bytes]:
        """All that each peer has said, from how it begins. Words are mostly short: only the rest of
        long ones takes a message more."""
        heard, receives = {}, dict[int, list[bytearray]]()
        for peer, room in begun.items():
            size = int.from_bytes(room[:_SIZE], "little")
            heard[peer] = room[_SIZE : _SIZE + size]
            if size > _SHORT:
                receives[peer] = [bytearray(size - _SHORT)]
        if mine or receives:
            sends = {peer: [mine] for peer in self._peers} if mine else {}
            self._mesh.exchange(sends, receives, tag=_SMALL)
        for peer, (rest,) in receives.items():
            heard[peer] += rest
        return {peer: bytes(said) for peer, said in heard.items()}

    # --- on the wire ---------------------------------------------------------------------------

    @property
    def _block(self) -> int:
        return _ALIGN if self._code is None else self._code.block

    def _out(self, value: torch.Tensor, piece: Piece) -> memoryview:
        if self._code is None:
            return view_bytes(value)
        return view_bytes(self._code.encode(value, self._width(piece)))

    def _in(self, room: torch.Tensor, piece: Piece) -> memoryview:
        if self._code is None:
            return view_bytes(room)
        width = self._width(piece)
        raw = torch.empty(self._code.bytes_of(room.numel(), width), dtype=torch.uint8)
        self._arriving.append((raw, width, room))
        return view_bytes(raw)

    def _decode(self) -> None:
        """What has arrived, to where it belongs."""
        for raw, width, room in self._arriving:
            assert self._code is not None
            self._code.decode(raw, width, room)
        self._arriving.clear()

    def _width(self, piece: Piece) -> int:
        """The lanes in it."""
        return min(sum(piece), self._lanes) - piece.first

    # --- memory --------------------------------------------------------------------------------

    def _final(self, piece: Piece, bucket: int) -> torch.Tensor:
        assert self._sums is not None
        return self._sums.final(piece, bucket)

    def _own(self, piece: Piece, bucket: int) -> torch.Tensor:
        if self._mirrors:
            return self._mirrors[piece][bucket]
        return self._final(piece, bucket)

    def _stage_room(self) -> dict[int, dict[Piece, list[torch.Tensor]]]:
        """For each piece of each peer, room for my chunk; buckets of one type share it."""
        me, widest = self._mesh.worker, dict[torch.dtype, int]()
        for dtype, chunks in zip(self._layout.dtypes, self._chunks, strict=True):
            width = chunks[me].stop - chunks[me].start
            widest[dtype] = max(width, widest.get(dtype, 0))
        made: dict[int, dict[Piece, list[torch.Tensor]]] = {}
        for peer in self._peers:
            made[peer] = {}
            for piece in self._brought[peer]:
                rooms = {dtype: torch.empty(width, dtype=dtype) for dtype, width in widest.items()}
                made[peer][piece] = [rooms[dtype] for dtype in self._layout.dtypes]
        return made


def _chunks(size: int, members: Sequence[int], block: int) -> dict[int, slice]:
    """Each member's part of a bucket: equal ones, as far as whole blocks of elements go."""
    groups, count = size // block, len(members)
    bounds = [number * groups // count * block for number in range(count)] + [size]
    return {
        worker: slice(bounds[number], bounds[number + 1]) for number, worker in enumerate(members)
    }
