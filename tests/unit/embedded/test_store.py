"""The store: what is committed is there after a restart; what cannot be trusted is refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from holdfast.coordination.embedded import protocol as p
from holdfast.coordination.embedded.compact import trim
from holdfast.coordination.embedded.folder import list_folder
from holdfast.coordination.embedded.records import encode_record
from holdfast.coordination.embedded.recovery import recover
from holdfast.coordination.embedded.store import Store
from holdfast.wire.errors import BugError, Corrupt, DiskFailed, Occupied
from tests.unit.embedded.histories import (
    SESSION,
    START_MS,
    WHO,
    changed,
    commit,
    create_body,
    digests,
    fill,
    fill_with_snapshots,
    flipped,
    opened,
    record_at,
    wait_for_snapshot,
)

DIGESTS = digests(40)


def names(folder: Path, pattern: str) -> list[str]:
    return sorted(path.name for path in folder.glob(pattern))


def test_a_new_folder_is_private_and_has_a_secret_that_stays(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "data"
    with opened(folder) as store:
        assert store.last_zxid == 0
        assert store.tree.digest() == DIGESTS[0]
        secret = store.secret
        assert len(secret) == 32
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    with opened(folder) as store:
        assert store.secret == secret


def test_what_was_committed_is_there_after_a_restart_and_zxids_go_on(tmp_path: Path) -> None:
    for restart in range(5):
        with opened(tmp_path / "data") as store:
            assert store.last_zxid == restart * 3
            assert store.tree.digest() == DIGESTS[restart * 3]
            assert store.last_time_ms == (START_MS + restart * 3 if restart else 0)
            assert store.recovery.records_replayed == restart * 3
            commit(store, 2)
            commit(store, 1)


def test_a_batch_that_does_not_follow_the_last_one_is_a_bug_and_is_not_written(
    tmp_path: Path,
) -> None:
    with opened(tmp_path / "data") as store:
        commit(store, 2)
        for records, last_zxid in [
            ([record_at(4)], 4),
            ([record_at(2)], 2),
            ([record_at(3)], 4),
            ([record_at(3), record_at(4)], 3),
        ]:
            with pytest.raises(BugError):
                store.commit(records, last_zxid)
        commit(store, 1)
    assert recover(tmp_path / "data").tree.digest() == DIGESTS[3]


def test_a_folder_in_use_is_refused_and_its_holder_named(tmp_path: Path) -> None:
    with opened(tmp_path / "data"), pytest.raises(Occupied, match=str(os.getpid())):
        Store.open(tmp_path / "data")
    with opened(tmp_path / "data"):
        pass


def test_snapshots_are_taken_and_the_log_they_replace_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with opened(folder, snapshot_transactions=5) as store:
        for round_ in range(1, 5):
            commit(store, 5)
            store.maintain()
            wait_for_snapshot(store)
            assert store.snapshots_taken == round_, store.compactor.last_error
        assert store.last_snapshot_s > 0
        assert names(folder, "snapshot-*") == [f"snapshot-{zxid:016x}" for zxid in (15, 20)]
        # The log reaches back to the older snapshot, so that it can replace the newer one.
        assert names(folder, "log-*") == [f"log-{zxid:016x}" for zxid in (16, 21)]
        commit(store, 2)
    with opened(folder) as store:
        assert store.tree.digest() == DIGESTS[22]
        assert store.recovery.snapshot == f"snapshot-{20:016x}"
        assert store.recovery.records_replayed == 2
        assert store.last_time_ms == START_MS + 22


def test_a_restart_right_after_a_snapshot_keeps_the_time_of_the_last_write(tmp_path: Path) -> None:
    with opened(tmp_path / "data", snapshot_transactions=5) as store:
        commit(store, 5)
        store.maintain()
        wait_for_snapshot(store)
    with opened(tmp_path / "data") as store:
        assert store.recovery.records_replayed == 0
        assert store.last_time_ms == START_MS + 5


def test_commits_go_on_while_a_snapshot_is_made(tmp_path: Path) -> None:
    with opened(tmp_path / "data", snapshot_transactions=5) as store:
        commit(store, 5)
        store.maintain()
        assert store.compactor.busy
        for _ in range(20):
            commit(store, 1)
            store.maintain()
        while store.compactor.busy:
            wait_for_snapshot(store)
            store.maintain()
        assert store.snapshot_failures == 0
        assert store.snapshots_taken >= 1
    with opened(tmp_path / "data") as store:
        assert store.tree.digest() == DIGESTS[25]


def test_a_segment_is_closed_at_its_size(tmp_path: Path) -> None:
    with opened(tmp_path / "data", segment_bytes=1_000) as store:
        for _ in range(10):
            commit(store, 3)
            store.maintain()
        assert len(names(store.folder, "log-*")) > 2
    with opened(tmp_path / "data") as store:
        assert store.tree.digest() == DIGESTS[30]


def test_a_damaged_log_fails_the_snapshot_and_nothing_is_removed(tmp_path: Path) -> None:
    with opened(tmp_path / "data", snapshot_transactions=5) as store:
        commit(store, 5)
        (segment,) = store.folder.glob("log-*")
        good = segment.read_bytes()
        with segment.open("r+b") as file:
            file.seek(200)
            file.write(flipped(good, 200)[200:201])
        store.maintain()
        wait_for_snapshot(store)
        assert store.snapshot_failures == 1
        assert segment.name in store.compactor.last_error
        assert not names(store.folder, "snapshot-*")
        # It goes on, and is tried again after the next roll, with what was repaired.
        with segment.open("r+b") as file:
            file.seek(200)
            file.write(good[200:201])
        commit(store, 5)
        store.maintain()
        wait_for_snapshot(store)
        assert store.snapshots_taken == 1
        assert names(store.folder, "snapshot-*") == [f"snapshot-{10:016x}"]


def test_nothing_is_removed_before_enough_snapshots_are_there(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    last = fill_with_snapshots(folder, rounds=1)
    before = names(folder, "*")
    assert trim(folder, 2) == []
    assert names(folder, "*") == before
    assert recover(folder).tree.digest() == DIGESTS[last]


def test_a_flipped_byte_of_any_snapshot_or_segment_is_refused(
    tmp_path: Path,
) -> None:
    """Also of those that only an older state needs."""
    folder = tmp_path / "data"
    last = fill_with_snapshots(folder)
    assert len(names(folder, "snapshot-*")) == 2
    assert len(names(folder, "log-*")) >= 2
    for path in [*folder.glob("log-*"), *folder.glob("snapshot-*")]:
        good = path.read_bytes()
        for offset in range(0, len(good), 11):
            with changed(path, flipped(good, offset)), pytest.raises(Corrupt, match=path.name):
                recover(folder)
    assert recover(folder).tree.digest() == DIGESTS[last]


def test_a_damaged_secret_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "data", [2])
    path = tmp_path / "data" / "secret"
    good = path.read_bytes()
    for wrong in [*(flipped(good, offset) for offset in range(len(good))), good[:-1], b""]:
        with changed(path, wrong), pytest.raises(Corrupt, match="secret"):
            Store.open(tmp_path / "data")
    path.unlink()
    with pytest.raises(Corrupt, match="secret"):
        Store.open(tmp_path / "data")


def test_a_damaged_newest_snapshot_is_refused_and_the_older_one_named(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    fill_with_snapshots(folder)
    older, newest = sorted(folder.glob("snapshot-*"))
    with changed(newest, flipped(newest.read_bytes(), 100)), pytest.raises(Corrupt) as caught:
        Store.open(folder)
    assert newest.name in caught.value.what
    assert older.name in caught.value.fix
    assert "holdfast coord salvage" in caught.value.fix


def test_a_missing_segment_is_refused_wherever_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with opened(folder, segment_bytes=600) as store:
        for _ in range(12):
            commit(store, 3)
            store.maintain()
    segments = sorted(folder.glob("log-*"))
    assert len(segments) >= 4
    for path in segments:
        aside = path.rename(tmp_path / "aside")
        with pytest.raises(Corrupt, match="incomplete"):
            recover(folder)
        aside.rename(path)
    assert recover(folder).tree.digest() == DIGESTS[36]


def test_a_folder_whose_log_is_gone_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    fill(tmp_path / "data", [2])
    for path in (tmp_path / "data").glob("log-*"):
        path.unlink()
    with pytest.raises(Corrupt, match="incomplete"):
        Store.open(tmp_path / "data")


def test_a_lost_newest_snapshot_is_replaced_by_the_older_one_and_the_log(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    last = fill_with_snapshots(folder)
    sorted(folder.glob("snapshot-*"))[-1].unlink()
    assert recover(folder).tree.digest() == DIGESTS[last]


def test_unfinished_files_of_a_crash_are_removed_and_others_left_alone(tmp_path: Path) -> None:
    fill(tmp_path / "data", [2])
    (tmp_path / "data" / "snapshot-0000000000000002.tmp").write_bytes(b"half")
    (tmp_path / "data" / "log-0000000000000003.tmp").write_bytes(b"half")
    (tmp_path / "data" / "notes.txt").write_text("mine")
    with opened(tmp_path / "data") as store:
        assert list_folder(store.folder).unfinished == []
        assert (store.folder / "notes.txt").read_text() == "mine"


def test_a_log_is_replayed_under_the_bound_on_nodes_that_it_was_written_under(
    tmp_path: Path,
) -> None:
    """Under another bound a create that was accepted would be refused, or the other way round."""

    def create(store: Store, name: str) -> None:
        zxid = store.last_zxid + 1
        body = create_body(name)
        record = encode_record(zxid, START_MS, SESSION, p.CREATE, WHO, body)
        store.commit([record], zxid)

    folder = tmp_path / "data"
    with opened(folder, nodes_max=6) as store:
        store.commit([record_at(1)], 1)
        for name in ("/a", "/b", "/c", "/refused"):
            create(store, name)
    small = recover(folder).tree
    assert "/b" in small.nodes
    assert "/refused" not in small.nodes
    for nodes_max in (1_000, 3, 1_000):
        with opened(folder, nodes_max=nodes_max) as store:
            assert store.tree.nodes.keys() >= small.nodes.keys()
            assert "/refused" not in store.tree.nodes
            assert store.tree.nodes_max == nodes_max
            create(store, f"/with-{nodes_max}")
    nodes = recover(folder).tree.nodes
    assert "/with-1000" in nodes
    assert "/with-3" not in nodes


def test_after_a_failure_of_the_disk_nothing_more_is_accepted(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "data")
    commit(store, 2)
    # From here on the file refuses to be written, as a dying disk does.
    refusing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(refusing, store._appender._handle)
    os.close(refusing)
    with pytest.raises(DiskFailed):
        commit(store, 1)
    with pytest.raises(DiskFailed):
        commit(store, 1)
    with pytest.raises(DiskFailed):
        store.maintain()
    store.close()
    with opened(tmp_path / "data") as again:
        assert again.tree.digest() == DIGESTS[2]
