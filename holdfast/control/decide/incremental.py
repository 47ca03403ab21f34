"""The same decisions as `reconcile`, at a cost that grows with what has changed.

A job is looked at again when its record, its plan, or the report of one of its workers is another
object than last time, or when one of its clocks has run out. The rest keep their decisions, which
are then orders that are still outstanding: a job with a record to write is always looked at again.

Whether a snapshot is new is told by identity. So whoever makes snapshots must keep the objects of
what has not changed, and must not change an object that it has handed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from holdfast.control.decide.commands import Decision, Order
from holdfast.control.decide.facts import (
    DesiredState,
    JobRecord,
    NodeFacts,
    ObservedState,
    WorkerFacts,
)
from holdfast.control.decide.lifecycle import PLAIN_S, rest_ends_s
from holdfast.control.decide.plans import JobPlan, SchedulePlan
from holdfast.control.decide.reconcile import orphans, reconcile_job
from holdfast.wire.limits import (
    CHECKPOINT_ATTEMPT_S,
    CHECKPOINT_RETRY_S,
    DEPARTURE_S,
    FINISH_S,
    GATHER_S,
    VIEW_WAIT_S,
)

NEVER_S = float("inf")


@dataclass(frozen=True, slots=True)
class _CachedJob:
    """What was decided about a job, from what, and until when it holds."""

    job: JobRecord
    plan: JobPlan
    decisions: list[Decision]
    until_s: float


class Reconciler:
    """Remembers what `reconcile` gave. One for each leader; it starts with nothing."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeFacts] = {}
        self._unreported: frozenset[str] = frozenset()
        self._store = ""
        self._reports: dict[str, dict[int, tuple[str, WorkerFacts]]] = {}
        self._kept: dict[str, _CachedJob] = {}

    def reconcile(
        self, desired: DesiredState, observed: ObservedState, now_s: float, plan: SchedulePlan
    ) -> list[Decision]:
        """As `reconcile.reconcile`."""
        touched = self._take(observed)
        decisions: list[Decision] = []
        for name, job in desired.jobs.items():
            of_job = plan.of(name)
            if observed.unreported and of_job.drain:
                of_job = replace(of_job, drain=())
            kept = self._kept.get(name)
            if (
                kept is None
                or kept.job is not job
                or name in touched
                or not (kept.plan is of_job or kept.plan == of_job)
                or now_s >= kept.until_s
            ):
                kept = self._look(job, observed, now_s, of_job)
            decisions += kept.decisions
        for name in self._kept.keys() - desired.jobs.keys():
            del self._kept[name]
        for name in sorted(self._reports.keys() - desired.jobs.keys()):
            decisions += orphans(name, None, self._reports[name])
        return decisions

    def _look(
        self, job: JobRecord, observed: ObservedState, now_s: float, plan: JobPlan
    ) -> _CachedJob:
        found = reconcile_job(job, self._reports.get(job.name, {}), observed, now_s, plan)
        steady = all(isinstance(decision.command, Order) for decision in found)
        until_s = min((t for t in clocks(job) if t > now_s), default=NEVER_S) if steady else now_s
        kept = self._kept[job.name] = _CachedJob(job, plan, found, until_s)
        return kept

    def _take(self, observed: ObservedState) -> set[str]:
        """Note what is new; the jobs that it is about. A node that came or went is about all jobs
        that have, or had, a worker there; which they are its placements know, so: about all."""
        same = observed.unreported == self._unreported and observed.store == self._store
        same = same and observed.nodes.keys() == self._nodes.keys()
        touched = set() if same else set(self._kept)
        for node in self._nodes.keys() - observed.nodes.keys():
            touched |= self._remove(node)
        for node, facts in observed.nodes.items():
            if self._nodes.get(node) is not facts:
                touched |= self._remove(node)
                for worker in facts.workers:
                    self._reports.setdefault(worker.job, {})[worker.worker] = (node, worker)
                    touched.add(worker.job)
                self._nodes[node] = facts
        self._unreported, self._store = observed.unreported, observed.store
        return touched

    def _remove(self, node: str) -> set[str]:
        touched = set()
        before = self._nodes.pop(node, None)
        for worker in before.workers if before else ():
            of_job = self._reports.get(worker.job, {})
            if of_job.get(worker.worker, ("",))[0] == node:
                del of_job[worker.worker]
                if not of_job:
                    del self._reports[worker.job]
            touched.add(worker.job)
        return touched


def clocks(job: JobRecord) -> Iterator[float]:
    """Every time at which a decision about the job may change though nothing else does."""
    spec = job.spec
    if spec.deadline_s is not None:
        yield job.submitted_s + spec.deadline_s
    if spec.checkpoint.every_s is not None:
        last_s = job.checkpoints[-1].committed_s if job.checkpoints else job.submitted_s
        yield last_s + spec.checkpoint.every_s
    if job.failures:
        yield rest_ends_s(job)
    if job.attempt is not None:
        yield job.attempt.since_s + VIEW_WAIT_S
        yield job.attempt.since_s + CHECKPOINT_ATTEMPT_S
    if job.abandoned_s is not None:
        yield job.abandoned_s + CHECKPOINT_RETRY_S
    for pause in (GATHER_S, DEPARTURE_S, FINISH_S):
        yield job.status.since_s + pause
    patience_s = spec.ready_within_s if spec.serves else GATHER_S
    for placement in job.placements:
        yield placement.since_s + patience_s
        if not job.checkpoints:
            yield placement.since_s + PLAIN_S
