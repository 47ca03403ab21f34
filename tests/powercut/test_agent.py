"""The agent's files on a disk that forgets: its journal, and what shims write."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.events import Entry, Key, TermSeen
from holdfast.agent.folders import Folders
from holdfast.agent.journal import NAME, Journal
from holdfast.system.durable import write_file
from holdfast.wire.errors import DiskFailed, Full
from tests.powercut.disk import Disk
from tests.powercut.images import survives
from tests.powercut.scenes import failing, new_disk, restarts

BATCHES: list[list[Entry]] = [[TermSeen(number), TermSeen(number + 1)] for number in (1, 3, 5)]
KEY = Key("job", 1)


def live(disk: Disk) -> None:
    """An agent that appends and acknowledges, and compacts what it has."""
    folders = Folders(disk.folder / "deep" / "home")
    folders.make()
    journal, recovery = Journal.open(folders.home)
    entries = list(recovery.entries)
    for batch in BATCHES:
        journal.append(batch)
        entries += batch
        disk.acknowledge(tuple(entries))
        entries = entries[-3:]
        journal.compact(entries)
        disk.acknowledge(tuple(entries))
    journal.close()


def holds(folder: Path, promised: tuple[Any, ...]) -> None:
    """The journal opens, and ends with what was acknowledged last or with what came after it."""
    folders = Folders(folder / "deep" / "home")
    folders.make()
    journal, recovery = Journal.open(folders.home)
    journal.close()
    found = tuple(recovery.entries)
    last = promised[-1] if promised else ()
    if found[-len(last) :] == last or found == last[-3:]:
        return
    more = [tuple(batch) for batch in BATCHES if found[-len(batch) :] == tuple(batch)]
    assert more and found[: -len(more[0])] == last, f"{found} instead of {last}"


def test_acknowledged_entries_are_lost_by_a_power_cut(tmp_path: Path) -> None:
    disk = new_disk(tmp_path / "disk")
    with disk:
        live(disk)
    assert survives(disk, tmp_path, holds) > 20


def test_what_a_restarted_agent_reads_is_lost_by_a_power_cut(tmp_path: Path) -> None:
    """The old one was killed at a sync: what it had written can be read, and is not durable."""
    lives = 0
    for disk in restarts(tmp_path, live):
        lives += 1
        with disk:
            folders = Folders(disk.folder / "deep" / "home")
            folders.make()
            journal, recovery = Journal.open(folders.home)
            disk.acknowledge(tuple(recovery.entries))
            journal.append([TermSeen(99)])
            disk.acknowledge((*recovery.entries, TermSeen(99)))
        journal.close()
        disk.moments[:] = [moment for moment in disk.moments if "acknowledged" in moment.what]
        survives(disk, tmp_path, holds)
    assert lives > 10


def test_a_journal_whose_name_was_not_synced_takes_entries_that_are_lost(tmp_path: Path) -> None:
    """Its maker was killed before; no agent's folders are made anew here, which would sync it."""

    def made(disk: Disk) -> None:
        journal, _ = Journal.open(disk.folder)
        journal.append(BATCHES[0])
        journal.compact(BATCHES[0])
        journal.close()

    for disk in restarts(tmp_path, made):
        with disk:
            journal, _ = Journal.open(disk.folder)
            journal.append([TermSeen(99)])
            disk.moments.clear()
            disk.acknowledge("appended")
        journal.close()

        def has_it(folder: Path, promised: tuple[Any, ...]) -> None:
            journal, recovery = Journal.open(folder)
            journal.close()
            assert recovery.entries[-1:] == [TermSeen(99)]

        survives(disk, tmp_path, has_it)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_refused_entry_comes_back_with_a_power_cut(tmp_path: Path, code: int) -> None:
    disk = new_disk(tmp_path / "disk")
    with disk:
        journal, _ = Journal.open(disk.folder)
        journal.append(BATCHES[0])
        disk.at_sync = failing(disk.syncs + 1, code)
        with pytest.raises((Full, DiskFailed)):
            journal.append(BATCHES[1])
        disk.moments.clear()
        disk.acknowledge("refused")
    journal.close()

    def has_none_of_it(folder: Path, promised: tuple[Any, ...]) -> None:
        journal, recovery = Journal.open(folder)
        journal.close()
        assert recovery.entries == BATCHES[0]

    assert survives(disk, tmp_path, has_none_of_it) > 0


def test_a_torn_tail_that_was_cut_comes_back_with_a_power_cut(tmp_path: Path) -> None:
    disk = new_disk(tmp_path / "disk")
    with disk:
        journal, _ = Journal.open(disk.folder)
        journal.append(BATCHES[0])
        journal.close()
        with (disk.folder / NAME).open("ab") as file:
            file.write(b"torn")
            file.flush()
            os.fsync(file.fileno())
        journal, recovery = Journal.open(disk.folder)
        assert recovery.cut_bytes == 4
        disk.moments.clear()
        disk.acknowledge("cut")
    journal.close()

    def has_no_tail(folder: Path, promised: tuple[Any, ...]) -> None:
        journal, recovery = Journal.open(folder)
        journal.close()
        assert (recovery.entries, recovery.cut_bytes) == (BATCHES[0], 0)

    assert survives(disk, tmp_path, has_no_tail) > 0


@pytest.mark.parametrize("once", [True, False])
def test_a_note_of_a_shim_is_lost_or_half_there_after_a_power_cut(
    tmp_path: Path, once: bool
) -> None:
    disk = new_disk(tmp_path / "disk")
    with disk:
        folder = os.open(disk.folder, os.O_RDONLY | os.O_DIRECTORY)
        for number in range(1 if once else 3):
            write_file(folder, "exit", json.dumps({"code": number}).encode(), once=once)
            disk.acknowledge(number)
        os.close(folder)

    def is_whole(folder: Path, promised: tuple[Any, ...]) -> None:
        path = folder / "exit"
        assert path.exists() or not promised
        if path.exists():
            code = json.loads(path.read_text())["code"]
            assert code in {*promised[-1:], len(promised)}

    assert survives(disk, tmp_path, is_whole) > 3


def test_a_claim_is_seen_before_a_power_cut_can_no_longer_take_it(tmp_path: Path) -> None:
    """An agent reads whatever is in a worker's folder: each file is whole, or is not there."""
    disk = new_disk(tmp_path / "disk")
    with disk:
        folders = Folders(disk.folder)
        folders.make()
        folders.promise([KEY])
        os.close(folders.take())
        assert folders.claim_void(KEY)
        assert not folders.claim_void(KEY)

    def can_be_read(folder: Path, promised: tuple[Any, ...]) -> None:
        folders = Folders(folder)
        folders.make()
        os.close(folders.take())
        for key in folders.present():
            folders.claim(key)
            folders.ending(key)

    assert survives(disk, tmp_path, can_be_read) > 5


def test_a_shim_ends_before_its_last_note_is_durable(tmp_path: Path) -> None:
    """The whole life of a shim, in a process of its own with the disk around it."""
    program = """
import pathlib, sys
from holdfast.agent.shim import Shim
from tests.faults.test_agent_shim import launch
from tests.powercut.disk import Disk
from tests.powercut.images import survives
home, scratch = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
launch(home, "true")
disk = Disk(home)
with disk:
    assert Shim(str(home)).run() == 0
    disk.acknowledge("ended")

def has_both(folder, promised):
    claim, exit = folder / "claim", folder / "exit"
    assert not exit.exists() or claim.exists()
    assert not promised or '"code": 0' in exit.read_text()

print(survives(disk, scratch, has_both))
"""
    command = [sys.executable, "-c", program, str(tmp_path / "home"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 5
