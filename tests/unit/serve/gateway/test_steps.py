"""The order in which Envoy gets its files."""

from __future__ import annotations

from hypothesis import given, settings

from holdfast.serve.gateway.clusters import Json
from holdfast.serve.gateway.listener import CLUSTERS_FILE, LISTENER_FILE, ROUTES_FILE
from holdfast.serve.gateway.resources import resources, routed
from holdfast.serve.gateway.state import Known
from holdfast.serve.gateway.steps import AwaitTaken, AwaitWarm, Remove, Write, steps
from tests.unit.serve.gateway.making import SERVICES, course, known, seen, state

ONE = resources(state(known(course((1, 10_000)), seen(1, (1,)))))
TWO = resources(state(known(course((1, 9_500), (2, 500)), seen(1, (1, 2)))))


def names(content: Json) -> set[str]:
    return {one["name"] for one in content["resources"]}


def test_a_route_comes_after_its_cluster_is_warm_and_a_cluster_goes_after_its_route() -> None:
    there = list(steps(ONE, TWO))
    assert [type(step) for step in there] == [Write, AwaitWarm, Write, AwaitTaken]
    assert isinstance(there[0], Write)
    assert there[0].name == CLUSTERS_FILE
    assert there[1] == AwaitWarm(frozenset({"digits@2", "digits@2+grpc"}))
    assert there[2:] == [
        Write(ROUTES_FILE, TWO[ROUTES_FILE]),
        AwaitTaken((ROUTES_FILE, LISTENER_FILE)),
    ]
    back = list(steps(TWO, ONE))
    assert back == [
        Write(ROUTES_FILE, ONE[ROUTES_FILE]),
        AwaitTaken((ROUTES_FILE, LISTENER_FILE)),
        Write(CLUSTERS_FILE, ONE[CLUSTERS_FILE]),
    ]


def test_what_has_not_changed_is_only_waited_for() -> None:
    assert list(steps(TWO, TWO)) == [AwaitTaken((ROUTES_FILE, LISTENER_FILE))]
    gone = {**TWO, "sds/certificate.json": {"version_info": "1", "resources": []}}
    assert list(steps(gone, TWO))[-1] == Remove("sds/certificate.json")


@settings(max_examples=60)
@given(SERVICES, SERVICES)
def test_at_no_moment_is_a_cluster_missing_that_a_route_names(one: Known, other: Known) -> None:
    before, files = resources(state(one)), resources(state(other))
    held = dict(before)
    warm: set[str] = set(names(before[CLUSTERS_FILE]))
    for step in steps(before, files):
        if isinstance(step, Write):
            held[step.name] = step.content
        elif isinstance(step, AwaitWarm):
            warm |= step.clusters
        assert routed(held) <= names(held[CLUSTERS_FILE])
        assert routed(held) <= warm
    assert held == files
