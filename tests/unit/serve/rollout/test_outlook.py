"""What a service waits for, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.serve.conduct import Desired, Observed
from holdfast.serve.outlook import outlook
from holdfast.serve.records import Course, Stage
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
STARTING = Course(1, Stage.STARTING, hold=(2,), next=2)


@pytest.mark.parametrize(
    ("wish", "observed", "words"),
    [
        (desired(), Observed(), "no conductor has looked at it yet"),
        (desired(), Observed(STARTING), "it waits for a replica to load version 2"),
        (desired(None, "there is no alias prod"), Observed(STARTING), "there is no alias prod"),
        (desired(), Observed(steady(2), three(2)), "version 2 serves everything"),
        (
            desired(pinned=2),
            Observed(steady(2), three(2)),
            "it was rolled back; holdfast rollout digits goes to digits@prod",
        ),
        (desired(), Observed(steady(2)), "no replica is ready"),
        (
            desired(),
            Observed(steady(failed={2: "no head"}), three(1)),
            "version 2 has failed: no head. To try it again: holdfast rollout digits",
        ),
        (
            desired(),
            Observed(shifting(500), SOME),
            "before it gets 50 % of the requests: 1 of 3 replicas have it; replica 3 says: no head",
        ),
        (
            desired(),
            Observed(shifting(500), three(1, 2), {"a": gateway("a", 9)}),
            "gateway a has not taken over course 10",
        ),
        (
            desired(),
            Observed(
                shifting(500), three(1, 2), {"a": replace(gateway("a", 9), why="no room on disk")}
            ),
            "gateway a has not taken over course 10 (no room on disk)",
        ),
        (
            desired(),
            Observed(shifting(5_000), three(1, 2)),
            "version 2 has 50 % of the requests, and is watched for 5 s before it gets all",
        ),
        (desired(), Observed(loading(), three(1)), "0 of 3 replicas have it"),
        (
            desired(split={1: 5_000, 2: 5_000}),
            Observed(steady(stage=Stage.SPLIT), three(1)),
            "100 % to version 1; no replica has loaded version 2",
        ),
    ],
)
def test_it_says_what_would_let_it_go_on(wish: Desired, observed: Observed, words: str) -> None:
    assert words in outlook(wish, observed)
