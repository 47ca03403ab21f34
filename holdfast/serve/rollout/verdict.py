"""What speaks against a version: why it is taken back by itself. Pure.

One bad machine, or somebody who kills replicas, is not the version's fault. It is when nobody could
load it, when replicas crash with it, when too few have it in time, or when it answers worse than
the version that it shall replace.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from itertools import accumulate
from typing import Final, NamedTuple

from holdfast.serve import settings
from holdfast.serve.records import (
    LATENCY_BOUNDS_MS,
    WEIGHT_TOTAL,
    Compared,
    Counts,
    Load,
    OutputStats,
    RolloutPolicy,
    RolloutStage,
    ServiceSpec,
)
from holdfast.serve.rollout.autoscale import replicas as count_of
from holdfast.serve.rollout.facts import RolloutContext, weight_of
from holdfast.wire.limits import VERDICT_SIGMAS

# A step that saw an error among too few requests is held longer, up to so many times `hold_s`.
VERDICT_HOLDS_MAX: Final = 6
# Replicas that could not load a version, on several machines, when no other one could.
LOAD_FAILURES_ENOUGH: Final = 2
# Replicas that crashed by their own fault while they loaded a version: the second is no accident.
LOADING_CRASHES_MAX: Final = 2
# Replicas that were killed, nobody knows why: so many within so short a time and the version is
# to blame. Somebody who kills machines one by one is slower.
DEATHS_MAX: Final = 5
DEATHS_WINDOW_S: Final = 5.0


def steps_of(policy: RolloutPolicy) -> list[int]:
    """The weights that a canary goes through, rising; all of it is the last one."""
    return [*sorted({step for step in policy.steps if 0 < step < WEIGHT_TOTAL}), WEIGHT_TOTAL]


def next_step(context: RolloutContext) -> int:
    """The weight that the next version gets next."""
    weight = weight_of(context.plan, context.plan.next)
    return next(step for step in steps_of(context.desired.service.policy) if step > weight)


def trouble_with(context: RolloutContext, version: int) -> str:
    """Why the version that is being rolled out must be taken back; empty: it need not be."""
    return (
        unloadable(context, version)
        or crashes(context, version)
        or _deaths(context, version)
        or _late(context, version)
        or _worse(context, version)
        or _unfit(context, version)
    )


def unloadable(context: RolloutContext, version: int) -> str:
    """It failed on all replicas, or on several machines and worked on none."""
    failures = context.fleet.failures(version, context.plan.number)
    if not failures or context.fleet.ready(version):
        return ""
    nodes = {context.fleet.replicas[worker].node or str(worker) for worker in failures}
    others = len(context.fleet) - len(failures)
    if others and len(nodes) < LOAD_FAILURES_ENOUGH:
        return ""
    where = f"on {count_of(len(failures))}" if len(failures) > 1 else f"on replica {min(failures)}"
    return f"it could not be loaded {where}: {failures[min(failures)]}"


def crashes(context: RolloutContext, version: int) -> str:
    """Replicas ended by their own fault: several while they loaded it, or one that served it."""
    loading = context.plan.stage is not RolloutStage.SHIFTING
    guilty = Load.LOADING if loading else Load.READY
    crashed = [
        death
        for death in context.observed.deaths
        if death.own_fault
        and death.at_s >= context.since_s
        and death.versions.get(version) is guilty
    ]
    if len(crashed) < (LOADING_CRASHES_MAX if loading else 1):
        return ""
    what = "loaded it" if loading else "served it"
    return f"replica {crashed[-1].worker} crashed while it {what}: {_end_of(crashed[-1].reason)}"


def _end_of(story: str) -> str:
    """A crash's story is the end of a log; its last line says how the process ended."""
    lines = [line.strip() for line in story.splitlines() if line.strip()]
    return lines[-1] if lines else "nobody knows how"


def _deaths(context: RolloutContext, version: int) -> str:
    """Killed, and nobody knows by whom: too many in too short a time, and none is left."""
    loading = context.plan.stage is not RolloutStage.SHIFTING
    if context.fleet.ready(version):
        return ""
    guilty = Load.LOADING if loading else Load.READY
    earliest_s = max(context.since_s, context.now_s - DEATHS_WINDOW_S)
    count = sum(
        1
        for death in context.observed.deaths
        if death.at_s >= earliest_s and death.versions.get(version) is guilty
    )
    if count < max(DEATHS_MAX, context.plan.replicas):
        return ""
    what = "loaded it" if loading else "served it"
    return f"{count_of(count)} died within {DEATHS_WINDOW_S:g} s while they {what}"


def _late(context: RolloutContext, version: int) -> str:
    """Too few replicas had it in time. Without replicas, or with young ones, there is more time.
    One that will only start by our clock has another one, and counts as old."""
    if not context.fleet.replicas:
        return ""
    plan, policy = context.plan, context.desired.service.policy
    shifting = plan.stage is RolloutStage.SHIFTING
    began_s = context.since_s + (policy.hold_s if shifting else 0.0)
    oldest_s = min(replica.started_s for replica in context.fleet.replicas.values())
    if oldest_s <= context.now_s:
        began_s = max(began_s, oldest_s)
    if context.now_s < began_s + policy.ready_s:
        return ""
    needed = 1 if plan.stable is None else next_step(context)
    if context.allowed(version) >= needed:
        return ""
    failures = context.fleet.failures(version, context.plan.number)
    why = f"; replica {min(failures)} says: {failures[min(failures)]}" if failures else ""
    have, all_ = context.fleet.ready(version), count_of(len(context.fleet))
    more = settings.command(
        context.desired.service.name, settings.READY, settings.seconds(2 * policy.ready_s)
    )
    return (
        f"after {policy.ready_s:g} s only {have} of {all_} had loaded it{why}. To wait longer: "
        f"{more}"
    )


def _worse(context: RolloutContext, version: int) -> str:
    plan, window = context.plan, context.observed.window
    if (
        plan.stage is not RolloutStage.SHIFTING
        or window is None
        or window.variants != plan.variants
    ):
        return ""
    if plan.stable is None or context.desired.service.pinned is not None:
        return ""  # there is nothing to compare with, or users know better
    policy = context.desired.service.policy
    old = window.counts.get(plan.stable, Counts())
    new = window.counts.get(version, Counts())
    patient = context.now_s < _patience_end_s(context)
    verdict = judge(policy, old, new, window.looks_at(version), patient=patient)
    if verdict.finding is not Finding.WORSE:
        return ""
    if not verdict.allowing:
        return verdict.reason
    option, value = verdict.allowing
    change = settings.command(context.desired.service.name, option, value)
    return f"{verdict.reason}. To allow it: {change}"


def _unfit(context: RolloutContext, version: int) -> str:
    """Its outputs are not what they must be."""
    plan, service = context.plan, context.desired.service
    if plan.stage is not RolloutStage.SHIFTING or plan.stable is None or service.pinned is not None:
        return ""
    watched = context.observed.watched
    if version not in watched:
        return ""
    old = watched.get(plan.stable, OutputStats())
    patient = context.observed.window is None or context.now_s < _patience_end_s(context)
    return broken_guard(service, old, watched[version], patient=patient)


def _patience_end_s(context: RolloutContext) -> float:
    """After this, few requests have to do: nobody waits for ever."""
    window, policy = context.observed.window, context.desired.service.policy
    assert window is not None
    return max(context.since_s, window.since_s) + VERDICT_HOLDS_MAX * policy.hold_s


def untried(context: RolloutContext, version: int) -> bool:
    """Whether requests come, none of them to this version, and no gateway is in sight: those that
    send them are cut off from the coordination plane, and have not heard of this step. (Without any
    requests a step is over when its time is.)"""
    window, stable = context.observed.window, context.plan.stable
    if window is None or stable is None or context.observed.gateways:
        return False
    old = window.counts.get(stable, Counts())
    return old.requests > 0 and window.counts.get(version, Counts()).requests == 0


def held_long_enough(context: RolloutContext, version: int) -> bool:
    """Whether the present step was watched for as long as it has to be.

    What one controller saw is not known to the next one, which watches again from its beginning. An
    error among too few requests is a reason to look longer, and so is what would speak against it
    if nothing more came.
    """
    plan, window, policy = context.plan, context.observed.window, context.desired.service.policy
    if window is None or window.variants != plan.variants:
        return False
    seen_s = window.until_s - max(context.since_s, window.since_s)
    if seen_s < policy.hold_s:
        return False
    if untried(context, version):
        return False
    old = window.counts.get(context.plan.stable or 0, Counts())
    new = window.counts.get(version, Counts())
    few_errors = new.errors and new.requests < policy.requests_min
    hasty = judge(policy, old, new, window.looks_at(version), patient=False)
    if few_errors or hasty.finding is Finding.WORSE or _hardly_compared(context, version):
        return seen_s >= VERDICT_HOLDS_MAX * policy.hold_s
    return True


def _hardly_compared(context: RolloutContext, version: int) -> bool:
    """Whether requests come, and its outputs are not known well enough."""
    window, stable = context.observed.window, context.plan.stable
    if window is None or stable is None or not window.counts.get(stable, Counts()).requests:
        return False
    seen = context.observed.watched.get(version, OutputStats())
    return suspicious(context.desired.service, seen)


# --- verdict --------------------------------------------------------------------------------------
# Is a version worse than the one that it shall replace? Judged by counts of the same time.
#
# Chance is left room: a few requests say little, and one error or one slow answer says nothing.


# Errors of a version count when they are so many, and beyond what chance would give (in standard
# deviations of a binomial): one error may be anybody's.
VERDICT_ERRORS_MIN: Final = 2
# So many answers lie above the quantile that is compared: of 500 or more it is the p99.
VERDICT_SLOWER_MIN: Final = 5
# Slow answers have come in so many looks at the replicas: in fewer they may be one moment's, in
# which the machine did something else.
VERDICT_LOOKS_MIN: Final = 4


class Finding(Enum):
    """What the counts say of a version."""

    UNKNOWN = "unknown"  # too few requests
    FINE = "fine"
    WORSE = "worse"


class VersionVerdict(NamedTuple):
    """A finding, and the figures that it stands on, in words. `allowing`: the option and the value
    that would have let it pass."""

    finding: Finding
    reason: str
    allowing: tuple[str, str] | None = None


def judge(
    policy: RolloutPolicy,
    old: Counts,
    new: Counts,
    looks: Sequence[Counts] = (),
    *,
    patient: bool = True,
) -> VersionVerdict:
    """Compare the new version with the old one. `looks`: the new one's counts by look, if they are
    known. `patient` False: few requests and looks have to do."""
    if new.requests == 0:
        return VersionVerdict(Finding.UNKNOWN, "it had no requests")
    if new.requests < policy.requests_min and patient:
        return VersionVerdict(
            Finding.UNKNOWN, f"it had {new.requests} requests of at least {policy.requests_min}"
        )
    worse = _more_errors(policy, old, new) or _slower(policy, old, new, looks, patient=patient)
    if worse is not None:
        return worse
    return VersionVerdict(Finding.FINE, f"{new.requests} requests, {new.errors} errors")


def _more_errors(policy: RolloutPolicy, old: Counts, new: Counts) -> VersionVerdict | None:
    """What is to blame; None: nothing."""
    before = old.errors / old.requests if old.requests >= policy.requests_min else 0.0
    rate = min(1.0, before + policy.error_rate_max)
    expected = rate * new.requests
    limit = expected + VERDICT_SIGMAS * math.sqrt(expected * (1 - rate))
    # As many as there were requests is always too many, however few: they all failed.
    least = min(VERDICT_ERRORS_MIN, new.requests)
    if new.errors < least or (new.errors <= limit and new.errors < new.requests):
        return None
    if rate >= 1.0:
        return None  # the old one fails as often
    share = new.errors / new.requests
    reason = (
        f"{new.errors} of {new.requests} requests failed ({share:.1%}, and {before:.1%} of the old "
        f"version's; {policy.error_rate_max:.1%} more are allowed)"
    )
    return VersionVerdict(Finding.WORSE, reason, (settings.ERRORS, settings.above(share)))


def _slower(
    policy: RolloutPolicy, old: Counts, new: Counts, looks: Sequence[Counts], *, patient: bool
) -> VersionVerdict | None:
    """Also of two versions that are the same one has more slow answers than the other, and on a
    busy machine they come in lumps: so there must be clearly more than lie above the quantile, and
    not of one moment only."""
    least = max(policy.requests_min, 2 * VERDICT_SLOWER_MIN)
    if old.requests < least or new.requests < least:
        return None
    # Of few requests the p99 is their slowest, which is chance: a lower part of them is compared,
    # such that several answers lie above it.
    share = min(0.99, 1 - VERDICT_SLOWER_MIN / min(old.requests, new.requests))
    before_ms, after_ms = quantile_ms(old.buckets, share), quantile_ms(new.buckets, share)
    allowed_ms = before_ms * policy.latency_ratio_max + policy.latency_slack_ms
    if after_ms <= allowed_ms:
        return None
    slow = _slow(new, allowed_ms)
    parts = [(_slow(one, allowed_ms), one.requests) for one in looks if one.requests]
    if patient and parts and sum(1 for some, _ in parts if some) < VERDICT_LOOKS_MIN:
        return None
    expected = (1 - share) * new.requests
    chance = expected * share * (1 + new.requests / old.requests)
    room = VERDICT_SIGMAS * math.sqrt(max(chance, _lumps(parts)))
    if slow <= expected + room:
        return None
    reason = (
        f"its p{100 * share:.3g} is {after_ms:g} ms, and the old version's {before_ms:g} ms "
        f"({policy.latency_ratio_max:g} times that and {policy.latency_slack_ms:g} ms are allowed)"
    )
    enough = math.ceil(after_ms / max(before_ms, LATENCY_BOUNDS_MS[0]) + 1)
    return VersionVerdict(Finding.WORSE, reason, (settings.SLOWER, str(enough)))


def _slow(counts: Counts, allowed_ms: float) -> int:
    """Answers that took longer, as far as buckets tell."""
    return sum(counts.buckets[bisect_right(LATENCY_BOUNDS_MS, allowed_ms) :])


def _lumps(parts: Sequence[tuple[int, int]]) -> float:
    """The variance of how many answers are slow, from how much their share differs between parts
    (slow ones and all): one bad moment says little, however many answers fell into it."""
    if len(parts) < 2:
        return 0.0
    share = sum(slow for slow, _ in parts) / sum(count for _, count in parts)
    squares = sum((slow - share * count) ** 2 for slow, count in parts)
    return squares * len(parts) / (len(parts) - 1)


def quantile_ms(buckets: Sequence[int], share: float) -> float:
    """The latency below which this share of the answers lies: the upper bound of its bucket. The
    last bucket has none, and counts as twice the last bound."""
    up_to = list(accumulate(buckets))
    if not up_to or not up_to[-1]:
        return 0.0
    at = bisect_left(up_to, math.ceil(share * up_to[-1]))
    return LATENCY_BOUNDS_MS[at] if at < len(LATENCY_BOUNDS_MS) else 2 * LATENCY_BOUNDS_MS[-1]


def since(now: Counts, before: Counts | None) -> Counts:
    """What was counted between two looks at one replica. One that counts less than before has
    loaded the version anew: all that it counts is new."""
    if before is None or now.requests < before.requests or now.errors < before.errors:
        return now
    earlier = before.buckets or (0,) * len(now.buckets)
    grown = len(now.buckets) == len(earlier) and all(map(operator.ge, now.buckets, earlier))
    if not grown:
        return now
    return Counts(
        now.requests - before.requests,
        now.errors - before.errors,
        tuple(map(operator.sub, now.buckets, earlier)),
    )


def total(counts: Iterable[Counts]) -> Counts:
    """All of them together."""
    requests = errors = 0
    buckets: list[int] = []
    for each in counts:
        requests += each.requests
        errors += each.errors
        if len(each.buckets) == len(buckets):
            buckets = list(map(operator.add, buckets, each.buckets))
            continue
        buckets += [0] * (len(each.buckets) - len(buckets))
        for at, count in enumerate(each.buckets):
            buckets[at] += count
    return Counts(requests, errors, tuple(buckets))


# --- output guards --------------------------------------------------------------------------------
# Do the outputs of a version keep the guards of its service? Judged by what replicas have seen of
# them in this rollout. Pure.
#
# A reason names the output, how much of it, the threshold, and the command that changes that.


# A guard counts when this many answers have broken it: one may be the request's own fault.
GUARD_BREACHES_MIN: Final = 2

# A standard deviation below this part of the mean is that of a constant.
_CONSTANT = 1e-9
_TINY = 1e-30


def broken_guard(service: ServiceSpec, old: OutputStats, new: OutputStats, *, patient: bool) -> str:
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


def suspicious(service: ServiceSpec, new: OutputStats) -> bool:
    """Whether there is a reason to look longer: something is wrong with too few answers, or the
    comparison that users asked for has hardly begun."""
    least = service.policy.requests_min
    if any((*new.nonfinite.values(), *new.outside.values())) and new.answers < least:
        return True
    if not service.guards.compares:
        return False
    return max((one.requests for one in new.compared.values()), default=0) < least


def _too_many(
    old: OutputStats,
    new: OutputStats,
    allowed: float,
    of: Callable[[OutputStats], Mapping[str, int]],
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


def _shifted(service: ServiceSpec, output: str, one: Compared) -> str:
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


def _disagrees(service: ServiceSpec, output: str, one: Compared) -> str:
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


def total_watched(seen: Iterable[OutputStats]) -> OutputStats:
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
    return OutputStats(answers, nonfinite, outside, compared)


def _sum(one: Compared, other: Compared) -> Compared:
    return Compared(
        *(getattr(one, each.name) + getattr(other, each.name) for each in fields(Compared))
    )
