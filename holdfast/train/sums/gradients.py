"""Gradients of lanes in flat buffers, summed in the one order.

Parameters lie in buckets, the last of the model first: that is the order in which a backward pass
finishes them. What a worker has summed of a step are its partial sums (see `tree`): each is one
flat tensor a bucket. A lane's gradient is added to its left sibling while the backward pass goes
on, so a worker needs as many buffers as the tree is deep, and no lane is kept by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from holdfast.train.sums import tree
from holdfast.train.sums.compression import Code
from holdfast.train.sums.shared_memory import PeerMemory
from holdfast.train.sums.tree import PartialSum
from holdfast.wire.errors import Usage
from holdfast.wire.limits import BUCKET_BYTES

# On a device, gradients of a lane for which nobody waits yet are folded in when there are so many:
# they stay in memory until then, and each fold is a few launches.
FOLDED_BYTES: Final = 64 * 1024 * 1024

Flat = list[torch.Tensor]  # one for each bucket
# Every parameter begins at a multiple of this many elements: vector instructions like it.
_ALIGN: Final = 16


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a parameter lies: in which bucket, and from where to where."""

    bucket: int
    begin: int
    end: int


class Layout:
    """Which parameter lies where. It never depends on the workers."""

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        bucket_bytes: int = BUCKET_BYTES,
        block: int = _ALIGN,
    ) -> None:
        self.parameters = tuple(parameters)
        self.memory: PeerMemory | None = None  # what `allocate` is made of; None: any
        self.slots: list[Slot] = [Slot(0, 0, 0)] * len(self.parameters)
        self.sizes: list[int] = []
        self.dtypes: list[torch.dtype] = []
        self.members: list[list[int]] = []  # the parameters in each bucket
        self.device = self.parameters[0].device if self.parameters else torch.device("cpu")
        for number in reversed(range(len(self.parameters))):
            self._place(number, bucket_bytes)
        self.sizes = [-(-size // block) * block for size in self.sizes]

    def _place(self, number: int, bucket_bytes: int) -> None:
        parameter = self.parameters[number]
        if parameter.device != self.device:
            raise Usage(
                "the tracked models are on several devices",
                why=f"one parameter is on {self.device}, another on {parameter.device}",
                fix="move all of them with .to(run.device) before run.track",
            )
        needed = -(-parameter.numel() // _ALIGN) * _ALIGN
        limit = bucket_bytes // parameter.element_size()
        if (
            not self.sizes
            or self.dtypes[-1] != parameter.dtype
            or self.sizes[-1] + needed > max(limit, needed)
        ):
            self.sizes.append(0)
            self.dtypes.append(parameter.dtype)
            self.members.append([])
        begin = self.sizes[-1]
        self.slots[number] = Slot(len(self.sizes) - 1, begin, begin + parameter.numel())
        self.sizes[-1] += needed
        self.members[-1].append(number)

    def allocate(self, device: torch.device | None = None, *, pinned: bool = False) -> Flat:
        """Buffers for one gradient. Zeros: what lies between parameters is sent too. Those of one
        type lie in one piece of memory, in their order: see `wholes`."""
        groups = self._by_dtype(range(len(self.sizes)))
        sizes = [sum(self.sizes[bucket] for bucket in buckets) for buckets in groups.values()]
        if device is None and self.memory is not None:
            made = self.memory.allocate(sizes, list(groups))
        else:
            place = device or self.device
            made = [
                torch.zeros(size, dtype=dtype, device=place, pin_memory=pinned)
                for size, dtype in zip(sizes, groups, strict=True)
            ]
        found: dict[int, torch.Tensor] = {}
        for whole, buckets in zip(made, groups.values(), strict=True):
            parts = torch.split(whole, [self.sizes[bucket] for bucket in buckets])
            found.update(zip(buckets, parts, strict=True))
        return [found[bucket] for bucket in range(len(self.sizes))]

    def wholes(self, flat: Flat) -> Flat:
        """What `allocate` gave, as one tensor for each type: for what is done to all buckets."""
        return [
            one_piece(flat, buckets) for buckets in self._by_dtype(range(len(self.sizes))).values()
        ]

    def spans(self, buckets: Iterable[int]) -> Iterable[list[int]]:
        """Those of neighbouring buckets that lie side by side: those of one type."""
        return self._by_dtype(buckets).values()

    def _by_dtype(self, buckets: Iterable[int]) -> dict[torch.dtype, list[int]]:
        found: dict[torch.dtype, list[int]] = {}
        for bucket in buckets:
            found.setdefault(self.dtypes[bucket], []).append(bucket)
        return found

    def view(self, flat: Flat, number: int) -> torch.Tensor:
        """The parameter's part of it, in the parameter's shape."""
        slot = self.slots[number]
        return flat[slot.bucket][slot.begin : slot.end].view(self.parameters[number].shape)


def one_piece(
    flat: Sequence[torch.Tensor] | Mapping[int, torch.Tensor], buckets: Sequence[int]
) -> torch.Tensor:
    """A span of what `allocate` gave, whole again."""
    first, size = flat[buckets[0]], sum(flat[bucket].numel() for bucket in buckets)
    return first.as_strided((size,), (1,), first.storage_offset())


class GradientSums:
    """The partial sums of one step that this worker has. One thread at a time."""

    def __init__(self, layout: Layout, lanes: int, code: Code | None = None) -> None:
        self._layout = layout
        self._code = None if code is None or code.exact else code
        self._lane = 0
        self._lanes = lanes
        self._free: list[Flat] = []
        # Of a flat, by the id of its first tensor: parameters' parts of it, and its `wholes`.
        self._views: dict[int, tuple[list[torch.Tensor], Flat]] = {}
        self.partials: dict[PartialSum, Flat] = {}
        self._done: set[int] = set()  # the lanes in them
        self.computed = 0  # lanes, ever: a proof that only lost ones are computed again
        # Of the lane under way:
        self._into: Flat = []  # where its gradients go first
        self._target: Flat = []  # where they end, with everything that they are joined with
        self._fresh = False
        self._joined: list[PartialSum] = []
        self._result = PartialSum(0, 1)
        self._left: list[int] = []
        self._seen: set[int] = set()
        # On a device each small copy is a launch: a bucket's gradients are folded in together.
        self.gathers = layout.device.type != "cpu"
        self._gathered: list[list[tuple[torch.Tensor, torch.Tensor]]] = []
        self._complete: list[int] = []  # the buckets that are gathered, and not yet folded in
        self._ready: Callable[[int], None] | None = None

    # --- lanes ---------------------------------------------------------------------------------

    def missing(self, held: Iterable[int]) -> list[int]:
        """The lanes of `held` that are in no piece yet, in ascending order."""
        return sorted(set(held).difference(self._done))

    def keep(self, held: Iterable[int]) -> None:
        """Forget the partial sums that have a lane which is not held any more."""
        mine = set(held)
        for piece in list(self.partials):
            existing = range(piece.first, min(sum(piece), self._lanes))
            if not mine.issuperset(existing):
                self._free.append(self.partials.pop(piece))
                self._done.difference_update(existing)

    def clear(self) -> None:
        """Begin the next step."""
        self._free.extend(self.partials.values())
        self.partials.clear()
        self._done.clear()

    def begin(self, lane: int, ready: Callable[[int], None] | None = None) -> None:
        """A lane's backward pass begins. `ready(bucket)` is called when its partial sums are
        final."""
        self._joined, self._result = self._growth(lane)
        # What is rounded must be rounded by itself before it is added to anything.
        self._lane, self._fresh = lane, not self._joined or self._code is not None
        self._into = self._take_buffers() if self._fresh else self.partials[self._joined[0]]
        self._target = self.partials[self._joined[-1]] if self._joined else self._into
        self._left = [len(members) for members in self._layout.members]
        self._gathered = [[] for _ in self._left]
        self._complete = []
        self._seen.clear()
        self._ready = ready

    def take(self, number: int, gradient: torch.Tensor) -> None:
        """A parameter's gradient of this lane is complete."""
        self.note(number)
        into = self.views(self._into)[number]
        bucket = self._layout.slots[number].bucket
        if self.gathers:
            self._gathered[bucket].append((into, _dense(gradient)))
        elif self._fresh:
            into.copy_(_dense(gradient))
        else:
            into.add_(gradient)
        self._left[bucket] -= 1
        if not self._left[bucket]:
            self._finish(bucket)

    def note(self, number: int) -> None:
        """A parameter has its gradient: each has one in a backward pass."""
        if number in self._seen:
            raise Usage(
                "a parameter got its gradient in two pieces in one backward pass",
                why="it is used in two places with activation checkpointing in its reentrant form",
                fix="write checkpoint(..., use_reentrant=False)",
            )
        self._seen.add(number)

    def has(self, number: int) -> bool:
        """Whether the parameter has its gradient of this lane."""
        return number in self._seen

    def take_all(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """The gradients of the whole lane, at once: on a device each call is a launch."""
        pairs = list[tuple[torch.Tensor, torch.Tensor]]()
        for number, (into, gradient) in enumerate(
            zip(self.views(self._into), gradients, strict=True)
        ):
            if gradient is None:
                self._add_zero(into)
            else:
                pairs.append((into, gradient.to_dense() if gradient.is_sparse else gradient))
                self._seen.add(number)
        buckets = range(len(self._left))
        self._left = [0] * len(buckets)
        if pairs:
            self._gathered[0] = pairs
        self._complete = list(buckets)
        self._fold()

    def _add_zero(self, into: torch.Tensor) -> None:
        """No gradient counts as zero, and zero is added like any number: it turns a negative zero
        into a positive one, here as on a worker that has this lane alone."""
        into.zero_() if self._fresh else into.add_(0)

    def end(self) -> frozenset[int]:
        """The lane's backward pass is over; the parameters that had a gradient in it."""
        for bucket, left in enumerate(self._left):
            if not left:
                continue
            for number in self._layout.members[bucket]:
                if number not in self._seen:
                    self._add_zero(self.views(self._into)[number])
            self._left[bucket] = 0
            self._finish(bucket)
        if self._complete:
            self._fold()
        for piece in self._joined:
            flat = self.partials.pop(piece)
            if flat is not self._target:
                self._free.append(flat)
        if self._fresh and self._joined:
            self._free.append(self._into)
        self.partials[self._result] = self._target
        self._done.add(self._lane)
        self.computed += 1
        return frozenset(self._seen)

    def _growth(self, lane: int) -> tuple[list[PartialSum], PartialSum]:
        """The partial sums that a new leaf is joined with, one after the other, and what they
        become."""
        top, piece, joined = tree.root(self._lanes), PartialSum(lane, 1), []
        while piece != top:
            parent = PartialSum(piece.first - piece.first % (2 * piece.size), 2 * piece.size)
            right = PartialSum(parent.first + piece.size, piece.size)
            sibling = parent._replace(size=piece.size) if piece == right else right
            if sibling.first < self._lanes:
                if sibling not in self.partials:
                    break
                joined.append(sibling)
            piece = parent
        return joined, piece

    def _finish(self, bucket: int) -> None:
        """All parameters of the bucket are in: join the larger partial sums too."""
        if self.gathers:
            self._complete.append(bucket)
            size = sum(self._into[each].nbytes for each in self._complete)
            if self._ready is not None or size >= FOLDED_BYTES:
                self._fold()
            return
        value, code = self._into[bucket], self._code
        if code is not None:
            code.leaf(self._lane, bucket, value)
        for piece in self._joined if self._fresh else self._joined[1:]:
            value = self.partials[piece][bucket].add_(value)
            if code is not None:
                code.snap(value)
        if self._ready is not None:
            self._ready(bucket)

    def _fold(self) -> None:
        """The same on a device, of all buckets that are complete: there each call is a launch."""
        buckets, self._complete = self._complete, []
        pairs = [pair for bucket in buckets for pair in self._gathered[bucket]]
        for bucket in buckets:
            self._gathered[bucket].clear()
        if pairs:
            into, gradients = [one for one, _ in pairs], [other for _, other in pairs]
            fold = torch._foreach_copy_ if self._fresh else torch._foreach_add_
            fold(into, gradients)
        code, whole = self._code, len(buckets) == len(self._left)
        values = self._parts(self._into, buckets, whole=whole)
        if code is not None:
            for bucket in buckets:
                code.leaf(self._lane, bucket, self._into[bucket])
        for piece in self._joined if self._fresh else self._joined[1:]:
            sums = self._parts(self.partials[piece], buckets, whole=whole)
            torch._foreach_add_(sums, values)
            values = sums
            if code is not None:
                for bucket in buckets:
                    code.snap(self.partials[piece][bucket])
        if self._ready is not None:
            for bucket in buckets:
                self._ready(bucket)

    def _parts(self, flat: Flat, buckets: Sequence[int], *, whole: bool) -> Flat:
        """These buckets of it; all of them as one tensor for each type."""
        return self.wholes(flat) if whole else [flat[bucket] for bucket in buckets]

    def _take_buffers(self) -> Flat:
        return self._free.pop() if self._free else self._layout.allocate()

    def views(self, flat: Flat) -> list[torch.Tensor]:
        """The parameters' parts of it. Kept: making them anew takes a part of a small step."""
        return self._seen_as(flat)[0]

    def wholes(self, flat: Flat) -> Flat:
        """See `Layout.wholes`."""
        return self._seen_as(flat)[1]

    def _seen_as(self, flat: Flat) -> tuple[list[torch.Tensor], Flat]:
        if not flat:
            return [], []
        found = self._views.get(id(flat[0]))
        if found is None:
            layout = self._layout
            numbers = range(len(layout.parameters))
            views = [layout.view(flat, each) for each in numbers]
            found = self._views[id(flat[0])] = views, layout.wholes(flat)
        return found

    def final(self, piece: PartialSum, bucket: int) -> torch.Tensor:
        """The piece's bucket, also while the lane that completes the piece is still under way; for
        another thread, once the bucket is ready."""
        return (self._target if piece == self._result else self.partials[piece])[bucket]


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient
