"""What a service waits for, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.serve.records import RolloutPlan, RolloutStage
from holdfast.serve.rollout.facts import DesiredService, ServiceObservation
from holdfast.serve.rollout.outlook import outlook
from tests.unit.serve.rollout.facts import (
    desired,
    fleet,
    gateway,
    loading,
    replica,
    shifting,
    steady,
    three,
)

SOME = fleet(replica(1, 1, 2), replica(2, 1), replica(3, 1, failed=[2]))
STARTING = RolloutPlan(1, RolloutStage.STARTING, hold=(2,), next=2)


@pytest.mark.parametrize(
    ("wanted", "observed", "words"),
    [
        (desired(), ServiceObservation(), "no controller has looked at it yet"),
        (desired(), ServiceObservation(STARTING), "it waits for a replica to load version 2"),
        (
            desired(None, "there is no alias prod"),
            ServiceObservation(STARTING),
            "there is no alias prod",
        ),
        (desired(), ServiceObservation(steady(2), three(2)), "version 2 serves everything"),
        (
            desired(pinned=2),
            ServiceObservation(steady(2), three(2)),
            "it was rolled back; holdfast rollout digits goes to digits@prod",
        ),
        (desired(), ServiceObservation(steady(2)), "no replica is ready"),
        (
            desired(),
            ServiceObservation(steady(failed={2: "no head"}), three(1)),
            "version 2 has failed: no head. To try it again: holdfast rollout digits",
        ),
        (
            desired(),
            ServiceObservation(shifting(500), SOME),
            "before it gets 50 % of the requests: 1 of 3 replicas have it; replica 3 says: no head",
        ),
        (
            desired(),
            ServiceObservation(shifting(500), three(1, 2), {"a": gateway("a", 9)}),
            "gateway a has not taken over plan 10",
        ),
        (
            desired(),
            ServiceObservation(
                shifting(500), three(1, 2), {"a": replace(gateway("a", 9), why="no room on disk")}
            ),
            "gateway a has not taken over plan 10 (no room on disk)",
        ),
        (
            desired(),
            ServiceObservation(shifting(5_000), three(1, 2)),
            "version 2 has 50 % of the requests, and is watched for 5 s before it gets all",
        ),
        (desired(), ServiceObservation(loading(), three(1)), "0 of 3 replicas have it"),
        (
            desired(split={1: 5_000, 2: 5_000}),
            ServiceObservation(steady(stage=RolloutStage.SPLIT), three(1)),
            "100 % to version 1; no replica has loaded version 2",
        ),
    ],
)
def test_it_says_what_would_let_it_go_on(
    wanted: DesiredService, observed: ServiceObservation, words: str
) -> None:
    assert words in outlook(wanted, observed)
