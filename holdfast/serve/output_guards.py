"""Do the outputs of a version keep the guards of its service? Judged by what replicas have seen of
them in this rollout. Pure.

A reason names the output, how much of it, the threshold, and the command that changes that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Final

from holdfast.serve import settings
from holdfast.serve.records import Compared, Service, Watched
from holdfast.wire.limits import VERDICT_SIGMAS

# A guard counts when this many answers have broken it: one may be the request's own fault.
GUARD_BREACHES_MIN: Final = 2

# A standard deviation below this part of the mean is that of a constant.
_CONSTANT = 1e-9
_TINY = 1e-30


def broken(service: Service, old: Watched, new: Watched, *, patient: bool) -> str:
    """Which guard the new version breaks; empty: none, or too few requests tell. `patient` False:
    few requests have to do."""
    guards = service.guards
    least = service.policy.requests_min if patient else 1
    if guards.nonfinite_max is not None and new.answers >= least:
        found = _too_many(old, new, guards.nonfinite_max, lambda one: one.nonfinite)
        if found is not None:
            output, what, share = found
            change = settings.command(service.name, settings.NONFINITE, settings.above(share))
            return f"output {output} was NaN or infinite in {what}. To allow it: {change}"
    if guards.ranges and new.answers >= least:
        found = _too_many(old, new, guards.outside_max, lambda one: one.outside)
        if found is not None:
            output, what, share = found
            low, high = guards.ranges.get(output, (-math.inf, math.inf))
            change = settings.command(service.name, settings.OUTSIDE, settings.above(share))
            span = f"{low:g} to {high:g}"
            return f"output {output} was outside of {span} in {what}. To allow it: {change}"
    for output, one in sorted(new.compared.items()):
        if one.requests < least:
            continue
        worse = _shifted(service, output, one) or _disagrees(service, output, one)
        if worse:
            return worse
    return ""


def suspicious(service: Service, new: Watched) -> bool:
    """Whether there is a reason to look longer: something is wrong with too few answers, or the
    comparison that users asked for has hardly begun."""
    least = service.policy.requests_min
    if any((*new.nonfinite.values(), *new.outside.values())) and new.answers < least:
        return True
    if not service.guards.compares:
        return False
    return max((one.requests for one in new.compared.values()), default=0) < least


def _too_many(
    old: Watched, new: Watched, allowed: float, of: Callable[[Watched], Mapping[str, int]]
) -> tuple[str, str, float] | None:
    """The output, in words how often and what is allowed, and the share; None: not too often."""
    for output, count in sorted(of(new).items(), key=lambda each: -each[1]):
        before = of(old).get(output, 0) / old.answers if old.answers else 0.0
        rate = min(1.0, before + allowed)
        expected = rate * new.answers
        limit = expected + VERDICT_SIGMAS * math.sqrt(expected * (1 - rate))
        if count < min(GUARD_BREACHES_MIN, new.answers) or count <= limit:
            continue
        share = count / new.answers
        words = (
            f"{count} of {new.answers} answers ({share:.1%}; {before:.1%} of the old version's, and"
            f" {allowed:.1%} more are allowed)"
        )
        return output, words, share
    return None


def shift_of(one: Compared) -> float:
    """By how much the mean or the standard deviation differs, in the stable version's own."""
    if not one.values:
        return 0.0
    live, next_ = one.live_sum / one.values, one.next_sum / one.values
    live_spread = math.sqrt(max(0.0, one.live_squares / one.values - live * live))
    next_spread = math.sqrt(max(0.0, one.next_squares / one.values - next_ * next_))
    unit = max(live_spread, _CONSTANT * abs(live), _TINY)
    return max(abs(next_ - live), abs(next_spread - live_spread)) / unit


def _shifted(service: Service, output: str, one: Compared) -> str:
    most, shift = service.guards.shift_max, shift_of(one)
    if most is None or shift <= most:
        return ""
    live, next_ = one.live_sum / one.values, one.next_sum / one.values
    change = settings.command(service.name, settings.SHIFT, f"{1.2 * shift:.2g}")
    return (
        f"output {output} has shifted by {shift:.3g} standard deviations on {one.requests} requests"
        f" that both versions computed (mean {live:.4g} before, {next_:.4g} now; {most:g} are"
        f" allowed). To allow it: {change}"
    )


def _disagrees(service: Service, output: str, one: Compared) -> str:
    most = service.guards.disagree_max
    if most is None or not one.rows:
        return ""
    limit = most * one.rows + VERDICT_SIGMAS * math.sqrt(one.rows * most * (1 - most))
    if one.disagreed <= limit:
        return ""
    share = one.disagreed / one.rows
    change = settings.command(service.name, settings.DISAGREE, settings.above(share))
    return (
        f"output {output} names another class in {one.disagreed} of {one.rows} rows that both"
        f" versions computed ({share:.1%}, and {most:.1%} are allowed). To allow it: {change}"
    )


def total(seen: Iterable[Watched]) -> Watched:
    """What several replicas have seen, together."""
    answers = 0
    nonfinite: dict[str, int] = {}
    outside: dict[str, int] = {}
    compared: dict[str, Compared] = {}
    for each in seen:
        answers += each.answers
        for held, added in ((nonfinite, each.nonfinite), (outside, each.outside)):
            for output, count in added.items():
                held[output] = held.get(output, 0) + count
        for output, one in each.compared.items():
            compared[output] = _sum(compared.get(output, Compared()), one)
    return Watched(answers, nonfinite, outside, compared)


def _sum(one: Compared, other: Compared) -> Compared:
    return Compared(
        *(getattr(one, each.name) + getattr(other, each.name) for each in fields(Compared))
    )
