"""Is a version worse than the one before? Counts, and room for chance."""

from __future__ import annotations

import pytest

from holdfast.serve.records import LATENCY_BOUNDS_MS, Counts, RolloutPolicy
from holdfast.serve.rollout.verdict import Finding, judge, quantile_ms, since, total
from tests.unit.serve.rollout.facts import counts

POLICY = RolloutPolicy(requests_min=20, error_rate_max=0.01)


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        (counts(1_000), counts(0), Finding.UNKNOWN),
        (counts(1_000), counts(19, errors=19), Finding.UNKNOWN),
        (counts(1_000), counts(100), Finding.FINE),
        (counts(1_000), counts(20, errors=1), Finding.FINE),  # one error is anybody's
        (counts(1_000), counts(20, errors=2), Finding.WORSE),
        (counts(1_000), counts(1_000, errors=10), Finding.FINE),  # as many as are allowed
        (counts(1_000), counts(1_000, errors=16), Finding.FINE),  # and what chance adds
        (counts(1_000), counts(1_000, errors=17), Finding.WORSE),
        (counts(1_000, errors=100), counts(1_000, errors=110), Finding.FINE),
        (counts(1_000, errors=100), counts(1_000, errors=200), Finding.WORSE),
        (counts(1_000, errors=1_000), counts(1_000, errors=1_000), Finding.FINE),
        (counts(5, errors=5), counts(1_000, errors=100), Finding.WORSE),  # 5 say nothing
    ],
)
def test_errors_are_compared_with_the_old_versions(
    old: Counts, new: Counts, finding: Finding
) -> None:
    assert judge(POLICY, old, new).finding is finding


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        (counts(1_000), counts(1_000, slow=9), Finding.FINE),  # below the p99
        (counts(1_000), counts(1_000, slow=11), Finding.WORSE),
        (counts(1_000, slow=20), counts(1_000, slow=900), Finding.FINE),  # it was slow before
        (counts(20), counts(20, slow=4), Finding.FINE),  # four of twenty may be chance
        (counts(20), counts(20, slow=6), Finding.WORSE),
        (counts(10), counts(1_000, slow=900), Finding.FINE),  # nothing to compare with
    ],
)
def test_slow_answers_are_compared_with_the_old_versions(
    old: Counts, new: Counts, finding: Finding
) -> None:
    assert judge(POLICY, old, new).finding is finding


def test_a_difference_within_the_slack_is_noise() -> None:
    def at(bucket: int) -> Counts:
        buckets = [0] * (len(LATENCY_BOUNDS_MS) + 1)
        buckets[bucket] = 1_000
        return Counts(1_000, 0, tuple(buckets))

    fast, four_times = at(0), at(4)
    assert judge(POLICY, fast, four_times).finding is Finding.FINE
    strict = RolloutPolicy(latency_slack_ms=0.0)
    assert judge(strict, fast, four_times).finding is Finding.WORSE


def test_few_requests_have_to_do_when_patience_is_over() -> None:
    all_failed = counts(3, errors=3)
    assert judge(POLICY, counts(100), all_failed).finding is Finding.UNKNOWN
    assert judge(POLICY, counts(100), all_failed, patient=False).finding is Finding.WORSE
    assert judge(POLICY, counts(100), counts(1, errors=1), patient=False).finding is Finding.WORSE
    assert judge(POLICY, counts(100), counts(3), patient=False).finding is Finding.FINE


def test_a_quantile_is_the_upper_bound_of_its_bucket() -> None:
    buckets = (50, 49, 1)
    assert quantile_ms(buckets, 0.5) == LATENCY_BOUNDS_MS[0]
    assert quantile_ms(buckets, 0.99) == LATENCY_BOUNDS_MS[1]
    assert quantile_ms(buckets, 1.0) == LATENCY_BOUNDS_MS[2]
    assert quantile_ms((), 0.99) == 0.0
    last = (0,) * len(LATENCY_BOUNDS_MS) + (1,)
    assert quantile_ms(last, 0.5) == 2 * LATENCY_BOUNDS_MS[-1]


def test_counts_between_two_looks_and_after_a_restart() -> None:
    early, late = Counts(10, 1, (9, 1)), Counts(15, 1, (12, 3))
    assert since(late, early) == Counts(5, 0, (3, 2))
    assert since(late, None) == late
    assert since(early, late) == early, "it counts less: it has loaded the version anew"
    assert since(late, Counts()) == late
    assert since(Counts(20, 2, (5, 15)), Counts(15, 1, (12, 3))) == Counts(20, 2, (5, 15))


def test_counts_of_many_replicas_are_added() -> None:
    assert total([]) == Counts()
    assert total([Counts(1, 0, (1,)), Counts(2, 1, (0, 2)), Counts()]) == Counts(3, 1, (1, 2))
