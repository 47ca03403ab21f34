"""What the clients of a broker did and saw, as they know it themselves.

Every record has a value of its own, so that it is recognized wherever it turns up.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class Fate(StrEnum):
    """How a transaction ended, as its producer was told. Who was not told knows nothing."""

    UNKNOWN = "unknown"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Sent(NamedTuple):
    """A record that an author gave to its client. `transaction` "": in none. `source`: the value of
    the record that this one was made from."""

    value: str
    author: str
    place: Place
    transaction: str = ""
    source: str = ""


class SeenRecord(NamedTuple):
    """A record that a reader of committed records was given."""

    reader: str
    place: Place
    offset: int
    value: str


class Owned(NamedTuple):
    """Partitions that a member of a group was given for a generation."""

    group: str
    generation: int
    member: str
    places: tuple[Place, ...]


@dataclass
class History:
    """Everything that happened, in the order in which it was noted."""

    sent: list[Sent] = field(default_factory=list)
    acknowledged: dict[str, int] = field(default_factory=dict)  # value -> offset
    fates: dict[str, Fate] = field(default_factory=dict)
    seen: list[SeenRecord] = field(default_factory=list)
    owned: list[Owned] = field(default_factory=list)
    # Offsets that a group was told are kept; and what it has at the end.
    kept: dict[tuple[str, Place], int] = field(default_factory=dict)
    kept_at_last: dict[tuple[str, Place], int] = field(default_factory=dict)
    # Every committed record of each partition at the end, in the order of the log.
    final: dict[Place, list[tuple[int, str]]] = field(default_factory=dict)
    # Topics of which every record must have been copied by a chain, and where to.
    copied: dict[str, str] = field(default_factory=dict)

    def begin(self, transaction: str) -> None:
        self.fates[transaction] = Fate.UNKNOWN

    def keep(self, group: str, place: Place, offset: int) -> None:
        """A commit of a group's offset was acknowledged."""
        key = group, place
        self.kept[key] = max(self.kept.get(key, 0), offset)

    def figures(self) -> str:
        """The figures, for people."""
        counts = defaultdict[Fate, int](int)
        for fate in self.fates.values():
            counts[fate] += 1
        ends = ", ".join(f"{counts[fate]:,} {fate}" for fate in Fate)
        records = sum(map(len, self.final.values()))
        generations = len({(one.group, one.generation) for one in self.owned})
        return (
            f"{len(self.sent):,} records sent, {len(self.acknowledged):,} acknowledged;"
            f" transactions: {ends}; {len(self.seen):,} records seen, {records:,} at the end;"
            f" {generations:,} generations of groups"
        )
