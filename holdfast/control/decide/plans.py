"""What a plan is, as values: who gets a worker where, who gives one up, and who waits for what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from holdfast.control.decide.capacity import EMPTY, Amounts, amounts_of, minus, within
from holdfast.control.decide.facts import JobRecord, Placement
from holdfast.control.decide.spec import Resources
from holdfast.wire.errors import BugError


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """A machine that is there. `draining`: it gets nothing new, and its workers are to leave.
    `knows_disk` False: its agent is of a version that does not tell how much disk it has."""

    node: str
    capacity: Resources
    draining: bool = False
    knows_disk: bool = True


def surge_of(job: JobRecord) -> int:
    """How many workers more than it is to have it may have for a while: a new replica is ready
    before an old one leaves."""
    return 1 if job.is_updating else 0


@dataclass(frozen=True, slots=True)
class Add:
    """One worker to add now: its room on `node` is really free."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class Leave:
    """One worker to drain now, at the next step boundary."""

    worker: int
    reason: str


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What a plan says about one job. Placements that are not in `drain` are kept.

    `workers` is how many it has (without draining ones) once `add` and `drain` are done. `waits`
    says what it waits for: never empty if a job that wants to run has none; also set if it has
    fewer than it wants. It holds no times, so that it changes only when the cause does.
    `held`: why nothing of `add` is placed, though there is room.
    """

    workers: int = 0
    add: tuple[Add, ...] = ()
    drain: tuple[Leave, ...] = ()
    waits: str = ""
    held: str = ""


NOTHING = JobPlan()


@dataclass(frozen=True, slots=True)
class SchedulePlan:
    """For every job that is not final, what to do now. The new workers of a job take the numbers
    from `next_worker` on, in the order of `add`."""

    jobs: Mapping[str, JobPlan] = field(default_factory=dict)

    def of(self, job: str) -> JobPlan:
        return self.jobs.get(job, NOTHING)

    @property
    def adds(self) -> dict[str, tuple[str, ...]]:
        """Job -> a node for each worker to add; only jobs that get some."""
        return {name: tuple(a.node for a in of.add) for name, of in self.jobs.items() if of.add}

    @property
    def drains(self) -> dict[str, tuple[int, ...]]:
        """Job -> the workers to drain; only jobs that lose some."""
        return {
            name: tuple(d.worker for d in of.drain) for name, of in self.jobs.items() if of.drain
        }

    @property
    def waits(self) -> dict[str, str]:
        """Job -> what it waits for; only jobs that wait."""
        return {name: of.waits for name, of in self.jobs.items() if of.waits}

    @property
    def changes(self) -> bool:
        """Whether there is anything to do."""
        return any(of.add or of.drain for of in self.jobs.values())


def applied(jobs: Sequence[JobRecord], plan: SchedulePlan) -> list[JobRecord]:
    """The jobs once the plan is written down; no worker has started or left yet."""
    return [_applied_to(job, plan.of(job.name)) for job in jobs]


def _applied_to(job: JobRecord, of: JobPlan) -> JobRecord:
    if not of.add and not of.drain:
        return job
    drained = {leave.worker for leave in of.drain}
    kept = [
        replace(placement, draining=True) if placement.worker in drained else placement
        for placement in job.placements
    ]
    revision = job.wanted_revision
    new = [
        Placement(job.next_worker + index, add.node, revision=revision)
        for index, add in enumerate(of.add)
    ]
    return replace(job, placements=(*kept, *new), next_worker=job.next_worker + len(new))


def joined(jobs: Sequence[JobRecord], first: SchedulePlan, then: SchedulePlan) -> SchedulePlan:
    """One plan that does what `first`, applied to `jobs`, and `then` after it do. A worker that
    the second would drain before it has started is not started."""
    plans: dict[str, JobPlan] = {}
    numbers = {job.name: job.next_worker for job in jobs}
    for name, more in then.jobs.items():
        of, number = first.of(name), numbers[name]
        gone = {leave.worker for leave in more.drain}
        adds = [add for index, add in enumerate(of.add, number) if index not in gone]
        drains = [leave for leave in more.drain if leave.worker < number]
        plans[name] = replace(more, add=(*adds, *more.add), drain=(*of.drain, *drains))
    return SchedulePlan(plans)


def validate(plan: SchedulePlan, jobs: Sequence[JobRecord], nodes: Sequence[NodeCapacity]) -> None:
    """What must hold of every plan; a `BugError` names what does not."""
    wrong: list[str] = []
    known = {node.node for node in nodes}
    for job in jobs:
        if job.status.phase.final:
            if job.name in plan.jobs:
                wrong.append(f"{job.name} is {job.status.phase.value} and is planned")
            continue
        wrong += _wrong_with_job(plan.of(job.name), job, known)
    wrong += _wrong_with_nodes(plan, jobs, nodes)
    if wrong:
        raise BugError(
            f"a plan breaks {len(wrong)} of its own rules",
            why="the scheduler has a mistake; nothing of this plan was carried out",
            fix="report it with these lines",
            story=wrong[:20],
        )


def _wrong_with_job(of: JobPlan, job: JobRecord, known: set[str]) -> list[str]:
    before = {p.worker for p in job.placements if not p.draining and p.node in known}
    drained = {leave.worker for leave in of.drain}
    wrong: list[str] = []
    if not drained <= before:
        wrong.append(f"{job.name}: drains {sorted(drained - before)}, which it does not have")
    if not job.wants_workers:
        if of.add or of.drain:
            wrong.append(f"{job.name}: it is not to have workers, and they are changed")
        return wrong
    after = len(before) - len(drained) + len(of.add)
    if after != of.workers:
        wrong.append(f"{job.name}: has {after} workers afterwards, and the plan says {of.workers}")
    if of.add and after > job.spec.workers_max + surge_of(job):
        wrong.append(f"{job.name}: {after} workers are more than {job.spec.workers_max}")
    if (of.add or of.drain) and 0 < after < job.spec.workers_min:
        wrong.append(f"{job.name}: {after} workers are fewer than {job.spec.workers_min}")
    if not after and not of.waits:
        wrong.append(f"{job.name}: waits without a reason")
    if not all(add.reason for add in of.add) or not all(leave.reason for leave in of.drain):
        wrong.append(f"{job.name}: is changed without a reason")
    return wrong


def _wrong_with_nodes(
    plan: SchedulePlan, jobs: Sequence[JobRecord], nodes: Sequence[NodeCapacity]
) -> list[str]:
    """Every machine that gets a worker is there, is not drained, and has the room: all that is
    placed on it counts, draining or not."""
    added = {add.node for of in plan.jobs.values() for add in of.add}
    if not added:
        return []
    left: dict[str, Amounts] = {
        room.node: amounts_of(room.capacity) if not room.draining else EMPTY
        for room in nodes
        if room.node in added
    }
    wrong = [f"{node}: gets work and is not there" for node in sorted(added - left.keys())]
    for job in jobs:
        need = amounts_of(job.spec.resources)
        for placement in job.placements:
            if placement.node in left:
                left[placement.node] = minus(left[placement.node], need)
        for add in plan.of(job.name).add:
            if add.node in left:
                left[add.node] = minus(left[add.node], need)
    wrong += [
        f"{node}: is given more than it has" for node in left if not within(EMPTY, left[node])
    ]
    return wrong
