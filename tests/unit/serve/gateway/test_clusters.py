"""Clusters and endpoints."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings

from holdfast.serve.gateway.clusters import GRPC, HTTP, cluster, endpoints, seconds
from holdfast.serve.gateway.resources import resources
from holdfast.serve.gateway.state import KnownReplica, KnownService, shares
from tests.unit.serve.gateway.making import FRONT, SERVICES, known, plan, seen, state

STEADY = plan((1, 10_000))


def levels(found: dict[str, Any]) -> list[list[int]]:
    """The ports in each level."""
    assert [one["priority"] for one in found["endpoints"]] == list(range(len(found["endpoints"])))
    return [
        [
            each["endpoint"]["address"]["socket_address"]["port_value"]
            for each in one["lb_endpoints"]
        ]
        for one in found["endpoints"]
    ]


def test_a_duration_is_spelled_as_protobuf_wants_it() -> None:
    assert [seconds(value) for value in (10.0, 0.25, 0.0, 1e-9)] == [
        "10s",
        "0.25s",
        "0s",
        "0.000000001s",
    ]


def test_our_region_comes_first_then_the_others_in_their_order() -> None:
    where = known(
        STEADY,
        seen(1, region="asia"),
        seen(2, region="moon"),
        seen(3, region="eu"),
        seen(4, region="us"),
        seen(5, region=""),
    )
    assert levels(endpoints(where, 1, HTTP, FRONT)) == [[9003, 9005], [9004], [9001], [9002]]


def test_only_an_endpoint_of_another_region_is_marked_as_spill() -> None:
    where = known(STEADY, seen(1, region="eu"), seen(2, region="us"), seen(3, region=""))
    found = endpoints(where, 1, HTTP, FRONT)
    facts = {
        each["metadata"]["filter_metadata"]["holdfast"]["replica"]: each["metadata"][
            "filter_metadata"
        ]["holdfast"]
        for one in found["endpoints"]
        for each in one["lb_endpoints"]
    }
    assert facts["1"] == {"replica": "1", "region": "eu"}
    assert facts["2"] == {"replica": "2", "region": "us", "spill": "1"}
    assert facts["3"] == {"replica": "3", "region": "eu"}


def test_a_canary_has_the_stable_replicas_as_its_last_level() -> None:
    where = known(
        plan((1, 9_000), (2, 1_000)), seen(1, (1, 2)), seen(2, (1,)), seen(3, (1,), region="us")
    )
    assert levels(endpoints(where, 2, HTTP, FRONT, instead=1)) == [[9001], [9002, 9003]]
    assert levels(endpoints(where, 2, HTTP, FRONT)) == [[9001]]


def test_a_draining_replica_stays_an_endpoint_that_gets_nothing_new() -> None:
    found = endpoints(known(STEADY, seen(1), seen(2, draining=True)), 1, HTTP, FRONT)
    (level,) = found["endpoints"]
    assert [each.get("health_status") for each in level["lb_endpoints"]] == [None, "DRAINING"]


def test_what_is_no_address_is_left_out_and_a_replica_without_grpc_too() -> None:
    odd = known(STEADY, seen(1, host="some.name"), seen(2))
    assert levels(endpoints(odd, 1, HTTP, FRONT)) == [[9002]]
    found = endpoints(odd, 1, GRPC, FRONT)
    assert levels(found) == [[9502]]
    (level,) = found["endpoints"]
    assert level["lb_endpoints"][0]["endpoint"]["health_check_config"] == {"port_value": 9002}


def keyed(*replicas: KnownReplica, **more: Any) -> dict[str, Any]:
    """How a cluster chooses by a key."""
    made = cluster(known(STEADY, *replicas, **more), 1, HTTP, FRONT)
    (policy,) = made["load_balancing_policy"]["policies"]
    found: dict[str, Any] = policy["typed_extension_config"]["typed_config"]
    return {"table": found["table_size"], **found["consistent_hashing_lb_config"]}


def test_a_key_chooses_the_replica_of_a_service_with_a_cache_or_a_header_for_it() -> None:
    header = {"header": {"header_name": "x-user"}}
    assert keyed(cache_entries=10)["hash_policy"] == [header]
    header = {"header": {"header_name": "x-customer"}}
    assert keyed(cache_entries=10, route_by="x-customer")["hash_policy"] == [header]
    assert keyed(route_by="x-customer")["hash_policy"] == [header]
    assert cluster(known(STEADY), 1, HTTP, FRONT)["lb_policy"] == "LEAST_REQUEST"


def test_without_any_one_of_them_the_others_can_take_all_that_a_key_is_bounded_to() -> None:
    for count in range(1, 9):
        replicas = [seen(number) for number in range(1, count + 1)]
        found = keyed(*replicas, seen(99, draining=True), route_by="x-customer")
        factor = found.get("hash_balance_factor")
        assert (factor is None) == (count < 3), "of two nobody is left to take what is too much"
        if factor is not None:
            assert factor >= 150
            assert factor / 100 * (count - 1) / count >= 1.2


def test_over_http_and_grpc_the_same_replica_has_a_key() -> None:
    where = known(STEADY, seen(7), route_by="x-customer")
    for protocol in (HTTP, GRPC):
        (level,) = endpoints(where, 1, protocol, FRONT)["endpoints"]
        (host,) = level["lb_endpoints"]
        assert host["metadata"]["filter_metadata"]["envoy.lb"] == {"hash_key": "7"}


@settings(max_examples=40)
@given(SERVICES)
def test_exactly_those_who_are_ready_are_endpoints(one: KnownService) -> None:
    clusters = resources(state(one))["cds/clusters.json"]["resources"]
    places = {each["name"]: each["load_assignment"] for each in clusters}
    assert len(places) == len(clusters)
    for share in shares(one):
        found = levels(places[f"digits@{share.version}"])
        able = {each.replica.http_port for each in one.replicas if each.ready(share.version)}
        spare = {
            each.replica.http_port
            for each in one.replicas
            if share.instead is not None and each.ready(share.instead)
        }
        ports = [port for level in found for port in level]
        assert len(ports) == len(set(ports))
        assert set(ports) == able | spare
        if spare - able:
            assert set(found[-1]) == spare - able


def test_a_version_that_all_replicas_hold_has_the_same_cluster_in_every_step() -> None:
    """A rollout moves routes, not clusters: connections stay."""

    def second(*variants: tuple[int, int]) -> object:
        both = [seen(number, (1, 2)) for number in (1, 2)]
        found = resources(state(known(plan(*variants, hold=(1, 2)), *both)))
        return found["cds/clusters.json"]

    steps = [((1, 10_000),), ((1, 9_500), (2, 500)), ((1, 5_000), (2, 5_000)), ((2, 10_000),)]
    assert all(second(*step) == second(*steps[0]) for step in steps)
