"""A small world for the deciding code: agents that obey late, twice or not at all, workers that
step and die. The control plane in it is the real one: `plan`, `reconcile`, `apply_record`.

What is true of the workers is kept here, apart from what is reported, and checked: the state of a
job never goes back while a worker that is placed still holds a later one, and nobody starts from
a checkpoint that is not committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from holdfast.control.decide.commands import (
    CommitCheckpoint,
    Decision,
    Forget,
    GiveSettings,
    GiveView,
    Order,
    StartWorker,
    StopWorker,
    TakeShare,
)
from holdfast.control.decide.facts import (
    Attempt,
    CheckpointRecovery,
    DesiredState,
    Exit,
    ExitKind,
    JobRecord,
    NodeFacts,
    ObservedState,
    Part,
    Phase,
    RecordedStatus,
    View,
    WorkerFacts,
    WorkerPhase,
)
from holdfast.control.decide.incremental import Reconciler
from holdfast.control.decide.invariants import (
    check_capacity,
    check_change,
    check_decisions,
    check_twice,
)
from holdfast.control.decide.reconcile import node_capacities, reconcile
from holdfast.control.decide.records import apply_to
from holdfast.control.decide.schedule import plan
from holdfast.control.decide.spec import JobSpec, Resources

Key = tuple[str, int]


@dataclass
class Worker:
    """The truth about one process, as its agent keeps it."""

    phase: WorkerPhase = WorkerPhase.STARTING
    view: View | None = None
    met: bool = False  # all members of the view are together in it
    step: int | None = None
    parts: dict[int, tuple[Part, ...]] = field(default_factory=dict)
    missed: set[int] = field(default_factory=set)
    attempts: dict[int, Attempt] = field(default_factory=dict)
    settings: int = 0
    ending: bool = False
    suspects: frozenset[int] = frozenset()
    unreadable: set[int] = field(default_factory=set)
    exit: Exit | None = None
    preparing: str = ""
    preparing_since_s: float = 0.0

    @property
    def alive(self) -> bool:
        return self.phase is not WorkerPhase.GONE

    def end(self, kind: ExitKind, detail: str = "") -> None:
        if self.alive:
            self.phase, self.exit = WorkerPhase.GONE, Exit(kind, detail)

    def leave(self) -> None:
        """Asked to: at the job's last step it takes the job for done."""
        if self.ending:
            self.end(ExitKind.DONE)
        else:
            self.end(ExitKind.LEFT if self.view else ExitKind.STOPPED)


@dataclass
class Machine:
    """A machine with its agent; `there`: its session is alive."""

    capacity: Resources
    there: bool = True
    workers: dict[Key, Worker] = field(default_factory=dict)
    forgotten: set[Key] = field(default_factory=set)

    def report(self, node: str) -> NodeFacts:
        return NodeFacts(
            node,
            self.capacity,
            tuple(
                WorkerFacts(
                    job,
                    number,
                    worker.phase,
                    worker.view.number if worker.view else 0,
                    worker.step,
                    dict(worker.parts),
                    frozenset(worker.missed),
                    frozenset(worker.unreadable),
                    worker.settings,
                    worker.exit,
                    f"{node}:{1000 + number}",
                    worker.ending,
                    worker.suspects,
                    preparing=worker.preparing,
                    preparing_since_s=worker.preparing_since_s,
                )
                for (job, number), worker in self.workers.items()
            ),
        )


def submitted(spec: JobSpec, now_s: float = 0.0) -> JobRecord:
    return JobRecord(spec, now_s, RecordedStatus(Phase.QUEUED, "just submitted", now_s))


class World:
    """Jobs, machines and one leader. `steps`: how long each job is. `plain`: workers end by
    themselves after the last step, and do not wait until it is committed."""

    def __init__(
        self,
        jobs: Mapping[str, JobRecord],
        nodes: Mapping[str, Resources],
        steps: int = 30,
        *,
        plain: bool = False,
    ) -> None:
        self.plain = plain
        self.desired = DesiredState(jobs=dict(jobs))
        self.machines = {node: Machine(capacity) for node, capacity in nodes.items()}
        self.steps = steps
        self.now_s = 0.0
        self.unreported: frozenset[str] = frozenset()
        self.corrupt: set[tuple[str, int]] = set()
        self.cut: set[tuple[str, int, int]] = set()  # job, worker, a peer that it cannot reach
        self.durable: set[tuple[str, int, int]] = set()  # job, attempt, worker
        self.reports: dict[str, NodeFacts] = {}
        self.story: list[str] = []
        self.reconciler = Reconciler()
        self.refresh()

    # --- the leader -------------------------------------------------------------------------

    def refresh(self) -> None:
        """Every agent that is there reports."""
        for node, machine in self.machines.items():
            if machine.there:
                self.reports[node] = machine.report(node)
            else:
                self.reports.pop(node, None)

    def observed(self) -> ObservedState:
        there = {n: facts for n, facts in self.reports.items() if self.machines[n].there}
        heard = {n: facts for n, facts in there.items() if n not in self.unreported}
        return ObservedState(heard, frozenset(there) & self.unreported)

    def decide(self) -> list[Decision]:
        """What the control plane decides now; the same when it is asked twice."""
        observed = self.observed()
        jobs = list(self.desired.jobs.values())
        capacities = node_capacities(self.desired, observed)
        planned = plan(jobs, capacities, self.desired.queues, self.now_s)
        decisions = reconcile(self.desired, observed, self.now_s, planned)
        assert decisions == reconcile(self.desired, observed, self.now_s, planned)
        remembered = self.reconciler.reconcile(self.desired, observed, self.now_s, planned)
        assert remembered == decisions, "what was remembered does not hold any more"
        check_decisions(self.desired, observed, decisions)
        return decisions

    def write(self, decision: Decision) -> None:
        """Carry out a record."""
        record = decision.command
        assert not isinstance(record, Order)
        check_twice(self.desired, record, self.now_s)
        before = self.desired.jobs[record.job]
        manifest = ""
        if isinstance(record, CommitCheckpoint):
            manifest = f"manifest-{record.attempt.step}"
            for worker in record.parts:
                share = (record.job, record.attempt.number, worker)
                assert share in self.durable, f"{share} is committed and not durable"
        self.desired = apply_to(self.desired, record, now_s=self.now_s, term=1, manifest=manifest)
        check_change(before, self.desired.jobs[record.job], [record])
        check_capacity(self.desired, self.observed())
        self.tell(f"{record.job}: {type(record).__name__}: {decision.reason}")

    def tell(self, event: str) -> None:
        self.story.append(f"{self.now_s:.2f} {event}")

    def change(self, job: str, **changes: object) -> None:
        """What a user asks for."""
        found = self.desired.jobs[job]
        after = replace(found, **changes)  # type: ignore[arg-type]
        self.desired = replace(self.desired, jobs={**self.desired.jobs, job: after})
        self.tell(f"{job}: its user asks for {changes}")

    # --- the agents -------------------------------------------------------------------------

    def obey(self, order: Order) -> None:
        """An order reaches its agent, whenever that is."""
        machine = self.machines[order.node]
        key = (order.job, order.worker)
        worker = machine.workers.get(key)
        if key in machine.forgotten or not machine.there:
            return
        match order:
            case StartWorker():
                if worker is None:
                    machine.workers[key] = Worker()
            case StopWorker():
                if worker is None:
                    worker = machine.workers[key] = Worker()
                    worker.end(ExitKind.STOPPED)
                worker.leave()
            case Forget():
                assert worker is None or not worker.alive, f"{key} is forgotten and lives"
                machine.workers.pop(key, None)
                machine.forgotten.add(key)
            case GiveView(view=view) if worker is not None and worker.alive:
                if worker.view is None or view.number > worker.view.number:
                    if order.worker not in view.lanes:
                        worker.leave()
                        return
                    worker.view, worker.met, worker.phase = view, False, WorkerPhase.RUNNING
                    worker.ending, worker.suspects = False, frozenset()
            case TakeShare(attempt=attempt) if worker is not None:
                worker.attempts[attempt.number] = attempt
            case GiveSettings(settings=settings) if worker is not None:
                worker.settings = max(worker.settings, len(settings))

    # --- the workers ------------------------------------------------------------------------

    def alive(self, job: str) -> dict[int, Worker]:
        return {
            number: worker
            for machine in self.machines.values()
            for (name, number), worker in machine.workers.items()
            if name == job and worker.alive
        }

    def move(self, job: str) -> None:
        """Everyone who can gets on: starts, meets, makes a step, copies its share."""
        workers = self.alive(job)
        for worker in workers.values():
            if worker.phase is WorkerPhase.STARTING:
                worker.phase = WorkerPhase.READY
        for view in {w.view.number: w.view for w in workers.values() if w.view}.values():
            group = {number: workers[number] for number in view.lanes if number in workers}
            here = [w for w in group.values() if w.view and w.view.number == view.number]
            unreached = {w: {p for j, a, p in self.cut if (j, a) == (job, w)} for w in group}
            for number, worker in group.items():
                if worker in here:
                    worker.suspects = frozenset(unreached[number] & group.keys())
            if any(worker.suspects for worker in here):
                continue
            knowing = all(worker.settings >= view.settings for worker in here)
            if len(here) == len(view.lanes) and knowing:
                if not all(worker.met for worker in here):
                    self._meet(job, view, here)
                else:
                    self._step(job, group)

    def _meet(self, job: str, view: View, group: list[Worker]) -> None:
        steps = [worker.step for worker in group if worker.step is not None]
        if not steps:
            start = view.restore_step
            assert start is not None, f"view {view.number}: nobody has a state, none is named"
            if (job, start) in self.corrupt:
                for worker in group:
                    worker.unreadable.add(start)
                return
            found = self.desired.jobs[job]
            committed = {checkpoint.step for checkpoint in found.checkpoints} | {0}
            assert start in committed, f"{job} starts from step {start}, which is not committed"
            placed = {placement.worker for placement in found.placements}
            held = [n for n, w in self.alive(job).items() if w.step is not None and n in placed]
            assert not held, f"{job} goes back to {start} while {held} hold a state"
            steps = [start]
        for worker in group:
            worker.step, worker.met = max(steps), True
        self.tell(f"{job}: {sorted(view.lanes)} meet in view {view.number} at step {max(steps)}")

    def _step(self, job: str, group: Mapping[int, Worker]) -> None:
        for name, worker in group.items():
            assert worker.step is not None and worker.view is not None
            if worker.step < self.steps:
                worker.step += 1
            elif self.plain:
                worker.end(ExitKind.DONE)
                continue
            else:
                worker.ending = True
            self._take_shares(job, name, worker)

    def _take_shares(self, job: str, name: int, worker: Worker) -> None:
        assert worker.step is not None and worker.view is not None
        for number, attempt in worker.attempts.items():
            if attempt.view != worker.view.number or number in worker.parts:
                continue
            if attempt.step < worker.step:
                worker.missed.add(number)
            elif attempt.step == worker.step:
                worker.parts[number] = (Part(f"{job}-{worker.step}", 1, "d"),)
                self.durable.add((job, number, name))

    # --- time -------------------------------------------------------------------------------

    def tick(self, delay_s: float = 0.5) -> list[Decision]:
        """A quiet moment: all report, all is decided, written, obeyed, and everyone moves."""
        self.now_s += delay_s
        self.refresh()
        decisions = self.decide()
        for decision in decisions:
            if isinstance(decision.command, Order):
                self.obey(decision.command)
            else:
                self.write(decision)
        for job in self.desired.jobs:
            self.move(job)
        return decisions

    def settle(self, ticks_max: int = 400) -> None:
        """Quiet ticks until every job has come to its end; `AssertionError` if one does not."""
        for _ in range(ticks_max):
            if all(job.status.phase.final for job in self.desired.jobs.values()):
                return
            for name, job in self.desired.jobs.items():
                if job.waits_for_recovery:
                    self.change(name, recovery=CheckpointRecovery.SCRATCH)
            self.tick()
        stuck = {name: job.status for name, job in self.desired.jobs.items()}
        raise AssertionError("\n".join([f"no end: {stuck}", *self.story[-60:]]))
