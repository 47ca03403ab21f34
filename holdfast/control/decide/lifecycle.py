"""A job's lifecycle: when it ends and why, when a failed one is tried again, what people read.

Everything here follows from what is written (`JobRecord`), what is seen (`ObservedJob`) and the
time. So a new leader comes to the same conclusions.

- *Departure*: all workers are to leave: the job was stopped, paused, preempted, has failed, or has
  outlived its deadline, or none of its committed checkpoints can be read back. Its cause is
  written as the status (`SHRINKING`, and since when) before anything else. If there is work to
  save, a checkpoint is taken first; when one is committed that is newer than the status, or after
  `DEPARTURE_S`, all workers are drained. The last phase is written when the last room is free.
- *Ending*: a worker says that it holds the job's last step. It waits there; that step is committed,
  then all leave, and the job has succeeded. If those who hold it die before, the job goes on from
  the last commit, as always.
- *Finished*: a worker that takes no part in checkpoints reported that the job is done. The others
  go on to their own end (they may still be putting results away), at most `FINISH_S`.
- *Rounds of failure*: what a worker's own code did counts; a killed process or a lost machine does
  not. Failures before the next restart belong to one round: the first is the cause. After each
  round nothing is started for a pause that doubles; `failures_max` rounds in a row end the job. A
  row is broken by time (`forgiven_after_s`) together with progress: a job that fails at the same
  step every hour is not forgiven. A worker that says that trying again cannot help, or of whom
  its agent says so (`REFUSED`: a wrong argument, data that is not what it was, code that cannot be
  read, an import that is not there), ends the job at once. And a job that has never made a step,
  and fails by an error with the same cause twice in a row, is not tried a third time.

Replicas (mode `serve`) have no end of their own, and fail one by one: see `serving`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from holdfast.control.decide import checkpoints, serving
from holdfast.control.decide.facts import (
    Exit,
    ExitKind,
    Failure,
    Intent,
    JobRecord,
    Phase,
    RecordedStatus,
    WorkerPhase,
)
from holdfast.control.decide.observed import ObservedJob
from holdfast.control.decide.plans import JobPlan
from holdfast.control.decide.spans import lasts
from holdfast.system import backoff
from holdfast.wire.causes import cause_of
from holdfast.wire.limits import DEPARTURE_S, FINISH_S, REASON_CHARACTERS_MAX

# A worker of a training introduces itself when its script has imported what it needs: torch takes
# seconds, on a busy machine many. After so long it is probably another kind of program.
PLAIN_S: Final = 30.0
_PLAIN_MEANS: Final = (
    "a training script calls holdfast.train; any other program ends the job when it ends, and one"
    " that is to stay says `mode: serve` in its job file"
)


@dataclass(frozen=True, slots=True)
class Departure:
    """Why all workers are to leave, and the phase when they have. `saves`: a checkpoint first."""

    reason: str
    ends_as: Phase
    afterwards: str
    saves: bool = True


def rounds(job: JobRecord) -> int:
    """How many rounds of failure there were in a row, up to the last one."""
    count = 0
    later: Failure | None = None
    for failure in reversed(job.failures):
        if later is not None and (
            later.at_s - failure.at_s >= job.spec.restart.forgiven_after_s
            and later.step > failure.step
        ):
            break
        count += 1
        later = failure
    return count


def pause_s(job: JobRecord) -> float:
    """The pause after the last round of failure."""
    policy = job.spec.restart
    return backoff.pause_s(rounds(job), policy.backoff_s, policy.backoff_s_max)


def resting(job: JobRecord, now_s: float) -> bool:
    """Whether nothing is started now because a failure was so short a time ago."""
    return bool(job.failures) and lasts(job.failures[-1].at_s, pause_s(job), now_s)


def rest_ends_s(job: JobRecord) -> float:
    """When the pause after the last failure is over."""
    if job.spec.serves:
        return serving.rest_ends_s(job)
    return job.failures[-1].at_s + pause_s(job)


def may_start(job: JobRecord, wanted: int, now_s: float) -> int:
    """How many of so many new workers may be placed now."""
    if job.spec.serves:
        return serving.may_start(job, wanted, now_s)
    return 0 if resting(job, now_s) else wanted


def failure_of(seen: ObservedJob, worker: int, exit_: Exit, now_s: float) -> Failure | None:
    """What a worker's end adds to the job's failures: nothing within a round that has begun, and
    nothing if it was asked to leave."""
    if seen.job.spec.serves:
        failure = serving.failure_of(seen, worker, exit_, now_s)
        return failure and replace(failure, reason=bounded(failure.reason))
    final = exit_.kind is ExitKind.REFUSED
    if not exit_.kind.is_failure or seen.gone[worker].draining:
        return None
    if resting(seen.job, now_s) and (not final or seen.job.failures[-1].final):
        return None
    reason = bounded(exit_.detail or exit_.kind.value)
    failure = Failure(worker, reason, now_s, seen.step, final)
    again = exit_.kind is ExitKind.ERROR and _again(seen.job.failures, failure)
    return replace(failure, final=final or again)


def _again(before: tuple[Failure, ...], failure: Failure) -> bool:
    """Whether the job failed the last time as it does now, and made no step before or since: its
    code was tried once more, and does not work here. Once it has made a step it does work, and
    what it meets may pass."""
    if not before or before[-1].step or failure.step:
        return False
    return cause_of(before[-1].reason).text == cause_of(failure.reason).text


def finished_step(seen: ObservedJob) -> int | None:
    """The job's last step, if it is made and committed."""
    job = seen.job
    if job.finished_step is not None:
        return job.finished_step
    return seen.last_step if seen.last_step == job.committed_step else None


def unfinished(seen: ObservedJob, worker: int, exit_: Exit) -> bool:
    """Whether a worker that is gone said `done` too early. Asked to leave at the last step it
    cannot know whether that is committed; one that holds no state is an ordinary program."""
    job, facts = seen.job, seen.facts.get(worker)
    if exit_.kind is not ExitKind.DONE or job.finished_step is not None:
        return False
    if job.spec.serves:
        return True
    if facts is None or facts.step is None:
        return False
    return seen.gone[worker].draining or (facts.ending and facts.step > job.committed_step)


def departure(seen: ObservedJob, plan: JobPlan, now_s: float) -> Departure | None:
    """Why everybody is to leave, if so."""
    job = seen.job
    step = finished_step(seen)
    if step is not None:
        text = f"finished: step {step} is committed"
        return Departure(text, Phase.SUCCEEDED, text, saves=False)
    if job.finished_by is not None:
        text = f"worker {job.finished_by} finished the job"
        return Departure(f"{text}; the others end too", Phase.SUCCEEDED, text, saves=False)
    spec, count = job.spec, rounds(job)
    ends = bool(job.failures) and (count >= spec.restart.failures_max or job.failures[-1].final)
    if ends and not spec.serves:
        last = job.failures[-1]
        times = "once" if count == 1 else f"{count} times in a row"
        said = f"the job failed {times}"
        if last.final:
            same = _again(job.failures[:-1], last)
            said = "the same twice before its first step" if same else "trying again cannot help"
        text = bounded(f"{last.reason}\n(worker {last.worker}; {said})")
        return Departure(f"failed: {text}", Phase.FAILED, text, saves=False)
    if job.intent.stops:
        text = "stopped as its user asked"
        saves = job.intent is not Intent.STOP_NOW
        return Departure("stops as its user asked", Phase.STOPPED, text, saves)
    if spec.deadline_s is not None and now_s >= job.submitted_s + spec.deadline_s:
        text = f"its deadline of {spec.deadline_s:g} s has passed"
        return Departure(text, Phase.FAILED, text)
    if job.is_stranded:
        text = checkpoints.stranded_text(job)
        return Departure(text, Phase.PAUSED, text, saves=False)
    if job.intent is Intent.PAUSE:
        text = f"paused as its user asked; `holdfast resume {job.name}` goes on"
        return Departure("pauses as its user asked", Phase.PAUSED, text)
    leaving = {leave.worker for leave in plan.drain}
    staying = [p for p in job.placements if not p.draining and p.worker not in leaving]
    if plan.drain and not staying and not plan.add:
        return Departure(f"makes room: {plan.drain[0].reason}", Phase.QUEUED, plan.waits)
    return None


def may_leave(seen: ObservedJob, cause: Departure, now_s: float) -> tuple[bool, str]:
    """Whether workers may be drained now for this departure, and why (or what is waited for)."""
    job = seen.job
    status = job.status
    begun = status.phase is Phase.SHRINKING and status.reason == cause.reason
    last = finished_step(seen)
    if last is not None:
        return True, f"step {last} was its last"
    if job.finished_by is not None:
        if begun and not lasts(status.since_s, FINISH_S, now_s):
            return True, f"{FINISH_S:g} s after the job was finished"
        return False, "the others may put their results away"
    if not cause.saves:
        return True, "there is nothing to save"
    if not seen.holders:
        return True, "no worker holds a state that could be saved"
    if seen.step <= job.committed_step:
        return True, f"step {job.committed_step} is committed"
    if not begun:
        return False, "a checkpoint comes first"
    if job.checkpoints and job.checkpoints[-1].committed_s >= status.since_s:
        return True, f"step {job.committed_step} is committed"
    if not lasts(status.since_s, DEPARTURE_S, now_s):
        return True, f"no checkpoint could be committed within {DEPARTURE_S:g} s"
    return False, "a checkpoint comes first"


def status_of(
    seen: ObservedJob, plan: JobPlan, cause: Departure | None, now_s: float
) -> RecordedStatus:
    """What people are told. The same situation gives the same sentence: no times, no steps."""
    job = seen.job
    if plan.held:
        plan = replace(plan, add=(), waits=plan.held)
    if cause is None:
        tell = serving.going if job.spec.serves else _going
        phase, reason = tell(seen, plan, now_s)
    elif job.placements:
        phase, reason = Phase.SHRINKING, cause.reason
    else:
        phase, reason = cause.ends_as, cause.afterwards
    reason = bounded(reason)
    if cause is None and seen.store not in reason:
        reason = f"{reason}; {seen.store}"
    if job.status.phase is phase and (job.status.reason == reason or phase is not Phase.SHRINKING):
        # A departure's clock starts with its cause; of every other phase we say since when.
        return RecordedStatus(phase, reason, job.status.since_s)
    return RecordedStatus(phase, reason, now_s)


def _going(seen: ObservedJob, plan: JobPlan, now_s: float) -> tuple[Phase, str]:
    job, spec = seen.job, seen.job.spec
    changes = seen.gone or seen.unreported or plan.drain or (plan.add and not resting(job, now_s))
    if changes and job.status.phase is not Phase.PAUSED:
        return job.status.phase, job.status.reason  # the next look says what came of it
    if not seen.living:
        if resting(job, now_s):
            last = cause_of(job.failures[-1].reason).text
            times = f"failure {rounds(job)} of at most {spec.restart.failures_max}"
            return Phase.QUEUED, f"waits {pause_s(job):g} s after {times}: {last}"
        return Phase.QUEUED, plan.waits or "waits for its workers to be placed"
    if seen.last_step is not None:
        return Phase.RUNNING, f"its last step, {seen.last_step}, is made and is being committed"
    survivors, living = len(seen.survivors), len(seen.living)
    wait = f"; {plan.waits}" if plan.waits else ""
    if not seen.holders:
        start = f"step {job.committed_step}" if job.checkpoints else "the beginning"
        needed = f"; it needs {spec.workers_min}" if living < spec.workers_min else ""
        if _looks_plain(seen, now_s):
            return Phase.ADMITTED, f"{many(living)} without a sign of Holdfast: {_PLAIN_MEANS}"
        return Phase.ADMITTED, f"{many(living)} to start from {start}{needed}{wait}"
    if seen.leaving:
        return (
            Phase.SHRINKING,
            f"{len(seen.leaving)} of {many(living)} to leave at a step boundary",
        )
    joining = living - survivors
    if joining:
        return Phase.GROWING, f"{many(joining)} to join {survivors}{wait}"
    few = f", fewer than the {spec.workers_min} it asks for" if living < spec.workers_min else ""
    return Phase.RUNNING, f"on {many(survivors)}{few}{wait}"


def _looks_plain(seen: ObservedJob, now_s: float) -> bool:
    """Whether all its workers run for a while, and none has introduced itself."""
    return all(
        (facts := seen.facts.get(worker)) is not None
        and facts.phase is WorkerPhase.STARTING
        and not facts.preparing
        and not lasts(placement.since_s, PLAIN_S, now_s)
        for worker, placement in seen.living.items()
    )


def many(count: int) -> str:
    """`1 worker`, `3 workers`."""
    return f"{count} worker" if count == 1 else f"{count} workers"


def bounded(text: str) -> str:
    """The text, or its beginning and its end: a traceback's last lines say most."""
    if len(text) <= REASON_CHARACTERS_MAX:
        return text
    half = REASON_CHARACTERS_MAX // 2 - 10
    return f"{text[:half]}\n[...]\n{text[-half:]}"


def end_of(seen: ObservedJob, worker: int) -> Exit:
    """How a worker that is gone ended, as far as it is known."""
    facts = seen.facts.get(worker)
    if facts is not None:
        return facts.exit or Exit(ExitKind.LOST, "its agent does not know how it ended")
    node = seen.gone[worker].node
    if worker in seen.forgotten:
        return Exit(ExitKind.LOST, f"node {node} does not know of it any more")
    return Exit(ExitKind.LOST, f"node {node} is not there any more")
