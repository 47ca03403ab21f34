"""Looking at a folder and saving what is good, without touching it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from holdfast.coordination.embedded.log import SegmentReader, read_header
from holdfast.coordination.embedded.records import decode_records
from holdfast.coordination.embedded.salvage import check, salvage
from holdfast.wire.errors import Corrupt, Occupied, Usage
from tests.unit.embedded.histories import (
    changed,
    commit,
    digests,
    fill,
    fill_with_snapshots,
    fingerprint,
    flipped,
    opened,
    record_at,
)

DIGESTS = digests(40)


def record_offsets(path: Path) -> list[tuple[int, int, int]]:
    """(start, end, zxid) of every record of a segment."""
    found = []
    for batch in SegmentReader(path, read_header(path)).batches():
        at = path.read_bytes().index(batch.payload)
        for record in decode_records(batch.payload):
            length = len(record_at(record.zxid))
            found.append((at, at + length, record.zxid))
            at += length
    return found


def assert_goes_on_from(target: Path, zxid: int) -> None:
    """The folder holds the history up to `zxid`, and a server can go on in it."""
    with opened(target) as store:
        assert store.last_zxid == zxid
        assert store.tree.digest() == DIGESTS[zxid]
        commit(store, 1)
    with opened(target) as store:
        assert store.tree.digest() == DIGESTS[zxid + 1]
    found = check(target)
    assert found.is_good, found


def test_a_good_folder_is_good_and_counted(tmp_path: Path) -> None:
    last = fill_with_snapshots(tmp_path / "data")
    before = fingerprint(tmp_path / "data")
    report = check(tmp_path / "data")
    assert report.is_good, report
    assert not report.in_use
    assert report.last_zxid == last
    assert sum(one.entries for one in report.files if one.name.startswith("log-")) > 0
    assert fingerprint(tmp_path / "data") == before


def test_a_check_names_every_damaged_file_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    fill_with_snapshots(folder)
    damaged = [*folder.glob("log-*"), *folder.glob("snapshot-*")]
    for path in damaged:
        path.write_bytes(flipped(path.read_bytes(), path.stat().st_size // 2))
    (folder / "secret").write_bytes(b"short")
    report = check(folder)
    assert not report.is_good
    assert {one.name for one in report.files if one.problem} == {path.name for path in damaged}
    assert any("secret" in problem for problem in report.problems)


def test_a_check_finds_a_missing_segment(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with opened(folder, segment_bytes=600) as store:
        for _ in range(10):
            commit(store, 3)
            store.maintain()
    for path in sorted(folder.glob("log-*")):
        aside = path.rename(tmp_path / "aside")
        assert any("incomplete" in problem for problem in check(folder).problems), path
        aside.rename(path)
    assert check(folder).is_good


def test_a_check_runs_beside_a_server(tmp_path: Path) -> None:
    with opened(tmp_path / "data", snapshot_transactions=4) as store:
        for _ in range(10):
            commit(store, 3)
            store.maintain()
            report = check(store.folder)
            assert report.is_good, report
            assert report.in_use
            assert report.last_zxid == store.last_zxid


def test_a_torn_tail_is_noted_and_is_no_problem(tmp_path: Path) -> None:
    fill(tmp_path / "data", [2, 3])
    (path,) = (tmp_path / "data").glob("log-*")
    with path.open("ab") as file:
        file.write(b"half a batch")
    report = check(tmp_path / "data")
    assert report.is_good
    (one,) = report.files
    assert "12 bytes" in one.note


def test_salvage_keeps_every_record_before_the_damage_and_says_what_is_lost(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "data"
    fill(folder, [1, 2, 4, 3, 2])
    (path,) = folder.glob("log-*")
    good = path.read_bytes()
    for start, end, zxid in record_offsets(path):
        with changed(path, flipped(good, (start + end) // 2)):
            before = fingerprint(folder)
            report = salvage(folder, tmp_path / "saved")
            assert fingerprint(folder) == before
        assert report.kept_zxid == zxid - 1
        assert (report.lost_first, report.lost_last) == (zxid, 12)
        assert report.loses
        assert path.name in "".join(report.damage)
        assert_goes_on_from(tmp_path / "saved", zxid - 1)
        shutil.rmtree(tmp_path / "saved")


def test_salvage_of_any_flipped_byte_gives_a_true_prefix(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    last = fill_with_snapshots(folder)
    for path in [*folder.glob("log-*"), *folder.glob("snapshot-*"), folder / "secret"]:
        good = path.read_bytes()
        for offset in range(0, len(good), 97):
            with changed(path, flipped(good, offset)):
                report = salvage(folder, tmp_path / "saved")
            if report.loses:
                assert (report.lost_first, report.lost_last) == (report.kept_zxid + 1, last)
            else:
                assert report.kept_zxid == last
            with opened(tmp_path / "saved") as store:
                assert store.last_zxid == report.kept_zxid
                assert store.tree.digest() == DIGESTS[report.kept_zxid]
            shutil.rmtree(tmp_path / "saved")


def test_salvage_of_a_damaged_newest_snapshot_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    last = fill_with_snapshots(folder)
    older, newest = sorted(folder.glob("snapshot-*"))
    newest.write_bytes(flipped(newest.read_bytes(), 100))
    report = salvage(folder, tmp_path / "saved")
    assert report.snapshot == older.name
    assert report.kept_zxid == last
    assert not report.loses
    assert not report.new_secret
    with opened(tmp_path / "saved") as saved:
        assert saved.tree.digest() == DIGESTS[last]
        assert saved.secret == (folder / "secret").read_bytes()[:32]


def test_salvage_of_a_log_cut_at_a_batch_knows_from_the_mark_what_is_lost(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    fill(folder, [1, 2, 4])
    (path,) = folder.glob("log-*")
    *_, (start, _, _) = record_offsets(path)
    path.write_bytes(path.read_bytes()[: start - 200])
    report = salvage(folder, tmp_path / "saved")
    assert report.lost_last == 7
    assert report.lost_first == report.kept_zxid + 1
    assert report.kept_zxid < 7


def test_salvage_makes_a_new_secret_where_the_old_one_is_damaged(tmp_path: Path) -> None:
    fill(tmp_path / "data", [2])
    (tmp_path / "data" / "secret").write_bytes(b"?")
    report = salvage(tmp_path / "data", tmp_path / "saved")
    assert report.new_secret
    assert report.kept_zxid == 2


def test_salvage_refuses_a_folder_in_use_and_a_target_with_anything_in_it(tmp_path: Path) -> None:
    fill(tmp_path / "data", [2])
    with opened(tmp_path / "data"), pytest.raises(Occupied):
        salvage(tmp_path / "data", tmp_path / "saved")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "mine").write_text("mine")
    with pytest.raises(Usage):
        salvage(tmp_path / "data", tmp_path / "saved")
    with pytest.raises(Usage):
        salvage(tmp_path / "nowhere", tmp_path / "other")
    with pytest.raises(Usage):
        check(tmp_path / "nowhere")


def test_salvage_says_when_nothing_can_be_saved(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    fill_with_snapshots(folder)
    for path in folder.glob("snapshot-*"):
        path.write_bytes(flipped(path.read_bytes(), 100))
    with pytest.raises(Corrupt, match="nothing"):
        salvage(folder, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
