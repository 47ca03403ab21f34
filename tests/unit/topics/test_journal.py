"""The journal: what was durable comes back, a torn tail is cut, damage is refused."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.topics.broker.disk import folder as files
from holdfast.topics.broker.disk import journal as journals
from holdfast.topics.broker.disk.journal import (
    HEADER_BYTES,
    BrokerJournal,
    JournalReplay,
    encode_entry,
)
from holdfast.wire.errors import Corrupt, DiskFailed, Full


def groups(*sizes: int) -> list[list[bytes]]:
    number = iter(range(1000))
    return [[b"entry %d" % next(number) for _ in range(size)] for size in sizes]


def write(folder: Path, written: list[list[bytes]], *, roll_after: int = 99) -> BrokerJournal:
    journal = BrokerJournal.create(folder, 1)
    for count, group in enumerate(written, 1):
        journal.append([encode_entry(7, data) for data in group])
        if count % roll_after == 0:
            journal = journal.roll()
    return journal


def read(folder: Path, after: int = 0) -> tuple[list[bytes], JournalReplay]:
    replay = JournalReplay(folder, after)
    return [entry.data for entry in replay], replay


def flat(written: list[list[bytes]]) -> list[bytes]:
    return [data for group in written for data in group]


def test_what_was_appended_comes_back_in_order(tmp_path: Path) -> None:
    written = groups(1, 3, 2)
    write(tmp_path, written).close()
    found, replay = read(tmp_path)
    assert found == flat(written)
    assert replay.tail is not None
    assert replay.tail.last == 6


def test_it_comes_back_from_several_segments_and_from_any_entry_on(tmp_path: Path) -> None:
    written = groups(1, 3, 2, 4, 1)
    write(tmp_path, written, roll_after=2).close()
    assert len(files.numbered(tmp_path, "journal")) == 3
    for after in range(11):
        assert read(tmp_path, after)[0] == flat(written)[after:]


def test_writing_goes_on_where_it_ended(tmp_path: Path) -> None:
    write(tmp_path, groups(2)).close()
    tail = read(tmp_path)[1].tail
    assert tail is not None
    journal = BrokerJournal(tail)
    journal.append([encode_entry(8, b"more")])
    journal.close()
    assert read(tmp_path)[0] == [b"entry 0", b"entry 1", b"more"]


def test_many_small_groups_are_read_about_as_fast_as_a_few_large_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fdatasync", lambda _: None)
    took_s = []
    for name, count in (("few", 16), ("many", 1_600)):
        (tmp_path / name).mkdir()
        journal = BrokerJournal.create(tmp_path / name, 1)
        for _ in range(count):
            journal.append([encode_entry(7, b"x" * (16_000_000 // count))])
        journal.close()
        began_s = time.process_time()
        assert sum(1 for _ in JournalReplay(tmp_path / name, 0)) == count
        took_s.append(time.process_time() - began_s)
    assert took_s[1] < 5 * took_s[0] + 0.3


@settings(max_examples=25)
@given(cut=st.integers(1, 2000), noise=st.binary(max_size=40))
def test_a_torn_tail_is_cut_and_what_was_durable_is_kept(
    tmp_path_factory: pytest.TempPathFactory, cut: int, noise: bytes
) -> None:
    folder = tmp_path_factory.mktemp("torn")
    journal = write(folder, groups(2, 2))
    durable = journal.end
    mark = (folder / files.DURABLE).read_bytes()
    journal.append([encode_entry(7, bytes(1500))])
    end, path = journal.end, journal.path
    journal.close()
    # As a crash leaves it: the last group in part, and the mark not told of it.
    (folder / files.DURABLE).write_bytes(mark)
    os.truncate(path, max(end - cut, durable))
    with path.open("ab") as file:
        file.write(noise)
    found, replay = read(folder)
    assert replay.tail is not None
    if replay.tail.end == durable:
        assert found == flat(groups(2, 2))
    else:
        assert len(found) == 5, "the last group is there as a whole, or not at all"


@settings(max_examples=25)
@given(data=st.data())
def test_damage_to_what_was_durable_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    journal = write(folder, groups(2, 3, 2))
    end, path = journal.end, journal.path
    journal.close()
    raw = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, end - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(raw)
    with pytest.raises(Corrupt):
        read(folder)


def test_damage_is_seen_without_the_mark_if_a_good_group_follows(tmp_path: Path) -> None:
    journal = write(tmp_path, groups(2, 3))
    path = journal.path
    journal.close()
    (tmp_path / files.DURABLE).unlink()
    raw = bytearray(path.read_bytes())
    raw[HEADER_BYTES + journals.GROUP_HEAD_BYTES + 3] ^= 1
    path.write_bytes(raw)
    with pytest.raises(Corrupt, match="damaged"):
        read(tmp_path)


def test_a_segment_that_is_missing_is_noticed(tmp_path: Path) -> None:
    write(tmp_path, groups(1, 1, 1, 1), roll_after=1).close()
    segments = files.numbered(tmp_path, "journal")
    segments[1][1].unlink()
    with pytest.raises(Corrupt):
        read(tmp_path)
    segments[0][1].unlink()
    with pytest.raises(Corrupt, match="damaged"):
        read(tmp_path)
    assert read(tmp_path, 2)[0] == [b"entry 2", b"entry 3"]


def test_a_journal_that_somebody_stored_as_a_record_is_not_taken_for_one(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    journal = write(inner, groups(1))
    stored = journal.path.read_bytes()[: journal.end]
    journal.close()
    outer = tmp_path / "outer"
    outer.mkdir()
    write(outer, [[stored]]).close()
    assert read(outer)[0] == [stored]


def test_a_full_disk_keeps_nothing_of_a_group_and_the_next_one_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = write(tmp_path, groups(2))

    def no_space(_handle: int, _data: bytes, _at: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(journals, "write_all", no_space)
        patched.setattr(journal, "_size", 0)
        with pytest.raises(Full):
            journal.append([encode_entry(7, b"lost")])
    journal.append([encode_entry(7, b"kept")])
    journal.close()
    assert read(tmp_path)[0] == [b"entry 0", b"entry 1", b"kept"]


def test_a_sync_that_fails_ends_all_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = write(tmp_path, groups(1))

    def fails(_handle: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fails)
        with pytest.raises(DiskFailed):
            journal.append([encode_entry(7, b"lost")])
    journal.close()
    assert read(tmp_path)[0] == [b"entry 0"]
