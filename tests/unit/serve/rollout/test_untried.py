"""A version that nobody could try is not promoted while requests come."""

from __future__ import annotations

from holdfast.serve.rollout.advance import advance
from holdfast.serve.rollout.facts import ServiceObservation
from holdfast.serve.rollout.outlook import outlook
from tests.unit.serve.rollout.facts import (
    NOW_S,
    counts,
    desired,
    gateway,
    plan_of,
    shifting,
    three,
    weights,
    window,
)

PLAN = shifting(1_000)
HERE = {"g": gateway("g", PLAN.number)}


def test_a_step_waits_while_requests_come_from_gateways_that_are_cut_off() -> None:
    observed = ServiceObservation(PLAN, three(1, 2), window=window(PLAN, v1=counts(900)))
    assert advance(desired(), observed, NOW_S) == []
    assert "waits for a gateway" in outlook(desired(), observed)


def test_a_step_goes_on_when_a_gateway_is_there_or_nobody_asks_or_it_was_asked() -> None:
    old, both = window(PLAN, v1=counts(900)), window(PLAN, v1=counts(900), v2=counts(100))
    for observed in (
        ServiceObservation(PLAN, three(1, 2), HERE, window=old),
        ServiceObservation(PLAN, three(1, 2), window=window(PLAN)),
        ServiceObservation(PLAN, three(1, 2), window=both),
    ):
        assert weights(plan_of(advance(desired(), observed, NOW_S)))[2] > 1_000
