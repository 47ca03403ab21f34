"""Two leaders at once: the old one slept past its session, and wakes with a commit in its hand."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from holdfast.control.store.plane import ControlPlane
from tests.proofs.control import checks
from tests.proofs.control.checks import Ground
from tests.proofs.control.cluster import ProofCluster
from tests.proofs.control.counting import Counting, finish, words_of
from tests.proofs.control.events import Commit, Decision, Process
from tests.proofs.control.processes import Kept
from tests.proofs.control.watched_cluster import WatchedCluster, played
from tests.waiting import eventually

JOB = Counting("train", lanes=4, workers=(2, 2), steps=1_500, step_ms=20, seed=11)
CAPACITIES = {"a": 1.0, "b": 1.0}
PATIENCE_S = 300.0


def said(kept: Kept, event: str) -> list[dict[str, Any]]:
    """Lines of its log that tell of this."""
    lines = [line for line in kept.log.read_text().splitlines() if line.startswith("{")]
    return [found for line in lines if (found := json.loads(line)).get("event") == event]


def asleep(kept: Kept) -> bool:
    if kept.process is None or kept.process.poll() is not None:
        return False
    stat = Path(f"/proc/{kept.process.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"


def first_sleeps(stage: ProofCluster, scene: WatchedCluster) -> dict[str, Any]:
    """The first coordinator leads alone, and falls asleep; what it says of that."""
    sleepy = stage.coordinators[0]
    eventually(lambda: scene.watcher.leader == sleepy.name, "the sleepy one leads", PATIENCE_S)
    ControlPlane(scene.session).submit(JOB.spec())
    eventually(lambda: asleep(sleepy), "it falls asleep before a commit", PATIENCE_S)
    (word,) = said(sleepy, "falls asleep with a commit in its hand")
    return word


def test_a_woken_leaders_orders_and_commit_are_refused_and_leave_no_trace(tmp_path: Path) -> None:
    stage = ProofCluster(tmp_path, "embedded", "folder", 2, CAPACITIES)
    sleepy, standby = stage.coordinators
    sleepy.command = [sys.executable, "-m", "tests.faults.sleepy_coordinator", *sleepy.command[3:]]
    standby.back_s = time.monotonic() + 10 * PATIENCE_S
    with played(stage) as scene:
        watcher = scene.watcher
        word = first_sleeps(stage, scene)
        old = int(word["term"])
        standby.back_s = 0.0
        eventually(lambda: watcher.leader == standby.name, "the standby leads", PATIENCE_S)
        eventually(lambda: later_commits(scene, old), "it commits in its own term", PATIENCE_S)
        workers = {worker.pid for worker in stage.workers()}
        found = sleepy.found
        assert found is not None
        assert found.resume()
        eventually(lambda: said(sleepy, "has insisted"), "it insists", PATIENCE_S)
        eventually(lambda: said(sleepy, "does not lead any more"), "it is fenced", PATIENCE_S)
        assert workers == {worker.pid for worker in stage.workers()}
        for event in finish(scene, JOB, PATIENCE_S):
            watcher.note(event)
    (insisted,) = said(sleepy, "has insisted")
    (fenced,) = said(sleepy, "does not lead any more")
    assert insisted["refused"] == len(workers) == 2
    assert fenced["term"] == old
    history = [*watcher.events, *words_of(tmp_path)]
    in_hand = [e for e in history if isinstance(e, Commit) and e.step == word["step"]]
    assert all(commit.term > old for commit in in_hand)
    told = [event for event in history if isinstance(event, Decision)]
    newer = min(event.at_s for event in told if event.term > old)
    assert not [event for event in told if event.term <= old and event.at_s > newer]
    ran = {(event.worker, event.pid) for event in history if isinstance(event, Process)}
    assert {worker for worker, _ in ran} == {1, 2}, "nobody was restarted"
    checks.check(history, Ground({JOB.name: JOB.lanes}, {JOB.name: 1.0}, CAPACITIES))


def later_commits(scene: WatchedCluster, term: int) -> list[Commit]:
    events = list(scene.watcher.events)
    return [event for event in events if isinstance(event, Commit) and event.term > term]
