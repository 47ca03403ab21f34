"""A broker's folder on a disk that forgets: acknowledged records are there."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.topics.broker.core import batch
from holdfast.topics.broker.core.records import read_records
from holdfast.topics.broker.disk import journal, store
from holdfast.topics.broker.disk.journal import JournalReplay, read_mark
from holdfast.topics.broker.disk.store import BrokerStore
from holdfast.wire.errors import Corrupt, DiskFailed, Full
from tests.powercut.disk import Disk
from tests.powercut.images import images, survives, write
from tests.powercut.scenes import failing, new_disk, restarts
from tests.unit.topics.test_compaction import close_segment, compact, pairs
from tests.unit.topics.test_compaction import write as write_pairs
from tests.unit.topics.test_store import KEY, fill
from tests.unit.topics.test_store import Disk as Broker

EACH = 2  # records of a batch


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Little room ahead, so that many images of a file can be looked at; and many segments."""
    monkeypatch.setattr(journal, "AHEAD_BYTES", 300)
    monkeypatch.setattr(store, "JOURNAL_SEGMENT_BYTES", 500)
    yield
    Broker.end_all()


def serve(disk: Disk, batches: int = 6) -> None:
    """A broker that writes and acknowledges, with new segments and snapshots in between."""
    broker = Broker(disk.folder / "deep" / "data")
    disk.acknowledge(0)
    for number in range(batches):
        fill(broker, 1, number)
        disk.acknowledge(number + 1)
        if number in (1, 3):
            broker.checkpoint()
    broker.store.close(clean=True)
    disk.acknowledge(batches)


def values(opened: BrokerStore) -> list[bytes | None]:
    """The records of the partition, through its log, as a consumer reads them."""
    topic = opened.state.topics.get("t")
    found: list[bytes | None] = []
    while topic is not None:
        offset = topic.partitions[0].log_start + len(found)
        data = opened.log(KEY).read(offset, 1, None, whole=True)
        if not data:
            break
        header = batch.read_header(data)
        assert batch.is_whole(data, header)
        found += [one.value for one in read_records(data, header)]
    if topic is not None:
        assert topic.partitions[0].next_offset == len(found), "offsets without records"
    return found


def holds(folder: Path, promised: tuple[Any, ...]) -> None:
    """The folder opens, and has the acknowledged batches; perhaps the one that was on its way."""
    opened = BrokerStore.open(folder / "deep" / "data")
    try:
        found = values(opened)
        if promised:
            assert "t" in opened.state.topics, "an acknowledged topic is lost"
        least = max(promised, default=0)
        assert len(found) // EACH in (least, least + 1)
        assert found == [b"%d" % (at // EACH) for at in range(len(found))]
    finally:
        opened.close(clean=False)


def test_acknowledged_records_are_lost_by_a_power_cut(tmp_path: Path) -> None:
    disk = new_disk(tmp_path / "disk")
    with disk:
        serve(disk)
    names = {name.rpartition("/")[2][:4] for m in disk.moments for _, i in images(m) for name in i}
    assert {"jour", "snap", "dura"} <= names
    assert survives(disk, tmp_path, holds) > 50


def test_what_a_restarted_broker_shows_is_lost_by_a_power_cut(tmp_path: Path) -> None:
    """The old process was killed at a sync: the new one reads what was written and not synced."""
    lives = 0
    for disk in restarts(tmp_path, lambda disk: serve(disk, 3)):
        lives += 1
        with disk:
            opened = BrokerStore.open(disk.folder / "deep" / "data")
            if "t" in opened.state.topics:
                disk.acknowledge(len(values(opened)) // EACH)
        disk.moments[:] = [moment for moment in disk.moments if "acknowledged" in moment.what]
        survives(disk, tmp_path, holds)
        opened.close(clean=False)
    assert lives > 15


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_refused_record_comes_back_with_a_power_cut(tmp_path: Path, code: int) -> None:
    """Its bytes had been written, and only their sync failed: they may be on the disk."""
    disk = new_disk(tmp_path / "disk")
    with disk:
        broker = Broker(disk.folder / "data")
        fill(broker, 1)
        disk.at_sync = failing(disk.syncs + 1, code)
        with pytest.raises((Full, DiskFailed)):
            fill(broker, 1, 1)
        disk.moments.clear()
        disk.acknowledge("refused")

    def has_none_of_it(folder: Path, promised: tuple[Any, ...]) -> None:
        opened = BrokerStore.open(folder / "data")
        assert len(values(opened)) == EACH
        opened.close(clean=False)

    assert survives(disk, tmp_path, has_none_of_it) > 0
    broker.kill()


def test_damage_looks_torn_after_a_power_cut_since_the_mark_was_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark tells a group that was durable, and is damaged now, from one that never was."""
    monkeypatch.setattr(store, "JOURNAL_SEGMENT_BYTES", 1_000_000)
    disk = new_disk(tmp_path / "disk")
    with disk:
        broker = Broker(disk.folder / "data")
        fill(broker, 2)  # the mark is written, and not synced
        killed = disk.restarted(tmp_path / "again")
        broker.kill()
    with killed:
        opened = BrokerStore.open(killed.folder / "data")
        killed.acknowledge("opened")
    _, image = next(images(killed.moments[-1]))
    write(image, tmp_path / "damaged")
    mark = read_mark(tmp_path / "damaged" / "data")
    assert mark is not None
    (segment,) = (tmp_path / "damaged" / "data").glob("journal-*")
    data = bytearray(segment.read_bytes())
    data[mark[1] - 1] ^= 1
    segment.write_bytes(data)
    with pytest.raises(Corrupt, match="was durable"):
        list(JournalReplay(tmp_path / "damaged" / "data", 0))
    opened.close(clean=False)


def test_records_that_compaction_keeps_are_lost_by_a_power_cut(tmp_path: Path) -> None:
    disk = new_disk(tmp_path / "disk")
    with disk:
        broker = Broker(disk.folder / "data", cleanup_policy="compact", segment_bytes="1048576")
        write_pairs(broker, ("a", "1"), ("b", "1"), ("a", "2"))
        close_segment(broker)
        write_pairs(broker, ("c", "1"))
        disk.moments.clear()
        made = compact(broker)
        assert made is not None and made.segments
        disk.acknowledge("compacted")
        broker.kill()

    def has_the_last_of_each_key(folder: Path, promised: tuple[Any, ...]) -> None:
        reopened = Broker.__new__(Broker)
        reopened.folder, reopened.store = folder / "data", BrokerStore.open(folder / "data")
        assert dict(pairs(reopened)) == {"a": "2", "b": "1", "c": "1"}
        reopened.kill()

    assert survives(disk, tmp_path, has_the_last_of_each_key) > 2
