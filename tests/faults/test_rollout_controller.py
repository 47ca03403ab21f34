"""Controllers that are killed, paused and cut off, at every stage of a rollout.

What the next one needs is in the plan. So whoever leads, and however often that changes, the
plans are one row without gaps, and the rollout ends as it should.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.serve.records import (
    WEIGHT_TOTAL,
    Load,
    Loaded,
    RolloutPlan,
    RolloutStage,
    history_path,
)
from holdfast.wire.history import entries_from
from tests.integration.rollout_fixture import NAME, QUICK, Scene, a_service
from tests.waiting import eventually

PATIENCE_S = 120.0


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """Version 1 is served by two replicas; two controllers, of which the first leads."""
    with Scene(tmp_path / "cluster", a_service()) as made:
        made.add_gateway("g1")
        for worker in (1, 2):
            made.add_replica(worker)
        made.conduct("controller-1")
        made.steady(1)
        made.conduct("controller-2")
        eventually(lambda: made.log("controller-2").exists(), "the standby has begun")
        yield made


def weights(plan: RolloutPlan) -> dict[int, int]:
    return {variant.version: variant.weight for variant in plan.variants}


def kill_leader(scene: Scene) -> None:
    """SIGKILL; the other one, which stands by, will lead."""
    leader = "controller-1" if "controller-1" in scene.controllers else "controller-2"
    scene.kill(leader)


def terms(scene: Scene) -> list[int]:
    """Of each entry of the history, oldest first."""
    path = history_path(NAME)
    pages = [f"{path}/{name}" for name in scene.facts.names(path, fresh=True)]
    found = scene.facts.read_all(pages)
    return [entry.term for page in pages for entry in entries_from(page, found[page].data)]


def check_row(scene: Scene) -> None:
    """No plan is missing or twice, and no older term wrote after a newer one."""
    plan = scene.plan()
    eventually(lambda: scene.plans[-1].number >= plan.number, "the script has seen it all")
    written = terms(scene)
    assert written == sorted(written)
    assert len(set(written)) > 1, "somebody else must have led"
    numbers = [each.number for each in scene.plans]
    assert numbers == sorted(set(numbers))
    for each in scene.plans:
        assert set(weights(each)) <= set(each.hold)


def wait_loading(scene: Scene) -> None:
    """Replicas load version 2, and take their time."""
    scene.script = lambda _worker, version: None if version == 2 else Loaded(Load.READY)
    scene.alias(2)
    scene.until(lambda plan: plan.stage is RolloutStage.LOADING, "version 2 is loaded")


def wait_canary(scene: Scene) -> None:
    """One of two replicas has version 2: it goes up to a half, and no further."""
    scene.script = lambda worker, version: (
        None if version == 2 and worker == 2 else Loaded(Load.READY)
    )
    scene.alias(2)
    scene.until(lambda plan: weights(plan).get(2) == 5_000, "half of the requests")


@pytest.mark.parametrize("until", [wait_loading, wait_canary], ids=["loading", "shifting"])
def test_a_rollout_goes_on_from_where_a_killed_controller_left_it(
    scene: Scene, until: Callable[[Scene], None]
) -> None:
    until(scene)
    kill_leader(scene)
    for worker in scene.replicas:
        if 2 in scene.replicas[worker].versions:
            scene.say(worker, 2, Loaded(Load.READY))
    scene.script = lambda _worker, _version: Loaded(Load.READY)
    scene.alias(2)
    done = scene.steady(2)
    assert (done.previous, weights(done)) == (1, {2: WEIGHT_TOTAL})
    check_row(scene)


def test_a_rollback_asked_while_nobody_leads_is_done_by_the_next(scene: Scene) -> None:
    scene.alias(2)
    scene.steady(2)
    kill_leader(scene)
    scene.ask(pinned=1)
    back = scene.steady(1)
    assert back.previous == 2
    check_row(scene)


def test_a_controller_ends_when_it_is_told_to_and_the_next_leads_at_once(scene: Scene) -> None:
    leader = scene.controllers["controller-1"]
    leader.terminate()
    assert leader.wait(PATIENCE_S) == 0
    scene.alias(2)
    scene.steady(2)
    check_row(scene)


@pytest.mark.timeout(600)
def test_a_controller_that_is_killed_after_every_plan_loses_none(tmp_path: Path) -> None:
    with Scene(tmp_path / "cluster", a_service(replace(QUICK, steps=(5_000,)))) as scene:
        scene.add_gateway("g1")
        for worker in (1, 2):
            scene.add_replica(worker)
        number, lives = 0, 0
        while True:
            lives += 1
            name = f"controller-{lives}"
            scene.conduct(name)
            plan = scene.until(lambda plan, than=number: plan.number > than, "a next plan")  # type: ignore[misc]
            number = plan.number
            if plan.stable == 1 and plan.stage is RolloutStage.STEADY:
                scene.alias(2)
            if plan.stable == 2:
                break
            scene.kill(name)
        print(f"{lives} controllers for {number} plans")
        assert lives > 1
        check_row(scene)


def test_a_leader_that_slept_past_its_session_writes_nothing_when_it_wakes(scene: Scene) -> None:
    sleeper = scene.controllers["controller-1"]
    os.kill(sleeper.pid, signal.SIGSTOP)
    try:
        scene.alias(2)
        scene.steady(2)
    finally:
        os.kill(sleeper.pid, signal.SIGCONT)
    scene.alias(3)
    scene.steady(3)
    eventually(
        lambda: "does not lead any more" in scene.log("controller-1").read_text(),
        "the sleeper knows that it is deposed",
    )
    assert sleeper.poll() is None
    check_row(scene)


def test_a_rollout_goes_on_after_the_plane_was_killed(scene: Scene) -> None:
    wait_canary(scene)
    pid = scene.server_pid()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: scene.server_pid() not in (0, pid), "a client starts it again")
    scene.say(2, 2, Loaded(Load.READY))
    scene.steady(2)
