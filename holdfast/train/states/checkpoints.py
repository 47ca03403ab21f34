"""Checkpoints: a state is cut into parts, its shares are written, and it is read back.

*Parts* depend on the names, types and shapes of the entries alone: not on the step, nor on how many
workers write them. So an entry that did not change gives the same part, which is not written again.
A large entry is a part of its own, or several, cut along its first dimension; small ones of one
kind (what their names begin with) share a part. The step, the notes and the list of all entries are
a part of their own. Every part is a safetensors file. A piece of an entry is named by its rows,
`weight[0:512]`, and the file's metadata says what it is a piece of.

*Shares* are copied aside at a step boundary, which is the only stall, and written by a thread. A
store that is full or away is tried again while training goes on; an attempt that a newer one has
replaced is given up.
"""

from __future__ import annotations

import heapq
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from holdfast.storage import Blobs, Part, put_part, read_part
from holdfast.storage.manifests import read_manifest
from holdfast.system import logs
from holdfast.system.backoff import Backoff
from holdfast.system.tasks import WAITED, OwnedThread, start_thread, unexpected
from holdfast.train.states.state import BITS, StateEntry, TrainingState, parse, spell
from holdfast.wire.errors import Corrupt, HoldfastError, Usage
from holdfast.wire.limits import SAVE_AGAIN_S, SAVE_AGAIN_S_MAX

# A larger entry is cut along its first dimension: parts are written and read side by side.
PART_BYTES: Final = 64 * 1024 * 1024
# Smaller entries share parts of about this size: a part costs a request, and one that shares its
# part with a changed entry is written again.
PART_GROUP_BYTES: Final = 4 * 1024 * 1024


class Rows(NamedTuple):
    """Rows `start` to `stop` of an entry; a scalar has one row."""

    entry: StateEntry
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


def parts_of(entries: Sequence[StateEntry], part_bytes: int = PART_BYTES) -> list[PartPlan]:
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
            entry = StateEntry(name, entry.dtype, (rows.stop - rows.start, *entry.shape[1:]), data)
        entries.append(entry)
    return spell(entries, {"pieces": pieces})


def notes_buffers(state: TrainingState) -> list[memoryview]:
    """The part that says what the state consists of."""
    inventory = [[entry.name, entry.dtype, list(entry.shape)] for entry in state.entries]
    return spell((), {"step": state.step, "notes": state.notes, "entries": inventory})


def share_buffers(state: TrainingState, share: int, shares: int) -> Iterator[list[memoryview]]:
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
        self._whole: dict[str, StateEntry] = {}
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

    def _add_piece(self, entry: StateEntry, piece: Any) -> None:
        try:
            name, start, shape = piece["of"], int(piece["start"]), tuple(piece["shape"])
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(f"piece {entry.name!r} does not say what it is of") from error
        pieces = self._cut.setdefault(name, _Pieces(name, entry.dtype, shape))
        pieces.add(entry, start)

    def state(self) -> TrainingState:
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
        return TrainingState.of(step, found.values(), said)


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

    def add(self, piece: StateEntry, start: int) -> None:
        width = self._data.nbytes // self._shape[0]
        stop = start + piece.shape[0]
        if (piece.dtype, piece.shape[1:]) != (self._dtype, self._shape[1:]) or not (
            0 <= start < stop <= self._shape[0]
        ):
            raise _damaged(f"piece {piece.name!r} does not fit")
        self._there.add((start, stop))
        self._data[start * width : stop * width] = piece.data

    def entry(self) -> StateEntry:
        at = 0
        for start, stop in sorted(self._there):
            if start != at:
                raise _damaged(f"rows of {self._name!r} are missing, or there twice, at {at}")
            at = stop
        if at != self._shape[0]:
            raise _damaged(f"the rows of {self._name!r} from {at} are missing")
        return StateEntry(self._name, self._dtype, self._shape, self._data)


def _cut(entry: StateEntry, part_bytes: int) -> Iterator[Rows]:
    """An entry in pieces of at most `part_bytes`, as far as its first dimension allows."""
    rows = _rows(entry)
    width = entry.data.nbytes // rows
    step = max(1, min(rows, part_bytes // width))
    for start in range(0, rows, step):
        yield Rows(entry, start, min(start + step, rows))


def _rows(entry: StateEntry) -> int:
    return entry.shape[0] if entry.shape else 1


def _kind(entry: StateEntry) -> str:
    return entry.name.partition("/")[0]


def _damaged(why: str) -> Corrupt:
    return Corrupt("a checkpoint's parts are not a state", why=why, fix="use an older checkpoint")


# How far the thread that writes a share lowers its priority behind the training (as `nice` counts).
# Not further: the training waits for it where both need Python's one lock.
SAVE_NICE: Final = 5
# Errors of a store that are none of ours are waited out so often; then they are a bug, and the
# worker that cannot save says so and ends.
SAVE_SURPRISES_MAX: Final = 5

log = logs.get(__name__)
Done = Callable[[int, tuple[Part, ...]], None]


class Saver:
    """Writes one share at a time. In its thread `done` is called with an attempt and its parts when
    they are durable, and `free` when it can take the next."""

    def __init__(self, blobs: Blobs, done: Done, free: Callable[[], None]) -> None:
        self._blobs = blobs
        self._done = done
        self._free = free
        self._buffer = bytearray()  # kept: fresh memory costs more than the copy
        self._thread: OwnedThread | None = None
        self._unwanted = threading.Event()
        self._failure: BaseException | None = None
        self.busy = False
        self.attempt = 0  # the last one that was taken

    def take(self, attempt: int, share: int, shares: int, state: TrainingState) -> float:
        """Copy this share of the state aside, and begin to write it; how long that took, in s. Not
        while it is busy. `BugError`: writing the one before it ended unexpectedly."""
        assert not self.busy, "a saver writes one share at a time"
        if self._failure is not None:
            raise unexpected("the saving of a checkpoint", self._failure)
        begun_s = time.perf_counter()
        parts = list(share_buffers(state, share, shares))
        sizes = [sum(view.nbytes for view in part) for part in parts]
        if len(self._buffer) < sum(sizes):
            self._buffer = bytearray(sum(sizes))
        buffer, at, copies = memoryview(self._buffer), 0, []
        for part, size in zip(parts, sizes, strict=True):
            copies.append(buffer[at : at + size])
            for view in part:
                buffer[at : at + view.nbytes] = view
                at += view.nbytes
        self.attempt = attempt
        self._unwanted = threading.Event()
        write = partial(self._write, attempt, copies, self._unwanted)
        self.busy = True
        stall_s = time.perf_counter() - begun_s
        self._thread = start_thread(write, "holdfast-save", WAITED)  # by the next `take`
        return stall_s

    def drop(self) -> None:
        """Nobody wants any more what is being written: do not try again."""
        self._unwanted.set()

    def close(self, wait_s: float) -> None:
        """Give what is being written so long to become durable."""
        if self._thread is not None:
            self._thread.join(wait_s)
        self.drop()

    def _write(self, attempt: int, copies: list[memoryview], unwanted: threading.Event) -> None:
        try:
            _lower_priority()
            parts = self._put(attempt, copies, unwanted)
            if parts is not None:
                self._done(attempt, parts)
        except BaseException as error:
            log.exception("a share of a checkpoint is lost", attempt=attempt)
            self._failure = error
        finally:
            self.busy = False  # only now: whoever sees it may rely on `done`
            self._free()

    def _put(
        self, attempt: int, copies: list[memoryview], unwanted: threading.Event
    ) -> tuple[Part, ...] | None:
        done: list[Part] = []
        again, surprises = Backoff(SAVE_AGAIN_S, SAVE_AGAIN_S_MAX), 0
        while len(done) < len(copies):
            if unwanted.is_set():
                return None
            try:
                done.append(put_part(self._blobs, copies[len(done)], still=True))
                again.succeeded()
            except Exception as error:
                if not isinstance(error, HoldfastError):
                    surprises += 1
                    if surprises >= SAVE_SURPRISES_MAX:
                        raise
                words = f"{type(error).__name__}: {error}"
                log.warning("a share of a checkpoint waits", attempt=attempt, reason=words)
                unwanted.wait(again.failed())
        return tuple(done)


def _lower_priority() -> None:
    """Let the system prefer the training to this thread, where threads have priorities and a
    sandbox does not forbid to lower them: saving matters more."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):
            now = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, min(now + SAVE_NICE, 19))


# --- read back ------------------------------------------------------------------------------------


# Parts that are read at a time.
PART_READERS: Final = 4


def restore(blobs: Blobs, manifest: str, job: str, step: int) -> TrainingState:
    """The state of this checkpoint, every byte verified. `Corrupt` or `Missing`: it is lost; any
    other error: not now."""
    found = read_manifest(blobs, manifest)
    if (found.job, found.step) != (job, step):
        raise Corrupt(
            f"{manifest!r} is not the checkpoint of step {step} of job {job!r}",
            why=f"it is that of step {found.step} of job {found.job!r}",
            fix="use an older checkpoint",
        )
    assembly = Assembly()
    parts = [part for _, part in found.parts()]
    with ThreadPoolExecutor(PART_READERS, thread_name_prefix="holdfast-read") as pool:
        for data in pool.map(lambda part: read_part(blobs, part), parts):
            assembly.add(data)
    state = assembly.state()
    if state.step != step:
        raise Corrupt(
            f"the notes of step {step} say step {state.step}", fix="use an older checkpoint"
        )
    return state
