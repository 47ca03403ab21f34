"""Preemption at 1:10: ten slots, an experiment on all of them, and production that needs five."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.control.store.plane import ControlPlane
from tests.proofs.control import checks
from tests.proofs.control.checks import Ground
from tests.proofs.control.cluster import ProofCluster
from tests.proofs.control.counting import Counting, finish, words_of
from tests.proofs.control.events import Event, Freed, Process, Status, View
from tests.proofs.control.watched_cluster import WatchedCluster, played
from tests.waiting import eventually

pytestmark = pytest.mark.engines

CAPACITIES = {"a": 5.0, "b": 5.0}
EXPERIMENT = Counting("experiment", 20, (2, 10), 2_000, 20, 3, every_steps=100)
PRODUCTION = Counting("production", 10, (5, 5), 150, 20, 4, priority=10, every_steps=50)
GROUND = Ground(
    {job.name: job.lanes for job in (EXPERIMENT, PRODUCTION)},
    {job.name: 1.0 for job in (EXPERIMENT, PRODUCTION)},
    CAPACITIES,
)
PATIENCE_S = 600.0


def views(events: Sequence[Event], job: str) -> list[View]:
    return [event for event in list(events) if isinstance(event, View) and event.job == job]


def members(watched: WatchedCluster, job: str) -> set[int]:
    """Who is in the job's newest view."""
    known = views(watched.watcher.events, job)
    return {int(worker) for worker in known[-1].lanes} if known else set()


def running(watched: WatchedCluster, job: str) -> dict[int, int]:
    """The process of each worker that is alive."""
    found = {}
    for traces in watched.cluster.traces.values():
        found.update({key[1]: one.pid for key, one in traces.workers().items() if key[0] == job})
    return found


def full(watched: WatchedCluster, job: str, size: int) -> dict[int, int]:
    """Its processes, once it runs on so many and nobody comes or goes; else none."""
    inside, alive = members(watched, job), running(watched, job)
    return alive if len(inside) == size and set(alive) == inside else {}


def why(watched: WatchedCluster, job: str) -> str:
    """`holdfast why JOB`, as a person calls it."""
    command = [sys.executable, "-m", "holdfast", "why", job]
    told = subprocess.run(
        [*command, "--cluster", str(watched.cluster.cluster)],
        env=watched.cluster.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    return told.stdout


def test_an_experiment_shrinks_for_production_without_a_restart_and_grows_back(
    tmp_path: Path,
) -> None:
    with played(ProofCluster(tmp_path, "embedded", "folder", 1, CAPACITIES)) as watched:
        control = ControlPlane(watched.session)
        control.submit(EXPERIMENT.spec())
        ten = eventually(lambda: full(watched, "experiment", 10), "it runs on ten", PATIENCE_S)
        control.submit(PRODUCTION.spec())
        eventually(lambda: full(watched, "production", 5), "production runs on five", PATIENCE_S)
        five = running(watched, "experiment")
        assert len(five) == 5
        for event in finish(watched, PRODUCTION, PATIENCE_S):
            watched.watcher.note(event)
        again = eventually(lambda: full(watched, "experiment", 10), "it grows back", PATIENCE_S)
        for event in finish(watched, EXPERIMENT, PATIENCE_S):
            watched.watcher.note(event)
        story = why(watched, "experiment")
        print(story)
    assert five.items() <= ten.items(), "the survivors are those who were there"
    assert five.items() <= again.items(), "and they are still the same processes"
    left = set(ten) - set(five)
    history = [*watched.watcher.events, *words_of(tmp_path)]
    told = [e for e in history if isinstance(e, Freed) and e.job == "experiment"]
    assert left <= {freed.worker for freed in told}
    assert not [freed for freed in told if freed.alive]
    assert no_step_lost(history)
    checks.check(history, GROUND)
    for word in ("production", "10", "5"):
        assert word in story


def no_step_lost(history: Sequence[Event]) -> bool:
    """The experiment never began from a checkpoint, and nobody of it was killed."""
    restored = [view for view in views(history, "experiment") if view.restore_step]
    failed = [e for e in history if isinstance(e, Status) and "killed" in e.reason]
    numbers = {e.worker for e in history if isinstance(e, Process) and e.job == "experiment"}
    return not restored and not failed and len(numbers) == 15
