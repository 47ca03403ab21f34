"""Compaction: the last record of every key stays, and nothing else that matters goes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.topics.broker.core import batch, commands, records
from holdfast.topics.broker.core.records import LogRecord, read_records
from holdfast.topics.broker.disk import compaction
from holdfast.topics.broker.disk.compaction import Cleaned
from tests.unit.topics.made import append, make_batch
from tests.unit.topics.test_store import KEY, TOPIC, Disk

DAY_MS = 24 * 3600 * 1000


def write(disk: Disk, *pairs: tuple[str, str | None], codec: int = 0, now_ms: int = 1_000) -> None:
    """One batch of these keys and values."""
    body = b"".join(
        records.encode(at, 0, key.encode(), None if value is None else value.encode())
        for at, (key, value) in enumerate(pairs)
    )
    made = batch.make([b""] * len(pairs), timestamp=now_ms, attributes=codec)
    data = batch.remake(batch.read_header(made), records.pack(body, codec), len(pairs))
    disk.do(append(TOPIC, data))


def close_segment(disk: Disk) -> None:
    """What is there is closed, and a snapshot knows it."""
    disk.do(append(TOPIC, make_batch(key=b"filler", value=bytes(1_100_000))))
    work = disk.store.begin_checkpoint(disk.store.last)
    disk.store.finish_checkpoint(work)
    disk.store.checkpoint_done(work)


def compact(
    disk: Disk, *, now_ms: int = 2_000, cleaned_until: int = 0, keys_max: int = 1000
) -> Cleaned | None:
    partition = disk.store.state.topics["t"].partitions[0]
    plan = compaction.plan(
        disk.log.segments,
        closed_before=disk.store.closed_before[KEY],
        cleaned_until=cleaned_until,
        stable=partition.last_stable_offset,
        aborted=partition.aborted,
        settings=disk.store.state.topics["t"].settings,
        now_ms=now_ms,
    )
    if plan is None:
        return None
    made = compaction.clean(plan, keys_max)
    for base, path in made.segments:
        disk.log.replace(base, path)
    return made


def found(disk: Disk) -> list[LogRecord]:
    """All records but the filler."""
    kept = []
    for segment in disk.log.segments:
        for header, at in segment.walk(0):
            data = segment.read(at, header.size)
            assert batch.is_whole(data, header)
            if not header.is_control:
                kept += [one for one in read_records(data, header) if one.key != b"filler"]
    return kept


def pairs(disk: Disk) -> list[tuple[str, str | None]]:
    return [
        ((one.key or b"").decode(), None if one.value is None else one.value.decode())
        for one in found(disk)
    ]


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path, cleanup_policy="compact", segment_bytes="1048576")


@pytest.mark.parametrize("codec", range(5))
def test_the_last_record_of_each_key_stays_at_its_offset(disk: Disk, codec: int) -> None:
    write(disk, ("a", "1"), ("b", "1"), ("a", "2"), codec=codec)
    write(disk, ("c", "1"), ("b", "2"), codec=codec)
    close_segment(disk)
    assert compact(disk) is not None
    assert pairs(disk) == [("a", "2"), ("c", "1"), ("b", "2")]
    assert [one.offset for one in found(disk)] == [2, 3, 4]
    before = found(disk)
    disk.restart()
    assert found(disk) == before


def test_a_read_passes_over_what_is_gone(disk: Disk) -> None:
    for number in range(20):
        write(disk, ("same", str(number)))
    close_segment(disk)
    compact(disk)
    header = batch.read_header(disk.log.read(3, 100, None, whole=True))
    assert header.base_offset == 19


def test_a_tombstone_stays_for_its_time_and_then_goes(disk: Disk) -> None:
    write(disk, ("a", "1"), ("b", "1"))
    write(disk, ("a", None))
    close_segment(disk)
    compact(disk)
    assert pairs(disk) == [("b", "1"), ("a", None)]
    compact(disk, now_ms=1_000 + DAY_MS + 1)
    assert pairs(disk) == [("b", "1")]


def test_the_active_segment_and_what_no_snapshot_knows_stay(disk: Disk) -> None:
    write(disk, ("a", "1"), ("a", "2"))
    disk.do(append(TOPIC, make_batch(key=b"filler", value=bytes(1_100_000))))
    disk.store.closed_before[KEY] = 0
    assert compact(disk) is None
    close_segment(disk)
    write(disk, ("a", "3"))
    compact(disk)
    assert pairs(disk) == [("a", "2"), ("a", "3")]


def test_a_key_that_is_written_again_later_is_cleaned_in_the_old_part_too(disk: Disk) -> None:
    write(disk, ("a", "1"), ("b", "1"))
    close_segment(disk)
    first = compact(disk)
    assert first is not None
    write(disk, ("a", "2"))
    close_segment(disk)
    disk.store.state.topics["t"].configure({"min.cleanable.dirty.ratio": "0"})
    compact(disk, cleaned_until=first.until)
    assert pairs(disk) == [("b", "1"), ("a", "2")]


def test_a_pass_that_cannot_remember_all_keys_goes_as_far_as_it_can(disk: Disk) -> None:
    for first in range(0, 30, 10):
        write(disk, *((f"k{number}", "1") for number in range(first, first + 10)), ("k0", "x"))
        close_segment(disk)
    made = compact(disk, keys_max=15)
    assert made is not None
    assert made.until < disk.log.segments[-1].base_offset
    assert len({key for key, _ in pairs(disk)}) == 30


def test_an_aborted_record_neither_stays_nor_hides_an_older_one(disk: Disk) -> None:
    write(disk, ("a", "committed"))
    made: tuple[int, int] = disk.do(commands.InitProducer("x", 60_000, -1, -1))[0].value
    disk.do(commands.AddToTransaction("x", *made, [("t", 0)], None))
    data = make_batch(producer=made, sequence=0, transactional=True, key=b"a", value=b"aborted")
    disk.do(append(TOPIC, data, 0, "x"))
    disk.do(commands.EndTransaction("x", *made, False))
    close_segment(disk)
    compact(disk)
    assert pairs(disk) == [("a", "committed")]


def test_nothing_behind_an_open_transaction_is_touched(disk: Disk) -> None:
    write(disk, ("a", "1"), ("a", "2"))
    made: tuple[int, int] = disk.do(commands.InitProducer("x", 60_000, -1, -1))[0].value
    disk.do(commands.AddToTransaction("x", *made, [("t", 0)], None))
    data = make_batch(producer=made, sequence=0, transactional=True, key=b"a")
    disk.do(append(TOPIC, data, 0, "x"))
    close_segment(disk)
    assert compact(disk) is None


@settings(max_examples=15)
@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from("abcd"), st.sampled_from(["1", "2", None])),
            min_size=1,
            max_size=4,
        ),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 4),
)
def test_whoever_reads_all_of_it_knows_the_same_as_before(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[tuple[str, str | None]]],
    every: int,
) -> None:
    disk = Disk(tmp_path_factory.mktemp("log"), cleanup_policy="compact", segment_bytes="1048576")
    expected: dict[str, str | None] = {}
    for number, one in enumerate(batches):
        write(disk, *one)
        expected.update(one)
        if number % every == 0:
            close_segment(disk)
    close_segment(disk)
    compact(disk)
    assert dict(pairs(disk)) == expected
    offsets = [one.offset for one in found(disk)]
    assert offsets == sorted(set(offsets))
    disk.kill()
