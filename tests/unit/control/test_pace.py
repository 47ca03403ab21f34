"""Lanes move away from workers that are slower than the others. Pure decisions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.control.decide import pace
from holdfast.control.decide.commands import WriteView
from holdfast.control.decide.facts import (
    Attempt,
    JobRecord,
    NodeFacts,
    ObservedState,
    Phase,
    Placement,
    RecordedStatus,
    View,
    WorkerFacts,
    WorkerPhase,
)
from holdfast.control.decide.membership import next_view
from holdfast.control.decide.observed import ObservedJob, by_job, observe_job
from holdfast.control.decide.pace import UNEVEN_GAIN
from holdfast.control.decide.spec import JobSpec, Resources
from holdfast.control.decide.views import assign
from holdfast.wire.limits import VIEW_WAIT_S
from holdfast.wire.reports import LANE_METRIC


def facts(worker: int, lane_ms: float | None, view: int = 3) -> WorkerFacts:
    metrics = {} if lane_ms is None else {LANE_METRIC: lane_ms}
    return WorkerFacts("job", worker, WorkerPhase.RUNNING, view=view, step=9, metrics=metrics)


def even(lanes: int, workers: int) -> dict[int, tuple[int, ...]]:
    return assign(lanes, range(1, workers + 1), {})


def test_nothing_is_concluded_until_every_member_has_told_its_pace_in_this_view() -> None:
    view = View(3, even(8, 2))
    assert pace.paces(view, {1: facts(1, 10.0), 2: facts(2, 30.0)}) == {1: 10.0, 2: 30.0}
    assert not pace.paces(view, {1: facts(1, 10.0), 2: facts(2, None)})
    assert not pace.paces(view, {1: facts(1, 10.0), 2: facts(2, 30.0, view=2)})
    assert not pace.paces(view, {1: facts(1, 10.0)})
    assert not pace.paces(view, {1: facts(1, 10.0), 2: facts(2, float("nan"))})
    assert not pace.paces(None, {})


def test_a_worker_three_times_as_slow_keeps_a_quarter_of_the_lanes_and_people_are_told_why() -> (
    None
):
    found = pace.deal(even(8, 2), {1: 10.0, 2: 30.0})
    assert found is not None
    assert dict(found.counts) == {1: 6, 2: 2}
    assert found.why == (
        "worker 2 needs 3.0 times as long for a lane as the others;"
        " a step takes 60 ms so, instead of 120"
    )


def test_a_little_slower_moves_nothing_and_so_does_one_that_has_a_single_lane_already() -> None:
    assert pace.deal(even(8, 4), {1: 10.0, 2: 10.0, 3: 10.0, 4: 11.5}) is None
    assert pace.deal(even(4, 4), {1: 10.0, 2: 10.0, 3: 10.0, 4: 90.0}) is None
    assert pace.deal(even(8, 1), {1: 10.0}) is None


def test_one_that_is_fast_again_gets_its_lanes_back_and_then_all_is_quiet() -> None:
    uneven = {1: (0, 1, 2, 3, 4, 5), 2: (6, 7)}
    found = pace.deal(uneven, {1: 10.0, 2: 10.0})
    assert found is not None
    assert dict(found.counts) == {1: 4, 2: 4}
    assert "equally fast again" in found.why
    again = assign(8, (1, 2), uneven, settle=True, counts=found.counts)
    assert pace.deal(again, {1: 10.0, 2: 10.0}) is None


@given(st.integers(0, 64), st.lists(st.floats(0.1, 1000.0), min_size=2, max_size=8))
def test_every_deal_shortens_the_step_gives_everyone_a_lane_and_is_dealt_once(
    more: int, speeds: list[float]
) -> None:
    paces = dict(enumerate(speeds, 1))
    lanes = len(paces) + more
    held = even(lanes, len(paces))
    found = pace.deal(held, paces)
    if found is None:
        return
    assert sum(found.counts.values()) == lanes
    assert min(found.counts.values()) >= 1
    after = assign(lanes, paces, held, settle=True, counts=found.counts)
    assert {worker: len(has) for worker, has in after.items()} == dict(found.counts)
    assert sorted(lane for has in after.values() for lane in has) == list(range(lanes))
    longest = [max(len(has[worker]) * paces[worker] for worker in paces) for has in (held, after)]
    assert longest[1] <= longest[0] * (1 - UNEVEN_GAIN)
    assert pace.deal(after, paces) is None


def test_the_slowest_is_compared_with_the_median_of_the_others() -> None:
    slow = pace.slowest({1: 10.0, 2: 12.0, 3: 11.0, 4: 33.0})
    assert slow is not None
    assert (slow.worker, slow.ratio, slow.notable) == (4, 3.0, True)
    assert pace.slowest({1: 10.0}) is None


def observed_job(
    paces: dict[int, float], *, view: int = 3, draining: int = 0, saving: bool = False
) -> ObservedJob:
    """Workers 1 to 3 in view 3 with four lanes each, all of them holding the state."""
    job = JobRecord(
        JobSpec("job", ("python",), lanes=12, workers_max=3),
        0.0,
        RecordedStatus(Phase.RUNNING, "on 3 workers", 0.0),
        next_worker=4,
        placements=tuple(Placement(n, "n1", draining=n == draining) for n in (1, 2, 3)),
        view=View(3, even(12, 3)),
        attempt=Attempt(1, 20, 3, 100.0) if saving else None,
    )
    said = tuple(facts(n, paces.get(n), view) for n in (1, 2, 3))
    observed = ObservedState({"n1": NodeFacts("n1", Resources(cpu=9.0), said)})
    return observe_job(job, by_job(observed)["job"], observed)


SLOW = {1: 10.0, 2: 40.0, 3: 10.0}


def test_the_next_view_has_the_same_members_and_fewer_lanes_for_the_slow_one() -> None:
    seen = observed_job(SLOW)
    decision = next_view(seen, seen.members, 100.0)
    assert decision is not None
    assert isinstance(decision.command, WriteView)
    lanes = decision.command.view.lanes
    assert {worker: len(held) for worker, held in lanes.items()} == {1: 6, 2: 1, 3: 5}
    assert decision.command.view.restore_step is None
    assert decision.reason.startswith("view 4: worker 2 needs 4.0 times as long")


def test_lanes_do_not_move_while_a_view_is_being_adopted_a_share_written_or_somebody_leaves() -> (
    None
):
    for seen in (
        observed_job(SLOW, view=2),
        observed_job(SLOW, saving=True),
        observed_job(SLOW, draining=3),
        observed_job({}),
    ):
        assert next_view(seen, seen.members, 100.0) is None
    late = observed_job(SLOW, saving=True)
    assert next_view(late, late.members, 100.0 + VIEW_WAIT_S) is not None
