"""A damaged folder: what checks is kept at its offset, and what is lost is told exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.topics.broker.core import batch, commands
from holdfast.topics.broker.core.commands import CommittedOffset
from holdfast.topics.broker.core.records import read_records
from holdfast.topics.broker.disk.salvage import TopicsSalvage, salvage
from holdfast.topics.broker.disk.store import BrokerStore
from holdfast.wire.errors import Corrupt, Occupied, Usage
from tests.unit.topics.made import append, make_batch
from tests.unit.topics.test_store import TOPIC, Disk

WHERE = f"logs/{TOPIC.hex()}/0"
FIRST = f"{0:020d}.log"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    yield Disk(tmp_path / "damaged")
    Disk.end_all()


def write(disk: Disk, *values: bytes, partition: int = 0) -> None:
    for value in values:
        disk.do(append(TOPIC, make_batch(value=value), partition))


def damage(path: Path, at: int, with_: bytes = b"\xff") -> None:
    data = bytearray(path.read_bytes())
    data[at : at + len(with_)] = with_
    path.write_bytes(data)


def saved(disk: Disk, *, refused: bool = True) -> TopicsSalvage:
    """Kill the broker, see that its folder is refused, and save it."""
    if disk in Disk.alive:
        disk.kill()
    if refused:
        with pytest.raises(Corrupt, match="damaged") as raised:
            BrokerStore.open(disk.folder)
        assert f"holdfast topics salvage {disk.folder} NEWDIR" in raised.value.fix
    before = {path: path.read_bytes() for path in disk.folder.rglob("*-*") if path.is_file()}
    report = salvage(disk.folder, disk.folder.with_name("new"))
    assert {path: path.read_bytes() for path in before} == before, "the folder is not changed"
    return report


def read(report: TopicsSalvage, name: str = "t", partition: int = 0) -> list[tuple[int, bytes]]:
    """Offset and value of what a broker over the new folder has."""
    store = BrokerStore.open(report.target)
    try:
        topic = store.state.topics[name]
        held = store.log((topic.topic_id, partition))
        assert not list(held.check_all())
        found, at = [], topic.partitions[partition].log_start
        while at < topic.partitions[partition].next_offset:
            data = held.read(at, 1, None, whole=True)
            if not data:
                break
            header = batch.read_header(data)
            at = header.last_offset + 1
            if not header.is_control:
                found += [(one.offset, one.value or b"") for one in read_records(data, header)]
        return found
    finally:
        store.close(clean=True)


def test_a_batch_that_does_not_check_is_left_out_and_its_offset_is_told(disk: Disk) -> None:
    write(disk, b"one", b"two", b"three", b"four")
    disk.checkpoint()
    size = len(make_batch(value=b"one"))
    disk.kill()
    damage(disk.folder / WHERE / FIRST, size + size - 2)
    report = saved(disk, refused=False)
    assert report.lost == ["t[0]: offset 1"]
    assert read(report) == [(0, b"one"), (2, b"three"), (3, b"four")]
    assert "no batch there checks" in report.damage[0]


def test_what_the_segment_has_lost_comes_from_the_journal(disk: Disk) -> None:
    write(disk, b"one")
    disk.checkpoint()
    write(disk, b"two", b"three")
    disk.kill()
    (disk.folder / WHERE / FIRST).unlink()
    report = saved(disk)
    assert report.lost == ["t[0]: offset 0"]
    assert read(report) == [(1, b"two"), (2, b"three")]


def test_a_segment_that_is_cut_short_loses_its_end_and_offsets_are_not_used_again(
    disk: Disk,
) -> None:
    write(disk, b"one", b"two", b"three")
    disk.checkpoint()
    disk.kill()
    path = disk.folder / WHERE / FIRST
    path.write_bytes(path.read_bytes()[: len(make_batch(value=b"one")) + 7])
    report = saved(disk)
    assert report.lost == ["t[0]: offsets 1 to 2"]
    assert read(report) == [(0, b"one")]
    store = BrokerStore.open(report.target)
    try:
        assert store.state.topics["t"].partitions[0].next_offset == 3
    finally:
        store.close(clean=True)


def test_records_behind_a_damaged_journal_are_kept_from_their_segments(disk: Disk) -> None:
    write(disk, b"one")
    offsets = {"t": {0: CommittedOffset(1, -1, "", 1_000)}}
    disk.do(commands.CommitOffsets("group", offsets))
    disk.checkpoint()
    write(disk, b"two", b"three", b"four")
    disk.kill()
    (journal,) = disk.folder.glob("journal-*")
    at = journal.read_bytes().index(b"two")
    damage(journal, at)
    report = saved(disk)
    assert read(report) == [(0, b"one"), (1, b"two"), (2, b"three"), (3, b"four")]
    assert len(report.lost) == 1
    assert "offsets of groups and transactions after that damage" in report.lost[0]
    store = BrokerStore.open(report.target)
    try:
        assert store.state.offsets["group"]["t"][0].offset == 1
    finally:
        store.close(clean=True)


def test_with_its_snapshot_lost_a_folder_keeps_its_records_and_says_what_is_gone(
    disk: Disk,
) -> None:
    write(disk, b"one", b"two")
    write(disk, b"other", partition=1)
    disk.store.close(clean=True)
    Disk.alive.remove(disk)
    for path in disk.folder.glob("journal-*"):
        path.unlink()
    (snapshot,) = disk.folder.glob("snapshot-*")
    damage(snapshot, 30)
    report = saved(disk)
    name = f"salvaged-{TOPIC.hex()}"
    assert any("offsets of groups" in one for one in report.lost)
    assert f"the name of a topic: it is called {name}" in report.lost
    assert read(report, name) == [(0, b"one"), (1, b"two")]
    assert read(report, name, 1) == [(0, b"other")]


def test_without_its_snapshot_a_journal_from_the_first_entry_on_loses_nothing(disk: Disk) -> None:
    write(disk, b"one", b"two")
    disk.checkpoint()
    disk.kill()
    (snapshot,) = disk.folder.glob("snapshot-*")
    damage(snapshot, 30)
    report = saved(disk)
    assert (report.lost, report.topics) == ([], 1)
    assert read(report) == [(0, b"one"), (1, b"two")]


def test_a_transaction_whose_end_is_lost_is_aborted_and_that_is_told(disk: Disk) -> None:
    (made,) = disk.do(commands.InitProducer("tx", 60_000, -1, -1))
    producer, epoch = made.value
    disk.do(commands.AddToTransaction("tx", producer, epoch, [("t", 0)], None))
    sent = make_batch(value=b"open", producer=(producer, epoch), sequence=0, transactional=True)
    disk.do(append(TOPIC, sent, transactional_id="tx"))
    disk.checkpoint()
    write(disk, b"after")
    disk.do(commands.EndTransaction("tx", producer, epoch, True))
    disk.kill()
    (journal,) = disk.folder.glob("journal-*")
    damage(journal, journal.read_bytes().index(b"after"))
    segment = disk.folder / WHERE / FIRST
    marker = len(batch.marker(batch.COMMIT, producer, epoch, 1_000))
    segment.write_bytes(segment.read_bytes()[:-marker])
    report = saved(disk)
    assert any(
        f"the transaction of producer {producer} from offset 0 on is aborted" in one
        for one in report.lost
    )
    store = BrokerStore.open(report.target)
    try:
        partition = store.state.topics["t"].partitions[0]
        assert not partition.open_from
        assert [one.first_offset for one in partition.aborted] == [0]
        assert partition.last_stable_offset == partition.next_offset == 3
    finally:
        store.close(clean=True)


def test_a_wrong_offset_which_no_checksum_covers_is_found_and_put_right(disk: Disk) -> None:
    write(disk, b"one", b"two", b"three")
    disk.checkpoint()
    disk.kill()
    damage(disk.folder / WHERE / FIRST, len(make_batch(value=b"one")) + 3)
    report = saved(disk, refused=False)
    assert report.lost == []
    assert "its offset is wrong" in report.damage[0]
    assert read(report) == [(0, b"one"), (1, b"two"), (2, b"three")]


def test_a_folder_in_use_or_none_and_a_target_that_is_not_empty_are_refused(
    disk: Disk, tmp_path: Path
) -> None:
    cases: list[tuple[type[Exception], Callable[[], object]]] = [
        (Occupied, lambda: salvage(disk.folder, tmp_path / "new")),
        (Occupied, lambda: salvage(disk.folder, disk.folder)),
        (Usage, lambda: salvage(tmp_path / "nothing", tmp_path / "new")),
    ]
    for error, call in cases:
        with pytest.raises(error):
            call()
    assert not (tmp_path / "new").exists()
