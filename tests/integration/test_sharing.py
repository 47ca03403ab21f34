"""What jobs of a queue share, as scripts and people see it, over a cluster of real processes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent import privacy
from holdfast.control.decide.spec import JobSpec, Resources
from tests.integration.clusters import Home
from tests.integration.person import Person

SCRIPT = """
import pathlib, sys, time
import torch
from holdfast import train

def told(config):
    print("changed", config.value, flush=True)

def main(run):
    go = pathlib.Path(sys.argv[1])
    config = run.config("thresholds", [0], on_change=told)
    print("begins with", config.value, flush=True)
    with run.semaphore("bandwidth", 2), run.lock("licence") as held:
        print("holds", held.token, flush=True)
        while not go.exists():
            held.check()
            time.sleep(0.05)
    print("released", held.lost, flush=True)
    model = torch.nn.Linear(2, 1)
    run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    run.barrier("ready")
    data = [(torch.ones(2), torch.ones(1)) for _ in range(8)]
    for batch in run.batches(data, lane_batch=2):
        run.step((model(batch.x) - batch.y).square().mean())

train.launch(main)
"""


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    made = Home(tmp_path_factory.mktemp("sharing") / "cluster")
    try:
        made.up()
        yield made
    finally:
        made.end()


def submitted(person: Person, name: str, queue: str) -> None:
    command = f"python sharing.py {person.go(name)}"
    person.does("submit", person.file(name, command=command, queue=queue, lanes="2"))


def held(person: Person, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = person.sees("locks", *words)["locks"]
    return found


def test_scripts_share_a_lock_and_a_value_within_their_queue_and_people_see_who_holds_it(
    home: Home, tmp_path: Path
) -> None:
    with home.control() as control:
        person = Person(home, control, tmp_path)
        (person.folder / "code" / "sharing.py").write_text(SCRIPT)
        assert held(person) == []
        person.does("config", "set", "trials", "thresholds", "[0.1, 0.9]")
        submitted(person, "first", "trials")
        person.until_logged("first", "holds")
        person.until_logged("first", "begins with [0.1, 0.9]")
        submitted(person, "second", "trials")
        submitted(person, "elsewhere", "default")
        person.until_logged("elsewhere", "holds")
        person.until(
            lambda: any(one["waiters"] for one in held(person, "--queue", "trials")), "it waits"
        )
        (lock,) = [one for one in held(person, "--queue", "trials") if one["kind"] == "lock"]
        assert [one["worker"] for one in lock["holders"]] == ["first.1"]
        assert [one["worker"] for one in lock["waiters"]] == ["second.1"]
        said = person.does("locks")
        assert "first.1@" in said and "semaphore of 2" in said

        person.does("config", "set", "trials", "thresholds", "many")
        person.until_logged("first", "changed many")
        assert person.sees("config", "get", "trials", "thresholds")["value"] == "many"
        assert "many" in person.does("config", "list", "trials")
        assert "did you mean" in person.says("config", "get", "trials", "threshold").stderr

        # Whoever waits leaves when it is asked to, and the line is as before.
        person.does("stop", "second", "--wait")
        assert all(not one["waiters"] for one in held(person, "--queue", "trials"))
        person.go("first").touch()
        person.until_ended("first")
        assert held(person, "--queue", "trials") == []
        person.go("elsewhere").touch()
        person.until_ended("elsewhere")


@pytest.mark.skipif(not privacy.found().kind, reason="this system does not allow namespaces")
def test_a_worker_of_a_cluster_does_not_see_the_machines_own_tmp(home: Home) -> None:
    with tempfile.NamedTemporaryFile(prefix="holdfast-sentinel-", dir="/tmp") as sentinel:
        script = f"ls -a /tmp > {home.marks}/listing"
        with home.control() as control:
            control.submit(JobSpec("looks", ("sh", "-c", script), resources=Resources(cpu=1.0)))
        home.ended("looks")
        seen = (home.marks / "listing").read_text().split()
        assert seen and Path(sentinel.name).name not in seen
