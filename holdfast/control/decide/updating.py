"""Another spec for a job that serves, replica by replica. Pure.

A user gives the job another command, bundle, environment, ports or probes. From then on the job has
a new revision, and each replica of another one is replaced:

- There may be one replica more than wanted while there is room for it that nobody else wants: it is
  ready before an old one leaves. Without room one old replica leaves first, then its successor
  starts. In both cases at most one is under way, and old ones that are not ready go first.
- The update *stops* when new replicas end by their own fault `UPDATE_FAILURES_MAX` times, or when
  one is not ready within `ready_within_s`. Those that are not ready leave; everyone else stays, and
  replacements are started by the spec before. `why` says so. A later update begins anew.

What room was counted by cannot change: those fields are refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import fields, replace
from typing import Final

from holdfast.control.decide import serving
from holdfast.control.decide.commands import Decision, DrainWorker, HaltUpdate
from holdfast.control.decide.facts import DesiredSpec, Halt
from holdfast.control.decide.observed import ObservedJob
from holdfast.control.decide.plans import JobPlan
from holdfast.control.decide.spec import JobSpec
from holdfast.control.decide.units import duration_of
from holdfast.wire.causes import cause_of
from holdfast.wire.errors import Refused

# So many ends of new replicas by their own fault, and an update is stopped.
UPDATE_FAILURES_MAX: Final = 3

# Room, shares and what lies between machines are counted for the whole job, not for each replica.
_KEPT = ("name", "queue", "mode", "resources", "lanes", "network")
# What is decided anew at each look; no replica is started by it.
_AT_ONCE = ("workers_min", "workers_max", "priority", "restart", "deadline_s")
_CHECKPOINTS = ("checkpoint",)


def changed(
    desired: DesiredSpec, spec: JobSpec, halted: Halt | None, placed: Collection[int], now_s: float
) -> DesiredSpec:
    """What is desired, with this spec; the same, if nothing would change. `placed`: the revisions
    that its replicas have now."""
    now = desired.spec
    if not now.serves:
        raise Refused(
            f"job {now.name} is a training, and is not updated",
            why="its workers compute one state together, with one program",
            fix=f"change a setting: holdfast set {now.name} lr=0.01; or stop it and submit another",
        )
    for name in _KEPT:
        if getattr(now, name) != getattr(spec, name):
            raise Refused(
                f"`{name}` of job {now.name} cannot be changed by an update",
                why="it is counted for all of its replicas together",
                fix=f"holdfast stop {now.name} --wait && holdfast remove {now.name}, then submit",
            )
    if desired.workers_wanted is not None:
        wanted = min(max(desired.workers_wanted, spec.workers_min), spec.workers_max)
        desired = replace(desired, workers_wanted=wanted)
    if not _differ(now, spec):
        stopped = halted is not None and halted.revision == desired.revision
        if not stopped:
            return replace(desired, spec=spec)
    before, number = now, desired.revision
    unproven = desired.before is not None and (
        (halted is not None and halted.revision == desired.revision)
        or desired.before_revision in placed
    )
    if unproven and desired.before is not None:
        before, number = desired.before, desired.before_revision
    failed_before = halted is not None and halted.revision == desired.before_revision
    if desired.before is not None and not _differ(desired.before, spec) and not failed_before:
        # Back to what it was: replicas that are still of it are right already.
        return replace(
            desired,
            spec=spec,
            revision=desired.before_revision,
            before=now,
            before_revision=desired.revision,
            updated_s=now_s,
        )
    newest = max(desired.revision, desired.before_revision)
    return replace(
        desired,
        spec=spec,
        revision=newest + 1,
        before=before,
        before_revision=number,
        updated_s=now_s,
    )


def _differ(one: JobSpec, other: JobSpec) -> bool:
    """Whether a replica of one is not a replica of the other."""
    return any(
        getattr(one, field.name) != getattr(other, field.name)
        for field in fields(JobSpec)
        if field.name not in (*_AT_ONCE, *_CHECKPOINTS)
    )


def steps(seen: ObservedJob, plan: JobPlan, now_s: float) -> Iterator[Decision]:
    """What the update does next: stop, or let one old replica leave."""
    job = seen.job
    staying = {worker: held for worker, held in seen.living.items() if not held.draining}
    new = [worker for worker, held in staying.items() if held.revision == job.revision]
    coming = [worker for worker in new if not serving.is_ready(seen, worker)]
    why = _trouble(seen, coming, now_s)
    if why:
        reason = f"the update stops: {why}; the replicas before it go on"
        yield Decision(HaltUpdate(job.name, job.revision, why), reason)
        for worker in coming:
            yield _leave(seen, worker, "its update was stopped, and it is not ready")
        return
    old = [worker for worker in staying if worker not in new]
    useless = [worker for worker in old if not serving.is_ready(seen, worker)]
    if useless and not seen.unreported:
        for worker in useless:
            yield _leave(seen, worker, "it is of an older revision, and not ready")
        return
    if plan.add or coming or seen.leaving or seen.gone or seen.unreported or not old:
        return
    yield _leave(seen, old[0], "it is replaced by one of the new revision")


def _leave(seen: ObservedJob, worker: int, why: str) -> Decision:
    return Decision(DrainWorker(seen.job.name, worker, why), f"worker {worker} leaves: {why}")


def _trouble(seen: ObservedJob, coming: list[int], now_s: float) -> str:
    """Why the update cannot go on; empty: it can."""
    job = seen.job
    failed = [
        failure
        for failure in job.failures
        if failure.revision == job.revision and failure.at_s >= job.updated_s
    ]
    if len(failed) >= UPDATE_FAILURES_MAX:
        last = failed[-1]
        return f"{len(failed)} new replicas failed, the last with: {cause_of(last.reason).text}"
    within_s = job.spec.ready_within_s
    for worker in coming:
        if not serving.may_come(seen, worker, now_s):
            facts = seen.facts.get(worker)
            said = f" ({facts.trouble})" if facts is not None and facts.trouble else ""
            return f"worker {worker} was not ready within {duration_of(within_s)}{said}"
    return ""
