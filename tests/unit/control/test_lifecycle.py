"""A job's life: rounds of failure, departures, and what people are told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.control.decide.facts import (
    Checkpoint,
    Exit,
    ExitKind,
    Failure,
    Intent,
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
from holdfast.control.decide.lifecycle import (
    bounded,
    departure,
    end_of,
    failure_of,
    may_leave,
    pause_s,
    resting,
    rounds,
    status_of,
)
from holdfast.control.decide.observed import ObservedJob, by_job, observe_job
from holdfast.control.decide.plans import NOTHING, Add, JobPlan, Leave
from holdfast.control.decide.spec import JobSpec, Resources, RestartPolicy
from holdfast.wire.limits import DEPARTURE_S, FINISH_S, REASON_CHARACTERS_MAX

RESTART = RestartPolicy(failures_max=3, backoff_s=1.0, backoff_s_max=3.0, forgiven_after_s=100.0)


def job_with(**changes: object) -> JobRecord:
    spec = JobSpec("train", ("python",), lanes=2, workers_max=2, restart=RESTART)
    made = JobRecord(spec, 0.0, RecordedStatus(Phase.RUNNING, "on 2 workers", 1.0), next_worker=3)
    placements = (Placement(1, "n1"), Placement(2, "n1"))
    made = replace(made, placements=placements, view=View(1, {1: (0,), 2: (1,)}))
    return replace(made, **changes)  # type: ignore[arg-type]


def running(worker: int, step: int | None = 10) -> WorkerFacts:
    return WorkerFacts("train", worker, WorkerPhase.RUNNING, 1, step)


def observed_job(job: JobRecord, *facts: WorkerFacts) -> ObservedJob:
    observed = ObservedState({"n1": NodeFacts("n1", Resources(cpu=4.0), facts)})
    return observe_job(job, by_job(observed).get(job.name, {}), observed)


def failures(*times: tuple[float, int]) -> tuple[Failure, ...]:
    return tuple(Failure(n, "ValueError", at, step) for n, (at, step) in enumerate(times, 1))


def test_the_pause_doubles_up_to_its_bound() -> None:
    pauses = [
        pause_s(job_with(failures=failures(*[(float(n), 0) for n in range(count)])))
        for count in range(1, 5)
    ]
    assert pauses == [1.0, 2.0, 3.0, 3.0]


def test_a_pause_of_many_failures_does_not_overflow() -> None:
    policy = RestartPolicy(failures_max=10_000, backoff_s=1.0, backoff_s_max=60.0)
    spec = replace(job_with().spec, restart=policy)
    assert pause_s(job_with(spec=spec, failures=failures(*[(0.0, 0)] * 5_000))) == 60.0


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([(0.0, 5), (200.0, 50)], 1),  # much later, and further on: another story
        ([(0.0, 5), (200.0, 5)], 2),  # much later, at the same step: the same story
        ([(0.0, 5), (20.0, 50)], 2),  # further on, but soon after
        ([(0.0, 5), (200.0, 50), (210.0, 51)], 2),
    ],
)
def test_a_row_of_failures_is_broken_by_time_with_progress(
    times: list[tuple[float, int]], expected: int
) -> None:
    assert rounds(job_with(failures=failures(*times))) == expected


def test_failures_before_the_next_start_are_one_round() -> None:
    job = job_with()
    gone = [replace(running(n), phase=WorkerPhase.GONE) for n in (1, 2)]
    first = failure_of(observed_job(job, *gone), 1, Exit(ExitKind.ERROR, "boom"), 50.0)
    assert first == Failure(1, "boom", 50.0, 10)
    after = job_with(failures=(first,))
    assert failure_of(observed_job(after, *gone), 2, Exit(ExitKind.ERROR), 50.5) is None
    assert failure_of(observed_job(after, *gone), 2, Exit(ExitKind.ERROR), 51.0) is not None


@pytest.mark.parametrize("kind", list(ExitKind))
def test_only_what_the_jobs_own_code_did_counts(kind: ExitKind) -> None:
    gone = replace(running(1), phase=WorkerPhase.GONE)
    counted = failure_of(observed_job(job_with(), gone), 1, Exit(kind), 50.0)
    own = (ExitKind.ERROR, ExitKind.MEMORY, ExitKind.DISK, ExitKind.HUNG, ExitKind.REFUSED)
    assert (counted is not None) == (kind in own)


def test_a_job_whose_worker_says_that_trying_again_cannot_help_fails_at_once() -> None:
    gone = replace(running(1), phase=WorkerPhase.GONE)
    refused = Exit(ExitKind.REFUSED, "Damaged: sample 7 of 100 is not what it was")
    counted = failure_of(observed_job(job_with(), gone), 1, refused, 50.0)
    assert counted is not None and counted.final
    cause = departure(observed_job(job_with(failures=(counted,))), NOTHING, 50.0)
    assert cause is not None and cause.ends_as is Phase.FAILED
    assert "trying again cannot help" in cause.reason
    # Also when another worker has failed a moment before, of something that may pass.
    other = job_with(failures=failures((49.9, 10)))
    assert failure_of(observed_job(other, gone), 1, refused, 50.0) is not None
    assert departure(observed_job(other), NOTHING, 50.0) is None


BOOM = (
    "Traceback (most recent call last):\n"
    '  File "/x/bundles/0a/files/train.py", line 3, in <module>\n'
    "FileNotFoundError: no data.csv\n"
    "it ended with status 1"
)


def failed_twice(detail: str, *, step: int, kind: ExitKind = ExitKind.ERROR) -> Failure | None:
    """The second failure of a job that failed by `BOOM` at that step."""
    gone = replace(running(1, step or None), phase=WorkerPhase.GONE)
    before = job_with(failures=(Failure(1, BOOM, 40.0, step),))
    return failure_of(observed_job(before, gone), 1, Exit(kind, detail), 50.0)


def test_what_fails_the_same_way_twice_before_the_first_step_is_not_tried_a_third_time() -> None:
    counted = failed_twice(BOOM, step=0)
    assert counted is not None and counted.final
    job = job_with(failures=(Failure(1, BOOM, 40.0), counted))
    cause = departure(observed_job(job), NOTHING, 50.0)
    assert cause is not None and cause.ends_as is Phase.FAILED
    assert cause.afterwards.endswith("(worker 1; the same twice before its first step)")


@pytest.mark.parametrize(
    ("detail", "step", "kind"),
    [
        (BOOM.replace("data.csv", "other.csv"), 0, ExitKind.ERROR),  # something else each time
        (BOOM.replace("line 3", "line 4"), 0, ExitKind.ERROR),
        (BOOM, 7, ExitKind.ERROR),  # it has made steps: its code works, and this may pass
        ("it made no progress, and was killed", 0, ExitKind.HUNG),
        (BOOM, 0, ExitKind.MEMORY),  # perhaps others took it
    ],
)
def test_what_may_pass_is_tried_as_often_as_its_user_said(
    detail: str, step: int, kind: ExitKind
) -> None:
    counted = failed_twice(detail, step=step, kind=kind)
    assert counted is not None and not counted.final


def test_an_error_of_a_worker_that_was_asked_to_leave_does_not_count() -> None:
    job = job_with(placements=(Placement(1, "n1", draining=True),))
    gone = replace(running(1), phase=WorkerPhase.GONE)
    assert failure_of(observed_job(job, gone), 1, Exit(ExitKind.ERROR), 50.0) is None


def test_nothing_starts_during_the_pause() -> None:
    job = job_with(failures=failures((50.0, 0)))
    assert resting(job, 50.9)
    assert not resting(job, 51.0)


def test_a_worker_on_a_lost_node_is_said_to_be_lost_with_it() -> None:
    seen = observe_job(job_with(), {}, ObservedState())
    assert end_of(seen, 1) == Exit(ExitKind.LOST, "node n1 is not there any more")


def test_the_users_own_traceback_comes_first_when_the_job_has_failed() -> None:
    job = job_with(failures=failures((1.0, 0), (5.0, 0), (9.0, 0)))
    cause = departure(observed_job(job), NOTHING, 10.0)
    assert cause is not None and cause.ends_as is Phase.FAILED
    assert cause.afterwards.startswith("ValueError")
    assert "3 times in a row" in cause.afterwards


def test_a_finished_job_succeeds_whatever_else_is_wanted() -> None:
    failed = failures((1.0, 0), (5.0, 0), (9.0, 0))
    job = job_with(finished_by=1, intent=Intent.STOP, failures=failed)
    cause = departure(observed_job(job), NOTHING, 10.0)
    assert cause is not None and cause.ends_as is Phase.SUCCEEDED


def test_a_deadline_ends_the_job_as_failed() -> None:
    job = job_with(spec=replace(job_with().spec, deadline_s=60.0))
    assert departure(observed_job(job), NOTHING, 59.9) is None
    cause = departure(observed_job(job), NOTHING, 60.0)
    assert cause is not None and cause.ends_as is Phase.FAILED and cause.saves


def test_losing_all_workers_to_another_job_is_a_departure_but_a_move_is_not() -> None:
    out = (Leave(1, "prod goes first"), Leave(2, "prod goes first"))
    assert departure(observed_job(job_with()), JobPlan(drain=out[:1]), 10.0) is None
    assert (
        departure(observed_job(job_with()), JobPlan(drain=out, add=(Add("n2", "x"),)), 10.0) is None
    )
    cause = departure(observed_job(job_with()), JobPlan(drain=out), 10.0)
    assert cause is not None and cause.ends_as is Phase.QUEUED and cause.saves


def departing(
    status_s: float | None, committed: tuple[Checkpoint, ...] = ()
) -> tuple[JobRecord, ObservedJob]:
    job = job_with(intent=Intent.PAUSE, checkpoints=committed)
    cause = departure(observed_job(job), NOTHING, 0.0)
    assert cause is not None
    if status_s is not None:
        job = replace(job, status=RecordedStatus(Phase.SHRINKING, cause.reason, status_s))
    return job, observed_job(job, running(1), running(2))


@pytest.mark.parametrize(
    ("status_s", "committed", "now_s", "may"),
    [
        (None, (), 10.0, False),  # the cause is not written yet
        (9.0, (), 10.0, False),  # no checkpoint yet
        (9.0, (Checkpoint(5, "m", 1, 8.0),), 10.0, False),  # an old one
        (9.0, (Checkpoint(5, "m", 1, 9.5),), 10.0, True),  # a new one
        (None, (Checkpoint(10, "m", 1, 8.0),), 10.0, True),  # nothing is newer than the old one
        (9.0, (), 9.0 + DEPARTURE_S, True),  # long enough
    ],
)
def test_workers_leave_when_there_is_nothing_left_to_save(
    status_s: float | None, committed: tuple[Checkpoint, ...], now_s: float, may: bool
) -> None:
    job, seen = departing(status_s, committed)
    cause = departure(observed_job(job), NOTHING, now_s)
    assert cause is not None
    assert may_leave(seen, cause, now_s)[0] is may


def test_workers_without_a_state_leave_at_once() -> None:
    job, _ = departing(None)
    cause = departure(observed_job(job), NOTHING, 10.0)
    assert cause is not None
    assert may_leave(observed_job(job, running(1, None), running(2, None)), cause, 10.0)[0]


def test_the_others_of_a_finished_job_have_time_but_not_for_ever() -> None:
    job = job_with(finished_by=3)
    cause = departure(observed_job(job), NOTHING, 10.0)
    assert cause is not None
    job = replace(job, status=RecordedStatus(Phase.SHRINKING, cause.reason, 10.0))
    seen = observed_job(job, running(1), running(2))
    assert not may_leave(seen, cause, 9.9 + FINISH_S)[0]
    assert may_leave(seen, cause, 10.0 + FINISH_S)[0]


def test_a_phase_keeps_its_time_while_its_reason_changes_but_a_departure_begins_anew() -> None:
    job = job_with(placements=(), view=None, status=RecordedStatus(Phase.QUEUED, "waits", 3.0))
    assert status_of(observed_job(job), JobPlan(waits="waits more"), None, 9.0).since_s == 3.0
    job = job_with(intent=Intent.STOP, status=RecordedStatus(Phase.SHRINKING, "pauses", 3.0))
    cause = departure(observed_job(job), NOTHING, 9.0)
    assert status_of(observed_job(job, running(1), running(2)), NOTHING, cause, 9.0).since_s == 9.0


@pytest.mark.parametrize(
    ("changes", "facts", "phase"),
    [
        ({"placements": (), "view": None}, [], Phase.QUEUED),
        ({"view": None}, [running(1, None)], Phase.ADMITTED),
        ({}, [running(1, None), running(2, None)], Phase.ADMITTED),
        ({}, [running(1), running(2)], Phase.RUNNING),
        ({"view": View(1, {1: (0, 1)})}, [running(1), running(2, None)], Phase.GROWING),
        (
            {"placements": (Placement(1, "n1"), Placement(2, "n1", draining=True))},
            [running(1), running(2)],
            Phase.SHRINKING,
        ),
    ],
)
def test_the_phase_follows_from_what_is_seen(
    changes: dict[str, object], facts: list[WorkerFacts], phase: Phase
) -> None:
    status = status_of(observed_job(job_with(**changes), *facts), NOTHING, None, 9.0)
    assert status.phase is phase
    assert status.reason


def test_a_long_traceback_keeps_its_first_and_last_lines() -> None:
    text = "first\n" + "x" * 3 * REASON_CHARACTERS_MAX + "\nlast"
    cut = bounded(text)
    assert len(cut) <= REASON_CHARACTERS_MAX
    assert cut.startswith("first") and cut.endswith("last")


def test_a_program_that_never_uses_holdfast_is_said_to_be_one_with_the_key_for_it() -> None:
    job = job_with(view=None, status=RecordedStatus(Phase.ADMITTED, "", 1.0))

    def told(phase: WorkerPhase, now_s: float, preparing: str = "") -> str:
        facts = (WorkerFacts("train", n, phase, preparing=preparing) for n in (1, 2))
        return status_of(observed_job(job, *facts), NOTHING, None, now_s).reason

    assert told(WorkerPhase.STARTING, 5.0) == "2 workers to start from the beginning"
    assert "2 workers without a sign of Holdfast" in told(WorkerPhase.STARTING, 31.0)
    assert "`mode: serve`" in told(WorkerPhase.STARTING, 31.0)
    assert told(WorkerPhase.READY, 31.0) == "2 workers to start from the beginning"
    assert "sign" not in told(WorkerPhase.STARTING, 31.0, "installs its requirements")
