"""`plan(jobs, nodes, queues, now_s)`: who gets which room. Pure: no I/O, no clock, no chance.

1. `claims`: read the facts once.
2. `shares`: how many workers each job is entitled to, by the sums of all machines.
3. `places`: find machines for those that have fewer, and take workers of those that have more.
   Nothing is drained unless its room is needed for somebody, and no more than is needed.

A job whose minimum finds no set of machines (the sums are right, the pieces are not) gives up its
claim, and steps 2 and 3 are done again without it.

Room of a worker counts as taken until its placement is removed. What drains may be promised, and
whoever it is promised to waits for it; others cannot take it meanwhile. A job that starts gets all
of its minimum in one plan, or nothing.

Machines that are drained get nothing new. Of a job's workers there, those above its minimum leave
at once. The others leave when replacements are in the job's view; a job that may not have that
many workers at once lets them leave as the replacements start. If there is no room for
replacements, even after taking what the job's rank allows, the job is stopped whole and waits: a
machine that is drained gets empty.

A plan that was applied and is planned again, with nothing else changed, changes nothing. That is
made sure of: what was decided is applied in thought and decided again, until nothing is added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from holdfast.control.decide import sentences
from holdfast.control.decide.claims import Claim, World, read
from holdfast.control.decide.entitlements import Entitlements
from holdfast.control.decide.facts import JobRecord, QueueQuota
from holdfast.control.decide.placing import Placing
from holdfast.control.decide.plans import (
    Add,
    JobPlan,
    Leave,
    NodeCapacity,
    SchedulePlan,
    applied,
    joined,
    validate,
)
from holdfast.control.decide.waiting import waits as waiting_for

# A job that had a claim by the sums but found no set of machines gives it up, and the others are
# planned without it; so often at most in one plan. What is then still unused is filled as it is.
# Also how often a plan is thought through again, with itself applied.
PLAN_ROUNDS_MAX: Final = 4

__all__ = ["Add", "JobPlan", "Leave", "NodeCapacity", "SchedulePlan", "applied", "plan", "validate"]


def plan(
    jobs: Sequence[JobRecord],
    nodes: Sequence[NodeCapacity],
    queues: Mapping[str, QueueQuota],
    now_s: float,
) -> SchedulePlan:
    """Decide who gets a worker where, who gives one up, and say why; see the module."""
    made = _decide(jobs, nodes, queues, now_s)
    if made.changes:
        for _ in range(PLAN_ROUNDS_MAX):
            more = _decide(applied(jobs, made), nodes, queues, now_s)
            if not more.changes:
                break
            made = joined(jobs, made, more)
    validate(made, jobs, nodes)
    return made


def _decide(
    jobs: Sequence[JobRecord],
    nodes: Sequence[NodeCapacity],
    queues: Mapping[str, QueueQuota],
    now_s: float,
) -> SchedulePlan:
    world = read(jobs, nodes, queues, now_s)
    places = _place(world)
    for round_number in range(PLAN_ROUNDS_MAX):
        if not places.newly_blocked:
            break
        for claim in world.claims:
            claim.forget()
            if round_number == PLAN_ROUNDS_MAX - 1 and len(claim.held) < claim.least:
                claim.blocked = True
        places = _place(world)
    places.fill()
    return _written(world, places)


def _place(world: World) -> Placing:
    Entitlements(world.claims, world.total, world.queues).grant()
    places = Placing(world)
    places.settle()
    return places


def _written(world: World, places: Placing) -> SchedulePlan:
    """The decisions as values, each with its sentence."""
    jobs: dict[str, JobPlan] = {}
    waiting: dict[str, int] = {}
    for claim in world.claims:
        drain = dict(claim.evicted)
        drain.update(_moves(claim, world))
        workers = claim.staying + len(claim.adds) + len(claim.moving)
        workers -= sum(1 for placement in claim.moving if placement.worker in drain)
        waits = ""
        if not workers:
            waiting[claim.queue] = waiting.get(claim.queue, 0) + 1
        if workers < claim.most:
            waits = waiting_for(claim, places, waiting.get(claim.queue, 0), workers)
        reason = sentences.adds(claim) if claim.adds else ""
        jobs[claim.name] = JobPlan(
            workers=workers,
            add=tuple(Add(node, reason) for node in claim.adds),
            drain=tuple(Leave(worker, why) for worker, why in sorted(drain.items())),
            waits=waits,
        )
    return SchedulePlan(jobs)


def _moves(claim: Claim, world: World) -> dict[int, str]:
    """Which workers on machines that they must leave are told to leave now, and why."""
    if not claim.moving:
        return {}
    if claim.stopped:
        return {placement.worker: claim.stopped for placement in claim.moving}
    view = claim.job.view
    stays = [placement for placement in claim.held if placement.worker not in claim.evicted]
    if view is None:
        ready = len(stays) + len(claim.adds)
    else:
        ready = sum(1 for placement in stays if placement.worker in view.lanes)
    spare = ready + len(claim.moving) - claim.least
    crowd = len(stays) + len(claim.adds) + len(claim.moving) - claim.most
    count = max(0, min(len(claim.moving), max(spare, crowd)))
    leaving = sorted(claim.moving, key=lambda placement: -placement.worker)[:count]
    return {
        placement.worker: sentences.moves(placement.node, too_small=placement.node in world.free)
        for placement in leaving
    }
