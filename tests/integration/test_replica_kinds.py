"""A real replica with models that are files, each of another kind."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.models import publishing
from holdfast.models.publishing import VersionFiles
from holdfast.models.records import Version
from tests.answers import HttpAnswer
from tests.integration.replica_stage import ReplicaProcess, ReplicaStage
from tests.unit.models import files_stage
from tests.unit.models.files_stage import require_package, some_rows
from tests.waiting import eventually

pytestmark = pytest.mark.engines  # large packages are imported by several processes


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[ReplicaStage]:
    made = ReplicaStage(tmp_path)
    try:
        yield made
    finally:
        made.close()


def publish(stage: ReplicaStage, source: Path, **more: Any) -> Version:
    return publishing.publish(
        stage.registry, stage.blobs, VersionFiles("digits", source=source, **more)
    )


def ask(replica: ReplicaProcess, version: Version, **inputs: Any) -> HttpAnswer:
    path = f"/predict/digits/versions/{version.number}"
    return replica.call("POST", path, json.dumps(inputs).encode())


def test_models_of_files_are_served(stage: ReplicaStage, tmp_path: Path) -> None:
    for package in ("skops", "xgboost", "lightgbm"):
        require_package(package)
    pair = {"x": some_rows(2), "scale": some_rows(2)[:, :1]}
    script = publish(stage, files_stage.torchscript(tmp_path), examples=[pair])
    program = publish(stage, files_stage.exported(tmp_path))
    others = [
        publish(stage, made(tmp_path))
        for made in (files_stage.skops, files_stage.xgboost, files_stage.lightgbm)
    ]
    every = [script, program, *others]
    stage.hold(*(version.number for version in every))
    replica = stage.start()
    for version in every:
        stage.await_state(1, version.number)
    rows = some_rows(3).tolist()
    for version in (script, program):
        said = ask(replica, version, x=rows, scale=[[2.0]] * 3)
        assert said.status == 200, said.body
        assert json.loads(said.body)["y"][0] == pytest.approx([each * 2 for each in rows[0]])
    longer = ask(replica, program, x=[[1.0] * 9], scale=[[2.0]])
    assert json.loads(longer.body)["sum"] == [9.0]
    assert ask(replica, script, x=[[1.0] * 9], scale=[[2.0]]).status == 400
    for version in others:
        said = ask(replica, version, x=rows)
        assert said.status == 200, said.body
        assert len(json.loads(said.body)["predict"]) == 3


def test_a_pickle_that_was_allowed_is_served_by_a_process_beside_the_replica(
    stage: ReplicaStage, tmp_path: Path
) -> None:
    examples = [{"x": some_rows(2)}]
    version = publish(stage, files_stage.joblib(tmp_path), examples=examples, allow_pickle=True)
    stage.hold(version.number)
    replica = stage.start()
    stage.await_state(1, version.number)
    rows = some_rows(2).tolist()
    first = ask(replica, version, x=rows)
    assert set(json.loads(first.body)["predict"]) <= {"low", "high"}
    (child,) = computing(replica.pid)
    os.kill(child, signal.SIGKILL)
    failed = ask(replica, version, x=rows)
    assert failed.status == 500
    assert "the process that computes digits@1 has ended" in json.loads(failed.body)["error"]
    eventually(lambda: ask(replica, version, x=rows).status == 200, "it computes again")
    assert replica.alive
    (again,) = computing(replica.pid)
    replica.kill()
    eventually(lambda: not Path(f"/proc/{again}").exists(), "it has ended with its replica")


def computing(parent: int) -> list[int]:
    """The processes that compute for this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            above = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if above == parent and b"holdfast.models.apart_process" in command:
            found.append(int(folder.name))
    return found
