"""What the planner knows of each job, read once from the facts: rank, need, and what it holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from holdfast.control.decide.capacity import (
    EMPTY,
    SLOTS_MAX,
    Amounts,
    amounts_of,
    minus,
    plus,
    slots,
    times,
    within,
)
from holdfast.control.decide.facts import JobRecord, Phase, Placement, QueueQuota
from holdfast.control.decide.plans import NodeCapacity, surge_of

# Waiting so long is worth a point of priority, so nothing waits for ever. Whole jobs may have to
# take turns by it; they then run for hours, which is worth the restart.
AGING_S: Final = 4 * 3_600.0


@dataclass(slots=True, eq=False)
class Claim:
    """One job that wants to run. The upper part is read; the lower is decided.

    `held` are its workers that may stay where they are, `moving` those that must leave their
    machine. `rank` is its priority, raised by waiting; `hold` is the rank of its minimum.
    `lost_s` is the work that it would lose by stopping now, in seconds of its minimum of workers.
    """

    job: JobRecord
    name: str
    queue: str
    need: Amounts
    least: int
    most: int
    rank: int
    hold: int
    lost_s: float
    held: list[Placement]
    moving: list[Placement]
    surge: int = 0  # workers above `most`, where room is free that nobody wants
    impossible: bool = False
    blocked: bool = False

    target: int = 0
    owned: int = 0
    share_unit: float = 0.0
    evicted: dict[int, str] = field(default_factory=dict)
    adds: list[str] = field(default_factory=list)
    promised: list[str] = field(default_factory=list)
    at_limit: bool = False
    stopped: str = ""

    def forget(self) -> None:
        """Back to what was read; `blocked` stays."""
        self.target = self.owned = 0
        self.evicted = {}
        self.adds = []
        self.promised = []
        self.at_limit = False
        self.stopped = ""

    @property
    def staying(self) -> int:
        return len(self.held) - len(self.evicted)

    @property
    def excess(self) -> int:
        """Workers that it has and is not entitled to."""
        return max(0, self.staying - self.target)


@dataclass(slots=True)
class World:
    """Everything that is read before deciding. `claims` are in the order in which they get their
    minimum; `leaving` has, for each machine, the jobs whose workers there are about to leave."""

    claims: list[Claim]
    total: Amounts
    free: dict[str, Amounts]
    soon: dict[str, Amounts]
    leaving: dict[str, dict[str, None]]
    queues: Mapping[str, QueueQuota]
    ports: dict[str, dict[int, str]] = field(default_factory=dict)  # node -> fixed port -> its job
    diskless: tuple[str, ...] = ()  # machines that report no disk: their agent is an older one

    def leaves(self, node: str, job: str, need: Amounts) -> None:
        self.soon[node] = plus(self.soon.get(node, EMPTY), need)
        self.leaving.setdefault(node, {})[job] = None

    def holds(self, node: str) -> bool:
        """Whether the machine has room for all that stays there."""
        return within(EMPTY, plus(self.free[node], self.soon.get(node, EMPTY)))


def rank_of(job: JobRecord, now_s: float) -> int:
    """Its priority, and a point for each `AGING_S` of waiting.

    What it earned by waiting it keeps when it starts, and spends as it runs, at the same pace.
    """
    waited, ran = _points(job, now_s)
    return job.spec.priority + max(0, waited - ran)


def hold_of(job: JobRecord, now_s: float) -> int:
    """The rank with which it defends its minimum. One that started by waiting has a point more
    while it runs, so that those who still wait do not throw it out before it has run `AGING_S`."""
    waited, ran = _points(job, now_s)
    runs = job.status.phase is not Phase.QUEUED
    return job.spec.priority + max(0, waited - ran + (1 if runs and waited else 0))


def _points(job: JobRecord, now_s: float) -> tuple[int, int]:
    """Whole `AGING_S` that it has waited, and that it has run since."""
    if job.status.phase is Phase.QUEUED:
        return max(0, int((now_s - job.status.since_s) // AGING_S)), 0
    if job.admitted_s is None:
        return 0, 0
    return int(job.waited_s // AGING_S), max(0, int((now_s - job.admitted_s) // AGING_S))


def read(
    jobs: Sequence[JobRecord],
    nodes: Sequence[NodeCapacity],
    queues: Mapping[str, QueueQuota],
    now_s: float,
) -> World:
    """Index the facts once: what each job holds, and what is free where."""
    usable = {node.node: amounts_of(node.capacity) for node in nodes if not node.draining}
    known = {node.node for node in nodes}
    shapes = Counter(usable.values())
    total = EMPTY
    for shape, count in shapes.items():
        total = plus(total, times(shape, count))
    world = World([], total, dict(sorted(usable.items())), {}, {}, queues)
    world.diskless = tuple(sorted(each.node for each in nodes if not each.knows_disk))
    most_slots: dict[Amounts, int] = {}
    for job in jobs:
        for port in job.spec.fixed_ports:
            for placement in job.placements:
                world.ports.setdefault(placement.node, {})[port] = job.name
    for job in jobs:
        need = amounts_of(job.spec.resources)
        wants = job.wants_workers and not job.status.phase.final
        held, moving = _occupy(world, job, need, known, wants=wants)
        if not wants:
            continue
        if need not in most_slots:
            most_slots[need] = sum(slots(need, shape) * count for shape, count in shapes.items())
        there = most_slots[need]
        if job.spec.fixed_ports:
            there = min(there, _machines_for(job, need, usable, world))
        world.claims.append(_claim(job, need, held, moving, there, now_s))
    world.claims.sort(key=_order)
    _relieve(world)
    return world


def _machines_for(
    job: JobRecord, need: Amounts, usable: Mapping[str, Amounts], world: World
) -> int:
    """Machines that could hold a worker whose ports are fixed: one each, and none where another
    job has such a port."""
    return sum(
        1
        for node, shape in usable.items()
        if slots(need, shape)
        and all(
            world.ports.get(node, {}).get(port, job.name) == job.name
            for port in job.spec.fixed_ports
        )
    )


def _occupy(
    world: World, job: JobRecord, need: Amounts, known: set[str], *, wants: bool
) -> tuple[list[Placement], list[Placement]]:
    """Take the room of the job's workers; those that may stay, and those that must move."""
    held: list[Placement] = []
    moving: list[Placement] = []
    taken: dict[str, int] = {}
    for placement in job.placements:
        node = placement.node
        if node not in world.free:
            if node in known and not placement.draining:
                moving.append(placement)
            continue
        taken[node] = taken.get(node, 0) + 1
        if wants and not placement.draining:
            held.append(placement)
        else:
            world.leaves(node, job.name, need)
    for node, count in taken.items():
        world.free[node] = minus(world.free[node], times(need, count))
    return held, moving


def _claim(
    job: JobRecord,
    need: Amounts,
    held: list[Placement],
    moving: list[Placement],
    slots_there: int,
    now_s: float,
) -> Claim:
    spec = job.spec
    wanted = spec.workers_max if job.workers_wanted is None else job.workers_wanted
    most = max(spec.workers_min, min(wanted, spec.workers_max))
    commit_s = job.checkpoints[-1].committed_s if job.checkpoints else job.admitted_s
    since_s = job.submitted_s if commit_s is None else commit_s
    return Claim(
        job=job,
        name=spec.name,
        queue=spec.queue,
        need=need,
        least=spec.workers_min,
        most=min(most, max(spec.workers_min, slots_there)),
        rank=rank_of(job, now_s),
        hold=hold_of(job, now_s),
        lost_s=max(0.0, now_s - since_s) * spec.workers_min,
        held=held,
        moving=moving,
        surge=surge_of(job),
        impossible=slots_there < min(spec.workers_min, SLOTS_MAX),
    )


def _order(claim: Claim) -> tuple[int, bool, float, float, str]:
    """Highest rank first; among equals those that run, first who would lose most work by
    stopping; then those that wait, first who came first."""
    running = bool(claim.held or claim.moving)
    lost_s = claim.lost_s if running else 0.0
    return (-claim.hold, not running, -lost_s, claim.job.submitted_s, claim.name)


def _relieve(world: World) -> None:
    """A machine that came back smaller than what it holds: its last in rank must move."""
    over = {node for node in world.free if not world.holds(node)}
    if not over:
        return
    for claim in reversed(world.claims):
        for placement in reversed(list(claim.held)):
            if placement.node in over:
                claim.held.remove(placement)
                claim.moving.append(placement)
                world.leaves(placement.node, claim.name, claim.need)
                if world.holds(placement.node):
                    over.discard(placement.node)
