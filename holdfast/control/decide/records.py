"""What a record does to the desired state. Pure; the coordinator and the simulator share it.

A record says what it expects to replace. Applied to what it expects it gives the next value;
applied again it changes nothing; applied to anything else it is a `Conflict`: whoever decided it
looked at an older snapshot, and decides again.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast.control.decide.commands import (
    AbandonCheckpoint,
    BeginCheckpoint,
    CommitCheckpoint,
    CondemnCheckpoint,
    Drain,
    DropCheckpoint,
    Finish,
    HaltUpdate,
    Place,
    Record,
    RecoverCheckpoints,
    SetStatus,
    Unplace,
    WriteView,
)
from holdfast.control.decide.facts import (
    Checkpoint,
    Desired,
    ExitKind,
    Halt,
    Job,
    Phase,
    Recovery,
    Unreadable,
)
from holdfast.wire.errors import BugError, Conflict
from holdfast.wire.limits import FAILURES_KEPT


def apply_record(
    job: Job, record: Record, *, now_s: float, term: int = 0, manifest: str = ""
) -> Job:
    """The job after `record`. `manifest` (of a commit) is the key of the manifest just written."""
    match record:
        case SetStatus(status=status):
            return _set_status(job, record) if job.status != status else job
        case Place():
            return _place(job, record)
        case Drain():
            return _drain(job, record)
        case Unplace():
            return _unplace(job, record)
        case Finish():
            return _finish(job, record)
        case WriteView():
            return _write_view(job, record)
        case BeginCheckpoint():
            return _begin(job, record)
        case CommitCheckpoint():
            return _commit(job, record, now_s, term, manifest)
        case AbandonCheckpoint():
            return _abandon(job, record, now_s)
        case DropCheckpoint():
            return _drop(job, record)
        case CondemnCheckpoint():
            return _condemn(job, record)
        case RecoverCheckpoints():
            return _recover(job, record)
        case HaltUpdate():
            return _halt(job, record)


def apply_to(
    desired: Desired, record: Record, *, now_s: float, term: int = 0, manifest: str = ""
) -> Desired:
    """The desired state after `record`."""
    job = desired.jobs.get(record.job)
    if job is None:
        raise _conflict(record.job, "there is no such job any more")
    after = apply_record(job, record, now_s=now_s, term=term, manifest=manifest)
    return desired if after is job else replace(desired, jobs={**desired.jobs, job.name: after})


def _conflict(job: str, why: str) -> Conflict:
    return Conflict(
        f"a decision about job {job} came too late",
        why=why,
        fix="nothing: the coordinator looks again and decides again",
    )


def _set_status(job: Job, record: SetStatus) -> Job:
    if job.status.phase.final:
        raise _conflict(job.name, f"it has {job.status.phase.value} already")
    if record.status.phase.final and job.placements:
        raise BugError(
            f"job {job.name} cannot be {record.status.phase.value} yet",
            why=f"{len(job.placements)} of its workers still have their room",
        )
    if record.status.phase is Phase.SUCCEEDED and (job.finished_by, job.finished_step) == (
        None,
        None,
    ):
        raise BugError(
            f"job {job.name} cannot have succeeded",
            why="no worker has finished it, and its last step is not committed",
        )
    return job.with_status(record.status)


def _place(job: Job, record: Place) -> Job:
    placement = record.placement
    if placement in job.placements:
        return job
    if placement.worker != job.next_worker:
        raise _conflict(job.name, f"its next worker is {job.next_worker}, not {placement.worker}")
    if job.status.phase.final:
        raise _conflict(job.name, f"it has {job.status.phase.value} already")
    return replace(job, placements=(*job.placements, placement), next_worker=placement.worker + 1)


def _drain(job: Job, record: Drain) -> Job:
    """A worker that is not placed any more has left already: nothing to do."""
    if not any(p.worker == record.worker and not p.draining for p in job.placements):
        return job
    return replace(
        job,
        placements=tuple(
            replace(p, draining=True) if p.worker == record.worker else p for p in job.placements
        ),
    )


def _unplace(job: Job, record: Unplace) -> Job:
    if all(p.worker != record.worker for p in job.placements):
        return job
    failures = job.failures
    if record.failure is not None:
        kept = max(FAILURES_KEPT, job.spec.restart.failures_max)
        failures = (*failures, record.failure)[-kept:]
    finished_by = job.finished_by
    done = record.exit is not None and record.exit.kind is ExitKind.DONE
    if done and finished_by is None and not record.unfinished:
        finished_by = record.worker
    return replace(
        job,
        placements=tuple(p for p in job.placements if p.worker != record.worker),
        failures=failures,
        finished_by=finished_by,
    )


def _finish(job: Job, record: Finish) -> Job:
    if job.finished_step == record.step:
        return job
    if record.step != job.committed_step:
        raise _conflict(job.name, f"step {record.step} is not its newest checkpoint")
    return replace(job, finished_step=record.step)


def _write_view(job: Job, record: WriteView) -> Job:
    if job.view == record.view:
        return job
    number = job.view.number if job.view else 0
    if record.view.number != number + 1:
        raise _conflict(job.name, f"its view is {number}; {record.view.number} does not follow")
    return replace(job, view=record.view)


def _begin(job: Job, record: BeginCheckpoint) -> Job:
    if job.attempt == record.attempt:
        return job
    if job.attempt is not None:
        raise _conflict(job.name, f"attempt {job.attempt.number} is still under way")
    if record.attempt.number != job.attempts + 1:
        raise _conflict(job.name, f"its next attempt is {job.attempts + 1}")
    if job.view is None or job.view.number != record.attempt.view:
        raise _conflict(job.name, f"the view of attempt {record.attempt.number} is not its view")
    return replace(job, attempt=record.attempt, attempts=record.attempt.number)


def _commit(job: Job, record: CommitCheckpoint, now_s: float, term: int, manifest: str) -> Job:
    attempt = record.attempt
    if job.attempt is None and job.committed_step == attempt.step:
        return job
    if job.attempt != attempt:
        raise _conflict(job.name, f"attempt {attempt.number} is not under way any more")
    if job.view is None or job.view.number != attempt.view:
        raise _conflict(job.name, f"attempt {attempt.number} is of an older view")
    if set(record.parts) != set(job.view.lanes):
        raise BugError(
            f"attempt {attempt.number} of job {job.name} cannot be committed",
            why=f"shares of {sorted(record.parts)}, but the view has {sorted(job.view.lanes)}",
        )
    if attempt.step <= job.committed_step and job.checkpoints:
        raise BugError(
            f"step {attempt.step} of job {job.name} cannot be committed",
            why=f"step {job.committed_step} is committed already",
        )
    committed = Checkpoint(attempt.step, manifest, term, now_s)
    return replace(
        job,
        attempt=None,
        attempts_missed=0,
        abandoned_s=None,
        checkpoint_asked=False,
        checkpoints=(*job.checkpoints, committed),
        unreadable=(),
    )


def _abandon(job: Job, record: AbandonCheckpoint, now_s: float) -> Job:
    if job.attempt != record.attempt:
        return job  # committed or given up already: there is nothing to give up
    return replace(
        job,
        attempt=None,
        attempts_missed=job.attempts_missed + 1 if record.missed else job.attempts_missed,
        abandoned_s=now_s,
    )


def _drop(job: Job, record: DropCheckpoint) -> Job:
    if all(checkpoint.step != record.step for checkpoint in job.checkpoints):
        return job
    if record.step == job.committed_step:
        raise BugError(
            f"checkpoint {record.step} of job {job.name} cannot be removed",
            why="it is the newest: nothing else could be recovered from",
        )
    return replace(job, checkpoints=tuple(c for c in job.checkpoints if c.step != record.step))


def _condemn(job: Job, record: CondemnCheckpoint) -> Job:
    if all(checkpoint.step != record.step for checkpoint in job.checkpoints):
        return job
    if record.step != job.committed_step:
        raise _conflict(job.name, f"its newest checkpoint is {job.committed_step} by now")
    lost = Unreadable(job.checkpoints[-1], record.why)
    return replace(job, checkpoints=job.checkpoints[:-1], unreadable=(lost, *job.unreadable))


def _recover(job: Job, record: RecoverCheckpoints) -> Job:
    """Without workers only: those of before say of each checkpoint that it cannot be read."""
    if job.recovery is Recovery.NONE:
        return job
    if job.recovery is not record.recovery or job.placements:
        raise _conflict(job.name, "its user asks for something else by now")
    done = replace(job, recovery=Recovery.NONE)
    if not job.is_stranded:
        return done
    again = () if record.recovery is Recovery.SCRATCH else job.unreadable
    return replace(done, checkpoints=tuple(one.checkpoint for one in again), unreadable=())


def _halt(job: Job, record: HaltUpdate) -> Job:
    if job.revision != record.revision:
        raise _conflict(job.name, f"its revision is {job.revision} by now")
    if job.is_halted:
        return job
    return replace(job, halted=Halt(record.revision, record.reason))
