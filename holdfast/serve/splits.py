"""A/B tests: the versions and weights that users gave, as far as replicas can carry them. Pure.

What cannot be carried yet, or not any more, goes to the stable version. Users judge the versions;
nothing is taken back by itself, but a version that cannot be loaded gets nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from holdfast.serve.conduct import STABLE
from holdfast.serve.moves import Look, Move, arms_of
from holdfast.serve.records import WEIGHT_TOTAL, Arm, Course, Stage
from holdfast.serve.trouble import crashes, unloadable


def usable_split(look: Look) -> dict[int, int]:
    """The versions that may be served, with weights that add up; empty: there is no split."""
    if not look.desired.service.split:
        return {}
    given = {
        version: weight
        for version, weight in look.desired.service.split.items()
        if weight > 0 and version not in look.desired.unusable and version not in look.course.failed
    }
    total = sum(given.values())
    if not total:
        return {}
    shares = {version: WEIGHT_TOTAL * weight // total for version, weight in given.items()}
    largest = max(shares, key=lambda version: (shares[version], -version))
    shares[largest] += WEIGHT_TOTAL - sum(shares.values())
    return {version: shares[version] for version in sorted(shares, key=lambda v: -shares[v])}


def split(look: Look, shares: Mapping[int, int]) -> Move:
    """The next course of an A/B test."""
    course = look.course
    for version in shares:
        crashed = "" if look.fleet.ready(version) else crashes(look, version)
        reason = unloadable(look, version) or crashed
        if reason:
            failed = {**course.failed, version: reason}
            return Move(
                replace(course, failed=failed, arms=_without(course, version)),
                f"version {version} is taken out of the split: {reason}",
            )
    arms = _arms(look, shares)
    stable = course.stable
    if arms and (stable is None or stable not in {arm.version for arm in arms}):
        stable = arms[0].version
    previous = course.stable if stable != course.stable else course.previous
    seen = look.observed.course
    goes_on = seen is not None and seen.stage is Stage.SPLIT and seen.wishes == course.wishes
    since_s = course.since_s if goes_on else look.now_s
    after = replace(
        course,
        stage=Stage.SPLIT,
        arms=arms,
        stable=stable,
        previous=previous,
        next=None,
        since_s=since_s,
    )
    if after == course:
        return Move(course)
    told = ", ".join(f"{arm.weight / 100:g} % to version {arm.version}" for arm in arms)
    waiting = [version for version in shares if not look.fleet.ready(version)]
    reason = f"its user asked for a split: {told or 'nothing is ready yet'}"
    if waiting:
        reason += f"; no replica has loaded version {waiting[0]} yet"
    return Move(after, reason)


def _arms(look: Look, shares: Mapping[int, int]) -> tuple[Arm, ...]:
    """Each version has what was asked for, or what its replicas can carry; the first arm takes
    the rest: the stable version, or without it the one that most replicas have, which can carry
    everything."""
    fleet, stable = look.fleet, look.course.stable
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
        return look.course.arms
    weights = {first: carried.pop(first, 0) + rest} | carried
    return tuple(
        Arm(STABLE if version == first else f"v{version}", version, weight)
        for version, weight in weights.items()
        if weight > 0
    )


def _without(course: Course, version: int) -> tuple[Arm, ...]:
    """What is left when a version is taken out: the first arm has its share. The last one stays
    until there is another."""
    arms = [arm for arm in course.arms if arm.version != version]
    if not arms:
        return course.arms if course.stable in (None, version) else arms_of(course.stable)
    rest = WEIGHT_TOTAL - sum(arm.weight for arm in arms)
    return (replace(arms[0], weight=arms[0].weight + rest), *arms[1:])
