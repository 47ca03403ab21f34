"""Two things that the simulator found: agents that have lost their journal, and clocks that were
set back (seeds 10172, 10877 and 10428 of its world then)."""

from __future__ import annotations

from dataclasses import replace

from holdfast.control.decide.commands import StartWorker, UnplaceWorker, WriteView
from holdfast.control.decide.facts import (
    Attempt,
    Checkpoint,
    Failure,
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
from holdfast.control.decide.lifecycle import end_of, may_start, resting
from holdfast.control.decide.observed import by_job, observe_job
from holdfast.control.decide.plans import NOTHING
from holdfast.control.decide.reconcile import reconcile_job
from holdfast.control.decide.spans import lasts
from holdfast.control.decide.spec import JobSpec, Resources, RestartPolicy

SPEC = JobSpec("train", ("python",), lanes=2, workers_max=2, restart=RestartPolicy(backoff_s=1.0))
NOW_S = 10_000.0
AN_HOUR_S = 3_600.0


def a_job() -> JobRecord:
    job = JobRecord(SPEC, 0.0, RecordedStatus(Phase.RUNNING, "on 2 workers", 1.0), next_worker=3)
    placements = (Placement(1, "n1"), Placement(2, "n1"))
    return replace(job, placements=placements, view=View(1, {1: (0,), 2: (1,)}))


def observed(*facts: WorkerFacts) -> ObservedState:
    return ObservedState({"n1": NodeFacts("n1", Resources(cpu=4.0), facts)})


def test_a_member_of_whom_its_agent_knows_nothing_is_gone_and_is_not_started_again() -> None:
    seen = observed()
    decisions = reconcile_job(a_job(), {}, seen, NOW_S, NOTHING)
    commands = [decision.command for decision in decisions]
    assert [one.worker for one in commands if isinstance(one, UnplaceWorker)] == [1, 2]
    assert not any(isinstance(one, StartWorker) for one in commands)
    assert (
        end_of(observe_job(a_job(), {}, seen), 1).detail == "node n1 does not know of it any more"
    )


def test_the_others_go_on_without_a_member_of_whom_its_agent_knows_nothing() -> None:
    seen = observed(WorkerFacts("train", 1, WorkerPhase.RUNNING, 1, 7))
    reports = by_job(seen)["train"]
    commands = [one.command for one in reconcile_job(a_job(), reports, seen, NOW_S, NOTHING)]
    (view,) = [one.view for one in commands if isinstance(one, WriteView)]
    assert view.lanes == {1: (0, 1)}


def test_a_worker_that_was_in_no_view_yet_is_started_and_one_whose_agent_is_unheard_stays() -> None:
    job = replace(a_job(), view=None)
    started = [
        decision.command.worker
        for decision in reconcile_job(job, {}, observed(), NOW_S, NOTHING)
        if isinstance(decision.command, StartWorker)
    ]
    assert started == [1, 2]
    unreported = ObservedState({}, frozenset({"n1"}))
    assert not observe_job(a_job(), {}, unreported).gone


def test_a_span_is_over_when_it_is_over_or_when_its_beginning_is_far_in_the_future() -> None:
    assert lasts(NOW_S, 5.0, NOW_S)
    assert lasts(NOW_S, 5.0, NOW_S + 4.9)
    assert not lasts(NOW_S, 5.0, NOW_S + 5.0)
    assert lasts(NOW_S, 5.0, NOW_S - 4.9)
    assert not lasts(NOW_S, 5.0, NOW_S - AN_HOUR_S)


def test_a_clock_that_was_set_back_does_not_hold_up_starts() -> None:
    job = replace(a_job(), failures=(Failure(1, "ValueError", NOW_S, 3),))
    assert resting(job, NOW_S + 0.5)
    assert not resting(job, NOW_S - AN_HOUR_S)
    assert may_start(job, 2, NOW_S - AN_HOUR_S) == 2


def test_a_clock_that_was_set_back_does_not_hold_up_checkpoints() -> None:
    seen = observed(*(WorkerFacts("train", worker, WorkerPhase.RUNNING, 1, 9) for worker in (1, 2)))
    reports = by_job(seen)["train"]
    stuck = replace(a_job(), attempt=Attempt(1, 5, 1, NOW_S), attempts=1)
    decisions = reconcile_job(stuck, reports, seen, NOW_S - AN_HOUR_S, NOTHING)
    assert "AbandonCheckpoint" in {type(one.command).__name__ for one in decisions}
    policy = replace(SPEC.checkpoint, every_steps=None, every_s=60.0)
    job = replace(
        a_job(),
        spec=replace(SPEC, checkpoint=policy),
        checkpoints=(Checkpoint(4, "m", 1, NOW_S),),
        abandoned_s=NOW_S,
    )
    decisions = reconcile_job(job, reports, seen, NOW_S - AN_HOUR_S, NOTHING)
    assert "BeginCheckpoint" in {type(one.command).__name__ for one in decisions}


# --- what is told of a cut ------------------------------------------------------------------------


def told_of_a_cut(*facts: WorkerFacts) -> str:
    """A machine is cut off with worker 2, and the next leader hears of worker 1 only this."""
    job = replace(
        a_job(),
        placements=(Placement(1, "n1"), Placement(2, "n2")),
        checkpoints=(Checkpoint(6_946, "m", 1, 5.0),),
    )
    seen = observed(*facts) if facts else ObservedState({}, frozenset({"n1"}))
    decisions = reconcile_job(job, by_job(seen).get("train", {}), seen, NOW_S, NOTHING)
    (told,) = [one.reason for one in decisions if isinstance(one.command, WriteView)]
    return told


def test_nobody_is_told_that_the_state_is_lost_while_a_survivor_has_not_been_heard() -> None:
    assert told_of_a_cut() == (
        "view 2: worker 2 gone; whether worker 1 holds the state is not known yet: if not, from"
        " step 6946"
    )
    holds = WorkerFacts("train", 1, WorkerPhase.RUNNING, 1, 7_001)
    assert told_of_a_cut(holds) == "view 2: worker 2 gone; worker 1 holding the state"


def test_that_nobody_holds_the_state_is_told_when_nobody_of_the_last_view_is_left() -> None:
    gone = replace(a_job(), placements=(Placement(3, "n1"),), next_worker=4)
    seen = observed(WorkerFacts("train", 3, WorkerPhase.READY))
    decisions = reconcile_job(gone, by_job(seen)["train"], seen, NOW_S, NOTHING)
    (told,) = [one.reason for one in decisions if isinstance(one.command, WriteView)]
    assert told.endswith("worker 3 ready; nobody holds the state, so from the beginning")
