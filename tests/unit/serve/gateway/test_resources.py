"""The whole of Envoy's configuration, and the routes in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.serve.gateway.resources import parts, resources, routed
from holdfast.serve.gateway.routes import names
from holdfast.serve.gateway.state import Front, GatewayTls, KnownReplica, KnownService
from holdfast.serve.records import Limits, PredictionPolicy
from tests.unit.serve.gateway.golden import FOLDER, spelled, states
from tests.unit.serve.gateway.making import FRONT, SERVICES, known, plan, seen, state

STEADY = plan((1, 10_000))


def route_config(files: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = files["rds/routes.json"]["resources"][0]
    return found


def paths(files: dict[str, Any]) -> list[str]:
    routes = route_config(files)["virtual_hosts"][0]["routes"]
    return [
        next(iter(text for key, text in route["match"].items() if key != "headers"))
        for route in routes
    ]


@pytest.mark.parametrize("name", list(states()))
def test_envoy_is_given_what_the_golden_file_says(name: str) -> None:
    assert spelled(states()[name]) == (FOLDER / f"{name}.json").read_text()


@settings(max_examples=40)
@given(SERVICES)
def test_the_same_state_gives_the_same_files_and_every_route_has_its_cluster(
    one: KnownService,
) -> None:
    files = resources(state(one))
    assert files == resources(state(one))
    defined = {each["name"] for each in files["cds/clusters.json"]["resources"]}
    assert routed(files) <= defined


@settings(max_examples=40)
@given(st.lists(SERVICES, max_size=3), SERVICES)
def test_parts_that_are_kept_are_those_that_would_be_made(
    many: list[KnownService], changed: KnownService
) -> None:
    services = [
        known(one.plan, *one.replicas, name=f"service-{place}") for place, one in enumerate(many)
    ]
    before = parts(state(*services))
    services[-1:] = [known(changed.plan, *changed.replicas, name=f"service-{len(many)}")]
    after = state(*services)
    assert resources(after, parts(after, before)) == resources(after)


def test_a_request_is_tried_twice_on_each_level_that_a_gateway_may_have() -> None:
    slow = known(STEADY, seen(1), limits=Limits(timeout_s=3.0))

    def tries(region: str, *others: str) -> set[int]:
        front = replace(FRONT, region=region, regions=others)
        (host,) = route_config(resources(state(slow, front=front)))["virtual_hosts"]
        own = [one.get("route", {}).get("retry_policy") for one in host["routes"]]
        return {one["num_retries"] + 1 for one in (host["retry_policy"], *own) if one}

    assert tries("") == {4}  # here, and second choice
    assert tries("eu") == tries("eu", "us") == {6}
    assert tries("eu", "us", "asia") == {8}


def test_a_model_that_two_services_serve_has_no_path_of_its_own() -> None:
    one = known(STEADY, seen(1), name="a", model="mnist")
    other = known(STEADY, seen(2), name="b", model="mnist")
    assert sorted(names(state(one))) == ["a", "mnist"]
    assert sorted(names(state(one, other))) == ["a", "b"]
    found = paths(resources(state(one, other)))
    assert "/v2/models/mnist" not in found
    assert "/v2/models/a" in found


def test_a_service_named_as_anothers_model_is_meant_by_that_name() -> None:
    one = known(STEADY, seen(1), name="a", model="b")
    other = known(STEADY, seen(2), name="b", model="c")
    assert {name: each.name for name, each in names(state(one, other)).items()} == {
        "a": "a",
        "b": "b",
        "c": "b",
    }


def test_a_version_in_the_path_comes_before_the_service_and_all_before_the_404() -> None:
    found = paths(resources(state(known(plan((1, 10_000), hold=(1, 12)), seen(1, (1, 12))))))
    assert found.index("/v2/models/digits/versions/12") < found.index("/v2/models/digits")
    assert found[-1] == "/"


def test_grpc_goes_to_the_only_service_and_to_none_of_several() -> None:
    one, other = (known(STEADY, seen(1), name=name, model=name) for name in ("a", "b"))
    last = [
        route
        for route in route_config(resources(state(one)))["virtual_hosts"][0]["routes"]
        if route["match"].get("prefix", "").startswith("/inference")
    ][-1]
    assert last["route"]["weighted_clusters"]["clusters"][0]["name"] == "a@1+grpc"
    last = [
        route
        for route in route_config(resources(state(one, other)))["virtual_hosts"][0]["routes"]
        if route["match"].get("prefix", "").startswith("/inference")
    ][-1]
    assert last["direct_response"]["status"] == 404


def test_only_knowledge_that_is_old_is_marked() -> None:
    def told(stale_s: int | None) -> list[str]:
        config = route_config(resources(state(known(STEADY, seen(1)), stale_s=stale_s)))
        return [one["header"]["value"] for one in config["response_headers_to_add"][1:]]

    assert told(None) == []
    assert told(6) == ["6"]


def test_a_service_without_a_plan_is_known_and_says_so() -> None:
    config = route_config(resources(state(known(None))))
    answers = {
        route["direct_response"]["status"]
        for route in config["virtual_hosts"][0]["routes"]
        if "digits" in str(route["match"]) and "direct_response" in route
    }
    assert answers == {503}


def test_a_certificate_is_a_file_of_its_own() -> None:
    secure = type(FRONT)(FRONT.host, FRONT.port, tls=GatewayTls("chain.pem", "key.pem"))
    files = resources(state(front=secure))
    (secret,) = files["sds/certificate.json"]["resources"]
    assert secret["tls_certificate"]["private_key"] == {"filename": "key.pem"}
    chain = files["lds/listener.json"]["resources"][0]["filter_chains"][0]
    assert chain["transport_socket"]["name"] == "tls"
    assert "sds/certificate.json" not in resources(state())


def test_what_nobody_reads_costs_no_request() -> None:
    def connections(front: Front) -> dict[str, Any]:
        files = resources(state(front=front))
        (chain,) = files["lds/listener.json"]["resources"][0]["filter_chains"]
        found: dict[str, Any] = chain["filters"][0]["typed_config"]
        return found

    logged, unlogged = connections(FRONT), connections(replace(FRONT, access_log=False))
    assert logged["generate_request_id"]
    assert not unlogged["generate_request_id"]
    assert "access_log" not in unlogged
    assert logged["http_filters"][-1]["typed_config"]["dynamic_stats"] is False


def test_answers_of_other_regions_are_marked_only_where_there_are_any() -> None:
    def marked(front: Front, *replicas: KnownReplica) -> bool:
        config = route_config(resources(state(known(STEADY, *replicas), front=front)))
        return "x-holdfast-spill" in str(config["response_headers_to_add"])

    alone = replace(FRONT, regions=())
    assert not marked(alone, seen(1), seen(2, region=""))
    assert marked(alone, seen(1), seen(2, region="moon"))
    assert marked(FRONT, seen(1))


def test_every_try_of_a_request_whose_predictions_are_told_has_one_id() -> None:
    """A gateway that logs gives every request an id; one that does not, those that need one."""
    for logs, topic, wanted in ((True, True, 0), (False, False, 0), (False, True, 1)):
        served = known(STEADY, seen(1), predictions=PredictionPolicy(topic=topic))
        front = replace(FRONT, access_log=logs)
        routes = route_config(resources(state(served, front=front)))["virtual_hosts"][0]
        added = [
            one
            for route in routes["routes"]
            for one in route.get("request_headers_to_add", [])
            if one["header"]["key"] == "x-request-id"
        ]
        assert bool(added) == bool(wanted)
        assert {one["append_action"] for one in added} <= {"ADD_IF_ABSENT"}
