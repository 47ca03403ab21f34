"""The folder of a broker: what is recovered, read, trimmed, and refused."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.topics.broker.core import batch, commands
from holdfast.topics.broker.core.commands import AnyCommand
from holdfast.topics.broker.core.records import read_records
from holdfast.topics.broker.core.state import CommandOutcome
from holdfast.topics.broker.disk.journal import encode_entry
from holdfast.topics.broker.disk.partition_log import FoundRecord
from holdfast.topics.broker.disk.segment import Segment
from holdfast.topics.broker.disk.store import BrokerStore
from holdfast.wire.errors import Corrupt, Occupied
from tests.unit.topics.made import append, make_batch

TOPIC = b"the-only-topic-1"
KEY = TOPIC, 0


class Disk:
    """A store that is written to as the broker does, killed, and opened again."""

    alive: ClassVar[list[Disk]] = []  # whoever uses this class ends them after each test

    def __init__(self, folder: Path, **configs: str) -> None:
        self.folder = folder
        self.store = BrokerStore.open(folder)
        self.alive.append(self)
        self.now_ms = 1_000
        own = {name.replace("_", "."): value for name, value in configs.items()}
        self.do(commands.CreateTopic("t", TOPIC, 2, own))

    def do(self, *asked: AnyCommand) -> list[CommandOutcome]:
        self.store.commit([encode_entry(self.now_ms, commands.encode(one)) for one in asked])
        outcomes = []
        for one in asked:
            outcome = self.store.state.apply(one, self.now_ms)
            self.store.execute(outcome.effects)
            outcomes.append(outcome)
        self.store.count(len(asked), 100)
        return outcomes

    def checkpoint(self) -> None:
        self.store.finish_checkpoint(self.store.begin_checkpoint(self.store.last))

    def kill(self) -> None:
        self.store.release()
        if self in self.alive:
            self.alive.remove(self)

    @classmethod
    def end_all(cls) -> None:
        while cls.alive:
            cls.alive[-1].kill()

    def open(self) -> None:
        self.store = BrokerStore.open(self.folder)
        self.alive.append(self)

    def restart(self) -> None:
        self.kill()
        self.open()

    @property
    def log(self) -> Any:
        return self.store.log(KEY)

    def contents(self) -> list[tuple[int, bytes | None]]:
        """Every record: its offset and value."""
        found, offset = [], self.store.state.topics["t"].partitions[0].log_start
        while data := self.log.read(offset, 1, None, whole=True):
            header = batch.read_header(data)
            assert batch.is_whole(data, header)
            found += [(one.offset, one.value) for one in read_records(data, header)]
            offset = header.last_offset + 1
        return found


def fill(disk: Disk, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        data = make_batch(2, timestamp=10_000 + 10 * number, value=b"%d" % number)
        disk.do(append(TOPIC, data))


def test_everything_is_there_after_a_kill(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    fill(disk, 20)
    before = disk.contents()
    assert len(before) == 40
    disk.restart()
    assert disk.contents() == before
    assert disk.store.recovery.entries == 21


def test_everything_is_there_after_a_checkpoint_more_writes_and_a_kill(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    fill(disk, 10)
    disk.checkpoint()
    fill(disk, 10, 10)
    before = disk.contents()
    disk.restart()
    assert disk.contents() == before
    assert disk.store.recovery.entries == 10
    fill(disk, 5, 20)
    assert len(disk.contents()) == 50


def test_a_start_opens_logs_that_nobody_uses(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    fill(disk, 10)
    disk.checkpoint()
    fill(disk, 10, 10)
    before, path = disk.contents(), disk.log.segments[-1].path
    whole = path.stat().st_size
    disk.restart()
    assert path.stat().st_size < whole, "records of the journal are written at the start"
    assert not disk.store.is_settled(KEY)
    disk.store.settle(5)
    assert disk.store.is_settled(KEY)
    assert path.stat().st_size == whole
    assert disk.contents() == before


def test_a_checkpoint_forgets_records_that_a_start_has_not_written_yet(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    fill(disk, 10)
    before = disk.contents()
    disk.restart()
    assert not disk.store.can_checkpoint
    disk.store.close(clean=True)
    disk.open()
    assert disk.store.recovery.entries == 0
    assert disk.contents() == before


def test_a_record_after_a_start_comes_before_those_of_the_journal(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    fill(disk, 5)
    disk.restart()
    fill(disk, 1, 5)
    assert [value for _, value in disk.contents()] == [b"%d" % (at // 2) for at in range(12)]


def test_a_topic_that_is_deleted_before_its_logs_are_used_comes_back(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    fill(disk, 3)
    disk.restart()
    disk.do(commands.DeleteTopic(TOPIC))
    disk.store.settle(10)
    assert disk.store.can_checkpoint
    disk.checkpoint()
    disk.restart()
    assert not disk.store.state.topics


def test_a_clean_end_leaves_nothing_to_replay(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    fill(disk, 10)
    before = disk.contents()
    disk.store.close(clean=True)
    disk.open()
    assert disk.store.recovery.entries == 0
    assert disk.contents() == before


def test_what_was_written_to_segments_after_a_snapshot_comes_from_the_journal(
    tmp_path: Path,
) -> None:
    disk = Disk(tmp_path)
    fill(disk, 5)
    disk.checkpoint()
    fill(disk, 5, 5)
    before, path = disk.contents(), disk.log.segments[-1].path
    disk.kill()
    # The machine lost power: of what was not synced some is there, and some is noise.
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) * 6 // 10] + os.urandom(300))
    disk.open()
    assert disk.contents() == before


def test_a_marker_is_found_by_its_time(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    (made,) = disk.do(commands.InitProducer("x", 60_000, -1, -1))
    producer = made.value.producer_id, made.value.epoch
    disk.do(commands.AddToTransaction("x", *producer, [("t", 0)], None))
    data = make_batch(producer=producer, sequence=0, transactional=True, timestamp=500)
    disk.do(append(TOPIC, data, transactional_id="x"))
    disk.do(commands.EndTransaction("x", *producer, commit=False))
    log = disk.store.log(KEY)
    assert log.latest(0, 2) == FoundRecord(1, disk.now_ms)
    assert log.first_after(501, 0, 2) == FoundRecord(1, disk.now_ms)
    assert log.first_after(500, 0, 2) == FoundRecord(0, 500)
    disk.kill()


def test_a_segment_that_lost_durable_bytes_is_refused(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    fill(disk, 5)
    disk.checkpoint()
    path = disk.log.segments[-1].path
    disk.kill()
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(Corrupt, match="damaged"):
        BrokerStore.open(tmp_path)


def test_a_snapshot_with_a_flipped_bit_is_refused(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.checkpoint()
    disk.kill()
    (path,) = tmp_path.glob("snapshot-*")
    raw = bytearray(path.read_bytes())
    raw[30] ^= 4
    path.write_bytes(raw)
    with pytest.raises(Corrupt, match="checksum"):
        BrokerStore.open(tmp_path)


def test_damage_inside_a_segment_is_found(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    fill(disk, 5)
    assert list(disk.log.check_all()) == []
    segment = disk.log.segments[0]
    with segment.path.open("r+b") as file:
        file.seek(segment.size // 2)
        byte = file.read(1)[0]
        file.seek(segment.size // 2)
        file.write(bytes((byte ^ 1,)))
    assert [found[0] for found in disk.log.check_all()] == [segment.path]


def test_a_folder_has_one_broker(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    with pytest.raises(Occupied, match="in use by process"):
        BrokerStore.open(tmp_path)
    disk.kill()


def test_a_log_has_segments_and_reads_over_them(tmp_path: Path) -> None:
    disk = Disk(tmp_path, segment_bytes="1048576")
    big = make_batch(1, value=bytes(300_000))
    for _ in range(10):
        disk.do(append(TOPIC, big))
    assert len(disk.log.segments) > 2
    assert [offset for offset, _ in disk.contents()] == list(range(10))
    before = disk.contents()
    disk.checkpoint()
    disk.restart()
    assert disk.contents() == before


def test_trimming_removes_segments_and_a_restart_does_not_bring_them_back(tmp_path: Path) -> None:
    disk = Disk(tmp_path, segment_bytes="1048576")
    big = make_batch(1, value=bytes(300_000))
    for _ in range(10):
        disk.do(append(TOPIC, big))
    disk.checkpoint()
    disk.do(commands.Trim(TOPIC, 0, 7))
    assert disk.log.segments[0].base_offset > 0
    assert [offset for offset, _ in disk.contents()] == [6, 7, 8, 9] or disk.contents()[0][0] == 7
    disk.restart()
    assert disk.store.state.topics["t"].partitions[0].log_start == 7


def test_a_missing_segment_that_nobody_removed_is_refused(tmp_path: Path) -> None:
    disk = Disk(tmp_path, segment_bytes="1048576")
    for _ in range(10):
        disk.do(append(TOPIC, make_batch(1, value=bytes(300_000))))
    disk.checkpoint()
    path = disk.log.segments[1].path
    disk.kill()
    path.unlink()
    with pytest.raises(Corrupt, match="damaged"):
        BrokerStore.open(tmp_path)


def test_a_deleted_topic_leaves_no_files_also_if_we_die_meanwhile(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    fill(disk, 3)
    disk.checkpoint()
    aside = tmp_path.parent / f"{tmp_path.name}-aside"
    shutil.copytree(tmp_path / "logs", aside)
    disk.do(commands.DeleteTopic(TOPIC))
    assert list((tmp_path / "logs").iterdir()) == []
    disk.kill()
    shutil.copytree(aside, tmp_path / "logs", dirs_exist_ok=True)
    disk.open()
    assert list((tmp_path / "logs").iterdir()) == []
    assert disk.store.state.topics == {}


def test_retention_lets_go_what_is_too_old_or_too_much(tmp_path: Path) -> None:
    disk = Disk(tmp_path, segment_bytes="1048576", retention_ms="1000")
    for number in range(8):
        disk.do(append(TOPIC, make_batch(1, value=bytes(600_000), timestamp=10_000 + number)))
    topic = disk.store.state.topics["t"]
    last = disk.log.segments[-1].base_offset
    assert disk.log.expired_until(topic.settings, 0, 8, 10_500) == 0
    assert disk.log.expired_until(topic.settings, 0, 8, 11_006) < 8
    assert disk.log.expired_until(topic.settings, 0, 8, 20_000) == 8, "also the last segment"
    topic.configure({"retention.ms": "-1", "retention.bytes": "1300000"})
    assert 0 < disk.log.expired_until(topic.settings, 0, 8, 20_000) <= last
    topic.configure({"cleanup.policy": "compact", "retention.ms": "1"})
    assert disk.log.expired_until(topic.settings, 0, 8, 20_000) == 0


# --- reading --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def read_only(tmp_path_factory: pytest.TempPathFactory) -> Disk:
    disk = Disk(tmp_path_factory.mktemp("reading"), segment_bytes="1048576")
    for number in range(400):
        size = 20_000 if number % 50 == 0 else 700
        # Times go up and down a little, as those of many producers do.
        time = 10_000 + 10 * number + (number * 7919) % 23
        disk.do(append(TOPIC, make_batch(3, timestamp=time, value=bytes(size // 3))))
    return disk


@settings(max_examples=30)
@given(offset=st.integers(0, 1199), size=st.integers(0, 50_000))
def test_a_read_begins_with_the_batch_of_its_offset(
    read_only: Disk, offset: int, size: int
) -> None:
    data = read_only.log.read(offset, size, None, whole=True)
    header = batch.read_header(data)
    assert header.base_offset <= offset <= header.last_offset
    assert len(data) <= max(size, header.size)


@settings(max_examples=30)
@given(offset=st.integers(0, 1199), end=st.integers(0, 400).map(lambda number: 3 * number))
def test_a_read_ends_where_it_is_told(read_only: Disk, offset: int, end: int) -> None:
    data = read_only.log.read(offset, 10_000_000, end, whole=True)
    at = 0
    while at < len(data):
        header = batch.read_header(data, at)
        assert header.last_offset < end
        at += header.size
    if offset >= end:
        assert not data


@settings(max_examples=30)
@given(time=st.integers(9_990, 14_100))
def test_a_record_is_found_by_its_time(read_only: Disk, time: int) -> None:
    expected = None
    for number in range(400):
        first = 10_000 + 10 * number + (number * 7919) % 23
        for within in range(3):
            if first + within >= time:
                expected = expected or FoundRecord(3 * number + within, first + within)
    assert read_only.log.first_after(time, 0, 1200) == expected


def test_the_latest_record_is_that_of_the_largest_time(read_only: Disk) -> None:
    found = read_only.log.latest(0, 1200)
    times = [10_000 + 10 * number + (number * 7919) % 23 + 2 for number in range(400)]
    assert found.timestamp == max(times)


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped", "another"])
def test_an_index_that_is_not_right_is_made_anew(read_only: Disk, damage: str) -> None:
    segment = read_only.log.segments[0]
    segment.write_index()
    raw = segment.index_path.read_bytes()
    if damage == "missing":
        segment.index_path.unlink()
    elif damage == "cut":
        segment.index_path.write_bytes(raw[: len(raw) // 2])
    elif damage == "flipped":
        segment.index_path.write_bytes(raw[:60] + bytes((raw[60] ^ 8,)) + raw[61:])
    else:
        segment.index_path.write_bytes(b"")
    again = Segment(segment._files, read_only.log.folder, segment.base_offset, segment.size)
    again.load()
    assert again.size == segment.size
    assert again.max_timestamp == segment.max_timestamp
    assert [again.position_of(at) for at in range(0, 300, 7)] == [
        segment.position_of(at) for at in range(0, 300, 7)
    ]


# --- a full disk ----------------------------------------------------------------------------------


def test_a_batch_that_is_durable_and_has_no_space_in_its_segment_waits_and_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path)
    fill(disk, 2)

    def no_space(*_given: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Segment, "append", no_space)
        fill(disk, 2, 2)
        assert not disk.store.write_waiting()
        assert disk.log.readable_end == 4
        values = [value for _, value in disk.contents()]
        assert values == [b"%d" % (at // 2) for at in range(8)], "what is durable can be read"
        assert disk.log.first_after(10_030, 0, 8) == FoundRecord(6, 10_030)
        assert not disk.store.wants_checkpoint
    assert disk.store.write_waiting()
    assert len(disk.contents()) == 8
    disk.restart()
    assert len(disk.contents()) == 8


def test_a_store_that_is_closed_twice_closes_a_file_of_somebody_else(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "broker")
    disk.store.close(clean=True)
    others = [(tmp_path / str(number)).open("wb") for number in range(8)]
    disk.store.close(clean=False)
    disk.kill()
    for other in others:
        other.write(b"x")
        other.close()
        assert Path(other.name).read_bytes() == b"x"
