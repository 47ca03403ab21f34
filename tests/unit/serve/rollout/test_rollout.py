"""`advance`: from one version to another, step by step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.serve.records import WEIGHT_TOTAL, Leaving, Load, RolloutPlan, RolloutStage, Variant
from holdfast.serve.rollout.advance import advance, validate
from holdfast.serve.rollout.facts import (
    ReplicaDeath,
    RolloutDecision,
    ServiceObservation,
    SetPlan,
    Window,
)
from holdfast.wire.errors import BugError
from holdfast.wire.limits import HELD_VERSIONS_MAX
from tests.unit.serve.rollout.facts import (
    NAME,
    NOW_S,
    counts,
    desired,
    fleet,
    gateway,
    loading,
    plan_of,
    replica,
    scaled,
    shifting,
    steady,
    three,
    weights,
    window,
)


def decide(
    observed: ServiceObservation, version: int | None = 2, now_s: float = NOW_S, **more: Any
) -> list[RolloutDecision]:
    return advance(desired(version, **more), observed, now_s)


# --- the beginning -------------------------------------------------------------------------------


def test_the_first_plan_lets_replicas_load_and_sends_nothing() -> None:
    decisions = decide(ServiceObservation(), 1)
    plan = plan_of(decisions)
    assert (plan.number, plan.stage, plan.hold, plan.variants) == (
        1,
        RolloutStage.STARTING,
        (1,),
        (),
    )
    assert decisions[0].reason == "replicas load version 1, the first one"


def test_the_first_ready_replica_begins_to_serve() -> None:
    before = RolloutPlan(1, RolloutStage.STARTING, hold=(1,), next=1, replicas=3)
    observed = ServiceObservation(before, fleet(replica(1, 1), replica(2, loading=[1])))
    plan = plan_of(decide(observed, 1))
    assert (plan.stage, plan.stable, weights(plan)) == (RolloutStage.STEADY, 1, {1: WEIGHT_TOTAL})


def test_a_target_without_a_version_is_told_and_nothing_else() -> None:
    first = advance(desired(None, "model digits has no alias prod"), ServiceObservation(), NOW_S)
    assert first[0].reason == "model digits has no alias prod"
    again = ServiceObservation(plan_of(first))
    assert advance(desired(None, "model digits has no alias prod"), again, NOW_S) == []


def test_a_first_version_that_nobody_can_load_has_failed_and_is_not_tried_again() -> None:
    before = RolloutPlan(1, RolloutStage.STARTING, hold=(1,), next=1, replicas=3)
    observed = ServiceObservation(before, three(failed=[1]))
    plan = plan_of(decide(observed, 1))
    assert plan.failed == {1: "it could not be loaded on 3 replicas: no head"}
    assert (plan.next, plan.hold, plan.variants) == (None, (), ())
    assert decide(replace(observed, plan=plan), 1) == []


# --- a rollout -----------------------------------------------------------------------------------


def test_a_new_target_is_loaded_beside_the_old_version_with_no_requests() -> None:
    plan = plan_of(decide(ServiceObservation(steady(1, previous=7), three(1, 7))))
    assert (plan.stage, plan.next, plan.hold) == (RolloutStage.LOADING, 2, (1, 2, 7))
    assert weights(plan) == {1: WEIGHT_TOTAL}


def test_nothing_is_sent_to_it_before_enough_replicas_are_ready() -> None:
    few = fleet(replica(1, 1, loading=[2]), replica(2, 1), replica(3, 1))
    assert decide(ServiceObservation(loading(), few)) == []
    one = fleet(replica(1, 1, 2), replica(2, 1), replica(3, 1))
    plan = plan_of(decide(ServiceObservation(loading(), one)))
    assert (plan.stage, weights(plan)) == (RolloutStage.SHIFTING, {1: 9_500, 2: 500})


def test_a_draining_replica_carries_nothing() -> None:
    leaving = fleet(replica(1, 1, 2, draining=True), replica(2, 1), replica(3, 1))
    assert decide(ServiceObservation(loading(), leaving)) == []


def test_the_next_step_waits_for_its_time_and_for_ready_replicas() -> None:
    plan = shifting(500)
    half = fleet(replica(1, 1, 2), replica(2, 1), replica(3, 1))
    good: dict[str, Any] = {"v1": counts(1_000), "v2": counts(60)}
    early = ServiceObservation(plan, three(1, 2), window=window(plan, seen_s=4.0, **good))
    assert decide(early) == []
    too_few = ServiceObservation(plan, half, window=window(plan, **good))
    assert decide(too_few) == []
    ready = ServiceObservation(plan, three(1, 2), window=window(plan, **good))
    assert weights(plan_of(decide(ready))) == {1: 5_000, 2: 5_000}


def test_what_an_earlier_controller_saw_does_not_count() -> None:
    plan = shifting(500, since_s=NOW_S - 100.0)
    assert decide(ServiceObservation(plan, three(1, 2))) == []
    other = window(shifting(5_000), v2=counts(100))
    assert decide(ServiceObservation(plan, three(1, 2), window=other)) == []


def test_after_the_last_step_it_serves_everything_and_the_old_one_stays_warm() -> None:
    plan = shifting(5_000, previous=7, hold=(1, 2, 7))
    observed = ServiceObservation(plan, three(1, 2, 7), window=window(plan, v2=counts(100)))
    decisions = decide(observed)
    after = plan_of(decisions)
    assert (after.stage, after.stable, after.previous, after.next) == (
        RolloutStage.STEADY,
        2,
        1,
        None,
    )
    assert after.hold == (2, 1, 7)
    assert after.leaving == {7: Leaving(11, NOW_S)}
    assert "version 1 stays warm" in decisions[0].reason


def test_a_rollout_without_requests_goes_on() -> None:
    plan = shifting(500)
    quiet = ServiceObservation(plan, three(1, 2), window=window(plan))
    assert weights(plan_of(decide(quiet))) == {1: 5_000, 2: 5_000}


def test_slow_answers_of_few_moments_are_watched_longer_and_then_judged() -> None:
    counted = {1: counts(1_000), 2: counts(100, slow=100)}
    looks = ({1: counts(500), 2: counts(50, slow=50)},) * 2
    for seen_s, moves in ((6.0, False), (29.0, False), (30.0, True)):
        plan = shifting(500, since_s=NOW_S - seen_s)
        seen = Window(plan.variants, NOW_S - seen_s, NOW_S, counted, looks)
        decisions = decide(ServiceObservation(plan, three(1, 2), window=seen))
        assert bool(decisions) is moves, seen_s
    assert 2 in plan_of(decisions).failed


def test_an_error_among_few_requests_is_watched_longer_and_then_judged() -> None:
    plan = shifting(500)
    few = {"v1": counts(500), "v2": counts(4, errors=3)}
    at_first = ServiceObservation(plan, three(1, 2), window=window(plan, seen_s=6.0, **few))
    assert decide(at_first) == []
    later = ServiceObservation(plan, three(1, 2), window=window(plan, seen_s=40.0, **few))
    assert "3 of 4 requests failed" in plan_of(decide(later)).failed[2]


def test_weight_is_taken_back_when_its_replicas_die() -> None:
    plan = shifting(5_000)
    one_left = fleet(replica(1, 1, 2), replica(4, 1, loading=[2]), replica(5, 1))
    assert weights(plan_of(decide(ServiceObservation(plan, one_left)))) == {1: 6_667, 2: 3_333}
    none_left = fleet(replica(4, 1, loading=[2]), replica(5, 1))
    after = plan_of(decide(ServiceObservation(plan, none_left)))
    assert (after.stage, weights(after), after.next) == (RolloutStage.LOADING, {1: WEIGHT_TOTAL}, 2)


def test_steps_of_any_order_and_size_are_put_right() -> None:
    policy = replace(desired().service.policy, steps=(20_000, 5_000, 0, 500, -1))
    plan = plan_of(decide(ServiceObservation(loading(), three(1, 2)), policy=policy))
    assert weights(plan) == {1: 9_500, 2: 500}
    none = replace(policy, steps=())
    assert plan_of(decide(ServiceObservation(loading(), three(1, 2)), policy=none)).stable == 2


# --- taken back ----------------------------------------------------------------------------------


def test_a_version_that_nobody_can_load_is_taken_back() -> None:
    after = plan_of(decide(ServiceObservation(loading(), three(1, failed=[2]))))
    assert after.failed == {2: "it could not be loaded on 3 replicas: no head"}
    assert (after.stage, after.next, weights(after)) == (
        RolloutStage.STEADY,
        None,
        {1: WEIGHT_TOTAL},
    )
    assert after.hold == (1,), "nobody can answer for it, and no gateway sends to it"
    assert decide(ServiceObservation(after, three(1, failed=[2])), 2) == []


def test_one_bad_machine_is_not_the_versions_fault() -> None:
    bad = replica(1, 1, failed=[2])
    assert decide(ServiceObservation(loading(), fleet(bad, replica(2, 1, loading=[2])))) == []
    good = fleet(bad, replica(2, 1, 2), replica(3, 1, 2))
    assert weights(plan_of(decide(ServiceObservation(loading(), good)))) == {1: 9_500, 2: 500}
    same_machine = fleet(bad, replica(2, 1, failed=[2], node="m1"), replica(3, 1, loading=[2]))
    assert decide(ServiceObservation(loading(), same_machine)) == []


def test_too_few_replicas_after_all_the_time_is_a_failure_with_its_reason() -> None:
    plan = shifting(5_000, since_s=NOW_S - 66.0)
    some = fleet(replica(1, 1, 2), replica(2, 1, 2), replica(3, 1, failed=[2]))
    seen = window(plan, v2=counts(100))
    after = plan_of(decide(ServiceObservation(plan, some, window=seen)))
    assert after.failed[2] == (
        "after 60 s only 2 of 3 replicas had loaded it; replica 3 says: no head."
        " To wait longer: holdfast serve digits --ready 2m"
    )
    young = {worker: replace(one, started_s=NOW_S - 30.0) for worker, one in some.items()}
    assert decide(ServiceObservation(plan, young, window=seen)) == []
    assert decide(ServiceObservation(loading(since_s=0.0), {})) == []


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (
            {"v1": counts(1_000), "v2": counts(100, errors=10)},
            "10 of 100 requests failed (10.0%, and 0.0% of the old version's; 1.0% more are"
            " allowed). To allow it: holdfast serve digits --errors-max 12%",
        ),
        (
            {"v1": counts(1_000), "v2": counts(1_000, slow=100)},
            "its p99 is 64 ms, and the old version's 4 ms (2 times that and 5 ms are allowed)."
            " To allow it: holdfast serve digits --slower-max 17",
        ),
    ],
)
def test_a_version_that_answers_worse_is_taken_back_at_once(
    seen: dict[str, object], reason: str
) -> None:
    plan = shifting(500, since_s=NOW_S - 1.0)
    worse = window(plan, seen_s=1.0, **seen)  # type: ignore[arg-type]
    decisions = decide(ServiceObservation(plan, three(1, 2), window=worse))
    assert plan_of(decisions).failed == {2: reason}
    assert decisions[0].reason.endswith("Version 1 serves everything")


def test_a_crash_of_a_replica_that_served_it_takes_it_back_but_a_kill_does_not() -> None:
    plan = shifting(500)
    story = "some output\n\nsegmentation fault\n"
    crash = ReplicaDeath(3, NOW_S - 1.0, True, story, {1: Load.READY, 2: Load.READY})
    seen = ServiceObservation(plan, fleet(replica(1, 1, 2), replica(2, 1, 2)), deaths=(crash,))
    assert plan_of(decide(seen)).failed == {
        2: "replica 3 crashed while it served it: segmentation fault"
    }
    for harmless in (
        replace(crash, own_fault=False),
        replace(crash, at_s=plan.since_s - 1.0),
        replace(crash, versions={1: Load.READY}),
    ):
        assert decide(replace(seen, deaths=(harmless,))) == []


def test_two_crashes_while_loading_are_no_accident() -> None:
    crash = ReplicaDeath(3, NOW_S - 1.0, True, "killed by its memory limit", {2: Load.LOADING})
    seen = ServiceObservation(loading(), three(1, loading=[2]))
    assert decide(replace(seen, deaths=(crash,))) == []
    twice = replace(seen, deaths=(crash, replace(crash, worker=4)))
    assert "replica 4 crashed while it loaded it" in plan_of(decide(twice)).failed[2]


def test_a_failure_of_an_earlier_try_is_not_held_against_the_next() -> None:
    before = steady(failed={2: "no head"}, version_revision=1, revision=1)
    old = three(1, failed=[2], plan=10)
    again = plan_of(decide(ServiceObservation(before, old), version_revision=2, revision=2))
    assert (again.stage, again.failed, again.version_revision) == (RolloutStage.LOADING, {}, 2)
    assert decide(ServiceObservation(again, old), version_revision=2, revision=2) == []
    followed = three(1, failed=[2], plan=11)
    assert (
        2
        in plan_of(
            decide(ServiceObservation(again, followed), version_revision=2, revision=2)
        ).failed
    )


def test_a_change_that_names_no_version_does_not_try_a_failed_one_again() -> None:
    before = steady(failed={2: "no head"}, version_revision=1, revision=1)
    after = plan_of(decide(ServiceObservation(before, three(1)), version_revision=1, revision=2))
    assert (after.stage, after.failed, after.revision) == (RolloutStage.STEADY, {2: "no head"}, 2)


def test_a_target_that_moved_away_and_back_is_tried_again() -> None:
    before = steady(failed={2: "no head"})
    away = plan_of(decide(ServiceObservation(before, three(1)), 1))
    assert away.failed == {}
    assert plan_of(decide(ServiceObservation(away, three(1)), 2)).next == 2


# --- users, at any moment ------------------------------------------------------------------------


def test_a_rollback_is_one_plan_when_the_version_is_warm() -> None:
    after = plan_of(decide(ServiceObservation(steady(2, previous=1), three(2, 1)), 2, pinned=1))
    assert (after.stage, after.stable, after.previous) == (RolloutStage.STEADY, 1, 2)
    assert (weights(after), after.hold) == ({1: WEIGHT_TOTAL}, (1, 2))


def test_a_pin_takes_at_once_what_its_replicas_can_carry() -> None:
    some = fleet(replica(1, 2, 1), replica(2, 2), replica(3, 2))
    after = plan_of(decide(ServiceObservation(steady(2, previous=1), some), 2, pinned=1))
    assert (after.stage, weights(after)) == (RolloutStage.SHIFTING, {2: 6_667, 1: 3_333})
    rest = plan_of(decide(ServiceObservation(after, three(1, 2)), 2, pinned=1))
    assert (rest.stable, weights(rest)) == (1, {1: WEIGHT_TOTAL})


def test_a_pin_of_a_version_that_is_not_loaded_loads_it_first() -> None:
    after = plan_of(decide(ServiceObservation(steady(2), three(2)), 2, pinned=9))
    assert (after.stage, after.next, weights(after)) == (RolloutStage.LOADING, 9, {2: WEIGHT_TOTAL})


def test_a_rollback_in_the_middle_of_a_rollout_ends_it() -> None:
    after = plan_of(decide(ServiceObservation(shifting(5_000), three(1, 2)), 2, pinned=1))
    assert (after.stage, after.next, weights(after)) == (
        RolloutStage.STEADY,
        None,
        {1: WEIGHT_TOTAL},
    )
    assert after.leaving == {2: Leaving(11, NOW_S)}
    assert after.failed == {}


def test_another_target_in_the_middle_of_a_rollout_begins_anew() -> None:
    after = plan_of(decide(ServiceObservation(shifting(5_000), three(1, 2)), 3))
    assert (after.stage, after.next, weights(after)) == (RolloutStage.LOADING, 3, {1: WEIGHT_TOTAL})
    assert after.hold == (1, 3, 2)


def test_a_version_that_is_retired_is_neither_begun_nor_gone_on_with() -> None:
    retired = {2: "it is retired: wrong data"}
    assert decide(ServiceObservation(steady(), three(1)), unusable=retired) == []
    after = plan_of(decide(ServiceObservation(shifting(500), three(1, 2)), unusable=retired))
    assert (after.stage, weights(after)) == (RolloutStage.STEADY, {1: WEIGHT_TOTAL})
    assert after.reason == (
        "version 2 cannot be served: it is retired: wrong data: version 1 serves everything"
    )


def test_a_retired_previous_version_is_not_kept_warm() -> None:
    observed = ServiceObservation(steady(2, previous=1), three(2, 1))
    after = plan_of(decide(observed, unusable={1: "it is retired: wrong"}))
    assert (after.previous, after.leaving) == (None, {1: Leaving(11, NOW_S)})


# --- what is held --------------------------------------------------------------------------------


def test_a_version_is_dropped_only_when_all_gateways_have_left_it_and_after_a_grace() -> None:
    leaving = {7: Leaving(8, NOW_S - 20.0)}
    plan = steady(2, previous=1, hold=(2, 1, 7), leaving=leaving)
    left = {"a": gateway("a", 10), "b": gateway("b", 8)}
    observed = ServiceObservation(plan, three(2, 1, 7), left)
    assert plan_of(decide(observed)).hold == (2, 1)
    late = replace(observed, gateways={**left, "b": gateway("b", 7)})
    assert decide(late) == []
    new = replace(observed, gateways={**left, "c": replace(gateway("c", 1), applied={})})
    assert decide(new) == []
    assert decide(observed, now_s=NOW_S - 10.0) == []


def test_a_version_that_no_replica_has_needs_no_grace() -> None:
    leaving = {7: Leaving(10, NOW_S)}
    plan = steady(2, previous=1, hold=(2, 1, 7), leaving=leaving)
    observed = ServiceObservation(plan, three(2, 1, failed=[7]), {"a": gateway("a", 10)})
    assert plan_of(decide(observed)).hold == (2, 1)


def test_a_further_rollout_waits_until_replicas_hold_fewer_versions() -> None:
    many = tuple(range(11, 11 + HELD_VERSIONS_MAX - 1))
    leaving = {version: Leaving(10, NOW_S) for version in many}
    plan = steady(1, hold=(1, *many), leaving=leaving)
    assert decide(ServiceObservation(plan, three(1, *many)), 2) == []
    assert plan_of(decide(ServiceObservation(plan, three(1, *many)), 2, pinned=2)).next == 2


# --- numbers, scaling, soundness -----------------------------------------------------------------


def test_a_decision_names_the_plan_that_it_takes_the_place_of() -> None:
    (decision,) = decide(ServiceObservation(steady(), three(1)))
    assert isinstance(decision.command, SetPlan)
    assert (decision.command.before, decision.command.plan.number) == (10, 11)


def test_the_job_is_told_when_it_has_another_number_than_the_plan() -> None:
    assert scaled(decide(ServiceObservation(steady(2), three(2), job_replicas=1))) == [3]
    assert decide(ServiceObservation(steady(2), three(2), job_replicas=3)) == []
    assert decide(ServiceObservation(steady(2), three(2), job_replicas=None)) == []


def test_nobody_takes_replicas_away_during_a_rollout() -> None:
    assert decide(ServiceObservation(loading(), three(1, loading=[2])), replicas_wanted=1) == []
    more = plan_of(decide(ServiceObservation(loading(), three(1, loading=[2])), replicas_wanted=5))
    assert more.replicas == 5
    at_rest = ServiceObservation(steady(2), three(2), {"a": gateway("a", 10)})
    (fewer,) = decide(at_rest, replicas_wanted=1, revision=1)
    assert fewer.reason == "1 replica instead of 3: its user asked for 1 replica"
    assert plan_of([fewer]).replicas == 1
    assert decide(replace(at_rest, gateways={"a": gateway("a", 9)}), replicas_wanted=1) == []


def test_replicas_that_were_to_go_before_a_rollout_began_go_when_it_is_over() -> None:
    """Their controller wrote the plan, and died before it told the job."""
    late, two = {"replicas": 2, "number": 11}, {"replicas_min": 2, "replicas_max": 2}
    for under_way in (loading(**late), shifting(500, **late)):
        for there, told in ((3, []), (1, [2])):
            facts = ServiceObservation(under_way, three(1, loading=[2]), job_replicas=there)
            assert scaled(decide(facts, **two)) == told
    over = ServiceObservation(steady(2, **late), three(2), job_replicas=3)
    assert scaled(decide(over, **two)) == [2]


@pytest.mark.parametrize(
    "wrong",
    [
        {"variants": (Variant("stable", 1, 9_000),)},
        {"variants": (Variant("stable", 1, 5_000), Variant("canary", 1, 5_000))},
        {"variants": (Variant("stable", 1, 5_000), Variant("canary", 3, 5_000))},
        {"variants": (Variant("stable", 1, 10_000), Variant("canary", 2, 0))},
        {"leaving": {1: Leaving(3, 0.0)}},
        {"stable": None},
    ],
)
def test_a_plan_that_is_not_sound_is_a_bug(wrong: dict[str, object]) -> None:
    validate(loading())
    with pytest.raises(BugError):
        validate(replace(loading(), **wrong))  # type: ignore[arg-type]


def test_the_same_facts_give_the_same_decisions() -> None:
    observed = ServiceObservation(shifting(500), three(1, 2), {"a": gateway(NAME, 3)})
    assert decide(observed) == decide(observed)
