"""What a record does: once, twice, and too late."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.control.decide.commands import (
    AbandonCheckpoint,
    BeginCheckpoint,
    CommitCheckpoint,
    DrainWorker,
    DropCheckpoint,
    MarkCheckpointUnreadable,
    PlaceWorker,
    Record,
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
    Failure,
    JobRecord,
    Part,
    Phase,
    Placement,
    RecordedStatus,
    View,
)
from holdfast.control.decide.records import apply_record, apply_to
from holdfast.control.decide.spec import JobSpec
from holdfast.wire.errors import BugError, Conflict
from holdfast.wire.limits import FAILURES_KEPT

ATTEMPT = Attempt(1, 10, 1, 5.0)
PARTS = {1: (Part("k", 1, "d"),)}


def running() -> JobRecord:
    """One worker, one view, one committed checkpoint, one attempt under way."""
    return JobRecord(
        JobSpec("train", ("python",)),
        0.0,
        RecordedStatus(Phase.RUNNING, "on 1 worker", 1.0),
        next_worker=2,
        placements=(Placement(1, "n1"),),
        view=View(1, {1: (0,)}),
        attempt=ATTEMPT,
        attempts=1,
        checkpoints=(Checkpoint(3, "m3", 1, 1.0), Checkpoint(5, "m5", 1, 2.0)),
    )


def applied(job: JobRecord, record: Record) -> JobRecord:
    return apply_record(job, record, now_s=9.0, term=4, manifest="m")


RECORDS: list[Record] = [
    SetStatus("train", RecordedStatus(Phase.SHRINKING, "x", 9.0)),
    PlaceWorker("train", Placement(2, "n2")),
    DrainWorker("train", 1, "x"),
    UnplaceWorker("train", 1, Exit(ExitKind.ERROR), Failure(1, "x", 9.0)),
    WriteView("train", View(2, {1: (0,)})),
    CommitCheckpoint("train", ATTEMPT, PARTS),
    AbandonCheckpoint("train", ATTEMPT, missed=True),
    DropCheckpoint("train", 3),
    MarkCheckpointUnreadable("train", 5, "a hole"),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_applied_twice_changes_nothing_more(record: Record) -> None:
    once = applied(running(), record)
    assert once != running()
    assert applied(once, record) == once


def test_begin_applied_twice_begins_once() -> None:
    idle = replace(running(), attempt=None)
    record = BeginCheckpoint("train", Attempt(2, 20, 1, 9.0))
    once = applied(idle, record)
    assert once.attempt == record.attempt and once.attempts == 2
    assert applied(once, record) == once


TOO_LATE: list[tuple[str, JobRecord, Record]] = [
    ("number used", running(), PlaceWorker("train", Placement(1, "n2"))),
    ("number skipped", running(), PlaceWorker("train", Placement(3, "n2"))),
    ("view overtaken", running(), WriteView("train", View(1, {1: (0,)}, 5))),
    ("view skipped", running(), WriteView("train", View(3, {1: (0,)}))),
    ("another attempt", running(), BeginCheckpoint("train", Attempt(2, 20, 1, 9.0))),
    (
        "attempt's number used",
        replace(running(), attempt=None),
        BeginCheckpoint("train", Attempt(1, 20, 1, 9.0)),
    ),
    (
        "attempt of another view",
        replace(running(), attempt=None),
        BeginCheckpoint("train", Attempt(2, 20, 7, 9.0)),
    ),
    ("given up", replace(running(), attempt=None), CommitCheckpoint("train", ATTEMPT, PARTS)),
    (
        "view changed since",
        replace(running(), view=View(2, {1: (0,)})),
        CommitCheckpoint("train", ATTEMPT, PARTS),
    ),
    ("a newer one is committed", running(), MarkCheckpointUnreadable("train", 3)),
    (
        "it has ended",
        replace(running(), status=RecordedStatus(Phase.STOPPED, "x", 1.0), placements=()),
        SetStatus("train", RecordedStatus(Phase.RUNNING, "x", 9.0)),
    ),
    (
        "it has ended",
        replace(running(), status=RecordedStatus(Phase.STOPPED, "x", 1.0), placements=()),
        PlaceWorker("train", Placement(2, "n1")),
    ),
]


@pytest.mark.parametrize(("why", "job", "record"), TOO_LATE)
def test_a_record_that_expects_something_else_is_a_conflict(
    why: str, job: JobRecord, record: Record
) -> None:
    with pytest.raises(Conflict):
        applied(job, record)


FORBIDDEN: list[tuple[str, Record]] = [
    ("final while room is taken", SetStatus("train", RecordedStatus(Phase.FAILED, "x", 9.0))),
    ("the newest checkpoint is dropped", DropCheckpoint("train", 5)),
    ("a share is missing", CommitCheckpoint("train", ATTEMPT, {})),
    ("a share too many", CommitCheckpoint("train", ATTEMPT, {**PARTS, 2: ()})),
]


@pytest.mark.parametrize(("why", "record"), FORBIDDEN)
def test_a_record_that_would_break_an_invariant_is_a_bug(why: str, record: Record) -> None:
    with pytest.raises(BugError):
        applied(running(), record)


def test_an_older_step_is_never_committed_over_a_newer_one() -> None:
    old = Attempt(1, 4, 1, 5.0)
    with pytest.raises(BugError):
        applied(replace(running(), attempt=old), CommitCheckpoint("train", old, PARTS))


def test_a_commit_clears_what_asked_for_it_and_what_went_wrong_before() -> None:
    job = replace(running(), checkpoint_asked=True, attempts_missed=3, abandoned_s=1.0)
    after = applied(job, CommitCheckpoint("train", ATTEMPT, PARTS))
    assert after.checkpoints[-1] == Checkpoint(10, "m", 4, 9.0)
    assert (after.checkpoint_asked, after.attempts_missed, after.abandoned_s) == (False, 0, None)
    assert after.attempt is None and after.attempts == 1


def test_a_worker_that_is_done_finishes_the_job_and_the_first_one_is_remembered() -> None:
    job = replace(running(), placements=(Placement(1, "n1"), Placement(2, "n1")), next_worker=3)
    for worker in (1, 2):
        job = applied(job, UnplaceWorker("train", worker, Exit(ExitKind.DONE)))
    assert job.finished_by == 1
    assert job.placements == ()


def test_the_list_of_failures_is_bounded() -> None:
    job = running()
    for number in range(1, FAILURES_KEPT + 10):
        job = replace(job, placements=(Placement(number, "n1"),))
        failure = Failure(number, "x", float(number))
        job = applied(job, UnplaceWorker("train", number, Exit(ExitKind.ERROR), failure))
    assert len(job.failures) == FAILURES_KEPT
    assert job.failures[-1].worker == FAILURES_KEPT + 9


def test_a_record_of_a_removed_job_is_a_conflict() -> None:
    with pytest.raises(Conflict):
        apply_to(DesiredState(), RECORDS[0], now_s=1.0)


def test_only_the_job_of_the_record_changes() -> None:
    other = replace(running(), spec=JobSpec("other", ("python",)))
    desired = DesiredState(jobs={"train": running(), "other": other})
    after = apply_to(desired, DrainWorker("train", 1, "x"), now_s=1.0)
    assert after.jobs["other"] is other
    assert after.jobs["train"].placements[0].draining
