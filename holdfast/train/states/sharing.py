"""How a state is cut into parts, and the parts into shares. Pure.

The parts depend on the names, types and shapes of the entries alone: not on the step, nor on how
many workers write them. So an entry that did not change gives the same part, which is not written
again. A large entry is a part of its own, or several, cut along its first dimension; small ones of
one kind (what their names begin with) share a part. The step, the notes and the list of all entries
are a part of their own.

Every part is a safetensors file. A piece of an entry is named by its rows, `weight[0:512]`, and the
file's metadata says what it is a piece of.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from holdfast.train.states.state import BITS, Entry, State, parse, spell
from holdfast.wire.errors import Corrupt, Usage

# A larger entry is cut along its first dimension: parts are written and read side by side.
PART_BYTES: Final = 64 * 1024 * 1024
# Smaller entries share parts of about this size: a part costs a request, and one that shares its
# part with a changed entry is written again.
PART_GROUP_BYTES: Final = 4 * 1024 * 1024


class Rows(NamedTuple):
    """Rows `start` to `stop` of an entry; a scalar has one row."""

    entry: Entry
    start: int
    stop: int

    @property
    def whole(self) -> bool:
        return self.stop - self.start == _rows(self.entry)

    @property
    def size_bytes(self) -> int:
        rows = _rows(self.entry)
        return (self.stop - self.start) * (self.entry.data.nbytes // rows) if rows else 0


PartPlan = tuple[Rows, ...]


def parts_of(entries: Sequence[Entry], part_bytes: int = PART_BYTES) -> list[PartPlan]:
    """What each part holds, in a fixed order. `entries` are in the order of their names."""
    plans: list[PartPlan] = []
    group: list[Rows] = []
    kind, size = "", 0
    for entry in entries:
        if entry.data.nbytes > PART_GROUP_BYTES // 4:
            plans.extend((rows,) for rows in _cut(entry, part_bytes))
            continue
        if group and (_kind(entry) != kind or size + entry.data.nbytes > PART_GROUP_BYTES):
            plans.append(tuple(group))
            group, size = [], 0
        kind, size = _kind(entry), size + entry.data.nbytes
        group.append(Rows(entry, 0, _rows(entry)))
    if group:
        plans.append(tuple(group))
    return plans


def shares_of(plans: Sequence[PartPlan], shares: int) -> list[list[int]]:
    """For each share the parts that it writes: the largest first, each to whoever has least."""
    sizes = [(sum(rows.size_bytes for rows in plan), place) for place, plan in enumerate(plans)]
    load = [(0, share) for share in range(shares)]
    found: list[list[int]] = [[] for _ in range(shares)]
    for size, place in sorted(sizes, key=lambda one: (-one[0], one[1])):
        held, share = heapq.heappop(load)
        found[share].append(place)
        heapq.heappush(load, (held + size, share))
    return [sorted(places) for places in found]


def part_buffers(plan: PartPlan) -> list[memoryview]:
    """The safetensors file of a part, as views of its entries."""
    entries, pieces = [], {}
    for rows in plan:
        entry = rows.entry
        if not rows.whole:
            width = entry.data.nbytes // _rows(entry)
            name = f"{entry.name}[{rows.start}:{rows.stop}]"
            pieces[name] = {"of": entry.name, "start": rows.start, "shape": list(entry.shape)}
            data = entry.data[rows.start * width : rows.stop * width]
            entry = Entry(name, entry.dtype, (rows.stop - rows.start, *entry.shape[1:]), data)
        entries.append(entry)
    return spell(entries, {"pieces": pieces})


def notes_buffers(state: State) -> list[memoryview]:
    """The part that says what the state consists of."""
    inventory = [[entry.name, entry.dtype, list(entry.shape)] for entry in state.entries]
    return spell((), {"step": state.step, "notes": state.notes, "entries": inventory})


def share_buffers(state: State, share: int, shares: int) -> Iterator[list[memoryview]]:
    """The parts of one share. The first share has the notes."""
    if not 0 <= share < shares:
        raise Usage(f"there is no share {share} of {shares}", fix="shares are counted from 0")
    if share == 0:
        yield notes_buffers(state)
    plans = parts_of(state.entries)
    for place in shares_of(plans, shares)[share]:
        yield part_buffers(plans[place])


class Assembly:
    """Puts a state together from its parts, in any order."""

    def __init__(self) -> None:
        self._notes: dict[str, Any] | None = None
        self._whole: dict[str, Entry] = {}
        self._cut: dict[str, _Pieces] = {}

    def add(self, part: bytes | bytearray | memoryview) -> None:
        """One more part; its bytes must not change any more. `Corrupt` if it does not fit."""
        entries, ours = parse(memoryview(part))
        if "entries" in ours:
            if self._notes is not None:
                raise _damaged("it has its notes twice")
            self._notes = ours
        pieces = ours.get("pieces", {})
        for entry in entries:
            if entry.name in pieces:
                self._add_piece(entry, pieces[entry.name])
            elif entry.name in self._whole:
                raise _damaged(f"entry {entry.name!r} is there twice")
            else:
                self._whole[entry.name] = entry

    def _add_piece(self, entry: Entry, piece: Any) -> None:
        try:
            name, start, shape = piece["of"], int(piece["start"]), tuple(piece["shape"])
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(f"piece {entry.name!r} does not say what it is of") from error
        pieces = self._cut.setdefault(name, _Pieces(name, entry.dtype, shape))
        pieces.add(entry, start)

    def state(self) -> State:
        """The whole state; `Corrupt` if something is missing or too much."""
        notes = self._notes
        if notes is None:
            raise _damaged("the part with its notes is missing")
        found = {**self._whole, **{name: pieces.entry() for name, pieces in self._cut.items()}}
        try:
            inventory = {name: (dtype, tuple(shape)) for name, dtype, shape in notes["entries"]}
            step, said = int(notes["step"]), dict(notes["notes"])
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(f"its notes cannot be read: {error}") from error
        if {name: (entry.dtype, entry.shape) for name, entry in found.items()} != inventory:
            odd = sorted(found.keys() ^ inventory.keys()) or ["the type or shape of one of them"]
            raise _damaged(f"its entries are not those that its notes name: {', '.join(odd[:5])}")
        return State.of(step, found.values(), said)


class _Pieces:
    """An entry that comes in pieces."""

    def __init__(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        if dtype not in BITS or not shape or shape[0] <= 0:
            raise _damaged(f"entry {name!r} cannot have been cut")
        size = BITS[dtype] // 8
        for extent in shape:
            size *= extent
        self._name, self._dtype, self._shape = name, dtype, shape
        self._data = memoryview(bytearray(size))
        self._there: set[tuple[int, int]] = set()

    def add(self, piece: Entry, start: int) -> None:
        width = self._data.nbytes // self._shape[0]
        stop = start + piece.shape[0]
        if (piece.dtype, piece.shape[1:]) != (self._dtype, self._shape[1:]) or not (
            0 <= start < stop <= self._shape[0]
        ):
            raise _damaged(f"piece {piece.name!r} does not fit")
        self._there.add((start, stop))
        self._data[start * width : stop * width] = piece.data

    def entry(self) -> Entry:
        at = 0
        for start, stop in sorted(self._there):
            if start != at:
                raise _damaged(f"rows of {self._name!r} are missing, or there twice, at {at}")
            at = stop
        if at != self._shape[0]:
            raise _damaged(f"the rows of {self._name!r} from {at} are missing")
        return Entry(self._name, self._dtype, self._shape, self._data)


def _cut(entry: Entry, part_bytes: int) -> Iterator[Rows]:
    """An entry in pieces of at most `part_bytes`, as far as its first dimension allows."""
    rows = _rows(entry)
    width = entry.data.nbytes // rows
    step = max(1, min(rows, part_bytes // width))
    for start in range(0, rows, step):
        yield Rows(entry, start, min(start + step, rows))


def _rows(entry: Entry) -> int:
    return entry.shape[0] if entry.shape else 1


def _kind(entry: Entry) -> str:
    return entry.name.partition("/")[0]


def _damaged(why: str) -> Corrupt:
    return Corrupt("a checkpoint's parts are not a state", why=why, fix="use an older checkpoint")
