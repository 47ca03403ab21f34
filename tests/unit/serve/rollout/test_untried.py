"""A version that nobody could try is not promoted while requests come."""

from __future__ import annotations

from holdfast.serve.conduct import Observed
from holdfast.serve.outlook import outlook
from holdfast.serve.rollout import advance
from tests.unit.serve.rollout.facts import (
    NOW_S,
    counts,
    course_of,
    desired,
    gateway,
    shifting,
    three,
    weights,
    window,
)

COURSE = shifting(1_000)
HERE = {"g": gateway("g", COURSE.number)}


def test_a_step_waits_while_requests_come_from_gateways_that_are_cut_off() -> None:
    observed = Observed(COURSE, three(1, 2), window=window(COURSE, v1=counts(900)))
    assert advance(desired(), observed, NOW_S) == []
    assert "waits for a gateway" in outlook(desired(), observed)


def test_a_step_goes_on_when_a_gateway_is_there_or_nobody_asks_or_it_was_asked() -> None:
    old, both = window(COURSE, v1=counts(900)), window(COURSE, v1=counts(900), v2=counts(100))
    for observed in (
        Observed(COURSE, three(1, 2), HERE, window=old),
        Observed(COURSE, three(1, 2), window=window(COURSE)),
        Observed(COURSE, three(1, 2), window=both),
    ):
        assert weights(course_of(advance(desired(), observed, NOW_S)))[2] > 1_000
