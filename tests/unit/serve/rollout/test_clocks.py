"""Clocks of controllers, agents and replicas that differ by an hour, or are set."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.control.decide.facts import Failure
from holdfast.serve.controller.memory import ServiceHistory
from holdfast.serve.records import Leaving, ReplicaStats, RolloutPlan
from holdfast.serve.rollout.advance import advance
from holdfast.serve.rollout.facts import RolloutDecision, ServiceObservation
from tests.unit.serve.rollout.facts import (
    NAME,
    NOW_S,
    POLICY,
    counts,
    desired,
    fleet,
    loading,
    plan_of,
    replica,
    shifting,
    steady,
    three,
    weights,
)

HOUR_S = 3_600.0
OFF_S = pytest.mark.parametrize("off_s", [-HOUR_S, HOUR_S], ids=["behind", "ahead"])


def answers(requests: int) -> dict[int, ReplicaStats]:
    each = {1: counts(requests), 2: counts(requests)}
    return {worker: ReplicaStats(worker, 0, 0, 0, each) for worker in (1, 2, 3)}


class RolloutController:
    """Decides by what it remembers, and by its clock."""

    def __init__(self) -> None:
        self.memory = ServiceHistory()
        self.told: list[Failure] = []

    def decides(self, seen: ServiceObservation, now_s: float) -> list[RolloutDecision]:
        return advance(desired(2), self.memory.look(NAME, seen, self.told, now_s), now_s)

    def hears(self, plan: RolloutPlan, requests: int, now_s: float) -> None:
        self.memory.see_stats(answers(requests), [1, 2, 3], plan.variants, now_s)


@OFF_S
def test_a_step_is_held_for_its_time_whatever_the_clock_of_who_began_it(off_s: float) -> None:
    seen = ServiceObservation(shifting(500, since_s=NOW_S + off_s), three(1, 2))
    assert seen.plan is not None
    controller = RolloutController()
    assert controller.decides(seen, NOW_S) == []
    for passed_s in range(1, 6):
        controller.hears(seen.plan, 100 * passed_s, NOW_S + passed_s)
        assert controller.decides(seen, NOW_S + passed_s) == []
    controller.hears(seen.plan, 600, NOW_S + 6.0)
    assert weights(plan_of(controller.decides(seen, NOW_S + 6.0))) == {1: 5_000, 2: 5_000}


def test_a_step_is_held_for_its_time_though_the_clock_is_set_back() -> None:
    seen = ServiceObservation(shifting(500), three(1, 2))
    assert seen.plan is not None
    controller = RolloutController()
    controller.decides(seen, NOW_S)
    controller.hears(seen.plan, 100, NOW_S + 1.0)
    controller.decides(seen, NOW_S + 3.0)
    controller.decides(seen, NOW_S + 3.0 - HOUR_S)
    controller.hears(seen.plan, 200, NOW_S + 5.5 - HOUR_S)
    assert controller.decides(seen, NOW_S + 5.5 - HOUR_S) == []
    controller.hears(seen.plan, 300, NOW_S + 6.0 - HOUR_S)
    assert weights(plan_of(controller.decides(seen, NOW_S + 6.0 - HOUR_S))) == {1: 5_000, 2: 5_000}


@OFF_S
def test_a_crash_counts_whatever_the_clocks_of_who_began_the_step_and_who_tells(
    off_s: float,
) -> None:
    seen = ServiceObservation(shifting(500, since_s=NOW_S + off_s), three(1, 2))
    controller = RolloutController()
    controller.decides(seen, NOW_S)
    controller.told = [Failure(3, "segmentation fault", NOW_S - off_s)]
    left = replace(seen, replicas=fleet(replica(1, 1, 2), replica(2, 1, 2)))
    assert "segmentation fault" in plan_of(controller.decides(left, NOW_S + 1.0)).failed[2]


def test_a_crash_of_the_step_before_does_not_count_though_the_clock_is_set_back() -> None:
    seen = ServiceObservation(shifting(500), three(1, 2))
    controller = RolloutController()
    controller.decides(seen, NOW_S)
    left = fleet(replica(1, 1, 2), replica(2, 1, 2))
    controller.decides(replace(seen, replicas=left), NOW_S + 1.0)
    next_step = ServiceObservation(shifting(5_000, since_s=NOW_S + 2.0), left)
    controller.decides(next_step, NOW_S + 2.0)
    controller.told = [Failure(3, "segmentation fault", NOW_S)]
    assert controller.decides(next_step, NOW_S + 3.0 - HOUR_S) == []


@OFF_S
def test_replicas_have_their_time_to_load_whatever_the_clock_of_who_began(off_s: float) -> None:
    seen = ServiceObservation(loading(since_s=NOW_S + off_s), three(1, loading=[2], started_s=0.0))
    controller = RolloutController()
    assert controller.decides(seen, NOW_S) == []
    assert controller.decides(seen, NOW_S + POLICY.ready_s - 1.0) == []
    after = plan_of(controller.decides(seen, NOW_S + POLICY.ready_s))
    assert after.failed[2].startswith("after 60 s only 0 of 3 replicas had loaded it")


def test_replicas_whose_clocks_are_ahead_do_not_have_an_hour_to_load() -> None:
    seen = ServiceObservation(loading(), three(1, loading=[2], started_s=NOW_S + HOUR_S))
    controller = RolloutController()
    assert controller.decides(seen, NOW_S) == []
    assert 2 in plan_of(controller.decides(seen, NOW_S + POLICY.ready_s)).failed


def test_a_version_that_left_in_the_future_does_not_stay_for_an_hour() -> None:
    plan = steady(2, hold=(2, 7), leaving={7: Leaving(8, NOW_S + HOUR_S)})
    assert plan_of(
        RolloutController().decides(ServiceObservation(plan, three(2, 7)), NOW_S)
    ).hold == (2,)
    soon = steady(2, hold=(2, 7), leaving={7: Leaving(8, NOW_S + 1.0)})
    assert RolloutController().decides(ServiceObservation(soon, three(2, 7)), NOW_S) == []
