"""Control groups: what is written where, and the reason when there are none."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.agent import cgroups
from holdfast.agent.events import Key
from holdfast.wire.resources import Resources

KEY = Key("job", 1)


def delegated(folder: Path, controllers: str) -> Path:
    """A folder with the files of a control group that is ours."""
    (folder / "cgroup.controllers").write_text(controllers)
    return folder


def test_a_delegated_group_gets_limits_for_a_worker_and_all_that_it_starts(tmp_path: Path) -> None:
    found = cgroups.find(delegated(tmp_path, "cpuset cpu io memory pids\n"))
    assert found.groups is not None
    assert (tmp_path / "agent" / "cgroup.procs").read_text() == str(os.getpid())
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu +memory"
    group = found.groups.make(KEY, Resources(2.0, 1 << 30))
    assert (group / "memory.max").read_text() == str(1 << 30)
    assert (group / "memory.oom.group").read_text() == "1"
    assert (group / "cpu.weight").read_text() == "200"


def test_a_worker_without_limits_gets_a_group_without_them(tmp_path: Path) -> None:
    found = cgroups.find(delegated(tmp_path, "cpu memory"))
    assert found.groups is not None
    group = found.groups.make(KEY, Resources())
    assert list(group.iterdir()) == []
    cgroups.remove(group)
    cgroups.remove(group)
    assert not group.exists()


def test_a_group_without_the_memory_controller_is_not_used_and_says_so(tmp_path: Path) -> None:
    found = cgroups.find(delegated(tmp_path, "cpuset pids"))
    assert found.groups is None
    assert "needed: ['cpu', 'memory']" in found.reason
    assert not (tmp_path / "agent").exists()


def test_a_group_that_may_not_be_written_is_not_used_and_says_so(tmp_path: Path) -> None:
    found = cgroups.find(tmp_path / "absent")
    assert found.groups is None
    assert "may not make control groups" in found.reason
