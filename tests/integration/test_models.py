"""From a training script to a version, and what people do with it: real processes, real kills."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cluster import Cluster, create, opened
from holdfast.coordination import connect
from holdfast.launch import processes
from holdfast.models.loading import check_example, fetch, load
from holdfast.models.registry import Registry
from tests.integration.person import WAIT_S
from tests.servers import commands
from tests.unit.cli.running import environment
from tests.unit.models.stage import code, onnx_file

NET = """
    from torch import nn


    class Net(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.first, self.drop, self.last = nn.Linear(width, 8), nn.Dropout(0.5), nn.Linear(8, 2)

        def forward(self, points):
            return {"scores": self.last(self.drop(self.first(points).relu()))}
"""
# Whoever publishes first dies before its record is written, the next one after that.
TRAIN = """
    import os
    import pathlib
    import signal
    import sys

    import torch
    from torch.nn import functional
    from torch.utils.data import TensorDataset

    from holdfast import train
    from holdfast.models import registry
    from net import Net

    marks = pathlib.Path(sys.argv[1])
    publish = registry.Registry._publish


    def deadly(self, *given):
        turn = len(list(marks.iterdir()))
        (marks / f"{turn}-{os.getpid()}").touch()
        if turn == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        found = publish(self, *given)
        if turn == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return found


    def main(run):
        model = Net(4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run.track(model=model, optimizer=optimizer)
        x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
        y = (x.sum(1) > 0).long()
        for batch in run.batches(TensorDataset(x, y), lane_batch=8, epochs=2):
            run.step(functional.cross_entropy(model(batch.x)["scores"], batch.y))
        registry.Registry._publish = deadly
        found = run.publish(
            model,
            "sums",
            example=x[:3],
            arguments={"width": 4},
            metrics={"score": 0.5},
            alias="prod",
        )
        assert model.training
        plain = run.publish(model, "weights-only")
        if run.first:
            print("published", found, plain.version, flush=True)


    if __name__ == "__main__":
        train.launch(main, lanes=4)
"""


class Stage:
    """A folder with code, and a cluster's folder for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = code(folder / "project", {"net.py": NET, "train.py": TRAIN})
        self.marks = folder / "marks"
        self.marks.mkdir()
        self.home = folder / "home"

    def says(self, *words: str) -> commands.Result:
        env = environment(HOLDFAST_CLUSTER=str(self.home))
        return commands.run(*words, timeout=WAIT_S, cwd=self.folder, env=env)

    def does(self, *words: str) -> str:
        done = self.says(*words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def sees(self, *words: str) -> Any:
        return json.loads(self.does(*words, "--json"))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    server = processes.server_of(opened(made.home))
    if server is not None:
        server.send(signal.SIGKILL)


def cluster_of(stage: Stage) -> Cluster:
    return create(stage.home, coordination="embedded:coordination?linger_s=30&timeout_s=30")


def test_a_job_publishes_one_version_although_those_who_publish_are_killed(stage: Stage) -> None:
    run = ("run", "train.py", "--workers", "3", "--lanes", "4", "--dir", str(stage.home))
    said = stage.does(*run, "--", str(stage.marks))
    assert "published sums@1 " in said
    assert "AssertionError" not in said
    assert len(list(stage.marks.iterdir())) == 3
    # The run has ended: what it has left can be looked at, and nothing is changed there.
    down = stage.says("models")
    assert (down.returncode, "is down; as it was left at" in down.stderr) == (0, True)
    assert "sums" in down.stdout
    kept = stage.says("models", "alias", "sums", "other", "1")
    assert (kept.returncode, "is not up" in kept.stderr) == (75, True)

    cluster = opened(stage.home)
    with connect(cluster.coordination) as session:
        shown = stage.sees("models", "show", "sums@prod")
        assert (shown["number"], shown["job"], shown["step"]) == (1, "train", 4)
        assert shown["signature"]["inputs"] == [
            {"name": "points", "datatype": "FP32", "shape": [-1, 4], "text": None, "dims": []}
        ]
        assert shown["signature"]["outputs"] == [
            {"name": "scores", "datatype": "FP32", "shape": [-1, 2], "text": None, "dims": []}
        ]
        assert shown["metrics"]["score"] == 0.5
        assert "loss" in shown["metrics"]
        assert "points FP32 [-1, 4]" in stage.does("models", "show", "sums@prod")
        registry = Registry(session, cluster.blobs(), "a test")
        (version,) = registry.versions("sums")
        assert list(registry.models()) == ["sums"]
        folder = fetch(version, cluster.blobs(), stage.home / "cache")
        servable = load(version, folder)
        check_example(servable, version, folder)
        servable.close()


def test_a_persons_tour_through_models(stage: Stage) -> None:
    (stage.folder / "double.onnx").write_bytes(onnx_file(2.0))
    code(stage.folder / "src", {"maths.py": "def half(inputs):\n    return inputs['x'] / 2\n"})
    with connect(cluster_of(stage).coordination):
        assert "no models" in stage.says("models").stderr
        missing = stage.says(
            *("models", "publish", "half", "--kind", "function", "--code", "src"),
            *("--entry", "maths:quarter", "--example", '{"x": [[1.0]]}'),
        )
        assert missing.returncode == 1
        assert "module maths has no quarter" in missing.stderr
        assert "double@1 is published" in stage.does(
            "models", "publish", "double", "--onnx", "double.onnx", "--alias", "prod"
        )
        (stage.folder / "trap.pkl").write_bytes(b"")
        pickled = stage.says("models", "publish", "trap", "--model", "trap.pkl")
        assert (pickled.returncode, "--allow-pickle" in pickled.stderr) == (1, True)
        second = stage.sees(
            *("models", "publish", "double", "--kind", "function", "--code", "src"),
            *("--entry", "maths:half", "--example", '{"x": [[1.0, 2, 3, 4]]}'),
            *("--metric", "error=0.5", "--dynamic", "x:1=width"),
        )
        (takes,) = stage.sees("models", "show", "double@2")["signature"]["inputs"]
        assert (takes["shape"], takes["dims"]) == ([-1, -1], ["", "width"])
        assert second["version"] == 2
        difference = stage.sees("models", "diff", "double@1", "double@2")
        assert difference["facts"]["kind"] == ["onnx", "function"]
        assert difference["metrics"] == {"error": [None, 0.5]}
        assert difference["code"] == {"maths.py": "new"}
        refused = stage.says("models", "alias", "double", "prod", "2", "--expect", "2")
        assert (refused.returncode, "names version 1" in refused.stderr) == (1, True)
        stage.does("models", "alias", "double", "prod", "2", "--expect", "1", "--why", "smaller")
        held = stage.sees("models", "alias", "double", "prod")
        assert [(move["before"], move["after"]) for move in held["moves"]] == [(None, 1), (1, 2)]
        assert held["moves"][-1]["why"] == "smaller"
        assert stage.says("models", "retire", "double@2", "--why", "bad").returncode == 1
        stage.does("models", "retire", "double@1", "--why", "old")
        (row,) = stage.sees("models")["models"]
        assert (row["versions"], row["retired"], row["aliases"]) == (1, 1, {"prod": 2})
        stage.does("models", "export", "double", str(stage.home / "out"))
        assert "from maths import half" in (stage.home / "out" / "README.txt").read_text()
