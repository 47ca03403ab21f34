"""Jobs of mode `serve`: their workers are replicas, each for itself. Pure.

Such a job has no lanes to hand out, no view and no checkpoint, and it never ends by itself. Its
workers stay in the phase READY: each has found out on its own what it is to serve.

- *A replica that is killed*, or whose machine is lost, is replaced at once.
- *A replica that ends by its own fault* is replaced after a pause that doubles up to its bound, for
  ever. Only as many starts are held back as replicas have failed: the others are replaced as ever.
  A row of failures is broken by time alone (`forgiven_after_s`).
- *A replica whose machine comes back* is an orphan, like any worker, but it answers: it stays until
  those that were placed in its stead are ready (`kept_orphans`).
- *A replica that is to leave* (its machine is drained, there are too many) goes when those that
  were placed to take over are ready. It waits for each at most `ready_within_s` of the spec, and
  not for those that fail again and again.
- *A replica of another revision* than the job's is replaced: see `updating`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.control.decide.facts import Exit, ExitKind, Failure, JobRecord, Phase, WorkerPhase
from holdfast.control.decide.observed import ObservedJob, Reports
from holdfast.control.decide.plans import JobPlan
from holdfast.control.decide.spans import lasts
from holdfast.system import backoff
from holdfast.wire.causes import cause_of
from holdfast.wire.limits import FAILURES_KEPT

# So many rounds in which those that should take over fail; then it does not wait any more.
REPLACEMENT_ROUNDS_MAX: Final = 3

_READY = (WorkerPhase.READY, WorkerPhase.RUNNING)


class FailureStreak(NamedTuple):
    """Failures in a row: so many rounds; the last one began then, and so many replicas failed in
    it before its pause was over."""

    rounds: int = 0
    began_s: float = 0.0
    failed: int = 0


def failure_streak(job: JobRecord) -> FailureStreak:
    """The row that the job's last failure stands in."""
    found, last_s = FailureStreak(), 0.0
    for failure in job.failures:
        if found.rounds and failure.at_s < found.began_s + pause_s(job, found.rounds):
            found = found._replace(failed=found.failed + 1)
        elif found.rounds and failure.at_s < last_s + job.spec.restart.forgiven_after_s:
            found = FailureStreak(found.rounds + 1, failure.at_s, 1)
        else:
            found = FailureStreak(1, failure.at_s, 1)
        last_s = failure.at_s
    return found


def pause_s(job: JobRecord, rounds: int) -> float:
    """The pause after so many rounds of failure in a row."""
    policy = job.spec.restart
    return backoff.pause_s(rounds, policy.backoff_s, policy.backoff_s_max)


def rest_ends_s(job: JobRecord) -> float:
    """Until when starts are held back."""
    found = failure_streak(job)
    return found.began_s + pause_s(job, found.rounds)


def may_start(job: JobRecord, wanted: int, now_s: float) -> int:
    """How many of the wanted replicas may be placed now."""
    found = failure_streak(job)
    if not job.failures or not lasts(found.began_s, pause_s(job, found.rounds), now_s):
        return wanted
    failed = found.failed
    # What is kept of failures is bounded: beyond it they are not counted, so nobody starts.
    return 0 if failed >= FAILURES_KEPT else max(0, wanted - failed)


def failure_of(seen: ObservedJob, worker: int, exit_: Exit, now_s: float) -> Failure | None:
    """What a replica's end adds to the job's failures. One that ends by itself has failed."""
    own = exit_.kind.is_failure or exit_.kind is ExitKind.DONE
    if not own or seen.gone[worker].draining:
        return None
    revision = seen.gone[worker].revision
    return Failure(worker, exit_.detail or exit_.kind.value, now_s, revision=revision)


def stays_yet(seen: ObservedJob, worker: int, plan: JobPlan, now_s: float) -> bool:
    """Whether a replica that is to leave waits for those that take over."""
    if not is_ready(seen, worker) or failure_streak(seen.job).rounds > REPLACEMENT_ROUNDS_MAX:
        return False
    if plan.add:
        return True
    out = {leave.worker for leave in plan.drain}
    return any(
        other not in out
        and not placement.draining
        and not is_ready(seen, other)
        and may_come(seen, other, now_s)
        for other, placement in seen.living.items()
    )


def may_come(seen: ObservedJob, worker: int, now_s: float) -> bool:
    """Whether one that is not ready has time left to become it. What is installed for it first does
    not count."""
    facts = seen.facts.get(worker)
    if facts is not None and facts.preparing:
        return True
    prepared_s = 0.0 if facts is None else facts.preparing_since_s
    since_s = max(seen.living[worker].since_s, prepared_s)
    return lasts(since_s, seen.job.spec.ready_within_s, now_s)


def kept_orphans(seen: ObservedJob, reports: Reports, plan: JobPlan) -> frozenset[int]:
    """Replicas that are placed no more, since their machine was away, and that answer all the same
    now that it is back. They stay until as many as are wanted are ready without them: otherwise a
    coordination plane that was out of reach for a while would cost a service all its replicas at
    once. If the others find no room beside them, they go one by one."""
    job = seen.job
    if job.status.phase.final or job.intent.stops:
        return frozenset()
    staying = seen.living.keys() - seen.leaving
    ready = sum(is_ready(seen, worker) for worker in staying)
    wanted = job.spec.workers_max if job.workers_wanted is None else job.workers_wanted
    keep = wanted - ready
    if len(staying) == ready < wanted and not plan.add:
        keep -= 1
    placed = {placement.worker: placement.node for placement in job.placements}
    there = [
        worker
        for worker, (node, facts) in sorted(reports.items())
        if placed.get(worker) != node and facts.phase in _READY
    ]
    return frozenset(there[max(0, len(there) - keep) :]) if keep > 0 else frozenset()


def going(seen: ObservedJob, plan: JobPlan, now_s: float) -> tuple[Phase, str]:
    """The phase of a job that nobody has asked to end, and why."""
    job = seen.job
    held = len(plan.add) - may_start(job, len(plan.add), now_s)
    rests = _rests(job, held) if held else ""
    starts = len(plan.add) > held
    if (seen.gone or seen.unreported or starts) and job.status.phase is not Phase.PAUSED:
        return job.status.phase, job.status.reason  # the next look says what came of it
    if not seen.living:
        return Phase.QUEUED, rests or plan.waits or "waits for its replicas to be placed"
    told = (rests, plan.waits, _update(seen))
    more = "".join(f"; {said}" for said in told if said)
    staying = seen.living.keys() - seen.leaving
    ready = sum(is_ready(seen, worker) for worker in staying)
    if leaving := len(seen.leaving):
        return Phase.SHRINKING, f"on {replicas(ready)}; {leaving} to leave{more}"
    coming = len(staying) - ready
    if not ready:
        return Phase.ADMITTED, f"{replicas(coming)} to be ready{more}"
    if coming:
        return Phase.GROWING, f"on {replicas(ready)}; {coming} to be ready{more}"
    return Phase.RUNNING, f"on {replicas(ready)}{more}"


def replicas(count: int) -> str:
    """`1 replica`, `3 replicas`."""
    return f"{count} replica" if count == 1 else f"{count} replicas"


def _rests(job: JobRecord, held: int) -> str:
    found = failure_streak(job)
    times = "a failure" if found.rounds == 1 else f"{found.rounds} failures in a row"
    said = cause_of(job.failures[-1].reason).text
    pause = pause_s(job, found.rounds)
    return f"{replicas(held)} started again after a pause of {pause:g} s, for {times}: {said}"


def _update(seen: ObservedJob) -> str:
    """How far an update is, or why it was stopped."""
    job = seen.job
    if job.halted is not None and job.is_halted:
        return f"its update was stopped: {job.halted.reason}"
    if not job.is_updating:
        return ""
    staying = {worker: held for worker, held in seen.living.items() if not held.draining}
    new = [worker for worker, held in staying.items() if held.revision == job.revision]
    ready = sum(is_ready(seen, worker) for worker in new)
    return f"it is being updated, {ready} of the new ones are ready"


def is_ready(seen: ObservedJob, worker: int) -> bool:
    """Whether it says, or its probe says, that it is."""
    facts = seen.facts.get(worker)
    return facts is not None and facts.phase in _READY
