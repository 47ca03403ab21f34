"""A gateway with a real Envoy, a real plane, and upstreams that are processes."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.serve.priority import LOADING_NICE, NICE_MAX
from holdfast.serve.records import Limits, Load, Loaded
from tests.conftest import require_service
from tests.integration.gateway_world import (
    GatewayProcess,
    World,
    ask_many,
    load,
    pass_requests,
)
from tests.servers.envoy import envoy_missing
from tests.waiting import eventually


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    require_service(envoy_missing())
    made = World(tmp_path_factory.mktemp("gateway"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def gateway(world: World) -> GatewayProcess:
    return world.gateway("front", "--region", "eu")


@pytest.fixture
def name() -> str:
    """A service of the test's own."""
    return f"svc-{random.SystemRandom().getrandbits(32):08x}"


def infer(name: str) -> str:
    return f"/v2/models/{name}/infer"


def test_a_service_is_found_by_its_name_its_models_name_and_the_header(
    world: World, gateway: GatewayProcess, name: str
) -> None:
    world.service(name, model=f"{name}-model")
    world.replica(1, (1, 2), service=name)
    world.applied(world.plan(name, (1, 10_000), hold=(1, 2)), name)
    gateway.served(infer(name))
    for path in (infer(name), infer(f"{name}-model"), f"/predict/{name}"):
        reply = gateway.ask(path)
        assert (reply.status, reply.version) == (200, "1"), reply
        assert reply.json()["path"] == path
    for path in ("/v2/models/whatever/infer", "/openapi.json"):
        reply = gateway.ask(path, headers={"x-holdfast-service": name})
        assert (reply.status, reply.version) == (200, "1")
    # What replicas say of themselves is not for clients.
    assert gateway.ask("/holdfast/stats", headers={"x-holdfast-service": name}).status == 404
    assert gateway.ask(infer(f"{name}-other")).status == 404
    assert gateway.ask(f"/v2/models/{name}x/infer").status == 404


def test_of_envoys_threads_only_the_first_has_a_lower_priority(
    gateway: GatewayProcess,
) -> None:
    pid = gateway.envoy().pid
    before = os.getpriority(os.PRIO_PROCESS, 0)

    def first() -> int:
        return os.getpriority(os.PRIO_PROCESS, pid)

    eventually(
        lambda: first() == min(before + LOADING_NICE, NICE_MAX),
        "the first thread has a lower priority",
    )
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    workers = [task for task in tasks if (task / "comm").read_text().startswith("wrk:")]
    assert workers
    assert {os.getpriority(os.PRIO_PROCESS, int(task.name)) for task in workers} == {before}


def test_the_gateway_says_the_version_and_the_variant_and_clients_do_not(
    world: World, gateway: GatewayProcess, name: str
) -> None:
    world.service(name)
    world.replica(1, (1, 2), service=name)
    world.applied(world.plan(name, (1, 10_000), hold=(1, 2)), name)
    lies = {
        "x-holdfast-version": "2",
        "x-holdfast-variant": "mine",
        "x-holdfast-gateway-region": "moon",
        "x-holdfast-instead": "2",
        "x-envoy-upstream-rq-timeout-ms": "1",
    }
    gateway.served(infer(name))
    seen = gateway.ask(infer(name), headers=lies).json()["headers"]
    assert seen["x-holdfast-version"] == "1"
    assert seen["x-holdfast-variant"] == "stable"
    assert seen["x-holdfast-gateway-region"] == "eu"
    assert "x-holdfast-instead" not in seen
    assert "x-envoy-upstream-rq-timeout-ms" not in seen
    named = gateway.ask(f"/v2/models/{name}/versions/2/infer")
    assert (named.version, named.headers["x-holdfast-variant"]) == ("2", "named")


def test_what_nobody_serves_is_an_error_in_the_protocols_own_form(
    world: World, gateway: GatewayProcess, name: str
) -> None:
    reply = gateway.ask(infer(name))
    assert reply.status == 404
    assert "error" in reply.json()
    world.service(name)
    eventually(lambda: gateway.ask(infer(name)).status == 503, "the service is known")
    reply = gateway.ask(infer(name))
    assert "no version" in reply.json()["error"]
    about = gateway.get("/v2")
    assert about.headers["content-type"] == "application/json"
    assert about.json()["name"] == "holdfast"
    assert gateway.get("/v2/health/live").status == 200


def test_a_body_above_the_limit_is_refused_and_one_below_it_survives_a_death(
    world: World, gateway: GatewayProcess, name: str
) -> None:
    world.service(name, limits=Limits(body_bytes_max=4 * 1024 * 1024))
    first, _ = (world.replica(number, service=name) for number in (1, 2))
    world.applied(world.plan(name), name)
    gateway.served(infer(name))
    large = gateway.ask(infer(name), body=bytes(5 * 1024 * 1024))
    assert large.status == 413
    first.kill()
    body = os.urandom(3 * 1024 * 1024)
    for _ in range(6):
        reply = gateway.ask(infer(name), body=body)
        assert (reply.status, reply.json()["bytes"]) == (200, len(body))


def test_shares_follow_the_plan_and_never_exceed_the_capacity_behind_them(
    world: World, gateway: GatewayProcess, name: str
) -> None:
    world.service(name)
    world.replica(1, (1, 2), service=name)
    plain = [world.replica(number, (1,), service=name) for number in (2, 3, 4)]
    world.applied(world.plan(name, (1, 2_000), (2, 8_000)), name)
    gateway.served(infer(name))
    eventually(lambda: gateway.ask(infer(name)).version == "2", "the canary has a share")
    seen = Counter(ask_many(gateway, infer(name), [{}] * 600))
    # One of four replicas has version 2: it takes a quarter, not four fifths.
    assert 90 < seen["2"] < 210, seen
    for one in plain:
        one.control(versions="1,2")
        one.versions = (1, 2)
        world.register(one, name)
    world.applied(world.plan(name, (1, 2_000), (2, 8_000)), name)
    eventually(lambda: _share(gateway, name, "2") > 0.7, "the canary has its whole share")


def _share(gateway: GatewayProcess, name: str, version: str) -> float:
    return ask_many(gateway, infer(name), [{}] * 200).count(version) / 200


def test_no_user_leaves_the_canary_while_it_grows(
    world: World, gateway: GatewayProcess, name: str
) -> None:
    """1,000 users, ten calls each, from 5 to 50 percent."""
    world.service(name)
    for number in (1, 2):
        world.replica(number, (1, 2), service=name)
    users = [f"user-{number}" for number in range(1_000)]
    inside: set[str] = set()
    left: list[str] = []
    for percent in range(5, 51, 5):
        canary = percent * 100
        world.applied(world.plan(name, (1, 10_000 - canary), (2, canary)), name)
        if percent == 5:
            gateway.served(infer(name))
            eventually(lambda: _share(gateway, name, "2") > 0, "the canary has a share")
        versions = ask_many(gateway, infer(name), [{"x-user": user} for user in users])
        for user, version in zip(users, versions, strict=True):
            if version == "2":
                inside.add(user)
            elif user in inside:
                left.append(f"{user} at {percent} %")
    assert not left
    assert 420 < len(inside) < 580, len(inside)


def test_a_request_for_a_canary_whose_only_replica_died_is_answered_by_the_stable_version(
    world: World, gateway: GatewayProcess, name: str
) -> None:
    world.service(name)
    canary = world.replica(1, (1, 2), service=name)
    for number in (2, 3):
        world.replica(number, (1,), service=name)
    world.applied(world.plan(name, (1, 6_700), (2, 3_300)), name)
    gateway.served(infer(name))
    eventually(lambda: _share(gateway, name, "2") > 0, "the canary has a share")
    with load(gateway, path=infer(name)) as seen:
        pass_requests(seen, 200)
        canary.kill()
        pass_requests(seen, 400)
    assert not seen.failed(), seen
    assert set(seen.versions) == {"1", "2"}


def test_a_request_is_tried_at_home_abroad_and_where_only_the_other_version_is(
    world: World, gateway: GatewayProcess, name: str
) -> None:
    """The canary's replicas die in two regions at once. Envoy draws anew after every second try: if
    it finds out in between that nobody is left abroad, the request is lost. So: not each time."""
    world.service(name)
    canaries = [
        world.replica(number, (1, 2), service=name, region=region)
        for number, region in ((1, "eu"), (2, "us"))
    ]
    for number in (3, 4):
        world.replica(number, (1,), service=name, region="eu")
    world.applied(world.plan(name, (1, 6_700), (2, 3_300)), name)
    gateway.served(infer(name))
    statuses = []
    for _ in range(4):
        eventually(lambda: _share(gateway, name, "2") > 0, "the canary has a share")
        for one in canaries:
            one.kill()
        replies = (gateway.ask(infer(name)) for _ in range(100))
        tried = next(one for one in replies if one.headers.get("x-holdfast-variant") != "stable")
        statuses.append(tried.status)
        for one in canaries:
            one.start()
    assert statuses.count(200) > 1, statuses


def test_a_draining_replica_ends_its_requests_and_gets_no_new_ones(
    world: World, gateway: GatewayProcess, name: str
) -> None:
    world.service(name)
    leaving, staying = (world.replica(number, service=name) for number in (1, 2))
    world.applied(world.plan(name), name)
    gateway.served(infer(name))
    for one in (leaving, staying):
        one.control(delay_ms=30)
    with load(gateway, path=infer(name), threads=8) as seen:
        pass_requests(seen, 100)
        world.register(leaving, name, draining=True)

        def quiet() -> bool:
            before = seen.replicas["1"]
            pass_requests(seen, 40)
            return seen.replicas["1"] == before

        eventually(quiet, "the draining one gets nothing any more")
        world.deregister(leaving, name)
        leaving.stop()
        pass_requests(seen, 100)
    assert not seen.failed(), seen


def test_a_replica_that_does_not_hold_the_version_is_asked_only_once(
    world: World, gateway: GatewayProcess, name: str
) -> None:
    world.service(name)
    forgetful, _ = (world.replica(number, (1, 2), service=name) for number in (1, 2))
    world.applied(world.plan(name, (2, 10_000), hold=(1, 2)), name)
    gateway.served(infer(name))
    forgetful.control(versions="1")
    with load(gateway, path=infer(name)) as seen:
        pass_requests(seen, 200)
    assert not seen.failed()
    assert set(seen.versions) == {"2"}


def test_the_access_log_says_who_answered_what(
    world: World, gateway: GatewayProcess, name: str
) -> None:
    world.service(name)
    world.replica(7, service=name, region="eu")
    world.applied(world.plan(name), name)
    gateway.served(infer(name))
    gateway.ask(infer(name), headers={"x-request-id": f"id-{name}"})

    def line() -> dict[str, object] | None:
        for text in (gateway.folder / "access.log").read_text().splitlines():
            if f"id-{name}" in text and text.endswith("}"):
                found: dict[str, object] = json.loads(text)
                return found
        return None

    found = eventually(line, "the line is written") or {}
    expected = {
        "service": name,
        "version": "1",
        "variant": "stable",
        "replica": "7",
        "region": "eu",
        "status": 200,
        "tries": 1,
        "method": "POST",
    }
    assert {key: found.get(key) for key in expected} == expected
    assert found.keys() >= {"time", "ms", "id", "path"}


def test_a_model_that_fails_is_an_answer_and_ejects_nobody(
    world: World, gateway: GatewayProcess, name: str
) -> None:
    world.service(name)
    bad = world.replica(1, service=name)
    world.applied(world.plan(name), name)
    gateway.served(infer(name))
    bad.control(fail=500)
    assert {gateway.ask(infer(name)).status for _ in range(30)} == {500}
    bad.control(fail=0)
    assert gateway.ask(infer(name)).status == 200


def test_a_version_that_is_still_loading_gets_no_request(
    world: World, gateway: GatewayProcess, name: str
) -> None:
    world.service(name)
    one = world.replica(1, (1,), service=name)
    world.register(one, name, versions={1: Loaded(Load.READY), 2: Loaded(Load.LOADING)})
    world.applied(world.plan(name, (1, 5_000), (2, 5_000)), name)
    gateway.served(infer(name))
    assert {gateway.ask(infer(name)).version for _ in range(50)} == {"1"}


def test_a_service_that_makes_no_sense_keeps_no_other_from_changing(
    world: World, gateway: GatewayProcess, name: str
) -> None:
    nonsense = Limits(timeout_s=-1.0, body_bytes_max=2**40, rate_per_s=1e30)
    world.service(f"{name}-odd", limits=nonsense, sticky_header="no header", keys=("none",))
    world.replica(1, service=f"{name}-odd")
    world.applied(world.plan(f"{name}-odd"), f"{name}-odd")
    world.service(name)
    world.replica(2, service=name)
    world.applied(world.plan(name), name)
    assert gateway.served(infer(name)).replica == "2"
    assert gateway.ask(infer(f"{name}-odd")).status == 401
