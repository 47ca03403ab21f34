"""A/B tests: what users gave, as far as replicas can carry it."""

from __future__ import annotations

from dataclasses import replace

from holdfast.serve.records import WEIGHT_TOTAL, Load, RolloutStage
from holdfast.serve.rollout.advance import advance
from holdfast.serve.rollout.facts import ReplicaDeath, ServiceObservation
from tests.unit.serve.rollout.facts import (
    NOW_S,
    desired,
    fleet,
    plan_of,
    replica,
    settled,
    steady,
    three,
    weights,
)

SPLIT = {1: 7_000, 2: 3_000}


def test_versions_of_a_split_are_loaded_first_and_the_stable_one_serves() -> None:
    after = plan_of(advance(desired(1, split=SPLIT), ServiceObservation(steady(), three(1)), NOW_S))
    assert (after.stage, after.hold, weights(after)) == (
        RolloutStage.SPLIT,
        (1, 2),
        {1: WEIGHT_TOTAL},
    )


def test_each_version_has_its_share_when_it_is_ready_the_stable_variant_first() -> None:
    after = plan_of(
        advance(desired(1, split=SPLIT), ServiceObservation(steady(), three(1, 2)), NOW_S)
    )
    assert [(variant.version, variant.weight) for variant in after.variants] == [
        (1, 7_000),
        (2, 3_000),
    ]
    again = ServiceObservation(after, three(1, 2))
    assert advance(desired(1, split=SPLIT), again, NOW_S + 100.0) == []


def test_shares_that_do_not_add_up_are_parts_of_their_sum() -> None:
    split = {1: 1, 2: 1, 3: 1}
    after = plan_of(
        advance(desired(1, split=split), ServiceObservation(steady(), three(1, 2, 3)), NOW_S)
    )
    assert weights(after) == {1: 3_334, 2: 3_333, 3: 3_333}


def test_a_share_is_never_more_than_its_replicas_can_carry() -> None:
    some = fleet(replica(1, 1, 2), replica(2, 1), replica(3, 1), replica(4, 1))
    wanted = desired(1, split={1: 5_000, 2: 5_000})
    after = plan_of(advance(wanted, ServiceObservation(steady(), some), NOW_S))
    assert weights(after) == {1: 7_500, 2: 2_500}


def test_a_split_without_the_stable_version_takes_over_when_it_is_ready() -> None:
    wanted = desired(1, split={2: 6_000, 3: 4_000})
    first = settled(wanted, ServiceObservation(steady(), three(1, loading=[2, 3])))
    assert first.plan is not None
    assert (weights(first.plan), first.plan.stable) == ({1: WEIGHT_TOTAL}, 1)
    then = settled(wanted, replace(first, replicas=three(1, 2, 3)))
    assert then.plan is not None
    assert weights(then.plan) == {2: 6_000, 3: 4_000}
    assert (then.plan.stable, then.plan.previous) == (2, 1)


def test_without_a_stable_version_the_rest_goes_to_the_one_that_most_replicas_have() -> None:
    some = fleet(replica(1, 2, 3), replica(2, 3), replica(3, 3), replica(4, 3))
    wanted = desired(1, split={2: 7_500, 3: 2_500})
    for plan in (None, steady(1)):
        after = plan_of(advance(wanted, ServiceObservation(plan, some), NOW_S))
        assert (weights(after), after.stable) == ({3: 7_500, 2: 2_500}, 3)
        then = settled(wanted, ServiceObservation(after, three(2, 3))).plan
        assert then is not None
        assert weights(then) == {2: 7_500, 3: 2_500}


def test_a_version_that_cannot_be_loaded_gets_nothing() -> None:
    wanted = desired(1, split=SPLIT)
    begun = settled(wanted, ServiceObservation(steady(), three(1)))
    failed = settled(wanted, replace(begun, replicas=three(1, failed=[2])))
    assert failed.plan is not None
    assert weights(failed.plan) == {1: WEIGHT_TOTAL}
    assert "no head" in failed.plan.failed[2]


def test_a_version_that_ends_replicas_while_it_loads_gets_nothing() -> None:
    wanted = desired(1, split=SPLIT)
    begun = settled(wanted, ServiceObservation(steady(), three(1)))
    crash = ReplicaDeath(8, NOW_S + 1.0, True, "segmentation fault", {2: Load.LOADING})
    seen = replace(begun, deaths=(crash, replace(crash, worker=9)))
    after = settled(wanted, seen, NOW_S + 2.0).plan
    assert after is not None
    assert "segmentation fault" in after.failed[2]


def test_a_retired_version_of_a_split_gives_its_share_to_the_others() -> None:
    wanted = desired(1, split=SPLIT)
    on = settled(wanted, ServiceObservation(steady(), three(1, 2)))
    after = settled(replace(wanted, unusable={2: "it is retired: wrong"}), on).plan
    assert after is not None
    assert weights(after) == {1: WEIGHT_TOTAL}


def test_the_end_of_a_split_goes_to_the_stable_version_and_then_to_the_target() -> None:
    on = settled(desired(1, split=SPLIT), ServiceObservation(steady(), three(1, 2)))
    ended = settled(desired(1), on).plan
    assert ended is not None
    assert (ended.stage, weights(ended)) == (RolloutStage.STEADY, {1: WEIGHT_TOTAL})
    onward = plan_of(advance(desired(2), on, NOW_S))
    assert (onward.stage, onward.next, weights(onward)) == (
        RolloutStage.LOADING,
        2,
        {1: WEIGHT_TOTAL},
    )
