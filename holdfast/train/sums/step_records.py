"""What a worker says of the lanes that it computed in a step, beside their gradients.

Everyone hears everyone's words with the sum, so all conclude the same: how many samples the step
had, its loss, whether somebody asked to stop, whether the epoch is over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.wire.errors import BugError, Usage


@dataclass(slots=True)
class LaneRecord:
    """One lane of the step."""

    count: int = 0
    values: dict[str, float] = field(default_factory=dict)  # sums over its samples
    untouched: list[int] = field(default_factory=list)  # parameters without a gradient
    only: list[str] | None = None  # the optimizers that step; None: all
    stop: bool = False
    more: bool = True
    mark: list[int] | None = None  # where it is in its files after the step

    def take_part(self, count: int, only: list[str] | None) -> None:
        """So many more samples of it are computed, for these optimizers."""
        if self.count and self.only != only:
            raise _disagree()
        self.count, self.only = self.count + count, only

    def add(self, name: str, value: float, count: int) -> None:
        self.values[name] = self.values.get(name, 0.0) + value * count


class Beside(NamedTuple):
    """What a worker says of itself: what a lane took it, and what it came to for lanes that others
    compute as well."""

    worker: int
    lane_ms: float | None
    answers: Mapping[str, str]


@dataclass(slots=True)
class StepRecord:
    """All lanes of the step, in their order."""

    lanes: dict[int, LaneRecord]
    buffers: bytes
    digests: frozenset[str] = frozenset()  # of the state before it, of those who have one
    prints: list[list[Any]] = field(default_factory=list)  # of a batch that was rehearsed
    lane_ms: dict[int, float] = field(default_factory=dict)  # what a lane took workers that had one
    # What workers came to for lanes that more than one has computed.
    answers: dict[int, dict[int, str]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(lane.count for lane in self.lanes.values())

    @property
    def stop(self) -> bool:
        return any(lane.stop for lane in self.lanes.values())

    @property
    def more(self) -> bool:
        return any(lane.more for lane in self.lanes.values())

    @property
    def only(self) -> list[str] | None:
        """The optimizers that step, as the lanes that have samples say: all the same."""
        answers = [lane.only for lane in self.lanes.values() if lane.count]
        if any(each != answers[0] for each in answers):
            raise _disagree()
        return answers[0] if answers else None

    @property
    def marks(self) -> dict[str, list[int]]:
        """Where lanes are in their files, for a position."""
        return {str(lane): it.mark for lane, it in self.lanes.items() if it.mark is not None}

    def untouched(self) -> set[int]:
        """The parameters that had a gradient in no lane."""
        found = [set(lane.untouched) for lane in self.lanes.values() if lane.count]
        return set.intersection(*found) if found else set()

    def means(self) -> dict[str, float]:
        """Means over the samples of the lanes that gave a value, summed in the lanes' order."""
        sums: dict[str, float] = {}
        counts: dict[str, int] = {}
        for lane in self.lanes.values():
            for name, value in lane.values.items():
                sums[name] = sums.get(name, 0.0) + value
                counts[name] = counts.get(name, 0) + lane.count
        return {name: sums[name] / counts[name] for name in sorted(sums)}


def spell(
    lanes: Mapping[int, LaneRecord],
    buffers: bytes | None,
    digest: str | None = None,
    prints: Sequence[Any] | None = None,
    beside: Beside | None = None,
) -> bytes:
    """My words. Buffers: what my lane 0 made of them; None: lane 0 is another's. `digest`: that of
    the state with which I began the step, if I have one. `prints`: see `rehearsal`."""
    rows = {
        str(lane): [it.count, it.values, it.untouched, it.only, it.stop, it.more, it.mark]
        for lane, it in lanes.items()
    }
    text = json.dumps([rows, buffers is not None, digest, prints, beside]).encode()
    return len(text).to_bytes(4, "little") + text + (buffers or b"")


def alone(
    lanes: Mapping[int, LaneRecord], count: int, digest: str | None, prints: Sequence[Any] | None
) -> StepRecord:
    """The same as one, where there is nobody else to say anything."""
    if sorted(lanes) != list(range(count)):
        raise BugError(f"a step has the lanes {sorted(lanes)} of {count}")
    digests = frozenset() if digest is None else frozenset({digest})
    return StepRecord(
        dict(sorted(lanes.items())), b"", digests, [] if prints is None else [list(prints)]
    )


def gather(everyone: Iterable[bytes], lanes: int) -> StepRecord:
    """Everyone's words as one; every lane must be in them once."""
    found: dict[int, LaneRecord] = {}
    buffers, digests, printed = b"", set(), []
    lane_ms: dict[int, float] = {}
    answers: dict[int, dict[int, str]] = {}
    for record in everyone:
        size = int.from_bytes(record[:4], "little")
        rows, has_buffers, digest, prints, beside = json.loads(record[4 : 4 + size])
        if beside is not None:
            worker, took, mine = Beside(*beside)
            lane_ms |= {} if took is None else {worker: took}
            for lane, answer in mine.items():
                answers.setdefault(int(lane), {})[worker] = answer
        if prints is not None:
            printed.append(prints)
        if digest is not None:
            digests.add(digest)
        for lane, row in rows.items():
            if int(lane) in found:
                raise BugError(f"lane {lane} was computed by two workers in one step")
            found[int(lane)] = LaneRecord(*_typed(row))
        if has_buffers:
            buffers = record[4 + size :]
    if sorted(found) != list(range(lanes)):
        raise BugError(f"a step has the lanes {sorted(found)} of {lanes}")
    lanes_found = dict(sorted(found.items()))
    return StepRecord(lanes_found, buffers, frozenset(digests), printed, lane_ms, answers)


def _typed(row: list[Any]) -> list[Any]:
    count, values, *rest = row
    return [int(count), {name: float(value) for name, value in values.items()}, *rest]


def _disagree() -> Usage:
    return Usage(
        "the batches of one step named different optimizers in run.step(only=...)",
        why="a step is one update, made from all of its lanes",
        fix="choose by what all lanes share: batch.update, or run.completed",
    )
