"""What a service waits for, in a sentence, for people who ask why. Pure; nothing is decided."""

from __future__ import annotations

from holdfast.serve.autoscale import replicas as count_of
from holdfast.serve.conduct import Desired, Fleet, Observed
from holdfast.serve.moves import Look, applied_by_all, weight_of
from holdfast.serve.records import WEIGHT_TOTAL, Stage
from holdfast.serve.rollout import goal_of
from holdfast.serve.trouble import next_step, untried
from holdfast.wire.limits import HELD_VERSIONS_MAX


def outlook(desired: Desired, observed: Observed) -> str:
    """Why it is where it is, and what would let it go on."""
    course = observed.course
    if course is None:
        return "no conductor has looked at it yet: holdfast up starts one"
    look = Look(desired, observed, course.since_s, course, Fleet(observed.replicas))
    if course.stage is Stage.SPLIT:
        return _split(look)
    goal, why_not = goal_of(look)
    if course.stable is None:
        if goal is None:
            return f"nothing can be served: {why_not}"
        return f"it waits for a replica to load version {goal}{_failures(look, goal)}"
    if course.stage is Stage.STEADY:
        return _steady(look, goal, why_not)
    assert course.next is not None
    return _under_way(look, course.next)


def _split(look: Look) -> str:
    told = ", ".join(f"{arm.weight / 100:g} % to version {arm.version}" for arm in look.course.arms)
    missing = [version for version in look.desired.service.split if not look.fleet.ready(version)]
    waits = f"; no replica has loaded version {missing[0]}" if missing else ""
    return f"its user's split is held: {told or 'nothing yet'}{waits}"


def _steady(look: Look, goal: int | None, why_not: str) -> str:
    course = look.course
    served = f"version {course.stable} serves everything"
    if goal is None:
        return f"{served}; {why_not}. To try it again: holdfast rollout {look.desired.service.name}"
    if goal != course.stable:
        if len(course.hold) >= HELD_VERSIONS_MAX:
            return f"{served}; version {goal} waits until replicas hold fewer versions{_late(look)}"
        return f"{served}; version {goal} is about to be loaded"
    if not look.fleet.ready(course.stable):
        return f"version {goal} should serve everything, but no replica is ready"
    service = look.desired.service
    if service.pinned is None:
        return served
    back = f"holdfast rollout {service.name} goes to {service.model}@{service.target}"
    return f"{served}, and stays: it was rolled back; {back}"


def _under_way(look: Look, goal: int) -> str:
    course, step = look.course, next_step(look)
    ready = f"{look.fleet.ready(goal)} of {count_of(len(look.fleet))}"
    share = "all" if step == WEIGHT_TOTAL else f"{step / 100:g} %"
    if look.allowed(goal) < step:
        return (
            f"version {goal} waits for more replicas to load it before it gets {share} of the "
            f"requests: {ready} have it{_failures(look, goal)}"
        )
    late = _late(look)
    if late:
        return f"version {goal} waits{late}"
    if untried(look, goal):
        return (
            f"version {goal} waits for a gateway: requests come, none of them to it, and no gateway"
            " is in sight"
        )
    weight = weight_of(course, goal)
    hold_s = look.desired.service.policy.hold_s
    return (
        f"version {goal} has {weight / 100:g} % of the requests, and is watched for {hold_s:g} s "
        f"before it gets {share}"
    )


def _failures(look: Look, version: int) -> str:
    failures = look.fleet.failures(version, look.course.number)
    return f"; replica {min(failures)} says: {failures[min(failures)]}" if failures else ""


def _late(look: Look) -> str:
    """Which gateways hold it up."""
    name, gateways = look.desired.service.name, look.observed.gateways
    late = {
        gateway.name: f" ({gateway.why})" if gateway.why else ""
        for gateway in gateways.values()
        if not applied_by_all(look.course, {gateway.name: gateway}, name)
    }
    if not late:
        return ""
    first = min(late)
    return f": gateway {first} has not taken over course {look.course.number}{late[first]}"
