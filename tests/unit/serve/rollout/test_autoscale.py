"""How many replicas: up fast, down slowly, never out of bounds."""

from __future__ import annotations

import pytest

from holdfast.serve.rollout.autoscale import AUTOSCALE_DOWN_S, is_automatic, wanted
from holdfast.serve.rollout.facts import LoadSample
from tests.unit.serve.rollout.facts import NOW_S, service

AUTOMATIC = service(replicas_min=1, replicas_max=8)


def samples(*in_flight: int, replicas: int = 2, every_s: float = 1.0) -> list[LoadSample]:
    """One a second up to now, the newest last."""
    count = len(in_flight)
    return [
        LoadSample(NOW_S - every_s * (count - 1 - at), waiting, 0, 0, replicas)
        for at, waiting in enumerate(in_flight)
    ]


def calm(in_flight: int = 0, seconds: int = 90) -> list[LoadSample]:
    return samples(*[in_flight] * seconds)


def count(seen: list[LoadSample], current: int = 2, *, may_shrink: bool = True) -> int:
    return wanted(AUTOMATIC, current, seen, NOW_S, may_shrink=may_shrink)[0]


def test_a_users_number_goes_before_all_else() -> None:
    asked = service(replicas_min=1, replicas_max=8, replicas_wanted=5)
    assert wanted(asked, 2, samples(100), NOW_S, may_shrink=True)[0] == 5
    assert not is_automatic(asked)
    assert is_automatic(AUTOMATIC)
    assert not is_automatic(service(replicas_min=2, replicas_max=2))


def test_more_come_as_soon_as_the_last_seconds_ask_for_them() -> None:
    assert count(samples(40)) == 5
    assert count(samples(16, 16)) == 2
    assert count(samples(17, 17)) == 3
    assert count(samples(1_000)) == 8, "never more than the most"
    assert count([]) == 2


def test_one_short_peak_is_a_mean_like_any_other() -> None:
    assert count(samples(0, 0, 0, 0, 60)) == 2
    assert count(samples(60, 60, 0, 0, 0)) == 3


def test_fewer_come_only_after_a_whole_calm_minute() -> None:
    assert count(calm(), current=4) == 1
    assert count(calm(17), current=4) == 3
    assert count(calm(seconds=int(AUTOSCALE_DOWN_S / 2)), current=4) == 4
    busy_once = samples(*([0] * 50 + [30] + [0] * 39))
    assert count(busy_once, current=4) == 4
    assert count(calm(), current=4, may_shrink=False) == 4


def test_refused_requests_and_slow_answers_ask_for_more() -> None:
    refused = [LoadSample(NOW_S, 1, 0, 7, 4)]
    assert count(refused, current=4) == 6
    slow = [LoadSample(NOW_S - 1.0, 1, 0, 0, 4, 9_000.0), LoadSample(NOW_S, 1, 0, 0, 4, 9_000.0)]
    assert count(slow, current=4) == 6
    assert count(slow[:1], current=4) == 4, "one slow look may be chance"


def test_those_that_were_asked_for_are_waited_for() -> None:
    refused = [LoadSample(NOW_S, 1, 0, 7, 2)]
    assert count(refused, current=4) == 4


@pytest.mark.parametrize(("current", "bounded"), [(0, 1), (20, 8), (3, 3)])
def test_it_stays_within_what_users_allow(current: int, bounded: int) -> None:
    assert count([], current=current) == bounded


def test_every_change_says_why() -> None:
    for seen, current in ((samples(40), 2), (calm(), 4), ([LoadSample(NOW_S, 1, 0, 7, 4)], 4)):
        found, why = wanted(AUTOMATIC, current, seen, NOW_S, may_shrink=True)
        assert found != current
        assert why
