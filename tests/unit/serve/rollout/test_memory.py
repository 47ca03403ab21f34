"""What a controller remembers: counts of the same variants, deaths, load."""

from __future__ import annotations

from holdfast.control.decide.facts import Failure
from holdfast.serve.controller.memory import LOOKS_KEPT, SAMPLES_KEPT, ServiceHistory
from holdfast.serve.records import Counts, Load, ReplicaStats
from holdfast.serve.rollout.advance import advance
from holdfast.serve.rollout.facts import ServiceObservation
from holdfast.serve.rollout.verdict import total
from tests.unit.serve.rollout.facts import (
    NAME,
    NOW_S,
    desired,
    fleet,
    plan_of,
    replica,
    shifting,
)

PLAN = shifting(500)


def stats(worker: int, *requests: int, **more: int) -> ReplicaStats:
    """So many requests of version 1, of version 2, ..."""
    versions = {at: Counts(count, 0, (count,)) for at, count in enumerate(requests, 1)}
    return ReplicaStats(worker, more.get("waiting", 0), 0, more.get("refused", 0), versions)


def looking() -> ServiceHistory:
    memory = ServiceHistory()
    memory.see_plan(PLAN, applied=True)
    return memory


def test_counting_begins_with_the_first_answer() -> None:
    memory = looking()
    memory.see_stats({1: stats(1, 1_000, 5)}, [1], PLAN.variants, 10.0)
    assert memory.window is not None
    assert memory.window.counts == {}
    memory.see_stats({1: stats(1, 1_100, 9)}, [1], PLAN.variants, 11.0)
    assert memory.window.since_s == 10.0
    window = memory.window
    assert (window.until_s, window.counts[1].requests, window.counts[2].requests) == (11.0, 100, 4)


def test_the_looks_of_a_window_are_kept_apart_and_are_bounded() -> None:
    memory = looking()
    for at in range(1_001):
        memory.see_stats({1: stats(1, 3 * at, at)}, [1], PLAN.variants, float(at))
        window = memory.window
        assert window is not None
        assert len(window.looks) <= LOOKS_KEPT
        for version, counts in window.counts.items():
            assert total(window.looks_at(version)) == counts
        if 1 <= at <= LOOKS_KEPT:
            assert [each.requests for each in window.looks_at(2)] == [1] * at
    assert window is not None and len(window.looks) >= LOOKS_KEPT // 2


def test_a_replica_that_died_leaves_what_it_had_told() -> None:
    memory = looking()
    memory.see_replicas(fleet(replica(1, 1, 2), replica(2, 1, 2)), 9.0)
    for requests in (0, 50):
        answers = {worker: stats(worker, requests) for worker in (1, 2)}
        memory.see_stats(answers, [1, 2], PLAN.variants, 10.0)
    memory.see_replicas(fleet(replica(2, 1, 2)), 11.0)
    memory.see_stats({2: stats(2, 60)}, [2], PLAN.variants, 12.0)
    assert memory.window is not None
    assert memory.window.counts[1].requests == 110


def test_other_variants_or_a_gateway_that_lags_begin_anew() -> None:
    memory = looking()
    memory.see_stats({1: stats(1, 10)}, [1], PLAN.variants, 10.0)
    assert memory.window is not None
    memory.see_plan(shifting(5_000), applied=True)
    assert memory.window is None
    memory.see_stats({1: stats(1, 20)}, [1], PLAN.variants, 11.0)
    assert memory.window is None, "asked while the variants were others"
    memory.see_plan(PLAN, applied=False)
    memory.see_stats({1: stats(1, 20)}, [1], PLAN.variants, 12.0)
    assert memory.window is None, "a gateway may still send by other variants"


def test_silent_replicas_do_not_let_time_pass() -> None:
    memory = looking()
    answers = {worker: stats(worker, 1) for worker in (1, 2)}
    memory.see_stats(answers, [1, 2, 3], PLAN.variants, 10.0)
    memory.see_stats({}, [1, 2, 3], PLAN.variants, 20.0)
    memory.see_stats({1: stats(1, 2)}, [1, 2, 3], PLAN.variants, 30.0)
    assert memory.window is not None
    assert memory.window.until_s == 10.0
    assert memory.window.counts[1].requests == 1


def test_one_that_goes_without_a_word_has_died_and_one_that_drained_has_not() -> None:
    memory = ServiceHistory()
    there = fleet(replica(1, 1, loading=[2]), replica(2, 1, draining=True), replica(3, 1))
    memory.see_replicas(there, 10.0)
    memory.see_replicas(fleet(replica(3, 1)), 11.0)
    (death,) = memory.deaths
    assert (death.worker, death.at_s, death.own_fault) == (1, 11.0, False)
    assert death.versions == {1: Load.READY, 2: Load.LOADING}


def test_a_crash_is_known_with_what_the_replica_held_whichever_is_seen_first() -> None:
    crash = Failure(1, "segmentation fault", 10.5)
    for node_first in (True, False):
        memory = ServiceHistory()
        memory.see_replicas(fleet(replica(1, 1, 2)), 10.0)
        if node_first:
            memory.see_replicas({}, 11.0)
        memory.see_failures([crash], 11.0)
        memory.see_replicas({}, 12.0)
        memory.see_failures([crash], 12.0)
        (death,) = memory.deaths
        assert (death.own_fault, death.reason) == (True, "segmentation fault")
        assert death.versions == {1: Load.READY, 2: Load.READY}


def test_a_crash_is_dated_by_the_controllers_own_clock_however_wrong_the_others_are() -> None:
    memory = ServiceHistory()
    memory.see_replicas(fleet(replica(1, 1), replica(2, 1), replica(3, 1)), 1_000.0)
    memory.see_failures([Failure(9, "long ago", 400.0)], 1_000.0)
    long_ago = Failure(9, "long ago", 400.0)
    memory.see_failures([long_ago, Failure(1, "segmentation fault", 12.0)], 1_001.0)
    memory.see_replicas(fleet(replica(3, 1)), 1_002.0)
    failures = [long_ago, Failure(1, "", 12.0), Failure(2, "segmentation fault", 99_999.0)]
    memory.see_failures(failures, 1_003.0)
    assert {death.worker: death.at_s for death in memory.deaths} == {
        9: 1_000.0,  # when it was heard of first
        1: 1_001.0,
        2: 1_002.0,  # when its node was gone
    }


def test_a_new_controller_counts_a_crash_that_another_clock_dates_before_the_rollout() -> None:
    plan = shifting(500)
    there = fleet(replica(1, 1, 2), replica(2, 1, 2), replica(3, 1))
    seen = ServiceObservation(plan, there)
    told = [Failure(1, "segmentation fault", plan.since_s - 3_600.0)]
    observed = ServiceHistory().look(NAME, seen, told, NOW_S)
    after = plan_of(advance(desired(2), observed, NOW_S))
    assert "segmentation fault" in after.failed[2]


def test_a_new_controller_holds_an_old_crash_against_nobody() -> None:
    there = fleet(replica(2, 1, 2), replica(3, 1, 2))
    told = [Failure(1, "segmentation fault", NOW_S)]
    observed = ServiceHistory().look(NAME, ServiceObservation(shifting(500), there), told, NOW_S)
    assert advance(desired(2), observed, NOW_S) == []


def test_load_is_sampled_over_all_replicas_and_bounded() -> None:
    memory = looking()
    for at in range(SAMPLES_KEPT + 10):
        answers = {worker: stats(worker, 10 * at, waiting=3, refused=at) for worker in (1, 2)}
        memory.see_stats(answers, [1, 2], PLAN.variants, float(at))
    assert len(memory.samples) == SAMPLES_KEPT
    newest = memory.samples[-1]
    assert (newest.in_flight, newest.refused, newest.replicas) == (6, 2, 2)
    assert newest.slow_ms > 0
