"""Is a version worse than the one before? Counts, and room for chance."""

from __future__ import annotations

import random
from bisect import bisect_left

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
        (counts(1_000), counts(1_000, slow=18), Finding.FINE),  # and what chance adds, in both
        (counts(1_000), counts(1_000, slow=19), Finding.WORSE),
        (counts(100_000), counts(1_000, slow=16), Finding.FINE),
        (counts(100_000), counts(1_000, slow=17), Finding.WORSE),
        (counts(1_000, slow=20), counts(1_000, slow=900), Finding.FINE),  # it was slow before
        (counts(20), counts(20, slow=10), Finding.FINE),  # half of twenty may be chance
        (counts(20), counts(20, slow=11), Finding.WORSE),
        (counts(10), counts(1_000, slow=900), Finding.FINE),  # nothing to compare with
    ],
)
def test_slow_answers_are_compared_with_the_old_versions(
    old: Counts, new: Counts, finding: Finding
) -> None:
    assert judge(POLICY, old, new).finding is finding


def test_slow_answers_of_few_moments_say_nothing_until_patience_is_over() -> None:
    old, quick, slow = counts(1_000), counts(50), counts(50, slow=50)
    for looks in ([slow] * 3, [slow] * 3 + [quick], [counts(50, slow=20)]):
        new = total(looks)
        assert judge(POLICY, old, new, looks).finding is Finding.FINE
        assert judge(POLICY, old, new, looks, patient=False).finding is Finding.WORSE
    for looks in ([slow] * 4, [slow, quick] * 4, [counts(50, slow=25)] * 8):
        assert judge(POLICY, old, total(looks), looks).finding is Finding.WORSE


def test_one_bad_moment_says_little_however_many_answers_fall_into_it() -> None:
    """Six in a hundred are slow, where one may be: evenly they speak against it, in one lump they
    do not, nor with one more in other looks."""
    old, even = counts(10_000), [counts(50, slow=3)] * 20
    assert judge(POLICY, old, total(even), even).finding is Finding.WORSE
    lump = [counts(50, slow=50), *[counts(50, slow=2)] * 5, *[counts(50)] * 14]
    assert total(lump) == total(even)
    assert judge(POLICY, old, total(lump), lump).finding is Finding.FINE


def moments(chance: random.Random, share: float, slow_ms: float) -> list[tuple[Counts, Counts]]:
    """What each look counts, for five seconds at 100 requests a second, of the old version and of
    the new one, which takes so long. The machine stops a replica once in a while."""
    stops = [[(chance.uniform(0, 5), chance.expovariate(5)) for _ in range(5)] for _ in range(2)]
    looks = [[[0] * (len(LATENCY_BOUNDS_MS) + 1) for _ in range(2)] for _ in range(20)]
    for _ in range(500):
        at_s, is_new, replica = chance.uniform(0, 5), chance.random() < share, chance.choice(stops)
        took_s = (slow_ms if is_new else 2.0) * chance.uniform(0.8, 1.4) / 1000
        took_s += max([0.0, *(since + for_ - at_s for since, for_ in replica if since < at_s)])
        looks[min(19, int(at_s * 4))][is_new][bisect_left(LATENCY_BOUNDS_MS, took_s * 1000)] += 1
    return [
        (Counts(sum(old), 0, tuple(old)), Counts(sum(new), 0, tuple(new))) for old, new in looks
    ]


def found_slower(seed: int, slow_ms: float) -> bool:
    """Whether any look of a rollout finds the new version slower."""
    chance = random.Random(seed)
    for share in (0.05, 0.25, 0.5):
        looks = moments(chance, share, slow_ms)
        for end in range(1, len(looks) + 1):
            old, new = (total(each) for each in zip(*looks[:end], strict=True))
            parts = [each for _, each in looks[:end]]
            if judge(RolloutPolicy(), old, new, parts).finding is Finding.WORSE:
                return True
    return False


def test_on_a_machine_that_stops_now_and_then_only_a_slower_version_is_slower() -> None:
    assert sum(found_slower(seed, 2.0) for seed in range(60)) <= 1
    assert all(found_slower(seed, 20.0) for seed in range(10))


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
