"""The processes of `holdfast run`, killed again and again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from holdfast.cli.run.processes import RUN_RESTARTS_MAX, RunProcesses
from holdfast.launch.ending import down
from holdfast.launch.local import AgentSize
from holdfast.launch.processes import processes as living
from holdfast.wire.errors import Unavailable
from tests.integration.clusters import running
from tests.waiting import eventually


def test_a_coordinator_that_is_killed_again_and_again_is_started_each_time(tmp_path: Path) -> None:
    with RunProcesses.over(
        tmp_path / "run", AgentSize(cpu=1), note=lambda _said: None
    ) as processes:

        def coordinator() -> int:
            processes.restart_dead()
            found = living(processes.cluster)
            return next((one.pid for one in found if one.kind == "coordinator"), 0)

        while len(processes.died) <= RUN_RESTARTS_MAX:
            pid = eventually(coordinator, "there is a coordinator")
            deaths = len(processes.died)
            os.kill(pid, signal.SIGKILL)
            while len(processes.died) == deaths:
                processes.restart_dead()
        assert processes.died == ["coordinator"] * (RUN_RESTARTS_MAX + 1)


def test_what_down_has_ended_is_not_started_again_until_the_next_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with RunProcesses.over(folder, AgentSize(cpu=1), note=lambda _said: None) as processes:
        eventually(lambda: len(living(processes.cluster)) == 3, "all three are there")
        down(processes.cluster, force=True)
        with pytest.raises(Unavailable, match="were ended"):
            processes.restart_dead()
        assert not running(folder)
    with RunProcesses.over(folder, AgentSize(cpu=1), note=lambda _said: None) as processes:
        eventually(lambda: len(living(processes.cluster)) == 3, "all three are there again")
        assert processes.restart_dead() == []
