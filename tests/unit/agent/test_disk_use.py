"""What a worker's folders hold, and what is decided when it is more than it was given."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.agent import devices, disk_use, journal
from holdfast.agent.events import (
    DiskUsed,
    Ending,
    Force,
    ProcessAdopted,
    SignalProcess,
    Stopping,
    WatchDisk,
)
from holdfast.agent.exits import classify
from holdfast.wire.causes import cause_of
from holdfast.wire.reports import ExitKind
from holdfast.wire.resources import Resources
from tests.unit.agent.driving import IDENTITY, KEY, MACHINE, Driven, start

GB = 10**9
NEED = Resources(1.0, disk_bytes=20 * GB)
ROOMY = replace(MACHINE, capacity=replace(MACHINE.capacity, disk_bytes=100 * GB))
SAID = "used 21.3 GB of disk, 20 GB allowed: raise resources.disk"


def driven() -> Driven:
    return Driven(machine=ROOMY)


def test_a_worker_that_wrote_too_much_is_ended_at_once_and_its_end_says_so() -> None:
    agent = driven()
    agent.started(resources=NEED)
    assert agent.handle(DiskUsed(KEY, 20 * GB)) == [], "all that it was given is not too much"
    actions = agent.handle(DiskUsed(KEY, 21_300_000_000))
    assert SignalProcess(KEY, Force.KILL) in actions
    assert agent.handle(DiskUsed(KEY, 22 * GB)) == [], "once is enough"
    agent.end(KEY, Ending(signal=9, stderr_tail="a line of its own"))
    end = agent.known().exit
    assert end is not None and end.kind is ExitKind.DISK and end.kind.is_failure
    assert SAID in end.detail and SAID in cause_of(end.detail).line


def test_an_agent_that_dies_between_still_says_why_the_worker_ended() -> None:
    agent = driven()
    agent.started(resources=NEED)
    agent.handle(DiskUsed(KEY, 21_300_000_000))
    read = [journal.decode(journal.encode(entry)) for entry in agent.entries]
    agent.entries = [entry for entry in read if entry is not None]
    assert len(agent.entries) == len(read)
    after = agent.restarted()
    after.end(KEY, Ending(signal=9))
    assert after.exit_kind() is ExitKind.DISK


def test_a_worker_without_a_limit_is_not_looked_at() -> None:
    agent = driven()
    agent.order(start(1))
    assert not [one for one in agent.handle(ProcessAdopted(KEY, IDENTITY)) if _watches(one)]
    assert agent.handle(DiskUsed(KEY, 21 * GB)) == []


def test_a_worker_that_was_found_again_is_looked_at_again() -> None:
    agent = driven()
    agent.order(start(1, resources=NEED))
    assert WatchDisk(KEY, 20 * GB) in agent.handle(ProcessAdopted(KEY, IDENTITY))


def test_a_journal_of_an_older_version_is_read() -> None:
    older = {"kind": "stopping", "key": ["job", 1], "kill_at_s": 1.0, "hung": False}
    assert journal.decode(older) == Stopping(KEY, 1.0)


def test_an_agent_promises_no_more_disk_than_it_has() -> None:
    agent = driven()
    agent.started(1, resources=replace(NEED, disk_bytes=60 * GB))
    answer, _ = agent.order(start(2, resources=replace(NEED, disk_bytes=60 * GB)))
    assert not answer.accepted and "disk 40000000000 B is free" in answer.reason


def test_sizes_are_said_in_the_unit_that_was_asked_for() -> None:
    said = {
        bytes_max: classify(
            Ending(signal=9),
            stopping=True,
            hung=False,
            introduced=True,
            disk_bytes=(bytes_max * 3 // 2, bytes_max),
        ).detail
        for bytes_max in (20 * GB, 500 * 10**6, 4 << 30, 64 << 20)
    }
    assert [text.partition(": ")[2].partition(": ")[0] for text in said.values()] == [
        "used 30 GB of disk, 20 GB allowed",
        "used 750 MB of disk, 500 MB allowed",
        "used 6 GiB of disk, 4 GiB allowed",
        "used 96 MiB of disk, 64 MiB allowed",
    ]


def test_what_a_folder_holds_is_what_is_written_and_counts_once(tmp_path: Path) -> None:
    top, outside = tmp_path / "top", tmp_path / "outside"
    for folder in (top / "a" / "b", outside):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(os.urandom(1 << 20))
    empty = disk_use.held_bytes(tmp_path / "nothing")
    held = disk_use.held_bytes(top)
    assert empty == 0 and 1 << 20 <= held < 2 << 20
    os.link(top / "a" / "b" / "file", top / "again")
    (top / "elsewhere").symlink_to(outside)
    with (top / "holes").open("wb") as file:
        file.truncate(1 << 30)
    assert disk_use.held_bytes(top) < held + (1 << 20)


def test_a_look_ends_however_many_files_there_are(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"{number}").write_bytes(b"x" * 4096)
    assert disk_use.held_bytes(tmp_path, 10) < disk_use.held_bytes(tmp_path)


def test_what_workers_hold_already_is_not_lost_to_a_new_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart must not make a machine smaller by what its own workers have written."""
    there = os.statvfs_result((4096, 4096, 1000, 500, 400, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: there)
    free = 400 * 4096 - 1000 * 4096 // 20
    assert devices.disk_bytes(tmp_path / "not" / "there" / "yet") == free
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "file").write_bytes(os.urandom(1 << 20))
    assert devices.disk_bytes(tmp_path) == free + disk_use.held_bytes(tmp_path / "workers")
    assert devices.disk_bytes(tmp_path) >= free + (1 << 20)


def _watches(action: object) -> bool:
    return isinstance(action, WatchDisk)
