"""The order in which Envoy gets its files."""

from __future__ import annotations

from hypothesis import given, settings

from holdfast.serve.gateway.applying import (
    AwaitSettled,
    AwaitTaken,
    AwaitWarm,
    Remove,
    Write,
    second_choices,
    steps,
)
from holdfast.serve.gateway.clusters import Json, hosts, sibling
from holdfast.serve.gateway.resources import (
    CLUSTERS_FILE,
    LISTENER_FILE,
    ROUTES_FILE,
    leaning,
    resources,
    routed,
)
from holdfast.serve.gateway.state import KnownService
from tests.unit.serve.gateway.making import SERVICES, known, plan, seen, state

ONE = resources(state(known(plan((1, 10_000)), seen(1, (1,)))))
TWO = resources(state(known(plan((1, 9_500), (2, 500)), seen(1, (1, 2)))))


def names(content: Json) -> set[str]:
    return {one["name"] for one in content["resources"]}


def ports(content: Json, name: str) -> set[int]:
    """Who stands in a cluster."""
    return {
        each["endpoint"]["address"]["socket_address"]["port_value"]
        for one in content["resources"]
        if one["name"] == name
        for each in hosts(one)
    }


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


def test_a_cluster_that_changes_again_waits_until_its_last_change_is_taken_up() -> None:
    more = resources(state(known(plan((1, 10_000)), seen(1, (1,)), seen(2, (1,)))))
    there = list(steps(ONE, more))
    assert there[0] == AwaitSettled(frozenset({"digits@1", "digits@1+grpc"}))
    assert there[1] == Write(CLUSTERS_FILE, more[CLUSTERS_FILE])
    # Those that are new, gone, or as they were have nothing to wait for.
    for before, after in ((ONE, TWO), (TWO, ONE), (TWO, TWO), ({}, TWO)):
        assert not any(isinstance(step, AwaitSettled) for step in steps(before, after))


def test_a_replica_stays_while_a_route_leans_on_it_as_its_second_choice() -> None:
    """The second version is taken back, and one of its two replicas has the first only."""
    there = (seen(1, (1, 2)), seen(2, (1,)))
    leans = resources(state(known(plan((1, 9_500), (2, 500)), *there)))
    after = resources(state(known(plan((1, 10_000), hold=(1, 2)), *there)))
    assert leaning(leans) == {("digits@2", 1), ("digits@2+grpc", 1)}
    assert not leaning(after)
    assert set(second_choices(leans, after)) == {"digits@2", "digits@2+grpc"}
    taken = list(steps(leans, after))
    assert [type(step) for step in taken] == [Write, AwaitTaken, AwaitSettled, Write]
    assert isinstance(taken[0], Write)
    assert isinstance(taken[3], Write)
    assert taken[0].name == ROUTES_FILE  # until here nothing has changed for its cluster
    assert ports(leans[CLUSTERS_FILE], "digits@2") == {9001, 9002}
    assert taken[3].content == after[CLUSTERS_FILE]
    assert ports(after[CLUSTERS_FILE], "digits@2") == {9001}


def test_a_route_leans_on_a_replica_only_when_that_is_checked() -> None:
    there = (seen(1, (1, 2)), seen(2, (1,)))
    alone = resources(state(known(plan((1, 10_000), hold=(1, 2)), *there)))
    leans = resources(state(known(plan((1, 9_500), (2, 500)), *there)))
    first, second, third, *_ = steps(alone, leans)
    assert isinstance(first, AwaitSettled)
    assert isinstance(second, Write)
    assert third == AwaitWarm(frozenset({"digits@2", "digits@2+grpc"}))


@settings(max_examples=100)
@given(SERVICES, SERVICES)
def test_at_no_moment_does_a_second_choice_leave_that_a_route_leans_on(
    one: KnownService, other: KnownService
) -> None:
    before, files = resources(state(one)), resources(state(other))
    held = dict(before)
    for step in steps(before, files):
        if not isinstance(step, Write):
            continue
        held[step.name] = step.content
        for name, instead in leaning(held) & leaning(before):
            was = ports(before[CLUSTERS_FILE], name)
            able = ports(held[CLUSTERS_FILE], sibling(name, instead))
            stays = ports(files[CLUSTERS_FILE], sibling(name, instead))  # others are gone
            assert was & able & stays <= ports(held[CLUSTERS_FILE], name)


@settings(max_examples=60)
@given(SERVICES, SERVICES)
def test_at_no_moment_is_a_cluster_missing_that_a_route_names(
    one: KnownService, other: KnownService
) -> None:
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
