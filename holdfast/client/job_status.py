"""A job as it is now: what the control plane holds of it, and what its workers say. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.control.decide.facts import JobRecord
    from holdfast.control.rpc.observing import NodeSeen
    from holdfast.wire.reports import WorkerFacts

# What agents say of a job's workers, by number: the node and the facts.
Working = Mapping[int, tuple[str, "WorkerFacts"]]


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job at one moment.

    `phase`: queued, admitted, running, shrinking, growing, paused, succeeded, failed or stopped;
    the last three never change again (`ended`). `step`: the most advanced that is known, None: none
    is; `committed`: of the last checkpoint. `workers` are placed, `workers_wanted` would be there
    if there were room. `why`: in words; of a failed job its cause, with the user's own traceback.
    """

    name: str
    phase: str
    why: str
    step: int | None
    committed: int | None
    workers: int
    workers_wanted: int
    since_s: float
    ended: bool

    @property
    def succeeded(self) -> bool:
        return self.phase == "succeeded"


def status_of(job: JobRecord, working: Working) -> JobStatus:
    """The job in short."""
    return JobStatus(
        job.name,
        job.status.phase.value,
        job.status.reason,
        step_of(job, working),
        job.committed_step if job.checkpoints else None,
        len(job.placements),
        wants(job),
        job.status.since_s,
        job.status.phase.final,
    )


def workers_in(seen: Sequence[NodeSeen], name: str) -> dict[int, tuple[str, WorkerFacts]]:
    """What agents say of a job's workers, by number: the node and the facts."""
    return {
        worker.worker: (node.node, worker)
        for node in seen
        if node.facts is not None
        for worker in node.facts.workers
        if worker.job == name
    }


def step_of(wanted: JobRecord, working: Working) -> int | None:
    """The most advanced step that is known: of a worker, or committed."""
    steps = [facts.step for _, facts in working.values() if facts.step is not None]
    if wanted.checkpoints:
        steps.append(wanted.committed_step)
    return max(steps, default=None)


def wants(wanted: JobRecord) -> int:
    """How many workers it would have if there were room."""
    if wanted.status.phase.final or not wanted.wants_workers or wanted.spec.on is not None:
        return 0
    return wanted.workers_wanted or wanted.spec.workers_max
