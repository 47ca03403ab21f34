"""A real controller: rollouts, rollbacks, splits and retirement, over a real plane."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.serve.records import (
    WEIGHT_TOTAL,
    Load,
    Loaded,
    RolloutPlan,
    RolloutPolicy,
    RolloutStage,
)
from tests.integration.rollout_fixture import QUICK, SLOT, Scene, Traffic, a_service
from tests.waiting import eventually


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """Version 1 is served by two replicas behind two gateways; 2 and 3 are published."""
    with Scene(tmp_path / "cluster", a_service()) as made:
        made.add_gateway("g1")
        made.add_gateway("g2")
        made.add_replica(1)
        made.add_replica(2)
        made.conduct()
        made.steady(1)
        yield made


def weights(plan: RolloutPlan) -> dict[int, int]:
    return {variant.version: variant.weight for variant in plan.variants}


def test_a_moved_alias_is_rolled_out_in_steps_and_the_old_version_stays_warm(scene: Scene) -> None:
    scene.alias(2)
    done = scene.steady(2)
    assert (done.previous, done.hold, done.next) == (1, (2, 1), None)
    eventually(lambda: scene.plans[-1].number >= done.number, "the script has seen it")
    seen = [weights(plan).get(2, 0) for plan in scene.plans]
    assert [weight for at, weight in enumerate(seen) if weight not in seen[:at]] == [
        0,
        500,
        5_000,
        WEIGHT_TOTAL,
    ]
    told = "\n".join(scene.reasons())
    assert "prod names version 2: replicas load it beside version 1" in told
    assert "version 2 did well at 50 %: it serves everything, and version 1 stays warm" in told


def test_a_service_of_an_earlier_version_gets_the_secret_that_replicas_ask_for(
    scene: Scene,
) -> None:
    eventually(lambda: scene.service().secret, "it has a secret")
    known = scene.service().secret
    scene.alias(2)
    scene.steady(2)
    assert scene.service().secret == known, "and keeps it"
    scene.put_service(replace(scene.service(), secret=""))
    eventually(lambda: scene.service().secret not in ("", known), "it has another one")


def test_a_rollback_is_one_plan_and_soon(scene: Scene) -> None:
    scene.alias(2)
    before = scene.steady(2)
    asked_s = time.monotonic()
    scene.ask(pinned=1)
    back = scene.steady(1)
    took_ms = 1000 * (time.monotonic() - asked_s)
    print(f"from the user's write to the plan: {took_ms:.1f} ms")
    assert back.number == before.number + 1
    assert (back.previous, back.hold) == (2, (1, 2))
    assert weights(back) == {1: WEIGHT_TOTAL}


def test_a_version_that_fails_to_load_is_taken_back_and_the_old_one_stays(scene: Scene) -> None:
    scene.script = lambda _worker, version: Loaded(
        Load.FAILED if version == 2 else Load.READY, "no such layer: head"
    )
    scene.alias(2)
    plan = scene.until(lambda plan: 2 in plan.failed, "version 2 has failed")
    assert plan.stage is RolloutStage.STEADY
    assert weights(plan) == {1: WEIGHT_TOTAL}
    assert "no such layer: head" in plan.failed[2]
    assert all(2 not in weights(seen) for seen in scene.plans)
    scene.script = lambda _worker, _version: Loaded(Load.READY)
    scene.ask()
    scene.steady(2)


def test_a_version_that_errs_is_taken_back_by_itself(scene: Scene) -> None:
    scene.traffic[2] = Traffic(50, errors=10)
    scene.alias(2)
    plan = scene.until(lambda plan: 2 in plan.failed, "version 2 has failed")
    assert weights(plan) == {1: WEIGHT_TOTAL}
    assert "requests failed (20.0%" in plan.failed[2]
    assert max(weights(seen).get(2, 0) for seen in scene.plans) == 500
    assert "Version 1 serves everything" in scene.reasons()[-1]


def test_a_version_that_is_slow_is_taken_back_by_itself(scene: Scene) -> None:
    scene.traffic[2] = Traffic(bucket=SLOT + 6)
    scene.alias(2)
    plan = scene.until(lambda plan: 2 in plan.failed, "version 2 has failed")
    assert "the old version's" in plan.failed[2]
    assert weights(plan) == {1: WEIGHT_TOTAL}


def test_no_version_gets_weight_before_its_replicas_are_ready(scene: Scene) -> None:
    scene.script = lambda worker, version: (
        None if version == 2 and worker == 2 else Loaded(Load.READY)
    )
    scene.alias(2)
    plan = scene.until(lambda plan: weights(plan).get(2) == 5_000, "half of it is ready")
    assert plan.stage is RolloutStage.SHIFTING
    time.sleep(3 * QUICK.hold_s)  # pause: it would have gone on by then
    assert scene.plan() == plan, "one of two replicas must not get everything"
    scene.say(2, 2, Loaded(Load.READY))
    scene.steady(2)


def test_a_version_is_held_until_every_gateway_has_left_it(tmp_path: Path) -> None:
    service = a_service(replace(QUICK, steps=()))
    service = replace(service, limits=replace(service.limits, timeout_s=0.1))
    with Scene(tmp_path / "cluster", service) as scene:
        for worker in (1, 2):
            scene.add_replica(worker)
        scene.add_gateway("g1")
        scene.add_gateway("late")
        scene.conduct()
        scene.steady(1)
        scene.alias(2)
        scene.steady(2)
        eventually(lambda: scene.plans[-1].stable == 2, "the script has seen it")
        scene.lagging.add("late")
        scene.alias(3)
        leaving = scene.steady(3)
        assert leaving.hold == (3, 2, 1)
        assert set(leaving.leaving) == {1}
        time.sleep(6.0)  # pause: longer than the grace
        assert scene.plan() == leaving
        scene.release("late")
        scene.until(lambda plan: plan.hold == (3, 2), "version 1 is not held any more")


def test_a_split_is_held_and_ended_as_users_ask(scene: Scene) -> None:
    scene.ask(split={1: 7_000, 3: 3_000})
    plan = scene.until(lambda plan: weights(plan) == {1: 7_000, 3: 3_000}, "the split is on")
    assert plan.stage is RolloutStage.SPLIT
    assert plan.variants[0].version == 1
    scene.ask(split={})
    ended = scene.steady(1)
    assert weights(ended) == {1: WEIGHT_TOTAL}


def test_a_version_that_is_retired_in_its_rollout_is_taken_back(scene: Scene) -> None:
    scene.put_service(replace(scene.service(), policy=replace(QUICK, hold_s=600.0)))
    scene.alias(2)
    scene.until(lambda plan: weights(plan).get(2) == 500, "the canary is out")
    scene.publish(2, retired="it was trained on the wrong data")
    plan = scene.steady(1)
    assert "retired: it was trained on the wrong data" in plan.reason


def test_replicas_come_when_many_requests_wait(tmp_path: Path) -> None:
    service = a_service(replicas_min=1, replicas_max=4)
    with Scene(tmp_path / "cluster", service) as scene:
        scene.add_replica(1).waiting = 30
        scene.conduct()
        scene.steady(1)
        scene.until(lambda plan: plan.replicas == 4, "four replicas are wanted")
        assert any("30 requests at a time" in reason for reason in scene.reasons())
        scene.ask(replicas_wanted=2)
        scene.until(lambda plan: plan.replicas == 2, "the user's word counts")


@pytest.mark.parametrize("policy", [RolloutPolicy(steps=(), hold_s=0.1, requests_min=20)])
def test_a_service_without_a_version_waits_and_says_why(
    tmp_path: Path, policy: RolloutPolicy
) -> None:
    service = replace(a_service(policy), target="beta")
    with Scene(tmp_path / "cluster", service) as scene:
        scene.add_replica(1)
        scene.conduct()
        plan = scene.until(lambda plan: True, "a first plan")
        assert plan.stage is RolloutStage.STARTING
        assert plan.reason == "model digits has no alias beta"
        scene.alias(2, "beta")
        scene.steady(2)
