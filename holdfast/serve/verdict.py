"""Is a version worse than the one that it shall replace? Judged by counts of the same time.

Chance is left room: a few requests say little, and one error or one slow answer says nothing.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import accumulate
from typing import Final, NamedTuple

from holdfast.serve import settings
from holdfast.serve.records import LATENCY_BOUNDS_MS, Counts, RolloutPolicy
from holdfast.wire.limits import VERDICT_SIGMAS

# Errors of a version count when they are so many, and beyond what chance would give (in standard
# deviations of a binomial): one error may be anybody's.
VERDICT_ERRORS_MIN: Final = 2
# So many answers lie above the quantile that is compared: of 500 or more it is the p99.
VERDICT_SLOWER_MIN: Final = 5


class Finding(Enum):
    """What the counts say of a version."""

    UNKNOWN = "unknown"  # too few requests
    FINE = "fine"
    WORSE = "worse"


class Verdict(NamedTuple):
    """A finding, and the figures that it stands on, in words. `allowing`: the option and the value
    that would have let it pass."""

    finding: Finding
    reason: str
    allowing: tuple[str, str] | None = None


def judge(policy: RolloutPolicy, old: Counts, new: Counts, *, patient: bool = True) -> Verdict:
    """Compare the new version with the old one. `patient` False: few requests have to do."""
    if new.requests == 0:
        return Verdict(Finding.UNKNOWN, "it had no requests")
    if new.requests < policy.requests_min and patient:
        return Verdict(
            Finding.UNKNOWN, f"it had {new.requests} requests of at least {policy.requests_min}"
        )
    worse = _more_errors(policy, old, new) or _slower(policy, old, new)
    if worse is not None:
        return worse
    return Verdict(Finding.FINE, f"{new.requests} requests, {new.errors} errors")


def _more_errors(policy: RolloutPolicy, old: Counts, new: Counts) -> Verdict | None:
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
    return Verdict(Finding.WORSE, reason, (settings.ERRORS, settings.above(share)))


def _slower(policy: RolloutPolicy, old: Counts, new: Counts) -> Verdict | None:
    least = max(policy.requests_min, 2 * VERDICT_SLOWER_MIN)
    if old.requests < least or new.requests < least:
        return None
    # Of few requests the p99 is their slowest, which is chance: a lower part of them is compared,
    # such that several answers lie above it.
    share = min(0.99, 1 - VERDICT_SLOWER_MIN / min(old.requests, new.requests))
    before_ms, after_ms = quantile_ms(old.buckets, share), quantile_ms(new.buckets, share)
    if after_ms <= before_ms * policy.latency_ratio_max + policy.latency_slack_ms:
        return None
    reason = (
        f"its p{100 * share:.3g} is {after_ms:g} ms, and the old version's {before_ms:g} ms "
        f"({policy.latency_ratio_max:g} times that and {policy.latency_slack_ms:g} ms are allowed)"
    )
    enough = math.ceil(after_ms / max(before_ms, LATENCY_BOUNDS_MS[0]) + 1)
    return Verdict(Finding.WORSE, reason, (settings.SLOWER, str(enough)))


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
