"""What an agent does for replicas that it does not do for other workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.becoming import reason_not_to_fork
from holdfast.agent.events import Key, Slots
from holdfast.agent.folders import Folders
from holdfast.agent.launching import Bounds, Launcher, WorkerCode, WorkerContext
from holdfast.agent.main import parsed
from holdfast.wire import worker_messages
from holdfast.wire.errors import Usage
from holdfast.wire.limits import AGENT_AWAY_S, REPLICA_AWAY_S
from holdfast.wire.orders import StartWorker
from holdfast.wire.resources import Resources


def launched(folder: Path, mode: str) -> dict[str, Any]:
    """What the agent writes down for a worker of this mode."""
    folders = Folders(folder)
    folders.make()
    launcher = Launcher(
        folders, None, Bounds(), WorkerContext(region="north"), Path, lambda _: None
    )
    order = StartWorker(
        "n1",
        "it",
        1,
        "",
        ("sh", "-c", "true"),
        Resources(cpu=1.0),
        {worker_messages.MODE_VARIABLE: mode},
    )
    key = Key("it", 1)
    assert not launcher.lay_out(key, order, Slots(), WorkerCode())  # no program of Python's
    found: dict[str, Any] = json.loads((folders.worker(key) / "launch.json").read_text())
    return found


def test_a_replica_goes_on_without_its_agent_for_long(tmp_path: Path) -> None:
    assert launched(tmp_path / "a", "serve")["away_s"] == REPLICA_AWAY_S
    assert launched(tmp_path / "b", "sync")["away_s"] == AGENT_AWAY_S


def test_every_worker_is_told_where_its_machine_is(tmp_path: Path) -> None:
    assert launched(tmp_path, "serve")["environment"][worker_messages.REGION_VARIABLE] == "north"


def test_a_region_is_a_name() -> None:
    words = ["--cluster", "c", "--node", "n"]
    assert parsed([*words, "--region", "eu-1"]).region == "eu-1"
    assert parsed(words).region == ""
    with pytest.raises(Usage, match="cannot be the name of a region"):
        parsed([*words, "--region", "no/slash"])


def test_our_own_packages_may_be_forked_though_they_are_imported(tmp_path: Path) -> None:
    package = {"module": "holdfast.agent", "script": ""}
    assert reason_not_to_fork(package, {}, str(tmp_path)) == ""
    for module in ("json", "holdfast.agent.becoming"):
        program = {"module": module, "script": ""}
        assert reason_not_to_fork(program, {}, str(tmp_path)) == f"{module} is imported already"
