"""The processes of `holdfast run`, killed again and again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from holdfast.cli.run.stage import RUN_RESTARTS_MAX, Stage
from holdfast.launch import seen
from holdfast.launch.ending import down
from holdfast.launch.local import Room
from holdfast.wire.errors import Unavailable
from tests.contract.waiting import eventually
from tests.integration.clusters import running


def test_a_coordinator_that_is_killed_again_and_again_is_started_each_time(tmp_path: Path) -> None:
    with Stage.over(tmp_path / "run", Room(cpu=1), note=lambda _said: None) as stage:

        def coordinator() -> int:
            stage.mind()
            found = seen.processes(stage.cluster)
            return next((one.pid for one in found if one.kind == "coordinator"), 0)

        while len(stage.died) <= RUN_RESTARTS_MAX:
            pid = eventually(coordinator, "there is a coordinator")
            deaths = len(stage.died)
            os.kill(pid, signal.SIGKILL)
            while len(stage.died) == deaths:
                stage.mind()
        assert stage.died == ["coordinator"] * (RUN_RESTARTS_MAX + 1)


def test_what_down_has_ended_is_not_started_again_until_the_next_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Stage.over(folder, Room(cpu=1), note=lambda _said: None) as stage:
        eventually(lambda: len(seen.processes(stage.cluster)) == 3, "all three are there")
        down(stage.cluster, force=True)
        with pytest.raises(Unavailable, match="were ended"):
            stage.mind()
        assert not running(folder)
    with Stage.over(folder, Room(cpu=1), note=lambda _said: None) as stage:
        eventually(lambda: len(seen.processes(stage.cluster)) == 3, "all three are there again")
        assert stage.mind() == []
