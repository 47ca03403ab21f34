"""The real decisions as one call: plan the capacity, then reconcile.

`plan` is pure, and what it looks at changes seldom. So a plan is remembered, with all that it was
made from, and made again when any of that is another.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.control.decide.claims import hold_of, rank_of
from holdfast.control.decide.commands import Decision
from holdfast.control.decide.facts import DesiredState, JobRecord, ObservedState
from holdfast.control.decide.invariants import check_decisions
from holdfast.control.decide.plans import NodeCapacity, SchedulePlan
from holdfast.control.decide.reconcile import node_capacities, reconcile
from holdfast.control.decide.schedule import plan


class Decider:
    """What one leader decides. `own_checks`: let the control plane judge itself."""

    def __init__(self, *, own_checks: bool) -> None:
        self._own_checks = own_checks
        self._made_from: object = None
        self._plan = SchedulePlan()

    def decide(
        self, desired: DesiredState, observed: ObservedState, now_s: float
    ) -> list[Decision]:
        """What a leader that sees this does next."""
        capacities = node_capacities(desired, observed)
        decisions = reconcile(desired, observed, now_s, self._planned(desired, capacities, now_s))
        if self._own_checks:
            check_decisions(desired, observed, decisions)
        return decisions

    def _planned(
        self, desired: DesiredState, capacities: Sequence[NodeCapacity], now_s: float
    ) -> SchedulePlan:
        jobs = list(desired.jobs.values())
        made_from = (capacities, desired.queues, seen_by_plan(jobs, now_s))
        if made_from != self._made_from:
            self._plan = plan(jobs, capacities, desired.queues, now_s)
            self._made_from = made_from
        return self._plan


def seen_by_plan(jobs: Sequence[JobRecord], now_s: float) -> list[object]:
    """Everything of the jobs and of the time that a plan depends on. What a job would lose by
    stopping only decides between several."""
    seen: list[object] = [
        (
            job.spec,
            job.wants_workers,
            job.status.phase.final,
            job.placements,
            None if job.view is None else tuple(job.view.lanes),
            job.workers_wanted,
            rank_of(job, now_s),
            hold_of(job, now_s),
        )
        for job in jobs
    ]
    wanting = [job for job in jobs if job.wants_workers and not job.status.phase.final]
    if len(wanting) > 1:
        losses = [(_loses_s(job, now_s), job.name) for job in wanting]
        seen.append([name for _, name in sorted(losses)])
    return seen


def _loses_s(job: JobRecord, now_s: float) -> float:
    commit_s = job.checkpoints[-1].committed_s if job.checkpoints else job.admitted_s
    since_s = job.submitted_s if commit_s is None else commit_s
    return max(0.0, now_s - since_s) * job.spec.workers_min
