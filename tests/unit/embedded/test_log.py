"""The log: a torn tail is cut, damage is refused, and the two are not confused."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from holdfast.coordination.embedded.folder import DURABLE
from holdfast.coordination.embedded.log import HEADER_BYTES, SegmentReader, read_header, read_mark
from holdfast.coordination.embedded.recovery import RecoveredStore, recover
from holdfast.wire.errors import Corrupt
from tests.unit.embedded.histories import changed, commit, digests, fill, flipped, opened

BATCHES = (1, 2, 1, 3, 2)
LAST = sum(BATCHES)
DIGESTS = digests(LAST + 4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fill(tmp_path / "data", BATCHES)
    return tmp_path / "data"


def segment(folder: Path) -> Path:
    (path,) = folder.glob("log-*")
    return path


def boundaries(path: Path) -> list[tuple[int, int]]:
    """(length, last zxid) at which the segment ends with a whole batch."""
    reader = SegmentReader(path, read_header(path))
    return [(HEADER_BYTES, 0), *((reader.end, b.last_zxid) for b in reader.batches())]


def forget_the_mark(folder: Path) -> None:
    """What a loss of power does to a mark that had not been written back: an older one is left.
    Here the oldest: none."""
    (folder / DURABLE).unlink()


def assert_is_at(found: RecoveredStore, zxid: int) -> None:
    assert found.tree.last_zxid == zxid
    assert found.tree.digest() == DIGESTS[zxid]


def test_a_whole_log_gives_the_whole_tree_and_the_time_of_the_last_write(folder: Path) -> None:
    found = recover(folder)
    assert_is_at(found, LAST)
    assert found.records == LAST
    assert found.tail is not None
    assert found.tail.cut_bytes == 0


def test_every_flipped_byte_of_an_acknowledged_log_is_refused(folder: Path) -> None:
    path = segment(folder)
    good = path.read_bytes()
    for offset in range(len(good)):
        with changed(path, flipped(good, offset)), pytest.raises(Corrupt) as caught:
            recover(folder)
        assert str(path) in str(caught.value)
        assert "holdfast coord" in caught.value.fix


def test_without_the_mark_only_the_last_batch_can_look_torn(folder: Path) -> None:
    forget_the_mark(folder)
    path = segment(folder)
    good = path.read_bytes()
    last_start, before = boundaries(path)[-2]
    for offset in range(len(good)):
        with changed(path, flipped(good, offset)):
            if offset < last_start:
                with pytest.raises(Corrupt):
                    recover(folder)
            else:
                found = recover(folder)
                assert_is_at(found, before)
                assert found.tail is not None
                assert found.tail.cut_bytes == len(good) - last_start


def test_every_cut_of_an_acknowledged_log_is_refused(folder: Path) -> None:
    path = segment(folder)
    good = path.read_bytes()
    for length in range(len(good)):
        with changed(path, good[:length]), pytest.raises(Corrupt):
            recover(folder)


def test_every_torn_tail_is_cut_and_everything_before_it_is_kept(folder: Path) -> None:
    forget_the_mark(folder)
    path = segment(folder)
    good = path.read_bytes()
    ends = boundaries(path)
    for length in range(HEADER_BYTES, len(good) + 1):
        end, zxid = max(one for one in ends if one[0] <= length)
        with changed(path, good[:length]):
            found = recover(folder)
        assert_is_at(found, zxid)
        assert found.tail is not None
        assert found.tail.cut_bytes == length - end


def test_a_header_is_whole_before_it_has_a_name_so_a_cut_one_is_damage(folder: Path) -> None:
    forget_the_mark(folder)
    path = segment(folder)
    good = path.read_bytes()
    for length in range(HEADER_BYTES):
        with changed(path, good[:length]), pytest.raises(Corrupt):
            recover(folder)


@pytest.mark.parametrize("zeros", [1, 43, 44, 45, 511, 4096, 300_000])
def test_zeros_after_the_last_batch_are_room_and_not_a_torn_tail(folder: Path, zeros: int) -> None:
    with segment(folder).open("ab") as file:
        file.write(bytes(zeros))
    found = recover(folder)
    assert_is_at(found, LAST)
    assert found.tail is not None
    assert found.tail.cut_bytes == 0


def test_a_tail_that_the_disk_filled_with_zeros_is_cut(folder: Path) -> None:
    """The file's length reached the disk, the pages of the last batch only in part."""
    forget_the_mark(folder)
    path = segment(folder)
    good = path.read_bytes()
    start, before = boundaries(path)[-2]
    for length in range(start, len(good)):
        torn = good[:length].ljust(len(good) + 100, b"\0")
        if torn.rstrip(b"\0") == good.rstrip(b"\0"):
            continue
        with changed(path, torn):
            assert_is_at(recover(folder), before)


def test_garbage_behind_what_is_acknowledged_is_cut(folder: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    path = segment(folder)
    good = path.read_bytes()
    for _ in range(50):
        garbage = chance.randbytes(chance.randrange(1, 600)) + b"\1"
        with changed(path, good + garbage):
            found = recover(folder)
        assert_is_at(found, LAST)
        assert found.tail is not None
        assert found.tail.cut_bytes == len(garbage)


def test_a_batch_from_elsewhere_is_never_taken_for_one_of_this_log(
    folder: Path, tmp_path: Path
) -> None:
    """Neither an older batch of this segment, nor the same place of another folder's log."""
    path = segment(folder)
    good = path.read_bytes()
    for (start, _), (end, _) in zip(boundaries(path), boundaries(path)[1:], strict=False):
        with changed(path, good + good[start:end]):
            assert_is_at(recover(folder), LAST)
    fill(tmp_path / "other", (*BATCHES, 2))
    longer = segment(tmp_path / "other").read_bytes()
    with changed(path, good + longer[len(good) :]):
        assert_is_at(recover(folder), LAST)


def test_a_wrong_length_does_not_hide_the_batches_after_it(folder: Path) -> None:
    forget_the_mark(folder)
    path = segment(folder)
    good = path.read_bytes()
    start, _ = boundaries(path)[1]
    for length in (b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\1\0", b"\x7f\xff\xff\xff"):
        broken = good[: start + 4] + length + good[start + 8 :]
        with changed(path, broken), pytest.raises(Corrupt, match=f"damaged at byte {start}"):
            recover(folder)


def test_a_client_that_stores_a_log_as_data_does_not_disturb_the_search(tmp_path: Path) -> None:
    fill(tmp_path / "first", BATCHES)
    stored = segment(tmp_path / "first").read_bytes()
    folder = tmp_path / "second"
    fill(folder, (1, 1), stored)
    forget_the_mark(folder)
    path = segment(folder)
    good = path.read_bytes()
    start, before = boundaries(path)[-2]
    with changed(path, flipped(good, start)):
        found = recover(folder)
    assert found.tree.last_zxid == before


def test_one_bad_entry_of_the_mark_costs_a_warning_and_two_are_refused(folder: Path) -> None:
    path = folder / DURABLE
    good = path.read_bytes()
    half = len(good) // 2
    for offset in [*range(64), *range(half, half + 64), half - 1, len(good) - 1]:
        with changed(path, flipped(good, offset)):
            found = recover(folder)
        assert_is_at(found, LAST)
        assert len(found.warnings) == 1
    with changed(path, flipped(flipped(good, 3), half + 3)), pytest.raises(Corrupt):
        recover(folder)
    with changed(path, b""), pytest.raises(Corrupt):
        recover(folder)


def test_the_mark_is_exact_after_every_commit(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as store:
        for count in BATCHES:
            commit(store, count)
            mark, warnings = read_mark(store.folder)
            assert not warnings
            assert mark is not None
            assert mark.last_zxid == store.last_zxid
            ends = {zxid: length for length, zxid in boundaries(segment(store.folder))}
            assert mark.length == ends[store.last_zxid]


def test_a_killed_server_s_log_is_found_with_its_room_ahead_and_goes_on(tmp_path: Path) -> None:
    """A copy of the files of a running store is what a kill leaves behind."""
    with opened(tmp_path / "live") as store:
        for count in BATCHES:
            commit(store, count)
        shutil.copytree(store.folder, tmp_path / "killed")
    with opened(tmp_path / "killed") as store:
        assert store.tree.digest() == DIGESTS[LAST]
        commit(store, 4)
    with opened(tmp_path / "killed") as store:
        assert store.tree.digest() == DIGESTS[LAST + 4]
