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
    DrainWorker,
    DropCheckpoint,
    Finish,
    ForgetJob,
    HaltUpdate,
    MarkCheckpointUnreadable,
    MoveTrigger,
    PlaceWorker,
    Record,
    RecoverCheckpoints,
    SetStatus,
    StartJob,
    UnplaceWorker,
    WriteView,
)
from holdfast.control.decide.facts import (
    Checkpoint,
    CheckpointRecovery,
    DesiredState,
    ExitKind,
    Halt,
    JobRecord,
    Phase,
    RecordedStatus,
    Unreadable,
)
from holdfast.wire.errors import BugError, Conflict
from holdfast.wire.limits import FAILURES_KEPT


def apply_record(
    job: JobRecord, record: Record, *, now_s: float, term: int = 0, manifest: str = ""
) -> JobRecord:
    """The job after `record`. `manifest` (of a commit) is the key of the manifest just written."""
    match record:
        case SetStatus(status=status):
            return _set_status(job, record) if job.status != status else job
        case PlaceWorker():
            return _place(job, record)
        case DrainWorker():
            return _drain(job, record)
        case UnplaceWorker():
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
        case MarkCheckpointUnreadable():
            return _mark_unreadable(job, record)
        case RecoverCheckpoints():
            return _recover(job, record)
        case HaltUpdate():
            return _halt(job, record)
        case MoveTrigger():
            return _move_trigger(job, record)
        case StartJob():
            return _pass_range(job, record)
        case ForgetJob():
            return _count_forgotten(job, record)


def apply_to(
    desired: DesiredState, record: Record, *, now_s: float, term: int = 0, manifest: str = ""
) -> DesiredState:
    """The desired state after `record`."""
    job = desired.jobs.get(record.job)
    if job is None:
        raise _conflict(record.job, "there is no such job any more")
    after = apply_record(job, record, now_s=now_s, term=term, manifest=manifest)
    if after is job:
        return desired
    jobs = {**desired.jobs, job.name: after}
    if isinstance(record, StartJob):
        jobs[record.spec.name] = started_job(record)
    elif isinstance(record, ForgetJob):
        jobs.pop(record.name, None)
    return replace(desired, jobs=jobs)


def started_job(record: StartJob, next_worker: int = 1) -> JobRecord:
    """The job that a trigger starts, as it begins."""
    status = RecordedStatus(Phase.QUEUED, "it was just started", record.at_s)
    return JobRecord(
        record.spec,
        record.at_s,
        status,
        workers_wanted=record.workers_wanted,
        next_worker=next_worker,
    )


def _conflict(job: str, why: str) -> Conflict:
    return Conflict(
        f"a decision about job {job} came too late",
        why=why,
        fix="nothing: the coordinator looks again and decides again",
    )


def _set_status(job: JobRecord, record: SetStatus) -> JobRecord:
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


def _place(job: JobRecord, record: PlaceWorker) -> JobRecord:
    placement = record.placement
    if placement in job.placements:
        return job
    if placement.worker != job.next_worker:
        raise _conflict(job.name, f"its next worker is {job.next_worker}, not {placement.worker}")
    if job.status.phase.final:
        raise _conflict(job.name, f"it has {job.status.phase.value} already")
    return replace(job, placements=(*job.placements, placement), next_worker=placement.worker + 1)


def _drain(job: JobRecord, record: DrainWorker) -> JobRecord:
    """A worker that is not placed any more has left already: nothing to do."""
    if not any(p.worker == record.worker and not p.draining for p in job.placements):
        return job
    return replace(
        job,
        placements=tuple(
            replace(p, draining=True) if p.worker == record.worker else p for p in job.placements
        ),
    )


def _unplace(job: JobRecord, record: UnplaceWorker) -> JobRecord:
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


def _finish(job: JobRecord, record: Finish) -> JobRecord:
    if job.finished_step == record.step:
        return job
    if record.step != job.committed_step:
        raise _conflict(job.name, f"step {record.step} is not its newest checkpoint")
    return replace(job, finished_step=record.step)


def _write_view(job: JobRecord, record: WriteView) -> JobRecord:
    if job.view == record.view:
        return job
    number = job.view.number if job.view else 0
    if record.view.number != number + 1:
        raise _conflict(job.name, f"its view is {number}; {record.view.number} does not follow")
    return replace(job, view=record.view)


def _begin(job: JobRecord, record: BeginCheckpoint) -> JobRecord:
    if job.attempt == record.attempt:
        return job
    if job.attempt is not None:
        raise _conflict(job.name, f"attempt {job.attempt.number} is still under way")
    if record.attempt.number != job.attempts + 1:
        raise _conflict(job.name, f"its next attempt is {job.attempts + 1}")
    if job.view is None or job.view.number != record.attempt.view:
        raise _conflict(job.name, f"the view of attempt {record.attempt.number} is not its view")
    return replace(job, attempt=record.attempt, attempts=record.attempt.number)


def _commit(
    job: JobRecord, record: CommitCheckpoint, now_s: float, term: int, manifest: str
) -> JobRecord:
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


def _abandon(job: JobRecord, record: AbandonCheckpoint, now_s: float) -> JobRecord:
    if job.attempt != record.attempt:
        return job  # committed or given up already: there is nothing to give up
    return replace(
        job,
        attempt=None,
        attempts_missed=job.attempts_missed + 1 if record.missed else job.attempts_missed,
        abandoned_s=now_s,
    )


def _drop(job: JobRecord, record: DropCheckpoint) -> JobRecord:
    if all(checkpoint.step != record.step for checkpoint in job.checkpoints):
        return job
    if record.step == job.committed_step:
        raise BugError(
            f"checkpoint {record.step} of job {job.name} cannot be removed",
            why="it is the newest: nothing else could be recovered from",
        )
    return replace(job, checkpoints=tuple(c for c in job.checkpoints if c.step != record.step))


def _mark_unreadable(job: JobRecord, record: MarkCheckpointUnreadable) -> JobRecord:
    if all(checkpoint.step != record.step for checkpoint in job.checkpoints):
        return job
    if record.step != job.committed_step:
        raise _conflict(job.name, f"its newest checkpoint is {job.committed_step} by now")
    lost = Unreadable(job.checkpoints[-1], record.why)
    return replace(job, checkpoints=job.checkpoints[:-1], unreadable=(lost, *job.unreadable))


def _recover(job: JobRecord, record: RecoverCheckpoints) -> JobRecord:
    """Without workers only: those of before say of each checkpoint that it cannot be read."""
    if job.recovery is CheckpointRecovery.NONE:
        return job
    if job.recovery is not record.recovery or job.placements:
        raise _conflict(job.name, "its user asks for something else by now")
    done = replace(job, recovery=CheckpointRecovery.NONE)
    if not job.is_stranded:
        return done
    again = () if record.recovery is CheckpointRecovery.SCRATCH else job.unreadable
    return replace(done, checkpoints=tuple(one.checkpoint for one in again), unreadable=())


def _halt(job: JobRecord, record: HaltUpdate) -> JobRecord:
    if job.revision != record.revision:
        raise _conflict(job.name, f"its revision is {job.revision} by now")
    if job.is_halted:
        return job
    return replace(job, halted=Halt(record.revision, record.reason))


def _move_trigger(job: JobRecord, record: MoveTrigger) -> JobRecord:
    if job.trigger == record.after:
        return job
    if job.trigger != record.before:
        raise _conflict(job.name, "the trigger has come further")
    return replace(job, trigger=record.after)


def _pass_range(job: JobRecord, record: StartJob) -> JobRecord:
    """The trigger's side of a start: what its job has got is behind it."""
    state, given = job.trigger, record.spec.triggered
    if state is None or given is None:
        raise BugError(f"{job.name} cannot start {record.spec.name}", why="it is no trigger")
    if state.started >= given.number:
        if any(each.end > state.positions[each.partition] for each in given.ranges):
            raise _conflict(job.name, f"its job {given.number} was started for other records")
        return job
    positions = list(state.positions)
    for each in given.ranges:
        if positions[each.partition] != each.first or each.count < 1:
            raise _conflict(job.name, f"the trigger is elsewhere in partition {each.partition}")
        positions[each.partition] = each.end
    after = replace(state, positions=tuple(positions), started=given.number, since_s=record.at_s)
    return replace(job, trigger=after)


def _count_forgotten(job: JobRecord, record: ForgetJob) -> JobRecord:
    if job.trigger is None:
        raise BugError(f"{job.name} has no jobs to forget", why="it is no trigger")
    if job.trigger.forgotten >= record.count:
        return job
    return replace(job, trigger=replace(job.trigger, forgotten=record.count))
