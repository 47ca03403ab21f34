"""`advance`: what to do next for a service, with a reason for people. Pure: no I/O, clock, chance.

    starting --(a replica is ready)--> steady --(the target moved)--> loading --> shifting
                                         ^  ^                             |           |
                                         |  +------(taken back)-----------+-----------+
                                         +---------(promoted)-------------------------+

The plan is all that is remembered, so a controller may die after any write. Every call looks at
levels: what users want now, what replicas and gateways say now. A user's pin goes before the
target, a split before both, at any moment.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from holdfast.control.decide.spans import lasts
from holdfast.serve.records import WEIGHT_TOTAL, Leaving, RolloutPlan, RolloutStage, Variant
from holdfast.serve.rollout.autoscale import replicas as count_of
from holdfast.serve.rollout.autoscale import wanted as wanted_replicas
from holdfast.serve.rollout.facts import (
    CANARY,
    STABLE,
    DesiredService,
    Fleet,
    RolloutContext,
    RolloutDecision,
    ScaleJob,
    ServiceObservation,
    SetPlan,
    applied_by_all,
    weight_of,
)
from holdfast.serve.rollout.verdict import (
    crashes,
    held_long_enough,
    next_step,
    trouble_with,
    unloadable,
)
from holdfast.wire.errors import BugError
from holdfast.wire.limits import HELD_VERSIONS_MAX

# A reason in a plan: every replica and gateway reads it.
PLAN_REASON_CHARACTERS_MAX: Final = 400


def advance(
    desired: DesiredService, observed: ServiceObservation, now_s: float
) -> list[RolloutDecision]:
    """What to do now. Carried out twice, or by another controller, it has the same result: each
    plan says which one it takes the place of."""
    service = desired.service
    before = observed.plan or _nothing(desired, now_s)
    plan, told = before, ""
    if observed.plan is None or service.revision != before.revision:
        revision, version_revision = service.revision, service.version_revision
        plan = replace(before, revision=revision, version_revision=version_revision)
        if version_revision != before.version_revision:
            plan = replace(plan, failed={})
        told = "its user asked for something; nothing else changes"
    context = RolloutContext(desired, observed, now_s, plan, Fleet(observed.replicas))
    shares = usable_split(context)
    move = split(context, shares) if shares else _move(context)
    after, reason = move.plan, move.reason
    wanted = {*service.split, service.pinned or desired.version}
    if after.failed.keys() - wanted:
        failed = {version: why for version, why in after.failed.items() if version in wanted}
        after, reason = replace(after, failed=failed), reason or "what had failed is not wanted now"
    after = kept(before, after, tuple(shares), desired.unusable, now_s)
    without = dropped(after, context)
    if without is not after:
        gone = ", ".join(str(version) for version in after.hold if version not in without.hold)
        after, reason = without, reason or f"nothing is sent to version {gone} any more"
    after, reason = _scaled(context, after, reason)
    decisions = []
    changed = after is not before and replace(after, reason=before.reason) != before
    if observed.plan is None or changed:
        reason = reason or told or "what it needs has changed"
        kept_reason = reason[:PLAN_REASON_CHARACTERS_MAX]
        after = replace(after, number=before.number + 1, reason=kept_reason)
        validate(after)
        decisions.append(RolloutDecision(SetPlan(service.name, before.number, after), reason))
    wrong = observed.job_replicas is not None and observed.job_replicas != after.replicas
    # What was to go before a rollout began, and is still there, goes when it is over.
    if wrong and (after.replicas > (observed.job_replicas or 0) or may_take_away(after)):
        text = f"it shall have {count_of(after.replicas)}, and its job {observed.job_replicas}"
        decisions.append(RolloutDecision(ScaleJob(service.name, after.replicas), text))
    return decisions


def may_take_away(plan: RolloutPlan) -> bool:
    """Whether replicas may go: a rollout never ends with less than it began with."""
    return plan.stage not in (RolloutStage.LOADING, RolloutStage.SHIFTING)


def _nothing(desired: DesiredService, now_s: float) -> RolloutPlan:
    """Before the first plan."""
    service = desired.service
    first = service.replicas_min if service.replicas_wanted is None else service.replicas_wanted
    return RolloutPlan(0, RolloutStage.STARTING, since_s=now_s, replicas=first)


def _scaled(context: RolloutContext, plan: RolloutPlan, reason: str) -> tuple[RolloutPlan, str]:
    service, samples = context.desired.service, context.observed.samples
    # Nor while a gateway may send to what only some replicas have.
    may_shrink = (
        may_take_away(plan)
        and not plan.leaving
        and plan.variants == context.plan.variants
        and applied_by_all(context.plan, context.observed.gateways, service.name)
    )
    count, why = wanted_replicas(
        service, plan.replicas, samples, context.now_s, may_shrink=may_shrink
    )
    if count == plan.replicas:
        return plan, reason
    text = f"{count_of(count)} instead of {plan.replicas}: {why}"
    return replace(plan, replicas=count), f"{reason}; {text}" if reason else text


# --- one version for all -------------------------------------------------------------------------


def goal_of(context: RolloutContext) -> tuple[int | None, str]:
    """The version that should serve everything; None: there is none, and why."""
    desired = context.desired
    version = desired.version if desired.service.pinned is None else desired.service.pinned
    if version is None:
        return None, desired.trouble or f"{desired.service.target} names no version"
    if version in desired.unusable:
        return None, f"version {version} cannot be served: {desired.unusable[version]}"
    if version in context.plan.failed:
        return None, f"version {version} has failed: {context.plan.failed[version]}"
    return version, ""


def _move(context: RolloutContext) -> PlanChange:
    plan = context.plan
    goal, why_not = goal_of(context)
    if plan.stable is None:
        return _start(context, goal, why_not)
    if goal is None or goal == plan.stable:
        return _settle(context, goal, why_not)
    under_way = plan.next == goal and plan.stage in (RolloutStage.LOADING, RolloutStage.SHIFTING)
    if under_way:
        trouble = trouble_with(context, goal)
        if trouble:
            after = given_up(plan, goal, trouble, context.now_s)
            return PlanChange(
                after,
                f"version {goal} is taken back: {trouble}. Version {plan.stable} serves everything",
            )
    if context.desired.service.pinned is not None:
        return _hurry(context, goal)
    if not under_way:
        return _open(context, goal)
    return _load(context, goal) if plan.stage is RolloutStage.LOADING else _shift(context, goal)


def _start(context: RolloutContext, goal: int | None, why_not: str) -> PlanChange:
    """Nothing was ever served: the first replica that is ready begins."""
    plan = replace(context.plan, stage=RolloutStage.STARTING, variants=())
    if goal is None:
        if plan.next is None:
            return PlanChange(plan, why_not if context.observed.plan is None else "")
        return PlanChange(replace(plan, next=None, since_s=context.now_s), why_not)
    if plan.next != goal:
        text = f"replicas load version {goal}, the first one"
        return PlanChange(replace(plan, next=goal, since_s=context.now_s), text)
    trouble = trouble_with(context, goal)
    if trouble:
        text = f"version {goal} has failed: {trouble}. There is no other one to serve"
        return PlanChange(given_up(plan, goal, trouble, context.now_s), text)
    if context.fleet.ready(goal):
        return PlanChange(
            promoted(plan, goal, context.now_s), f"version {goal} is ready, and serves"
        )
    return PlanChange(plan)


def _settle(context: RolloutContext, goal: int | None, why_not: str) -> PlanChange:
    """The stable version shall serve everything, and does so at once."""
    plan = context.plan
    if plan.stage is RolloutStage.STEADY and weight_of(plan, plan.stable) == WEIGHT_TOTAL:
        return PlanChange(plan)
    text = why_not if goal is None else f"version {goal} is wanted"
    return PlanChange(
        returned(plan, context.now_s), f"{text}: version {plan.stable} serves everything"
    )


def _open(context: RolloutContext, goal: int) -> PlanChange:
    """A rollout begins, if replicas have room for one more version."""
    plan = context.plan
    if goal not in plan.hold and len(plan.hold) >= HELD_VERSIONS_MAX:
        return _settle(context, goal=None, why_not=f"replicas hold {len(plan.hold)} versions")
    target = context.desired.service.target
    named = f"{target} names" if target != str(goal) else "its user wants"
    text = f"{named} version {goal}: replicas load it beside version {plan.stable}"
    return PlanChange(begun(plan, goal, context.now_s), text)


def _load(context: RolloutContext, goal: int) -> PlanChange:
    step = next_step(context)
    if context.allowed(goal) < step:
        return PlanChange(context.plan)
    have = f"{count_of(context.fleet.ready(goal))} of {len(context.fleet)} have it"
    return _step(context, goal, step, f"version {goal} is loaded and warm ({have})")


def _shift(context: RolloutContext, goal: int) -> PlanChange:
    plan = context.plan
    weight, allowed = weight_of(plan, goal), context.allowed(goal)
    if allowed < weight:
        ready = context.fleet.ready(goal)
        text = (
            f"{f'only {count_of(ready)}' if ready else 'no replica'} can serve version {goal} now"
        )
        what = f"it has {allowed / 100:g} % of the requests" if allowed else "it gets no requests"
        return PlanChange(shifted(plan, allowed, context.now_s), f"{text}: {what}")
    step = next_step(context)
    if allowed < step or not held_long_enough(context, goal):
        return PlanChange(plan)
    return _step(context, goal, step, f"version {goal} did well at {weight / 100:g} %")


def _step(context: RolloutContext, goal: int, step: int, why: str) -> PlanChange:
    """The next weight, or all of it."""
    plan = context.plan
    if step < WEIGHT_TOTAL:
        text = f"{why}: it has {step / 100:g} % of the requests"
        return PlanChange(shifted(plan, step, context.now_s), text)
    text = f"{why}: it serves everything, and version {plan.stable} stays warm"
    return PlanChange(promoted(plan, goal, context.now_s), text)


def _hurry(context: RolloutContext, goal: int) -> PlanChange:
    """Users pinned it: it has at once all that its replicas can carry."""
    plan, allowed = context.plan, context.allowed(goal)
    asked = f"its user pinned version {goal}"
    if allowed >= WEIGHT_TOTAL:
        text = f"{asked}: it serves everything, and version {plan.stable} stays warm"
        return PlanChange(promoted(plan, goal, context.now_s), text)
    if plan.next != goal or plan.stage not in (RolloutStage.LOADING, RolloutStage.SHIFTING):
        plan = begun(plan, goal, context.now_s)
    if weight_of(plan, goal) != allowed:
        plan = shifted(plan, allowed, context.now_s)
    if plan == context.plan:
        return PlanChange(plan)
    have = f"{count_of(context.fleet.ready(goal))} of {len(context.fleet)}"
    return PlanChange(
        plan, f"{asked}, and {have} can serve it: {allowed / 100:g} % of the requests"
    )


# --- moves ----------------------------------------------------------------------------------------
# The moves of a plan: what each does to it, and what is held afterwards. Pure.
#
# A move takes a plan and gives another with the same number; `rollout.advance` numbers what it
# writes. Whatever a move is, `kept` says what replicas hold after it: what is needed, and for a
# while what is not needed any more, since a gateway may still send to it.


# A version without requests is unloaded after its service's time-out and this: by then nobody
# waits for an answer of it, however often it was tried again.
UNLOAD_GRACE_S: Final = 5.0


class PlanChange(NamedTuple):
    """A plan as it shall be, and why. An empty reason: it stays as it is."""

    plan: RolloutPlan
    reason: str = ""


def variants_of(stable: int, canary: int | None = None, weight: int = 0) -> tuple[Variant, ...]:
    """The stable version, and a canary if it has any weight."""
    if canary is None or weight <= 0:
        return (Variant(STABLE, stable, WEIGHT_TOTAL),)
    return (Variant(STABLE, stable, WEIGHT_TOTAL - weight), Variant(CANARY, canary, weight))


def begun(plan: RolloutPlan, version: int, now_s: float) -> RolloutPlan:
    """Replicas shall load it; nothing is sent to it."""
    assert plan.stable is not None
    return replace(
        plan,
        stage=RolloutStage.LOADING,
        next=version,
        variants=variants_of(plan.stable),
        since_s=now_s,
    )


def shifted(plan: RolloutPlan, weight: int, now_s: float) -> RolloutPlan:
    """The next version has this weight; with none it is still being loaded."""
    assert plan.stable is not None
    return replace(
        plan,
        stage=RolloutStage.SHIFTING if weight > 0 else RolloutStage.LOADING,
        variants=variants_of(plan.stable, plan.next, weight),
        since_s=now_s,
    )


def promoted(plan: RolloutPlan, version: int, now_s: float) -> RolloutPlan:
    """It serves everything; what was stable before stays warm as `previous`."""
    previous = plan.stable if plan.stable != version else plan.previous
    return replace(
        plan,
        stage=RolloutStage.STEADY,
        stable=version,
        previous=previous,
        next=None,
        variants=variants_of(version),
        since_s=now_s,
    )


def returned(plan: RolloutPlan, now_s: float) -> RolloutPlan:
    """The stable version serves everything again."""
    assert plan.stable is not None
    return replace(
        plan, stage=RolloutStage.STEADY, next=None, variants=variants_of(plan.stable), since_s=now_s
    )


def given_up(plan: RolloutPlan, version: int, reason: str, now_s: float) -> RolloutPlan:
    """It has failed, and is not tried again until users ask anew."""
    failed = {**plan.failed, version: reason}
    if plan.stable is None:
        return replace(plan, next=None, failed=failed, since_s=now_s)
    return replace(returned(plan, now_s), failed=failed)


# --- what is held --------------------------------------------------------------------------------


def kept(
    before: RolloutPlan,
    after: RolloutPlan,
    wanted: Collection[int],
    unusable: Mapping[int, str],
    now_s: float,
) -> RolloutPlan:
    """`after`, with `hold` and `leaving`. `wanted`: further versions that shall be loaded."""
    previous = after.previous
    if previous is not None and (previous in unusable or previous == after.stable):
        after, previous = replace(after, previous=None), None
    ranked = sorted(after.variants, key=lambda variant: -variant.weight)
    order = [after.stable, *(variant.version for variant in ranked), *wanted, after.next, previous]
    needed = tuple(dict.fromkeys(version for version in order if version is not None))
    first = Leaving(before.number + 1, now_s)
    leaving = {
        version: before.leaving.get(version, first)
        for version in before.hold
        if version not in needed
    }
    hold = (*needed, *leaving)
    if hold == after.hold and leaving == after.leaving:
        return after
    return replace(after, hold=hold, leaving=leaving)


def dropped(plan: RolloutPlan, context: RolloutContext) -> RolloutPlan:
    """Without the versions that no living gateway sends to, and that nobody waits for: they left
    so long ago, or no replica could answer for them anyway."""
    if not plan.leaving:
        return plan
    service, gateways = context.desired.service, context.observed.gateways.values()
    applied = [gateway.applied.get(service.name, 0) for gateway in gateways]
    # As long as somebody may wait for an answer of it.
    grace_s = service.limits.timeout_s + UNLOAD_GRACE_S
    leaving = {
        version: each
        for version, each in plan.leaving.items()
        if any(number < each.plan for number in applied)
        or (lasts(each.since_s, grace_s, context.now_s) and context.fleet.ready(version))
    }
    gone = plan.leaving.keys() - leaving.keys()
    hold = tuple(version for version in plan.hold if version not in gone)
    return replace(plan, hold=hold, leaving=leaving) if gone else plan


# --- what must always be true --------------------------------------------------------------------


def validate(plan: RolloutPlan) -> None:
    """Stays on in production: a plan that breaks this is not written."""
    versions = [variant.version for variant in plan.variants]
    wrong = ""
    if plan.variants and sum(variant.weight for variant in plan.variants) != WEIGHT_TOTAL:
        wrong = "the weights do not add up"
    elif any(variant.weight <= 0 for variant in plan.variants):
        wrong = "a variant has no weight"
    elif len(set(versions)) != len(versions):
        wrong = "a version has two variants"
    elif not set(versions) <= set(plan.hold):
        wrong = "requests go to a version that is not held"
    elif set(versions) & plan.failed.keys() - {plan.stable}:
        wrong = "requests go to a version that has failed"
    elif plan.leaving.keys() & {*versions, plan.stable, plan.next}:
        wrong = "a version that is needed leaves"
    elif plan.stable is None and plan.variants:
        wrong = "requests go somewhere, and nothing is stable"
    if wrong:
        raise BugError(f"a plan is not sound: {wrong}", why=repr(plan))


# --- splits ---------------------------------------------------------------------------------------
# A/B tests: the versions and weights that users gave, as far as replicas can carry them. Pure.
#
# What cannot be carried yet, or not any more, goes to the stable version. Users judge the versions;
# nothing is taken back by itself, but a version that cannot be loaded gets nothing.


def usable_split(context: RolloutContext) -> dict[int, int]:
    """The versions that may be served, with weights that add up; empty: there is no split."""
    if not context.desired.service.split:
        return {}
    given = {
        version: weight
        for version, weight in context.desired.service.split.items()
        if weight > 0
        and version not in context.desired.unusable
        and version not in context.plan.failed
    }
    total = sum(given.values())
    if not total:
        return {}
    shares = {version: WEIGHT_TOTAL * weight // total for version, weight in given.items()}
    largest = max(shares, key=lambda version: (shares[version], -version))
    shares[largest] += WEIGHT_TOTAL - sum(shares.values())
    return {version: shares[version] for version in sorted(shares, key=lambda v: -shares[v])}


def split(context: RolloutContext, shares: Mapping[int, int]) -> PlanChange:
    """The next plan of an A/B test."""
    plan = context.plan
    for version in shares:
        crashed = "" if context.fleet.ready(version) else crashes(context, version)
        reason = unloadable(context, version) or crashed
        if reason:
            failed = {**plan.failed, version: reason}
            return PlanChange(
                replace(plan, failed=failed, variants=_without(plan, version)),
                f"version {version} is taken out of the split: {reason}",
            )
    variants = _variants(context, shares)
    stable = plan.stable
    if variants and (stable is None or stable not in {variant.version for variant in variants}):
        stable = variants[0].version
    previous = plan.stable if stable != plan.stable else plan.previous
    seen = context.observed.plan
    goes_on = (
        seen is not None
        and seen.stage is RolloutStage.SPLIT
        and seen.version_revision == plan.version_revision
    )
    since_s = plan.since_s if goes_on else context.now_s
    after = replace(
        plan,
        stage=RolloutStage.SPLIT,
        variants=variants,
        stable=stable,
        previous=previous,
        next=None,
        since_s=since_s,
    )
    if after == plan:
        return PlanChange(plan)
    told = ", ".join(
        f"{variant.weight / 100:g} % to version {variant.version}" for variant in variants
    )
    waiting = [version for version in shares if not context.fleet.ready(version)]
    reason = f"its user asked for a split: {told or 'nothing is ready yet'}"
    if waiting:
        reason += f"; no replica has loaded version {waiting[0]} yet"
    return PlanChange(after, reason)


def _variants(context: RolloutContext, shares: Mapping[int, int]) -> tuple[Variant, ...]:
    """Each version has what was asked for, or what its replicas can carry; the first variant takes
    the rest: the stable version, or without it the one that most replicas have, which can carry
    everything."""
    fleet, stable = context.fleet, context.plan.stable
    candidates = tuple({*shares, *([] if stable is None else [stable])})
    carried = {
        version: min(share, fleet.allowed(version, candidates)) for version, share in shares.items()
    }
    rest = WEIGHT_TOTAL - sum(carried.values())
    ready = [version for version in carried if fleet.ready(version)]
    takes_rest = bool(rest) and bool(fleet.ready(stable) or not ready)
    if stable is not None and (takes_rest or stable in shares):
        first = stable
    elif ready:
        first = max(ready, key=fleet.ready)
    else:
        return context.plan.variants
    weights = {first: carried.pop(first, 0) + rest} | carried
    return tuple(
        Variant(STABLE if version == first else f"v{version}", version, weight)
        for version, weight in weights.items()
        if weight > 0
    )


def _without(plan: RolloutPlan, version: int) -> tuple[Variant, ...]:
    """What is left when a version is taken out: the first variant has its share. The last one stays
    until there is another."""
    variants = [variant for variant in plan.variants if variant.version != version]
    if not variants:
        return plan.variants if plan.stable in (None, version) else variants_of(plan.stable)
    rest = WEIGHT_TOTAL - sum(variant.weight for variant in variants)
    return (replace(variants[0], weight=variants[0].weight + rest), *variants[1:])
