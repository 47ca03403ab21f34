"""The records that a trigger gives to the job that it starts, as a value: which offsets of which
partitions. The coordinator writes it, a worker finds it in its environment.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from holdfast.wire.errors import Corrupt, Usage

# In the environment of a worker of a job that a trigger has started: a JSON object.
TRIGGER_VARIABLE: Final = "HOLDFAST_TRIGGER"


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition, from `first` on and before `end`."""

    partition: int
    first: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.first


@dataclass(frozen=True, slots=True)
class TriggeredRange:
    """What one started job is to read. Every offset of the topic from the trigger's start on lies
    in the range of exactly one of its jobs. `number`: which one of them it is, from 1 on."""

    trigger: str
    number: int
    topic: str
    ranges: tuple[OffsetRange, ...]
    filter: str = ""

    @property
    def count(self) -> int:
        """How many offsets it has: at most so many records."""
        return sum(each.count for each in self.ranges)

    def split(self, parts: int) -> list[TriggeredRange]:
        """The same offsets in so many runs of nearly the same size, for workers that share them. A
        part may be empty."""
        if parts < 1:
            raise Usage(f"a range cannot be split into {parts} parts", fix="range.split(2)")
        bounds = [self.count * part // parts for part in range(parts + 1)]
        return [
            replace(self, ranges=_between(self.ranges, first, end))
            for first, end in itertools.pairwise(bounds)
        ]

    def text(self) -> str:
        """As it stands in the environment of a worker."""
        return json.dumps(asdict(self))


def _between(ranges: tuple[OffsetRange, ...], first: int, end: int) -> tuple[OffsetRange, ...]:
    """Of all these offsets, one behind the other, the ones from `first` on and before `end`."""
    found, begins = [], 0
    for each in ranges:
        low, high = max(first - begins, 0), min(end - begins, each.count)
        if low < high:
            found.append(OffsetRange(each.partition, each.first + low, each.first + high))
        begins += each.count
    return tuple(found)


def triggered_in(environment: Mapping[str, str]) -> TriggeredRange | None:
    """What this worker is to read; None: no trigger has started its job."""
    text = environment.get(TRIGGER_VARIABLE)
    if not text:
        return None
    try:
        plain = _known(TriggeredRange, json.loads(text))
        ranges = tuple(OffsetRange(**_known(OffsetRange, each)) for each in plain["ranges"])
        return TriggeredRange(**{**plain, "ranges": ranges})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Corrupt(
            f"{TRIGGER_VARIABLE} does not hold the range of a trigger",
            why=str(error),
            fix=f"unset {TRIGGER_VARIABLE}: agents set it",
        ) from error


def _known(kind: type, plain: dict[str, Any]) -> dict[str, Any]:
    """Without what a newer version has added. (Not msgspec: the simulator runs on PyPy, too.)"""
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in plain.items() if name in names}


def ranges_text(ranges: tuple[OffsetRange, ...], most: int = 4) -> str:
    """`0: 100 to 199, 1: 7`, for people; both ends belong to it."""
    said = [
        f"{each.partition}: {each.first:,} to {each.end - 1:,}"
        if each.count > 1
        else f"{each.partition}: {each.first:,}"
        for each in ranges[:most]
    ]
    more = [f"and {len(ranges) - most} more partitions"] if len(ranges) > most else []
    return ", ".join([*said, *more])
