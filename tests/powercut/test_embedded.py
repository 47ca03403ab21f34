"""The embedded server's folder on a disk that forgets: what was acknowledged is there."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.coordination.embedded import appender
from holdfast.coordination.embedded.compact import Compactor, compact
from holdfast.coordination.embedded.log import read_mark
from holdfast.coordination.embedded.recovery import recover
from holdfast.coordination.embedded.store import Store
from holdfast.wire.errors import Corrupt, DiskFailed, Full
from tests.powercut.disk import Disk
from tests.powercut.images import images, survives, write
from tests.powercut.scenes import failing, new_disk, restarts
from tests.unit.embedded.histories import commit, digests, flipped

DIGESTS = digests(40)
EACH = 3
OPTIONS = {"snapshot_transactions": 2 * EACH, "snapshots_kept": 1}


@pytest.fixture(autouse=True)
def _small_and_in_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Snapshots are made by the code of their process, but where the disk sees it; and a file has
    little room ahead, so that many images of it can be looked at."""

    def start(self: Compactor, upto_zxid: int) -> None:
        compact(self._folder, upto_zxid, *(int(option) for option in self._options))

    monkeypatch.setattr(Compactor, "start", start)
    monkeypatch.setattr(appender, "LOG_AHEAD_BYTES", 600)
    with open_pipe_as_standard_input():
        yield


@contextmanager
def open_pipe_as_standard_input() -> Iterator[None]:
    """By this a process that makes a snapshot knows that its server lives."""
    before = os.dup(0)
    reader, writer = os.pipe()
    try:
        os.dup2(reader, 0)
        yield
    finally:
        os.dup2(before, 0)
        for handle in (before, reader, writer):
            os.close(handle)


def serve(disk: Disk, batches: int = 6, *, end: Callable[[Store], None] = Store.close) -> None:
    """A server that commits and acknowledges, with new segments and snapshots in between."""
    store = Store.open(disk.folder / "deep" / "data", **OPTIONS)
    disk.acknowledge(("secret", store.secret))
    disk.acknowledge(store.last_zxid)
    for _ in range(batches):
        commit(store, EACH)
        disk.acknowledge(store.last_zxid)
        store.maintain()
    end(store)


def holds(folder: Path, promised: tuple[Any, ...]) -> None:
    """The folder opens, and has the acknowledged writes; perhaps the one that was on its way."""
    numbers = [fact for fact in promised if isinstance(fact, int)]
    store = Store.open(folder / "deep" / "data", **OPTIONS)
    try:
        least = max(numbers, default=0)
        assert store.last_zxid in range(least, least + EACH + 1)
        assert store.tree.digest() == DIGESTS[store.last_zxid]
        for fact in promised:
            assert not isinstance(fact, tuple) or store.secret == fact[1]
    finally:
        store.close()


def test_acknowledged_writes_are_lost_by_a_power_cut(tmp_path: Path) -> None:
    disk = new_disk(tmp_path / "disk")
    with disk:
        serve(disk)
    names = {name.rpartition("/")[2][:4] for m in disk.moments for _, i in images(m) for name in i}
    assert {"log-", "snap", "dura"} <= names
    assert survives(disk, tmp_path, holds) > 50


def test_what_a_restarted_server_shows_is_lost_by_a_power_cut(tmp_path: Path) -> None:
    """The old process was killed at a sync: the new one reads what was written and not synced."""
    lives = 0
    for disk in restarts(tmp_path, lambda disk: serve(disk, 4)):
        lives += 1
        with disk:
            store = Store.open(disk.folder / "deep" / "data", **OPTIONS)
            disk.acknowledge(store.last_zxid)
        disk.moments[:] = [moment for moment in disk.moments if "acknowledged" in moment.what]
        survives(disk, tmp_path, holds)
        store.close()
    assert lives > 20


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_refused_write_comes_back_with_a_power_cut(tmp_path: Path, code: int) -> None:
    """Its bytes had been written, and only their sync failed: they may be on the disk."""
    disk = new_disk(tmp_path / "disk")
    with disk:
        store = Store.open(disk.folder / "data")
        commit(store, EACH)
        disk.at_sync = failing(disk.syncs + 1, code)
        with pytest.raises((Full, DiskFailed)):
            commit(store, EACH)
        disk.moments.clear()
        disk.acknowledge("refused")

    def has_none_of_it(folder: Path, promised: tuple[Any, ...]) -> None:
        assert recover(folder / "data").tree.last_zxid == EACH

    assert survives(disk, tmp_path, has_none_of_it) > 0
    store.close()


def test_damage_looks_torn_after_a_power_cut_since_the_mark_was_not_synced(
    tmp_path: Path,
) -> None:
    """The mark tells a batch that was durable, and is damaged now, from one that never was."""
    disk = new_disk(tmp_path / "disk")
    with disk:
        store = Store.open(disk.folder / "data")
        commit(store, EACH)
        store.close()
        disk.acknowledge("closed")
        closed = disk.moments[-1]
        store = Store.open(disk.folder / "data")
        commit(store, EACH)  # the mark is written, and not synced
        killed = Disk.restarted(disk, tmp_path / "again")
        os.close(store._lock)
    with killed:
        store = Store.open(killed.folder / "data")
        killed.acknowledge("opened")
        reopened = killed.moments[-1]
    for number, moment in enumerate((closed, reopened)):
        _, image = next(images(moment))
        folder = tmp_path / f"damaged-{number}"
        write(image, folder)
        mark, _ = read_mark(folder / "data")
        assert mark is not None
        (segment,) = (folder / "data").glob("log-*")
        assert mark.length == recover(folder / "data").tail.end  # type: ignore[union-attr]
        segment.write_bytes(flipped(segment.read_bytes(), mark.length - 1))
        with pytest.raises(Corrupt, match="durable up to"):
            recover(folder / "data")


def test_a_folder_that_a_power_cut_left_is_refused_while_it_is_made(tmp_path: Path) -> None:
    """Nothing was acknowledged yet: it must open, as a new one or as what it was to be."""
    disk = new_disk(tmp_path / "disk")
    with disk:
        store = Store.open(disk.folder / "deep" / "data")
    store.close()
    assert survives(disk, tmp_path, holds) > 5


def test_a_torn_tail_that_was_cut_comes_back_with_a_power_cut(tmp_path: Path) -> None:
    disk = new_disk(tmp_path / "disk")
    with disk:
        store = Store.open(disk.folder / "data")
        commit(store, EACH)
        store.close()
        with store._appender.path.open("ab") as segment:
            segment.write(b"torn")
            segment.flush()
            os.fsync(segment.fileno())
        again = Store.open(disk.folder / "data")
        assert again.recovery.bytes_cut == 4
        disk.moments.clear()
        disk.acknowledge("cut")

    def has_no_tail(folder: Path, promised: tuple[Any, ...]) -> None:
        store = Store.open(folder / "data")
        store.close()
        assert (store.last_zxid, store.recovery.bytes_cut) == (EACH, 0)

    assert survives(disk, tmp_path, has_no_tail) > 0
    again.close()
