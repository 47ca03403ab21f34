"""A small world for the planner: jobs, machines, and what carrying out a plan does to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from holdfast.control.decide.facts import (
    Checkpoint,
    Intent,
    JobRecord,
    Phase,
    Placement,
    QueueQuota,
    RecordedStatus,
    View,
)
from holdfast.control.decide.schedule import NodeCapacity, SchedulePlan, applied, plan
from holdfast.control.decide.spec import JobSpec, Mode, Resources

ONE_CPU = Resources(1.0)


@dataclass
class Cluster:
    """Applies plans as the coordinator would; workers leave only when `gone` is called."""

    nodes: dict[str, NodeCapacity] = field(default_factory=dict)
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    queues: dict[str, QueueQuota] = field(default_factory=dict)
    now_s: float = 0.0

    def node(self, name: str, cpu: float, memory: int = 0, gpu: int = 0) -> None:
        self.nodes[name] = NodeCapacity(name, Resources(cpu, memory, gpu))

    def queue(self, name: str, guaranteed: float, limit: float | None = None) -> None:
        most = None if limit is None else Resources(limit)
        self.queues[name] = QueueQuota(name, Resources(guaranteed), most)

    def submit(
        self,
        name: str,
        workers: tuple[int, int],
        *,
        priority: int = 0,
        queue: str = "default",
        need: Resources = ONE_CPU,
        mode: Mode = Mode.SYNC,
    ) -> None:
        least, most = workers
        spec = JobSpec(
            name,
            ("python", "train.py"),
            queue=queue,
            priority=priority,
            lanes=most,
            workers_min=least,
            workers_max=most,
            resources=need,
            mode=mode,
        )
        self.jobs[name] = JobRecord(
            spec, self.now_s, RecordedStatus(Phase.QUEUED, "new", self.now_s)
        )

    def plan(self) -> SchedulePlan:
        jobs, nodes = tuple(self.jobs.values()), tuple(self.nodes.values())
        return plan(jobs, nodes, self.queues, self.now_s)

    def apply(self, made: SchedulePlan) -> None:
        for job in applied(tuple(self.jobs.values()), made):
            self.jobs[job.name] = self._with_phase(job, made.of(job.name).waits)

    def _with_phase(self, job: JobRecord, waits: str) -> JobRecord:
        if job.status.phase.final or job.intent is not Intent.RUN:
            return job
        phase = Phase.RUNNING if running(job) else Phase.QUEUED
        since_s = job.status.since_s if phase is job.status.phase else self.now_s
        return job.with_status(RecordedStatus(phase, waits, since_s))

    def step(self) -> SchedulePlan:
        made = self.plan()
        self.apply(made)
        return made

    def gone(self) -> None:
        """Every draining worker's process ends, and its room is free. The others form a view."""
        for name, job in self.jobs.items():
            stays = tuple(p for p in job.placements if not p.draining)
            number = job.view.number + 1 if job.view else 1
            view = View(number, {p.worker: (index,) for index, p in enumerate(stays)})
            self.jobs[name] = replace(job, placements=stays, view=view if stays else job.view)

    def settle(self, rounds_max: int = 50) -> None:
        """Plan, carry out and let workers leave, until nothing changes."""
        quiet = 0
        for _ in range(rounds_max):
            quiet = 0 if self.step().changes else quiet + 1
            if quiet == 2:
                return
            self.gone()
        raise AssertionError(f"not settled after {rounds_max} rounds: {self.counts()}")

    def lose(self, name: str) -> None:
        """Its newest worker was killed."""
        self.change(name, placements=self.jobs[name].placements[:-1])

    def finish(self, name: str) -> None:
        """The job ends, and its workers are gone."""
        job = self.jobs[name]
        status = RecordedStatus(Phase.SUCCEEDED, "done", self.now_s)
        self.jobs[name] = replace(job, placements=(), status=status)

    def change(self, name: str, **fields: object) -> None:
        self.jobs[name] = replace(self.jobs[name], **fields)  # type: ignore[arg-type]

    def commit(self, name: str, step: int) -> None:
        """The job commits a checkpoint now."""
        done = (*self.jobs[name].checkpoints, Checkpoint(step, "m", 1, self.now_s))
        self.change(name, checkpoints=done)

    def drain_node(self, name: str) -> None:
        self.nodes[name] = replace(self.nodes[name], draining=True)

    def counts(self) -> dict[str, int]:
        return {name: len(running(job)) for name, job in self.jobs.items()}


def running(job: JobRecord) -> list[Placement]:
    return [placement for placement in job.placements if not placement.draining]


def load(jobs: Iterable[JobRecord]) -> Mapping[str, Resources]:
    """What is taken on each machine, draining or not."""
    taken: dict[str, Resources] = {}
    for job in jobs:
        for placement in job.placements:
            before = taken.get(placement.node, Resources())
            taken[placement.node] = before + job.spec.resources
    return taken
