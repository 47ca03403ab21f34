"""The checker that takes the server by its word: zxids are the order of everything.

Every answered operation has a position: a write stands at its own zxid, a read right after the
last transaction that the server says it had applied. The check is that this order

1. respects real time: whoever was answered before another began does not stand after it;
2. explains every answer: a read shows the last write at or before its position, versions count
   writes without a gap, a compare-and-set that succeeded found the version that it expected, and
   one that was refused did not.

If both hold, sorting by position (reads after the write at the same zxid, reads of one position by
the time they began) is a legal sequential order that respects real time: the history is
linearizable. So the check is sound. It is complete for a server that tells the truth about its
zxids; an order that differs from them is reported, even if another one would do.

Writes without an answer are the only freedom. One whose value was read has a known place. The
others may fill the gaps between known versions. A gap lies between two positions. A write may fill
it if it was asked for before the end of the gap: nothing that was answered before it was asked
stands at or after that end. Nobody is forced to stand after a write that was never answered, so
placing each right before the end of its gap breaks no other constraint, and a perfect matching of
gaps to writes decides. The later end is also the better one for a refused compare-and-set: it was
right if the version it expected was not yet there; only if that one must have been there before it,
the next one must have been too. Sorting and matching are polynomial.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from tests.proofs.linearizability.history import ANY_VERSION, Operation, by_key


class _Write(NamedTuple):
    """A write whose place is known, by its own answer or because somebody read it."""

    zxid: int
    version: int
    operation: Operation


class _Gap(NamedTuple):
    """A version that somebody must have written without being answered, strictly between two
    positions."""

    version: int
    after: float
    before: float


def check(history: Sequence[Operation]) -> list[str]:
    """What is wrong with a history; an empty list if it is linearizable.

    The first operation of each register must be the write that made it.
    """
    problems: list[str] = []
    placed = {id(op): op.position for op in history if op.outcome != "unknown"}
    for key, operations in sorted(by_key(history).items()):
        problems += _Register(key, operations, placed, history).problems
    return _real_time(history, placed) + problems


class _Register:
    """One register's history against the order of zxids."""

    def __init__(
        self,
        key: str,
        operations: list[Operation],
        placed: dict[int, int],
        everything: Sequence[Operation],
    ) -> None:
        self.key = key
        self.operations = operations
        self.problems: list[str] = []
        self.writes = self._known_writes(placed)
        self.zxids = [write.zxid for write in self.writes]
        self.versions = [write.version for write in self.writes]
        self._check_versions()
        self._check_reads()
        if not self.problems:
            gaps = self._gaps()
            if not self.problems:
                self._fill(gaps, placed, everything)

    def _blame(self, text: str, *operations: Operation) -> None:
        self.problems.append(
            "\n".join([f"{self.key}: {text}", *(f"    {op}" for op in operations)])
        )

    def _known_writes(self, placed: dict[int, int]) -> list[_Write]:
        by_value = {op.value: op for op in self.operations if op.kind == "write"}
        known = {
            op.value: _Write(op.mzxid, op.version, op)
            for op in self.operations
            if op.kind == "write" and op.outcome == "ok"
        }
        for op in known.values():
            if op.operation.position != op.zxid:
                self._blame("a write's zxid is not its node's", op.operation)
        for read in (op for op in self.operations if op.kind == "read"):
            writer = by_value.get(read.value)
            if writer is None:
                self._blame("a value that nobody wrote", read)
                continue
            if writer.outcome == "refused":
                self._blame("a value whose write was refused", writer, read)
                continue
            if writer.outcome == "unknown":
                placed.setdefault(id(writer), read.mzxid)
            write = known.setdefault(read.value, _Write(read.mzxid, read.version, writer))
            if (write.zxid, write.version) != (read.mzxid, read.version):
                self._blame("one write has two places", write.operation, read)
        return sorted(known.values(), key=lambda write: (write.zxid, write.version))

    def _check_versions(self) -> None:
        if not self.writes or self.writes[0].operation is not self.operations[0]:
            self._blame("the register's making is not its first write", self.operations[0])
        for before, after in zip(self.writes, self.writes[1:], strict=False):
            if before.zxid >= after.zxid or before.version >= after.version:
                self._blame("zxids and versions disagree", before.operation, after.operation)
        for write in self.writes:
            expected = write.operation.expected
            if expected != ANY_VERSION and write.version != expected + 1:
                self._blame("a compare-and-set replaced another version", write.operation)

    def _check_reads(self) -> None:
        for op in self.operations:
            if op.kind != "read":
                continue
            current = self._at(op.position)
            if current is None or current.version != op.version:
                wanted = [] if current is None else [current.operation]
                self._blame("a read does not show the last write before it", op, *wanted)

    def _at(self, position: int) -> _Write | None:
        """The last known write at or before a position."""
        index = bisect_right(self.zxids, position)
        return self.writes[index - 1] if index else None

    def _gaps(self) -> list[_Gap]:
        """The versions that unanswered writes must have made, each with its bounds."""
        known = {write.version: write for write in self.writes}
        before: dict[int, float] = {}
        # Somebody made the next version before a refusal, if the expected one was there before it.
        # That may put another version in its place before another refusal: repeat until it rests.
        refusals = [
            (op.position, op.expected)
            for op in self.operations
            if op.outcome == "refused" and self._matters(op, known)
        ]
        again = True
        while again and not self.problems:
            again = False
            for position, expected in refusals:
                wanted = expected + 1
                if self._latest(expected, before) > position:
                    continue
                if self._latest(wanted, before) <= position:
                    continue
                if wanted in known:
                    where = f"at zxid {position}, with version {expected} in place"
                    self._blame(f"a compare-and-set was refused {where}", known[wanted].operation)
                before[wanted] = position
                again = True
        hidden = [version for version in range(max({*known, *before})) if version not in known]
        hidden += [version for version in before if version not in known]
        return [
            _Gap(version, self._earliest(version), self._latest(version, before))
            for version in sorted(set(hidden))
        ]

    def _matters(self, refused: Operation, known: dict[int, _Write]) -> bool:
        current = self._at(refused.position)
        return (
            current is None
            or current.version == refused.expected
            or (refused.expected not in known)
        )

    def _latest(self, version: int, before: dict[int, float]) -> float:
        """A version was made at this position if it is known, and before it if it is not."""
        index = bisect_left(self.versions, version)
        latest = float(self.zxids[index]) if index < len(self.zxids) else math.inf
        if index < len(self.versions) and self.versions[index] == version:
            return latest
        return min([latest, *(bound for wanted, bound in before.items() if wanted >= version)])

    def _earliest(self, version: int) -> float:
        """An unknown version was made after everything that shows a lower one."""
        lower = [write.zxid for write in self.writes if write.version < version]
        lower += [
            op.position for op in self.operations if op.kind == "read" and op.version < version
        ]
        return float(max(lower, default=0))

    def _fill(
        self, gaps: list[_Gap], placed: dict[int, int], everything: Sequence[Operation]
    ) -> None:
        if not gaps:
            return
        timeline = _Timeline(everything, placed)
        spare = [op for op in self.operations if op.outcome == "unknown" and id(op) not in placed]
        fits = [[n for n, op in enumerate(spare) if _may_fill(op, gap, timeline)] for gap in gaps]
        missing = _unmatched(fits)
        if missing is not None:
            self._blame(f"nobody can have written version {gaps[missing].version}")


def _may_fill(op: Operation, gap: _Gap, timeline: _Timeline) -> bool:
    if gap.after >= gap.before or op.expected not in (ANY_VERSION, gap.version - 1):
        return False
    return timeline.reached_before(op.invoked) < gap.before


class _Timeline:
    """How far the order had come by a moment: the last position that was answered before it."""

    def __init__(self, history: Sequence[Operation], placed: dict[int, int]) -> None:
        ends = sorted((op.returned, placed[id(op)]) for op in history if op.outcome != "unknown")
        self.times = [returned for returned, _ in ends]
        self.reached: list[int] = []
        furthest = 0
        for _, position in ends:
            furthest = max(furthest, position)
            self.reached.append(furthest)

    def reached_before(self, moment: float) -> int:
        """Answers at the very moment count as concurrent."""
        index = bisect_right(self.times, math.nextafter(moment, -math.inf))
        return self.reached[index - 1] if index else 0


def _real_time(history: Sequence[Operation], placed: dict[int, int]) -> list[str]:
    timeline = _Timeline(history, placed)
    problems = []
    for op in history:
        if id(op) not in placed:
            continue
        reached, position = timeline.reached_before(op.invoked), placed[id(op)]
        if position < reached or (position == reached and op.kind == "write"):
            problems.append(f"{op.key}: zxid {reached} was answered before this began\n    {op}")
    return problems


def _unmatched(fits: list[list[int]]) -> int | None:
    """A gap that stays empty in a maximum matching of gaps to writes; None if all are filled."""
    taken: dict[int, int] = {}

    def find(gap: int, tried: set[int]) -> bool:
        for candidate in fits[gap]:
            if candidate in tried:
                continue
            tried.add(candidate)
            if candidate not in taken or find(taken[candidate], tried):
                taken[candidate] = gap
                return True
        return False

    for gap in range(len(fits)):
        if not find(gap, set()):
            return gap
    return None
