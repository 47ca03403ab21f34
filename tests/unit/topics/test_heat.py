"""The hottest partition and keys among the last records."""

from __future__ import annotations

from holdfast.topics import BYTES, Record
from holdfast.topics.heat import heat_of


def made(partition: int, offset: int, key: bytes | None, at: int, value: bytes = b"v") -> Record:
    return Record(
        "t",
        partition,
        offset,
        key=key,
        raw=value,
        headers={},
        at=at,
        leader_epoch=None,
        codec=BYTES,
    )


def test_the_partition_and_the_key_with_most_records_come_first() -> None:
    records = [made(0, at, b"cold", at) for at in range(2)]
    records += [made(1, at, b"hot", 10 + at) for at in range(5)]
    records += [made(1, 5, None, 20)]
    heat = heat_of(records, 100)
    assert (heat.records, heat.hottest) == (8, 1)
    assert [(one.partition, one.records, one.share) for one in heat.partitions] == [
        (1, 6, 0.75),
        (0, 2, 0.25),
    ]
    assert [(one.key, one.partition, one.records) for one in heat.keys] == [
        (b"hot", 1, 5),
        (b"cold", 0, 2),
    ]
    assert heat.partitions[0].bytes == 6 + 5 * len(b"hot")


def test_only_the_last_records_count() -> None:
    records = [made(0, at, b"before", at) for at in range(10)]
    records += [made(1, at, b"now", 100 + at) for at in range(3)]
    heat = heat_of(records, 3)
    assert (heat.hottest, heat.records) == (1, 3)
    assert [one.key for one in heat.keys] == [b"now"]


def test_a_topic_without_records_has_no_hottest_partition() -> None:
    heat = heat_of([], 10)
    assert (heat.records, heat.hottest, heat.keys) == (0, None, ())
    assert heat.fields()["hottest"] is None
