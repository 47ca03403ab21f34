"""Damage within segments: found when it is read, served to nobody, and of one partition only."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.topics.broker.core import batch, commands
from holdfast.topics.broker.core.records import read_records
from holdfast.topics.broker.disk.segment import DamagedSegment, Segment
from holdfast.topics.broker.disk.store import BrokerStore
from holdfast.wire.errors import Corrupt, Occupied
from tests.unit.topics.made import append, make_batch
from tests.unit.topics.test_store import KEY, TOPIC, Disk, fill

BATCHES = 300


def sizes(raw: bytes) -> list[int]:
    """Where each batch begins."""
    found, at = [], 0
    while at < len(raw):
        found.append(at)
        at += 12 + int(struct.unpack_from("!i", raw, at + 8)[0])
    return found


def flip(raw: bytes, at: int, bit: int = 4) -> bytes:
    return raw[:at] + bytes((raw[at] ^ bit,)) + raw[at + 1 :]


def swapped(raw: bytes) -> bytes:
    at = sizes(raw)
    first, second, third = at[100], at[101], at[102]
    return raw[:first] + raw[second:third] + raw[first:second] + raw[third:]


def doubled(raw: bytes) -> bytes:
    """One batch twice, and its length taken from the end."""
    at = sizes(raw)
    size = at[101] - at[100]
    return (raw[: at[101]] + raw[at[100] :])[: len(raw) - len(raw) % size]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "payload": lambda raw: flip(raw, sizes(raw)[100] + 70),
    "checksum": lambda raw: flip(raw, sizes(raw)[100] + 18),
    "length": lambda raw: flip(raw, sizes(raw)[100] + 11),
    "long length": lambda raw: flip(raw, sizes(raw)[100] + 8),
    "magic": lambda raw: flip(raw, sizes(raw)[100] + 16),
    "leader epoch": lambda raw: flip(raw, sizes(raw)[100] + 15),
    "higher offset": lambda raw: flip(raw, sizes(raw)[100] + 6, 16),
    "huge offset": lambda raw: flip(raw, sizes(raw)[100] + 1, 16),
    "negative offset": lambda raw: flip(raw, sizes(raw)[100], 128),
    "lower offset": lambda raw: flip(raw, sizes(raw)[100] + 7, 128),
    "offset by two": lambda raw: flip(raw, sizes(raw)[100] + 7, 2),
    "last offset": lambda raw: flip(raw, sizes(raw)[-1] + 6, 16),
    "swapped": swapped,
    "doubled": doubled,
}


def damaged(folder: Path, change: Callable[[bytes], bytes], *, index: bool) -> Disk:
    """A log of which a part is not what was written. `index`: it has a file beside it."""
    disk = Disk(folder)
    for number in range(BATCHES):
        value = bytes(1_000) if index else b"v"
        disk.do(append(TOPIC, make_batch(2, timestamp=10_000 + number, value=value)))
    path = disk.log.segments[0].path
    disk.store.close(clean=True)
    assert disk.log.segments[0].index_path.exists() == index
    path.write_bytes(change(path.read_bytes()))
    disk.open()
    return disk


def read_until_damage(disk: Disk, size: int = 1) -> tuple[list[int], DamagedSegment | None]:
    offsets: list[int] = []
    offset, end = 0, disk.store.state.topics["t"].partitions[0].next_offset
    while offset < end:
        try:
            data = disk.log.read(offset, size, None, whole=True)
        except DamagedSegment as damage:
            return offsets, damage
        if not data:
            return offsets, None
        at = 0
        while at + 61 <= len(data):
            header = batch.read_header(data, at)
            if at + header.size > len(data):
                break
            assert batch.is_whole(data[at:], header)
            offsets += [one.offset for one in read_records(data[at:], header)]
            at += header.size
            offset = header.last_offset + 1
    return offsets, None


@pytest.mark.parametrize("size", [1, 20_000, 10_000_000])
@pytest.mark.parametrize("index", [True, False], ids=["index", "scanned"])
@pytest.mark.parametrize("kind", DAMAGE)
def test_what_is_before_damage_is_read_and_from_there_on_nothing(
    tmp_path: Path, kind: str, index: bool, size: int
) -> None:
    disk = damaged(tmp_path, DAMAGE[kind], index=index)
    found, damage = read_until_damage(disk, size)
    assert found == list(range(len(found))), "in order, each once, at its offset"
    assert damage is not None, "and nobody waits for more"
    least = 2 * (BATCHES - 3) if kind == "last offset" else 190
    assert least <= len(found) < 2 * BATCHES
    told = disk.store.damage(KEY)
    assert told is not None
    assert "salvage" in told.fix
    assert ".log is damaged at byte" in told.what
    for offset in (len(found), 2 * BATCHES - 1):
        with pytest.raises(DamagedSegment):
            disk.log.read(offset, 1_000, None, whole=True)
    with pytest.raises(DamagedSegment):
        disk.log.first_after(10_000 + BATCHES, 0, 2 * BATCHES)


def test_damage_is_of_one_partition_and_survives_a_marker_and_a_restart(tmp_path: Path) -> None:
    disk = damaged(tmp_path, DAMAGE["magic"], index=False)
    disk.do(append(TOPIC, make_batch(2), 1))
    assert read_until_damage(disk)[1] is not None
    assert disk.store.log((TOPIC, 1)).read(0, 1_000, None, whole=True)
    assert disk.store.damage((TOPIC, 1)) is None
    fill(disk, 1)  # such as a transaction's marker, which was decided for all its partitions
    disk.store.close(clean=True)
    disk.open()
    assert read_until_damage(disk)[1] is not None


def test_damage_goes_with_the_segment_that_has_it(tmp_path: Path) -> None:
    disk = Disk(tmp_path, segment_bytes="1048576")
    for number in range(10):
        disk.do(append(TOPIC, make_batch(1, value=bytes(300_000), timestamp=10_000 + number)))
    path = disk.log.segments[0].path
    disk.store.close(clean=True)
    path.write_bytes(flip(path.read_bytes(), 400_000))
    disk.open()
    with pytest.raises(DamagedSegment):
        disk.log.read(1, 1_000, None, whole=True)
    with pytest.raises(DamagedSegment):
        disk.log.read(9, 1_000, None, whole=True)
    disk.do(commands.Trim(TOPIC, 0, 6))
    assert disk.store.damage(KEY) is None
    assert disk.log.read(6, 1_000, None, whole=True)


def test_what_is_read_twice_is_checked_once(tmp_path: Path) -> None:
    disk = damaged(tmp_path, lambda raw: raw, index=True)
    asked: list[int] = []
    real = batch.find_wrong

    def counted(data: bytes, first: int, limit: int | None) -> tuple[int, str]:
        asked.append(len(data))
        return real(data, first, limit)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(batch, "find_wrong", counted)
        assert len(read_until_damage(disk, 30_000)[0]) == 2 * BATCHES
        assert sum(asked) == disk.log.segments[0].size
        asked.clear()
        assert len(read_until_damage(disk, 30_000)[0]) == 2 * BATCHES
        fill(disk, 5)
        assert len(read_until_damage(disk, 30_000)[0]) == 2 * BATCHES + 10
        assert not asked


# --- files that are gone --------------------------------------------------------------------------


def with_history(folder: Path) -> None:
    disk = Disk(folder)
    fill(disk, 5)
    disk.checkpoint()
    fill(disk, 5, 5)
    disk.kill()


@pytest.mark.parametrize("also", [[], ["durable"], ["durable", "snapshot-*"], ["snapshot-*"]])
def test_a_folder_whose_journal_is_gone_is_refused(tmp_path: Path, also: list[str]) -> None:
    with_history(tmp_path)
    for pattern in ("journal-*", *also):
        for path in tmp_path.glob(pattern):
            path.unlink()
    with pytest.raises(Corrupt, match="is missing") as refused:
        BrokerStore.open(tmp_path)
    assert "salvage" in refused.value.fix
    assert "journal-0000" in refused.value.what


def test_a_folder_whose_last_journal_is_gone_is_refused(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    fill(disk, 5)
    disk.store._journal = disk.store._journal.roll()
    fill(disk, 5, 5)
    disk.kill()
    sorted(tmp_path.glob("journal-*"))[-1].unlink()
    with pytest.raises(Corrupt, match="were durable there"):
        BrokerStore.open(tmp_path)


def test_a_snapshot_that_the_journal_presupposes_is_missed(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    fill(disk, 5)
    disk.store._journal = disk.store._journal.roll()
    fill(disk, 5, 5)
    disk.checkpoint()
    fill(disk, 2, 10)
    disk.kill()
    for path in tmp_path.glob("snapshot-*"):
        path.unlink()
    with pytest.raises(Corrupt, match="missing"):
        BrokerStore.open(tmp_path)


def test_a_folder_in_which_a_first_start_died_early_is_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("1")
    (tmp_path / "cluster").write_text("x" * 22)
    Disk(tmp_path).kill()


def test_a_folder_stays_taken_when_its_lock_file_is_removed(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    (tmp_path / "lock").unlink()
    with pytest.raises(Occupied, match="in use by process"):
        BrokerStore.open(tmp_path)
    disk.kill()


def test_a_start_on_a_full_disk_has_what_the_journal_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path)
    fill(disk, 5)
    disk.checkpoint()
    fill(disk, 5, 5)
    before = disk.contents()
    disk.kill()

    def no_space(*_given: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Segment, "append", no_space)
        disk.open()
        assert disk.contents() == before
        assert disk.store.is_waiting
    assert disk.store.write_waiting()
    assert disk.contents() == before
    disk.restart()
    assert disk.contents() == before
