"""The filter that reads a model's name, and the routes that it chooses among."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import holdfast.serve.gateway
from holdfast.serve.gateway import keys, model_names
from holdfast.serve.gateway.resources import resources
from holdfast.serve.gateway.routes import GRPC_PREFIX
from tests.unit.serve.gateway.making import known, plan, seen, state

WASM = Path(holdfast.serve.gateway.__path__[0]) / "wasm"
STEADY = plan((1, 10_000))


def routes(*services: Any) -> list[dict[str, Any]]:
    (config,) = resources(state(*services))["rds/routes.json"]["resources"]
    found: list[dict[str, Any]] = config["virtual_hosts"][0]["routes"]
    return found


def reading(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in found if model_names.FILTER in one.get("typed_per_filter_config", {})]


def named(found: list[dict[str, Any]]) -> dict[str, str]:
    """Names of models in messages, and the cluster of each."""
    return {
        one["match"]["headers"][0]["string_match"]["exact"]: one["name"]
        for one in found
        if one["match"].get("grpc") is not None and one["match"]["prefix"] == "/"
    }


def test_the_program_is_that_of_its_source() -> None:
    digest = hashlib.sha256((WASM / "model_name.c").read_bytes()).hexdigest()
    assert (WASM / "model_name.source").read_text().strip() == digest, "run: sh .ci/wasm"


def test_messages_are_read_only_where_there_are_several_services() -> None:
    one = known(STEADY, seen(1), name="a", model="mnist")
    other = known(STEADY, seen(2), name="b", model="words")
    assert not reading(routes()) and not reading(routes(one)) and not named(routes(one))
    both = routes(one, other)
    assert named(both) == {"a": "a", "b": "b", "mnist": "a", "words": "b"}
    last = reading(both)[-1]
    assert last["match"] == {"prefix": GRPC_PREFIX}
    assert last["direct_response"]["status"] == 404


def test_a_route_that_awaits_a_name_has_the_filter_of_keys() -> None:
    """A request's filters are chosen by its first route: without it keys would not be asked for."""
    one = known(STEADY, seen(1), name="a")
    locked = known(STEADY, seen(2), name="b", keys=("ab" * 32,))
    for route in reading(routes(one, locked)):
        assert keys.FILTER in route["typed_per_filter_config"]


def test_load_and_unload_are_locked_without_an_operators_key() -> None:
    found = routes(known(STEADY, seen(1), name="a"))
    operated = [one for one in found if "operator" in str(one.get("metadata", ""))]
    assert len(operated) == 5  # by header and alone, over gRPC; by header and two names, over REST
    for route in operated:
        assert route["metadata"]["filter_metadata"][keys.FILTER]["keys"] == {"none": True}
        assert keys.FILTER in route["typed_per_filter_config"]


def test_what_a_refusal_tells_to_ask_for_is_there_with_one_service_and_with_two() -> None:
    for services in (
        [known(STEADY, seen(1), name="a")],
        [known(STEADY, seen(1), name="a"), known(STEADY, seen(2), name="b")],
    ):
        found = routes(*services)
        answered = {one["match"].get("path") for one in found if "headers" in one["match"]}
        for one in found:
            told = one.get("direct_response", {})
            if told.get("status") == 405:
                _, path = told["body"]["inline_string"].rpartition("fix: ")[2].split(" ")
                assert path in answered
    (document,) = [one for one in found if one["match"] == {"path": "/openapi.json"}]
    assert "x-holdfast-service: NAME" in document["direct_response"]["body"]["inline_string"]


def test_a_service_with_keys_is_not_listed_to_those_without() -> None:
    open_one = known(STEADY, seen(1), name="a")
    locked = known(STEADY, seen(2), name="b", keys=("ab" * 32,))
    (listed,) = [
        one["direct_response"]["body"]["inline_string"]
        for one in routes(open_one, locked)
        if one["match"].get("path") == "/v1/models" and one["direct_response"]["status"] == 200
    ]
    assert listed == '{"models": ["a"]}'
