"""Real faults of a disk and of the processes that use it: no room, kills, a folder in use."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from holdfast.coordination.embedded import folder as files
from holdfast.coordination.embedded.recovery import recover
from holdfast.coordination.embedded.salvage import check
from holdfast.coordination.embedded.store import Store
from holdfast.wire.errors import Full, Occupied, Refused
from tests.unit.embedded.histories import commit, digest_at, opened, wait_for_snapshot
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
DATA = b"x" * 500
WAIT_S = 120.0


class LimitedDisk:
    """No file may grow beyond a limit: what a full disk looks like without being root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, left_bytes: int) -> None:
        size = max(path.stat().st_size for path in self.folder.rglob("*"))
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + left_bytes, hard))

    def free(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))

    def unmount(self) -> None:
        self.free()


class SmallDisk:
    """A file system of its own in memory, small enough to be filled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        _system("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder))
        self._ballast = folder / "ballast"

    def fill(self, left_bytes: int) -> None:
        self.free()
        room = os.statvfs(self.folder)
        self._ballast.write_bytes(bytes(room.f_bavail * room.f_bsize - left_bytes))

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def make_read_only(self) -> None:
        _system("mount", "-o", "remount,ro", str(self.folder))

    def unmount(self) -> None:
        _system("umount", "--lazy", str(self.folder))


def _system(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _can_mount() -> bool:
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


CAN_MOUNT = os.geteuid() == 0 and _can_mount()
Disk = LimitedDisk | SmallDisk


@pytest.fixture(params=[LimitedDisk, *([SmallDisk] if CAN_MOUNT else [])])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    made: Disk = request.param(tmp_path / "disk")
    try:
        yield made
    finally:
        made.unmount()


def commit_until_full(store: Store, batch: int = 3) -> None:
    with pytest.raises(Full):
        for _ in range(10_000):
            commit(store, batch, DATA)


def test_a_full_disk_refuses_a_batch_whole_and_takes_the_next_when_there_is_room(
    disk: Disk,
) -> None:
    folder = disk.folder / "data"
    with opened(folder) as store:
        commit(store, 3, DATA)
        for left_bytes in (0, 700, 5_000, 70_000):
            disk.fill(left_bytes)
            commit_until_full(store)
            at_full = store.last_zxid
            with pytest.raises(Full, match="no room"):
                commit(store, 400, DATA)
            assert store.last_zxid == at_full
            report = check(folder)
            assert report.is_good, report
            assert report.last_zxid == at_full
            disk.free()
            commit(store, 40, DATA)
        last = store.last_zxid
    with opened(folder) as store:
        assert store.last_zxid == last
        assert store.recovery.bytes_cut == 0
        assert store.tree.digest() == digest_at(last, DATA)


def test_a_server_starts_on_a_full_disk_and_reads_go_on(disk: Disk) -> None:
    folder = disk.folder / "data"
    with opened(folder) as store:
        commit(store, 3, DATA)
        disk.fill(300)
        commit_until_full(store)
        last = store.last_zxid
    disk.fill(0)
    with opened(folder) as store:
        assert store.tree.digest() == digest_at(last, DATA)
        with pytest.raises(Full):
            commit(store, 100, DATA)
        disk.free()
        commit(store, 100, DATA)
        assert store.last_zxid == last + 100


@contextmanager
def _unmounting(disk: SmallDisk) -> Iterator[SmallDisk]:
    try:
        yield disk
    finally:
        disk.unmount()


def small_disk(tmp_path: Path) -> AbstractContextManager[SmallDisk]:
    return _unmounting(SmallDisk(tmp_path / "disk"))


if CAN_MOUNT:

    def test_without_room_no_snapshot_is_made_nothing_is_removed_and_writes_go_on(
        tmp_path: Path,
    ) -> None:
        with (
            small_disk(tmp_path) as disk,
            opened(disk.folder / "data", snapshot_transactions=600) as store,
        ):
            commit(store, 599, DATA * 3)
            # Less than the snapshot needs; the log has room that it wrote ahead.
            disk.fill(0)
            commit(store, 1, DATA)
            store.maintain()
            wait_for_snapshot(store)
            assert store.snapshot_failures == 1
            assert "No space" in store.compactor.last_error
            assert not files.list_folder(store.folder).snapshots
            commit(store, 1, DATA)
            disk.free()
            commit(store, 599, DATA)
            store.maintain()
            wait_for_snapshot(store)
            assert store.snapshots_taken == 1

    def test_without_room_for_a_new_segment_the_old_one_goes_on(tmp_path: Path) -> None:
        with (
            small_disk(tmp_path) as disk,
            opened(disk.folder / "data", segment_bytes=10_000) as store,
        ):
            commit(store, 30, DATA)
            disk.fill(0)
            commit_until_full(store, 3)
            commit_until_full(store, 1)
            store.maintain()
            assert len(files.list_folder(store.folder).segments) == 1
            disk.free()
            commit(store, 1, DATA)
            store._roll_after_s = 0.0
            store.maintain()
            assert len(files.list_folder(store.folder).segments) == 2
            commit(store, 1, DATA)
            last = store.last_zxid
            assert recover(store.folder).tree.digest() == digest_at(last, DATA)


def test_a_folder_that_cannot_be_written_is_refused_with_the_reason(tmp_path: Path) -> None:
    if CAN_MOUNT:
        with small_disk(tmp_path) as disk:
            with opened(disk.folder / "data") as store:
                commit(store, 3)
            disk.make_read_only()
            with pytest.raises(Refused, match="data"):
                Store.open(disk.folder / "data")
            assert check(disk.folder / "data").is_good
            with pytest.raises(Refused):
                Store.open(disk.folder / "new")
    else:
        folder = tmp_path / "data"
        folder.mkdir(mode=0o500)
        with pytest.raises(Refused, match="data"):
            Store.open(folder)
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(Refused):
        Store.open(tmp_path / "file")


@contextmanager
def process(
    folder: Path, batch: int, snapshot_transactions: int = 10**9
) -> Iterator[subprocess.Popen[str]]:
    """Another process on the folder, after it said that it has opened it; killed at the end."""
    module = "tests.faults.disk_process"
    command = [sys.executable, "-m", module, str(folder), str(batch), str(snapshot_transactions)]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "open\n"
        yield child
    finally:
        child.kill()
        child.stdout.close()
        child.wait()


def words(child: subprocess.Popen[str]) -> Iterator[str]:
    assert child.stdout is not None
    for line in child.stdout:
        # The last line of a killed process may be half a number.
        if line.endswith("\n"):
            yield line.strip()


def test_two_processes_cannot_use_one_folder_and_a_killed_one_lets_it_go(tmp_path: Path) -> None:
    with (
        process(tmp_path / "data", batch=0) as child,
        pytest.raises(Occupied, match=str(child.pid)),
    ):
        Store.open(tmp_path / "data")
    with opened(tmp_path / "data") as store:
        assert store.last_zxid == 0


def test_nothing_acknowledged_is_lost_when_the_process_is_killed_and_the_tail_torn(
    tmp_path: Path,
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    folder = tmp_path / "data"
    acknowledged = 0
    for _ in range(8):
        with process(folder, batch=chance.randrange(1, 20), snapshot_transactions=150) as child:
            commits = chance.randrange(1, 40)
            said = words(child)
            while commits:
                commits -= next(said).isdigit()
            time.sleep(chance.random() * 0.003)  # pause: the kill comes at any moment
            child.kill()
            acknowledged = max([acknowledged, *(int(word) for word in said if word.isdigit())])
        segment = files.list_folder(folder).segments[-1][1]
        end = len(segment.read_bytes().rstrip(b"\0"))
        torn = chance.randbytes(chance.randrange(0, 300))
        with opened(folder) as store:
            # Where the kill left a torn tail of its own, it is cut here; ours comes behind it.
            kept = store.last_zxid
            assert kept >= acknowledged
        with segment.open("r+b") as file:
            file.seek(0, os.SEEK_END)
            file.write(torn)
        with opened(folder) as store:
            assert store.last_zxid == kept, f"torn at {end}"
            assert store.recovery.bytes_cut == (len(torn) if any(torn) else 0)
            assert store.tree.digest() == digest_at(kept)
            acknowledged = kept


def test_a_snapshot_process_killed_at_any_moment_leaves_the_folder_good(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with opened(tmp_path / "data", snapshot_transactions=50) as store:
        for _ in range(8):
            commit(store, 50)
            store.maintain()
            time.sleep(chance.random() * 0.5)  # pause: the kill comes at any moment
            pid = store.compactor.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            wait_for_snapshot(store)
            report = check(store.folder)
            assert report.is_good, report
            last = store.last_zxid
            assert recover(store.folder).tree.digest() == digest_at(last)
        assert store.snapshots_taken + store.snapshot_failures == 8
        commit(store, 50)
        store.maintain()
        wait_for_snapshot(store)
        assert store.compactor.last_zxid == store.last_zxid


def test_a_snapshot_outlives_its_killed_server_and_removes_nothing_under_the_next(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "data"
    with process(folder, batch=50, snapshot_transactions=500) as child:
        word = next(word for word in words(child) if word.startswith("snapshot"))
        child.kill()
        child.wait()
    pid = int(word.split()[1])
    there = {path for _, path in files.list_folder(folder).segments}
    with opened(folder, snapshot_transactions=10**9) as store:
        assert store.tree.digest() == digest_at(store.last_zxid)
        commit(store, 50)
        eventually(lambda: not _is_running(pid), "its process has ended")
        listing = files.list_folder(folder)
        assert listing.snapshots, "the work of a dead server's process is lost"
        assert there <= {path for _, path in listing.segments}
        assert check(folder).is_good
        last = store.last_zxid
    with opened(folder) as store:
        assert store.recovery.snapshot
        assert (store.last_zxid, store.tree.digest()) == (last, digest_at(last))


def _is_running(pid: int) -> bool:
    """Whether the process is there and not only its exit status."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")
