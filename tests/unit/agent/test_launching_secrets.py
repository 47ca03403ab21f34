"""A worker is started with all of its secrets, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.agent.events import Key, Slots
from holdfast.agent.folders import Folders
from holdfast.agent.launching import Bounds, Launcher, WorkerCode, WorkerContext
from holdfast.wire.errors import Refused
from holdfast.wire.orders import StartWorker
from holdfast.wire.resources import Resources

KEY = Key("job", 1)


def order(secrets: dict[str, str]) -> StartWorker:
    references = {"TOKEN": "hub"}
    return StartWorker(
        "n1", "job", 1, "", ("true",), Resources(1.0), references=references, secrets=secrets
    )


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    found = Folders(tmp_path)
    found.worker(KEY).parent.mkdir(parents=True)
    found.log(KEY).parent.mkdir(parents=True)
    return found


def test_a_worker_is_not_started_without_a_secret_that_no_journal_holds(folders: Folders) -> None:
    launcher = Launcher(folders, None, Bounds(), WorkerContext(), Path, lambda _: None)
    with pytest.raises(Refused, match="TOKEN"):
        launcher.lay_out(KEY, order({}), Slots(), WorkerCode())
    assert not folders.worker(KEY).exists()


def test_a_worker_has_its_secrets_in_its_environment(folders: Folders) -> None:
    launcher = Launcher(folders, None, Bounds(), WorkerContext(), Path, lambda _: None)
    launcher.lay_out(KEY, order({"TOKEN": "xyzzy"}), Slots(), WorkerCode())
    path = folders.worker(KEY) / "launch.json"
    assert path.stat().st_mode & 0o077 == 0
    assert json.loads(path.read_text())["environment"]["TOKEN"] == "xyzzy"
