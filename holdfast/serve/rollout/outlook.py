"""What a service waits for, in a sentence, for people who ask why. Pure; nothing is decided."""

from __future__ import annotations

from holdfast.serve.records import WEIGHT_TOTAL, RolloutStage
from holdfast.serve.rollout.advance import goal_of
from holdfast.serve.rollout.autoscale import replicas as count_of
from holdfast.serve.rollout.facts import (
    DesiredService,
    Fleet,
    RolloutContext,
    ServiceObservation,
    applied_by_all,
    weight_of,
)
from holdfast.serve.rollout.verdict import next_step, untried
from holdfast.wire.limits import HELD_VERSIONS_MAX


def outlook(desired: DesiredService, observed: ServiceObservation) -> str:
    """Why it is where it is, and what would let it go on."""
    plan = observed.plan
    if plan is None:
        return "no controller has looked at it yet: holdfast up starts one"
    context = RolloutContext(desired, observed, plan.since_s, plan, Fleet(observed.replicas))
    if plan.stage is RolloutStage.SPLIT:
        return _split(context)
    goal, why_not = goal_of(context)
    if plan.stable is None:
        if goal is None:
            return f"nothing can be served: {why_not}"
        return f"it waits for a replica to load version {goal}{_failures(context, goal)}"
    if plan.stage is RolloutStage.STEADY:
        return _steady(context, goal, why_not)
    assert plan.next is not None
    return _under_way(context, plan.next)


def _split(context: RolloutContext) -> str:
    told = ", ".join(
        f"{variant.weight / 100:g} % to version {variant.version}"
        for variant in context.plan.variants
    )
    missing = [
        version for version in context.desired.service.split if not context.fleet.ready(version)
    ]
    waits = f"; no replica has loaded version {missing[0]}" if missing else ""
    return f"its user's split is held: {told or 'nothing yet'}{waits}"


def _steady(context: RolloutContext, goal: int | None, why_not: str) -> str:
    plan = context.plan
    served = f"version {plan.stable} serves everything"
    if goal is None:
        return (
            f"{served}; {why_not}. To try it again: holdfast rollout {context.desired.service.name}"
        )
    if goal != plan.stable:
        if len(plan.hold) >= HELD_VERSIONS_MAX:
            return (
                f"{served}; version {goal} waits until replicas hold fewer versions{_late(context)}"
            )
        return f"{served}; version {goal} is about to be loaded"
    if not context.fleet.ready(plan.stable):
        return f"version {goal} should serve everything, but no replica is ready"
    service = context.desired.service
    if service.pinned is None:
        return served
    back = f"holdfast rollout {service.name} goes to {service.model}@{service.target}"
    return f"{served}, and stays: it was rolled back; {back}"


def _under_way(context: RolloutContext, goal: int) -> str:
    plan, step = context.plan, next_step(context)
    ready = f"{context.fleet.ready(goal)} of {count_of(len(context.fleet))}"
    share = "all" if step == WEIGHT_TOTAL else f"{step / 100:g} %"
    if context.allowed(goal) < step:
        return (
            f"version {goal} waits for more replicas to load it before it gets {share} of the "
            f"requests: {ready} have it{_failures(context, goal)}"
        )
    late = _late(context)
    if late:
        return f"version {goal} waits{late}"
    if untried(context, goal):
        return (
            f"version {goal} waits for a gateway: requests come, none of them to it, and no gateway"
            " is in sight"
        )
    weight = weight_of(plan, goal)
    hold_s = context.desired.service.policy.hold_s
    return (
        f"version {goal} has {weight / 100:g} % of the requests, and is watched for {hold_s:g} s "
        f"before it gets {share}"
    )


def _failures(context: RolloutContext, version: int) -> str:
    failures = context.fleet.failures(version, context.plan.number)
    return f"; replica {min(failures)} says: {failures[min(failures)]}" if failures else ""


def _late(context: RolloutContext) -> str:
    """Which gateways hold it up."""
    name, gateways = context.desired.service.name, context.observed.gateways
    late = {
        gateway.name: f" ({gateway.why})" if gateway.why else ""
        for gateway in gateways.values()
        if not applied_by_all(context.plan, {gateway.name: gateway}, name)
    }
    if not late:
        return ""
    first = min(late)
    return f": gateway {first} has not taken over plan {context.plan.number}{late[first]}"
