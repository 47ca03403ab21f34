"""The processes of `holdfast run`, killed again and again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from holdfast.cli.run_stage import Stage
from holdfast.launch import seen
from holdfast.launch.local import Room
from holdfast.wire.limits import RUN_RESTARTS_MAX
from tests.contract.waiting import eventually


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
