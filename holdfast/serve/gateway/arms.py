"""Which share of a service's requests goes to which version. Pure.

The course says what is wanted. A share is never larger than the capacity behind it: what an arm
cannot take, the stable arm takes. The shares always sum up to `WEIGHT_TOTAL`, and the stable one is
the first: a user's place in `0 ... WEIGHT_TOTAL` is fixed, the last arm has the places at the end,
so a canary that grows keeps everybody it had.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.serve.gateway.state import Known
from holdfast.serve.records import WEIGHT_TOTAL, Arm


@dataclass(frozen=True, slots=True)
class Share:
    """`weight` of `WEIGHT_TOTAL` requests are for `version`. `instead`: the version that may answer
    when no replica of `version` can; None: no other one may."""

    arm: str
    version: int
    weight: int
    instead: int | None = None


def shares(known: Known) -> tuple[Share, ...]:
    """The shares of a service, the stable one first; none: it has no course to follow yet."""
    arms = known.course.arms if known.course is not None else ()
    if not arms:
        return ()
    capacity = {arm.version: known.capacity(arm.version) for arm in arms}
    able = sum(
        any(one.ready(version) for version in capacity) and not one.draining
        for one in known.replicas
    )
    weights: list[int] = [_bounded(arm, capacity[arm.version], able) for arm in arms[1:]]
    stable = WEIGHT_TOTAL - sum(weights)
    if stable < 0:  # a course that gives away more than there is
        weights = _scaled(weights)
        stable = WEIGHT_TOTAL - sum(weights)
    if not capacity[arms[0].version] and any(weights):
        weights, stable = _without_stable(weights), 0
    first = arms[0]
    others = [
        Share(
            arm.name, arm.version, weight, first.version if arm.version != first.version else None
        )
        for arm, weight in zip(arms[1:], weights, strict=True)
        if weight
    ]
    if not stable:
        return tuple(others)
    return (Share(first.name, first.version, stable), *others)


def _bounded(arm: Arm, capacity: int, able: int) -> int:
    """The arm's weight, or what its replicas can take of all that can take anything."""
    return min(arm.weight, WEIGHT_TOTAL * capacity // able) if able else 0


def _scaled(weights: list[int]) -> list[int]:
    total = sum(weights)
    return [weight * WEIGHT_TOTAL // total for weight in weights]


def _without_stable(weights: list[int]) -> list[int]:
    """Nobody has the stable version: those who can answer take its share too."""
    scaled = _scaled(weights)
    last = max(index for index, weight in enumerate(weights) if weight)
    scaled[last] += WEIGHT_TOTAL - sum(scaled)
    return scaled
