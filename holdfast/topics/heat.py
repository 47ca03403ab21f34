"""Which partition and which keys of a topic get most of its records: looked at, not promised."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from holdfast.topics.admin import TopicSummary
from holdfast.topics.connection import Connection
from holdfast.topics.records import Record, TopicPosition

KEYS_SHOWN: Final = 10
# One who only wants to look does not wait longer.
MEASURE_S: Final = 10.0
_QUIET_POLLS: Final = 2


@dataclass(frozen=True)
class PartitionHeat:
    """How much of a topic's last records a partition got."""

    partition: int
    records: int
    bytes: int
    share: float


@dataclass(frozen=True)
class KeyHeat:
    """How much of them a key has."""

    key: bytes
    partition: int
    records: int
    share: float


@dataclass(frozen=True)
class TopicHeat:
    """The last records of a topic, the hottest first. `hottest`: the partition with the most of
    them; None: there were no records."""

    records: int
    partitions: tuple[PartitionHeat, ...]
    keys: tuple[KeyHeat, ...]

    @property
    def hottest(self) -> int | None:
        return self.partitions[0].partition if self.partitions else None

    def fields(self) -> dict[str, Any]:
        """For JSON: keys as text."""
        keys = [{**asdict(one), "key": one.key.decode(errors="replace")} for one in self.keys]
        parts = [asdict(one) for one in self.partitions]
        return {"records": self.records, "hottest": self.hottest, "partitions": parts, "keys": keys}


def heat_of(records: Iterable[Record], sample: int) -> TopicHeat:
    """Of the last `sample` of these by their time. Pure."""
    last = sorted(records, key=lambda one: (one.at, one.partition, one.offset))[-sample:]
    total = len(last)
    counts = Counter(one.partition for one in last)
    sizes: Counter[int] = Counter()
    for one in last:
        sizes[one.partition] += len(one.raw or b"") + len(one.key or b"")
    keys = Counter((one.key, one.partition) for one in last if one.key is not None)
    return TopicHeat(
        total,
        tuple(
            PartitionHeat(part, count, sizes[part], count / total)
            for part, count in sorted(counts.items(), key=lambda one: (-one[1], one[0]))
        ),
        tuple(
            KeyHeat(key, part, count, count / total)
            for (key, part), count in keys.most_common(KEYS_SHOWN)
        ),
    )


def last_records(
    topics: Connection,
    topic: TopicSummary,
    count: int,
    timeout_s: float = MEASURE_S,
    *,
    committed: bool = True,
) -> list[Record]:
    """Up to the last `count` records of each partition, as they were when `topic` was described;
    fewer, if they cannot be read in time."""
    ends = {part: after for part, (_, after) in topic.offsets.items()}
    start = {
        part: max(first, after - count)
        for part, (first, after) in topic.offsets.items()
        if max(first, after - count) < after
    }
    if not start:
        return []
    found: list[Record] = []
    deadline_s = time.monotonic() + timeout_s
    places = [TopicPosition(topic.name, part, at) for part, at in start.items()]
    with topics.consumer(topic.name, start=places, committed=committed) as consumer:
        left, quiet = set(start), 0
        # What is left may be markers of transactions, which are no records: then nothing comes.
        while left and quiet < _QUIET_POLLS and time.monotonic() < deadline_s:
            read = consumer.poll(0.5)
            quiet = 0 if read or not found else quiet + 1
            for one in read:
                if one.offset < ends.get(one.partition, 0):
                    found.append(one)
            at = {one.partition: one.offset for one in consumer.positions()}
            left = {part for part in left if at.get(part, 0) < ends[part]}
    return found


def measure(topics: Connection, topic: TopicSummary, sample: int) -> TopicHeat:
    """The heat of the last `sample` records."""
    return heat_of(last_records(topics, topic, sample) if sample else (), sample or 1)
