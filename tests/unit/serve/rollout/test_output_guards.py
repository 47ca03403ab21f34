"""Guards over a version's outputs: which counts speak against it, and what is said then."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from holdfast.serve.controller.memory import ServiceHistory
from holdfast.serve.records import (
    Compared,
    Guards,
    OutputStats,
    ReplicaStats,
    RolloutStage,
    ServiceSpec,
)
from holdfast.serve.rollout.advance import advance
from holdfast.serve.rollout.facts import ServiceObservation
from holdfast.serve.rollout.verdict import broken_guard, shift_of, suspicious, total_watched
from holdfast.wire import documents
from tests.unit.serve.rollout.facts import (
    NAME,
    NOW_S,
    POLICY,
    counts,
    desired,
    plan_of,
    replica,
    shifting,
    steady,
    three,
    window,
)

FINE = OutputStats(1_000)


def service(**guards: Any) -> ServiceSpec:
    return ServiceSpec(NAME, NAME, "prod", policy=POLICY, guards=Guards(**guards))


def compared(live: list[float], own: list[float], disagreed: int = 0, rows: int = 0) -> Compared:
    return Compared(
        len(live),
        len(live),
        sum(live),
        sum(x * x for x in live),
        sum(own),
        sum(x * x for x in own),
        rows,
        disagreed,
    )


@pytest.mark.parametrize(
    ("old", "new", "allowed", "is_broken"),
    [
        (FINE, OutputStats(100), 0.0, False),
        (FINE, OutputStats(100, {"y": 2}), 0.0, True),
        (FINE, OutputStats(100, {"y": 1}), 0.0, False),  # one may be the request's own fault
        (FINE, OutputStats(19, {"y": 19}), 0.0, False),  # too few to tell
        (FINE, OutputStats(1_000, {"y": 40}), 0.05, False),
        (FINE, OutputStats(1_000, {"y": 90}), 0.05, True),
        (OutputStats(1_000, {"y": 100}), OutputStats(1_000, {"y": 105}), 0.0, False),  # as before
        (OutputStats(1_000, {"y": 100}), OutputStats(1_000, {"y": 300}), 0.0, True),
        (FINE, OutputStats(100, {"y": 100}), None, False),  # off
    ],
)
def test_answers_that_are_not_finite_are_compared_with_the_old_versions(
    old: OutputStats, new: OutputStats, allowed: float | None, is_broken: bool
) -> None:
    assert bool(broken_guard(service(nonfinite_max=allowed), old, new, patient=True)) is is_broken


def test_a_reason_names_output_share_threshold_and_the_command_that_changes_it() -> None:
    said = broken_guard(service(), FINE, OutputStats(40, {"y": 12}), patient=True)
    assert said == (
        "output y was NaN or infinite in 12 of 40 answers (30.0%; 0.0% of the old version's, and"
        " 0.0% more are allowed). To allow it: holdfast serve digits --guard-nonfinite 36%"
    )
    guarded = service(ranges={"p": (0.0, 1.0)})
    said = broken_guard(guarded, FINE, OutputStats(40, outside={"p": 4}), patient=True)
    assert said.startswith("output p was outside of 0 to 1 in 4 of 40 answers (10.0%;")
    assert said.endswith("holdfast serve digits --guard-outside 12%")


def test_an_output_that_has_shifted_on_the_same_requests_is_found() -> None:
    live = [float(n % 7) for n in range(70)]
    same = compared(live, live)
    moved = compared(live, [value + 3.0 for value in live])
    wider = compared(live, [10 * value for value in live])
    assert shift_of(same) == 0.0
    assert shift_of(moved) == pytest.approx(1.5)
    guarded = service(shift_max=0.5)
    assert not broken_guard(guarded, FINE, OutputStats(70, compared={"y": same}), patient=True)
    assert not broken_guard(service(), FINE, OutputStats(70, compared={"y": moved}), patient=True)
    for one in (moved, wider):
        said = broken_guard(guarded, FINE, OutputStats(70, compared={"y": one}), patient=True)
        assert said.startswith("output y has shifted by ")
        assert "0.5 are allowed). To allow it: holdfast serve digits --guard-shift " in said
    few = replace(moved, requests=5)
    assert not broken_guard(guarded, FINE, OutputStats(70, compared={"y": few}), patient=True)
    assert broken_guard(guarded, FINE, OutputStats(70, compared={"y": few}), patient=False)


def test_a_constant_output_may_stay_and_not_change() -> None:
    guarded = service(shift_max=0.5)
    same, other = compared([3.0] * 50, [3.0] * 50), compared([3.0] * 50, [3.1] * 50)
    assert not broken_guard(guarded, FINE, OutputStats(50, compared={"y": same}), patient=True)
    assert broken_guard(guarded, FINE, OutputStats(50, compared={"y": other}), patient=True)


def test_rows_of_another_class_are_counted_beyond_what_chance_gives() -> None:
    guarded = service(disagree_max=0.1)
    for disagreed, is_broken in ((10, False), (16, False), (17, True)):
        one = compared([0.0] * 50, [0.0] * 50, disagreed, 100)
        said = broken_guard(guarded, FINE, OutputStats(50, compared={"y": one}), patient=True)
        assert bool(said) is is_broken, said
    assert "names another class in 17 of 100 rows" in said


def test_what_replicas_have_seen_is_added_and_survives_the_wire() -> None:
    one = OutputStats(3, {"y": 1}, {"z": 2}, {"y": compared([1.0, 2.0], [3.0, 4.0], 1, 2)})
    both = total_watched([one, one, OutputStats()])
    assert both == OutputStats(
        6, {"y": 2}, {"z": 4}, {"y": compared([1, 2, 1, 2], [3, 4, 3, 4], 2, 4)}
    )
    stats = ReplicaStats(1, 0, 0, 0, watched={2: one})
    plain = json.loads(json.dumps(documents.document(stats)))
    assert documents.from_document("stats", ReplicaStats, plain) == stats


def test_a_version_that_answers_nan_is_taken_back_and_not_promoted() -> None:
    plan = shifting(5_000, since_s=NOW_S - 50.0)
    seen = ServiceObservation(
        plan,
        three(1, 2),
        window=window(plan, v1=counts(500), v2=counts(500)),
        watched={1: OutputStats(500), 2: OutputStats(500, {"y": 30})},
    )
    after = plan_of(advance(desired(2), seen, NOW_S))
    assert after.stage is RolloutStage.STEADY and after.stable == 1
    assert after.failed[2].startswith("output y was NaN or infinite in 30 of 500 answers")
    # Users know better.
    assert 2 not in plan_of(advance(desired(2, pinned=2), seen, NOW_S)).failed


def test_a_step_is_held_longer_until_the_outputs_were_compared() -> None:
    guarded = service(shift_max=0.5)
    assert suspicious(guarded, OutputStats(500))
    enough = OutputStats(500, compared={"y": compared([1.0] * 30, [1.0] * 30)})
    assert not suspicious(guarded, enough)
    assert not suspicious(service(), OutputStats(500))
    assert suspicious(service(), OutputStats(5, {"y": 1}))
    plan = shifting(500, since_s=NOW_S - 6.0)
    wanted = desired(2, guards=guarded.guards)
    for seen_s, watched, decides in ((6.0, {}, False), (6.0, {2: enough}, True), (31.0, {}, True)):
        since = replace(plan, since_s=NOW_S - seen_s)
        seen = ServiceObservation(
            since,
            three(1, 2),
            window=window(since, seen_s, v1=counts(500), v2=counts(500)),
            watched=watched,
        )
        assert bool(advance(wanted, seen, NOW_S)) is decides, (seen_s, watched)


def test_what_was_seen_in_an_earlier_rollout_says_nothing_about_the_next() -> None:
    memory, bad = ServiceHistory(), OutputStats(100, {"y": 50})
    stats = {1: ReplicaStats(1, 0, 0, 0, watched={2: bad})}

    def look(plan: Any, follows: int) -> ServiceObservation:
        there = {1: replica(1, 1, 2, plan=follows)}
        return memory.look(NAME, ServiceObservation(plan, there), (), NOW_S)

    first = shifting(500, number=10)
    look(first, 10)
    memory.see_stats(stats, [1], first.variants, NOW_S)
    assert look(first, 10).watched == {2: bad}
    # A step further it is the same rollout, also when the replica has died.
    further = shifting(5_000, number=11)
    assert memory.look(NAME, ServiceObservation(further, {}), (), NOW_S).watched == {2: bad}
    assert look(steady(number=12), 12).watched == {}
    again = shifting(500, number=14, version_revision=1)
    look(again, 12)
    memory.see_stats(stats, [1], again.variants, NOW_S)
    assert look(again, 12).watched == {}, "it has not followed yet: that was the rollout before"
    look(again, 14)
    memory.see_stats(stats, [1], again.variants, NOW_S)
    assert look(again, 14).watched == {2: bad}
