"""The end of a job: its last step is committed, exactly, and then it has succeeded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.control.decide.commands import (
    AbandonCheckpoint,
    BeginCheckpoint,
    Command,
    Decision,
    DrainWorker,
    Finish,
    PlaceWorker,
    SetStatus,
    UnplaceWorker,
    WriteView,
)
from holdfast.control.decide.facts import (
    Attempt,
    Checkpoint,
    DesiredState,
    Exit,
    ExitKind,
    Intent,
    JobRecord,
    NodeFacts,
    ObservedState,
    Phase,
    Placement,
    RecordedStatus,
    Setting,
    WorkerFacts,
    WorkerPhase,
)
from holdfast.control.decide.invariants import check_job
from holdfast.control.decide.plans import Add, JobPlan, SchedulePlan
from holdfast.control.decide.reconcile import reconcile
from holdfast.control.decide.records import apply_record
from holdfast.control.decide.spec import Resources
from holdfast.wire.errors import BugError, Conflict
from tests.unit.control.pair import pair

NOW_S = 100.0
LAST = 20


def ender(number: int, **changes: object) -> WorkerFacts:
    made = WorkerFacts("train", number, WorkerPhase.RUNNING, 7, LAST, ending=True)
    return replace(made, **changes)  # type: ignore[arg-type]


def gone(number: int, kind: ExitKind, **changes: object) -> WorkerFacts:
    return ender(number, phase=WorkerPhase.GONE, exit=Exit(kind), **changes)


def decide(job: JobRecord, *facts: WorkerFacts, plan: JobPlan | None = None) -> list[Decision]:
    observed = ObservedState({"n1": NodeFacts("n1", Resources(cpu=4.0), facts)})
    plans = SchedulePlan({"train": plan or JobPlan()})
    return reconcile(DesiredState({"train": job}), observed, NOW_S, plans)


def of(kind: type[Command], decisions: list[Decision]) -> list[Command]:
    return [one.command for one in decisions if isinstance(one.command, kind)]


def committed(**changes: object) -> JobRecord:
    return pair(3, checkpoints=(Checkpoint(LAST, "m", 1, 95.0),), **changes)


def test_the_attempt_names_the_last_step_itself_however_soon_after_another() -> None:
    job = pair(3, abandoned_s=NOW_S - 0.01, attempts_missed=3)
    assert of(BeginCheckpoint, decide(job, ender(1), ender(2))) == [
        BeginCheckpoint("train", Attempt(5, LAST, 7, NOW_S))
    ]


def test_it_waits_until_every_member_has_the_state() -> None:
    for other in (ender(2, view=6), ender(2, step=None, ending=False)):
        assert not of(BeginCheckpoint, decide(pair(3), ender(1), other))
    behind = ender(2, step=LAST - 1, ending=False)
    assert of(BeginCheckpoint, decide(pair(3), ender(1), behind))


@pytest.mark.parametrize(("step", "given_up"), [(LAST - 1, False), (LAST, False), (LAST + 1, True)])
def test_an_attempt_at_a_step_that_never_comes_is_given_up_and_does_not_count_as_missed(
    step: int, given_up: bool
) -> None:
    attempt = Attempt(4, step, 7, NOW_S - 1.0)
    found = of(AbandonCheckpoint, decide(pair(3, attempt=attempt), ender(1), ender(2)))
    assert found == ([AbandonCheckpoint("train", attempt, missed=False)] if given_up else [])


def test_one_that_says_that_it_ends_behind_the_others_does_not_end_the_job() -> None:
    decisions = decide(pair(3), ender(1, step=15), ender(2, step=16, ending=False))
    assert not of(BeginCheckpoint, decisions)
    assert not of(Finish, decisions)


def test_the_job_is_finished_when_its_last_step_is_committed_and_not_before() -> None:
    assert not of(Finish, decide(pair(3), ender(1), ender(2)))
    decisions = decide(committed(), ender(1), ender(2))
    records = [type(decision.command) for decision in decisions]
    assert records == [Finish, DrainWorker, DrainWorker, SetStatus]


@pytest.mark.parametrize("intent", [Intent.PAUSE, Intent.STOP])
def test_whatever_else_was_asked_a_job_whose_last_step_is_committed_has_succeeded(
    intent: Intent,
) -> None:
    job = committed(finished_step=LAST, intent=intent, placements=())
    (status,) = of(SetStatus, decide(job))
    assert isinstance(status, SetStatus)
    assert status.status.phase is Phase.SUCCEEDED


def test_a_finished_job_starts_nobody_though_all_its_workers_died() -> None:
    job = committed(finished_step=LAST)
    plan = JobPlan(add=(Add("n1", "room"),))
    killed = [gone(number, ExitKind.SIGNAL) for number in (1, 2)]
    decisions = decide(job, *killed, plan=plan)
    assert not of(PlaceWorker, decisions)
    assert not of(WriteView, decisions)


def test_nobody_is_placed_joins_or_meets_for_a_setting_while_the_job_ends() -> None:
    job = pair(
        3,
        next_worker=4,
        placements=(*pair(3).placements, Placement(3, "n1")),
        settings=(Setting("lr", "1", 0),),
    )
    plan = JobPlan(add=(Add("n1", "room"),))
    ready = WorkerFacts("train", 3, WorkerPhase.READY)
    decisions = decide(job, ender(1, settings=1), ender(2, settings=1), ready, plan=plan)
    assert not of(PlaceWorker, decisions)
    assert not of(WriteView, decisions)
    assert of(BeginCheckpoint, decisions)


def test_when_the_enders_die_before_the_commit_the_job_goes_on() -> None:
    decisions = decide(pair(3), *(gone(number, ExitKind.SIGNAL) for number in (1, 2)))
    assert not of(Finish, decisions)
    assert not of(BeginCheckpoint, decisions)
    assert len(of(UnplaceWorker, decisions)) == 2


@pytest.mark.parametrize(
    ("job", "facts", "finishes"),
    [
        (pair(3), gone(1, ExitKind.DONE, ending=False), True),  # a plain command
        (pair(3), gone(1, ExitKind.DONE), False),  # the last step is not committed
        (committed(), gone(1, ExitKind.DONE), True),
        (
            pair(3, placements=(Placement(1, "n1", draining=True), Placement(2, "n1"))),
            gone(1, ExitKind.DONE, ending=False),  # what it said last was not heard
            False,
        ),
        (
            pair(3, placements=(Placement(1, "n1", draining=True), Placement(2, "n1"))),
            gone(1, ExitKind.DONE, ending=False, step=None),  # a plain command without a state
            True,
        ),
    ],
)
def test_a_worker_that_says_done_before_the_last_step_is_committed_does_not_finish_the_job(
    job: JobRecord, facts: WorkerFacts, finishes: bool
) -> None:
    other = WorkerFacts("train", 2, WorkerPhase.RUNNING, 7, 15)
    (record,) = of(UnplaceWorker, decide(job, facts, other))
    assert isinstance(record, UnplaceWorker)
    after = apply_record(job, record, now_s=NOW_S)
    assert (after.finished_by == 1) is finishes


def test_a_job_without_steps_ends_without_a_checkpoint() -> None:
    job = pair(3, checkpoints=())
    assert of(Finish, decide(job, ender(1, step=0), ender(2, step=0))) == [Finish("train", 0)]


def test_the_end_is_written_once_and_only_upon_the_commit() -> None:
    with pytest.raises(Conflict):
        apply_record(pair(3), Finish("train", LAST), now_s=NOW_S)
    once = apply_record(committed(), Finish("train", LAST), now_s=NOW_S)
    assert once.finished_step == LAST
    assert apply_record(once, Finish("train", LAST), now_s=NOW_S) is once


def test_success_without_a_finished_job_is_a_bug() -> None:
    status = SetStatus("train", RecordedStatus(Phase.SUCCEEDED, "so they say", NOW_S))
    with pytest.raises(BugError, match="cannot have succeeded"):
        apply_record(pair(3, placements=()), status, now_s=NOW_S)
    with pytest.raises(BugError, match="invariant 2"):
        check_job(pair(3, finished_step=LAST))
