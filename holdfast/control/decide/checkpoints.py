"""When a checkpoint is begun, committed, given up, and removed. Pure.

One attempt at a time. It belongs to one view and names one step, a little ahead of the most
advanced member, so that everyone can copy its share at that step's boundary. It is committed when
every member of that view has reported that its parts are durable, while that view is still the
job's view: also when all members have died since. It is given up when the view has changed, when
a member went without its parts, when somebody had already passed the step (the next attempt names
a later one), when the job ends before that step, or after `CHECKPOINT_ATTEMPT_S`.

The job's last step is committed exactly: those who have made it wait there, so the attempt names
the step that they hold, at once.

A committed checkpoint that nobody can read back does not count any more, and the one before it
does. When none is left, the job is *stranded*: its workers leave, and it waits until its user lets
it try again or begin at step 0. It never does so by itself.

Numbers of attempts are used once, so parts of a given up attempt never count for another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from holdfast.control.decide.commands import (
    AbandonCheckpoint,
    BeginCheckpoint,
    CommitCheckpoint,
    Decision,
    DropCheckpoint,
    MarkCheckpointUnreadable,
    RecoverCheckpoints,
    TakeShare,
)
from holdfast.control.decide.facts import Attempt, CheckpointRecovery, JobRecord, Part, View
from holdfast.control.decide.observed import ObservedJob, Reports
from holdfast.control.decide.spans import lasts
from holdfast.wire.limits import CHECKPOINT_ATTEMPT_S, CHECKPOINT_RETRY_S

# A checkpoint names a step that nobody has reached when the order arrives: so many steps ahead,
# and as many as the job makes in so much time; each missed attempt multiplies it.
CHECKPOINT_LEAD_STEPS: Final = 2
CHECKPOINT_LEAD_S: Final = 0.5
CHECKPOINT_LEAD_GROWTH: Final = 4
CHECKPOINT_LEAD_STEPS_MAX: Final = 100_000


def due(seen: ObservedJob, departing: bool, now_s: float) -> str:
    """Why a checkpoint is due; empty: it is not."""
    job, policy = seen.job, seen.job.spec.checkpoint
    ahead = seen.step - job.committed_step
    if ahead <= 0:
        return ""  # the newest checkpoint says it all
    if seen.last_step is not None:
        return "the job's last step is done"
    if departing:
        return "the workers are about to leave"
    if job.checkpoint_asked:
        return "its user asked"
    if policy.every_steps is not None and ahead >= policy.every_steps:
        return f"{ahead} steps since the last one"
    last_s = job.checkpoints[-1].committed_s if job.checkpoints else job.submitted_s
    if policy.every_s is not None and not lasts(last_s, policy.every_s, now_s):
        return f"the last one is more than {policy.every_s:g} s old"
    return ""


def lead(seen: ObservedJob, now_s: float) -> int:
    """How many steps ahead an attempt names its step.

    The job's speed is taken from its progress since the last commit. Time without work in between
    makes it look slower than it is; then the attempt is missed, and the next lead is longer.
    """
    job = seen.job
    since_s = job.checkpoints[-1].committed_s if job.checkpoints else job.submitted_s
    steps_a_second = (seen.step - job.committed_step) / max(now_s - since_s, CHECKPOINT_LEAD_S)
    steps = CHECKPOINT_LEAD_STEPS + int(steps_a_second * CHECKPOINT_LEAD_S)
    growth = CHECKPOINT_LEAD_GROWTH ** min(job.attempts_missed, 16)
    return int(min(steps * growth, CHECKPOINT_LEAD_STEPS_MAX))


def begin(seen: ObservedJob, departing: bool, now_s: float) -> Decision | None:
    """Begin an attempt, if one is due and every member can take part."""
    job = seen.job
    if job.attempt is not None or job.view is None or not seen.adopted:
        return None
    last = seen.last_step is not None
    rests = job.abandoned_s is not None and lasts(job.abandoned_s, CHECKPOINT_RETRY_S, now_s)
    if rests and not last:
        return None
    reason = due(seen, departing, now_s)
    if not reason:
        return None
    step = seen.step if last else seen.step + lead(seen, now_s)
    attempt = Attempt(job.attempts + 1, step, job.view.number, now_s)
    return Decision(BeginCheckpoint(job.name, attempt), f"checkpoint at step {step}: {reason}")


def conclude(seen: ObservedJob, reports: Reports, now_s: float) -> Decision | None:
    """Commit the attempt under way or give it up, if it is time for either."""
    job, attempt = seen.job, seen.job.attempt
    if attempt is None:
        return None
    view = job.view
    if view is None or view.number != attempt.view:
        return _abandon(job, attempt, f"it was for view {attempt.view}, which is over")
    parts = _durable(view, attempt, reports)
    if len(parts) == len(view.lanes):
        reason = f"checkpoint at step {attempt.step}: all {len(parts)} shares are durable"
        return Decision(CommitCheckpoint(job.name, attempt, parts), reason)
    if seen.last_step is not None and seen.last_step < attempt.step:
        return _abandon(job, attempt, f"step {seen.last_step} is the job's last")
    for worker in view.lanes:
        reported = reports.get(worker)
        if reported is not None and attempt.number in reported[1].missed:
            reason = f"worker {worker} had already passed step {attempt.step}"
            return _abandon(job, attempt, reason, missed=True)
        if worker not in seen.living and worker not in parts:
            return _abandon(job, attempt, f"worker {worker} went without its share")
    if not lasts(attempt.since_s, CHECKPOINT_ATTEMPT_S, now_s):
        return _abandon(job, attempt, f"it took longer than {CHECKPOINT_ATTEMPT_S:g} s")
    return None


def give_up_for_view(seen: ObservedJob, number: int) -> Decision | None:
    """The attempt under way ends when view `number` is written."""
    if seen.job.attempt is None:
        return None
    return _abandon(seen.job, seen.job.attempt, f"view {number} comes")


def mark_unreadable(seen: ObservedJob) -> Decision | None:
    """The newest checkpoint, if everyone who was to start from it says that it cannot be read."""
    job, view = seen.job, seen.job.view
    if view is None or not job.checkpoints or view.restore_step != job.committed_step:
        return None
    survivors = seen.survivors
    if not survivors or seen.holders:
        return None
    why = ""
    for worker in sorted(survivors):
        facts = seen.facts.get(worker)
        if facts is None or view.restore_step not in facts.unreadable:
            return None
        why = why or facts.unreadable_why
    why = why or "its workers did not say why"
    before = job.checkpoints[:-1]
    older = f"from step {before[-1].step} instead" if before else "there is no older one"
    reason = f"the checkpoint of step {view.restore_step} cannot be read back: {why}; {older}"
    return Decision(MarkCheckpointUnreadable(job.name, view.restore_step, why), reason)


def recover(seen: ObservedJob) -> Decision | None:
    """What its user decided for a job that is stranded, when the last of its workers is gone."""
    job = seen.job
    if job.recovery is CheckpointRecovery.NONE or job.placements:
        return None
    reason = f"its user gives up {_counted(job)}: it begins at step 0"
    if job.recovery is CheckpointRecovery.AGAIN:
        reason = f"its user asks to try {_counted(job)} again"
    return Decision(RecoverCheckpoints(job.name, job.recovery), reason)


def stranded_text(job: JobRecord) -> str:
    """Why a job whose checkpoints cannot be read does not go on, and what its user can do."""
    first = job.unreadable[-1]
    count = len(job.unreadable)
    many = f"all {count} committed checkpoints are" if count > 1 else "the only checkpoint is"
    return (
        f"{many} unreadable (step {first.checkpoint.step}: {first.reason}); `holdfast resume"
        f" {job.name}` tries again, `holdfast resume {job.name} --from-scratch` begins at step 0"
    )


def _counted(job: JobRecord) -> str:
    count = len(job.unreadable)
    return f"{count} unreadable checkpoint{'s' if count > 1 else ''}"


def _durable(view: View, attempt: Attempt, reports: Reports) -> Mapping[int, tuple[Part, ...]]:
    found = {}
    for worker in sorted(view.lanes):
        reported = reports.get(worker)
        if reported is not None and attempt.number in reported[1].parts:
            found[worker] = tuple(reported[1].parts[attempt.number])
    return found


def _abandon(job: JobRecord, attempt: Attempt, why: str, *, missed: bool = False) -> Decision:
    reason = f"checkpoint at step {attempt.step} is given up: {why}"
    return Decision(AbandonCheckpoint(job.name, attempt, missed), reason)


def shares(seen: ObservedJob) -> Iterator[Decision]:
    """Orders for those members that have not reported their share of the written attempt."""
    job, attempt, view = seen.job, seen.job.attempt, seen.job.view
    if attempt is None or view is None or view.number != attempt.view:
        return
    count = len(view.lanes)
    for share, worker in enumerate(sorted(view.lanes)):
        placement, facts = seen.living.get(worker), seen.facts.get(worker)
        if placement is None or facts is None:
            continue
        if attempt.number not in facts.parts and attempt.number not in facts.missed:
            yield Decision(
                TakeShare(placement.node, job.name, worker, attempt, share, count),
                f"worker {worker} writes share {share + 1} of {count} of step {attempt.step}",
            )


def drops(seen: ObservedJob) -> Iterator[Decision]:
    """Committed checkpoints that are not needed any more; never the newest, nor one in use."""
    job = seen.job
    keep = max(job.spec.checkpoint.keep, 1)
    in_use = job.view.restore_step if job.view and not seen.adopted else None
    for checkpoint in job.checkpoints[:-keep]:
        if checkpoint.step != in_use:
            yield Decision(
                DropCheckpoint(job.name, checkpoint.step),
                f"{keep} newer checkpoints are committed",
            )
