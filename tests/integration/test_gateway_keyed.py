"""Requests that go by a key to the replica that has it in its cache: Envoy's Maglev."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from tests.conftest import require_service
from tests.integration.gateway_world import GatewayProcess, World, ask_many, load, pass_requests
from tests.integration.test_gateway_grpc import call, replica
from tests.servers.envoy import envoy_missing
from tests.servers.upstream import Upstream
from tests.waiting import eventually

KEYS = [f"customer-{number}" for number in range(300)]
HEADER = "x-customer"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    require_service(envoy_missing())
    made = World(tmp_path_factory.mktemp("ring"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def gateway(world: World) -> GatewayProcess:
    return world.gateway("front")


@pytest.fixture
def name() -> str:
    """A service of the test's own."""
    return f"svc-{random.SystemRandom().getrandbits(32):08x}"


def infer(name: str) -> str:
    return f"/v2/models/{name}/infer"


def served(world: World, gateway: GatewayProcess, name: str, count: int) -> list[Upstream]:
    """A service by `HEADER`, with so many replicas, all of them asked."""
    world.service(name, route_by=HEADER)
    made = [world.replica(number, (1, 2), service=name) for number in range(1, count + 1)]
    world.applied(world.plan(name, (1, 10_000), hold=(1, 2)), name)
    gateway.served(infer(name))
    eventually(lambda: len(set(owners(gateway, name, 60).values())) == count, "all are asked")
    return made


def owners(
    gateway: GatewayProcess, name: str, count: int = len(KEYS), **more: str
) -> dict[str, str]:
    """Which replica answered for each key."""
    asked = [{HEADER: key, **more} for key in KEYS[:count]]
    answered = ask_many(gateway, infer(name), asked, "x-holdfast-replica")
    return dict(zip(KEYS, answered, strict=False))


def test_a_key_stays_with_its_replica_and_one_that_comes_or_goes_moves_only_its_share(
    world: World, gateway: GatewayProcess, name: str
) -> None:
    served(world, gateway, name, 3)
    before = owners(gateway, name)
    assert owners(gateway, name) == before
    assert max(Counter(before.values()).values()) < 150, "about a third each"
    fourth = world.replica(4, (1, 2), service=name)
    eventually(lambda: "4" in owners(gateway, name, 40).values(), "the fourth is asked")
    after = owners(gateway, name)
    moved = [key for key in KEYS if after[key] != before[key]]
    needless = [key for key in moved if after[key] != "4"]
    assert len(needless) < 12, "hardly a key moved between those that stayed"
    assert 40 < len(moved) < 120, "about a quarter"
    world.deregister(fourth, name)
    fourth.stop()
    eventually(lambda: owners(gateway, name, 40) == dict(list(before.items())[:40]), "it is gone")
    assert owners(gateway, name) == before, "each key is where it was"


def test_over_grpc_a_key_goes_to_the_replica_that_it_goes_to_over_http(
    world: World, gateway: GatewayProcess, name: str
) -> None:
    world.service(name, route_by=HEADER)
    for number in (1, 2, 3):
        replica(world, number, name)
    world.applied(world.plan(name), name)
    gateway.served(infer(name))

    def over_grpc(key: str) -> str:
        try:
            found = call(gateway, x_holdfast_service=name, x_customer=key).split()[0]
        except grpc.RpcError:
            return ""
        return found.removeprefix(f"{name}-")

    keys = KEYS[:24]
    eventually(lambda: len({over_grpc(key) for key in keys} - {""}) == 3, "all are asked")
    assert {key: over_grpc(key) for key in keys} == owners(gateway, name, len(keys))


def test_requests_without_the_header_go_to_all(
    world: World, gateway: GatewayProcess, name: str
) -> None:
    served(world, gateway, name, 2)
    assert len({gateway.ask(infer(name)).replica for _ in range(40)}) == 2


def test_when_a_replica_dies_its_keys_are_answered_elsewhere_and_none_fails(
    world: World, gateway: GatewayProcess, name: str
) -> None:
    made = served(world, gateway, name, 3)
    for one in made:
        one.control(delay_ms=5)
    with load(
        gateway,
        threads=12,
        headers=lambda turn: {HEADER: KEYS[turn % len(KEYS)]},
        path=infer(name),
    ) as seen:
        pass_requests(seen, 200)
        made[0].kill()
        pass_requests(seen, 400)
    assert not seen.failed(), seen


def test_a_user_keeps_its_variant_and_a_key_its_replica_within_each(
    world: World, gateway: GatewayProcess, name: str
) -> None:
    """The variant goes by the user, the replica by the key: neither changes the other."""
    served(world, gateway, name, 3)
    before = owners(gateway, name, 60)
    world.applied(world.plan(name, (1, 5_000), (2, 5_000)), name)
    users = [f"user-{number}" for number in range(40)]

    def variants(key: str) -> list[str]:
        return ask_many(gateway, infer(name), [{"x-user": user, HEADER: key} for user in users])

    eventually(lambda: set(variants("a")) == {"1", "2"}, "the canary has a share")
    assert variants("a") == variants("b") == variants("a")
    inside = next(user for user, at in zip(users, variants("a"), strict=True) if at == "2")
    assert owners(gateway, name, 60, **{"x-user": inside}) == before


def test_a_key_that_everybody_asks_for_does_not_bury_its_replica(
    world: World, gateway: GatewayProcess, name: str
) -> None:
    made = served(world, gateway, name, 4)
    for one in made:
        one.control(delay_ms=40)
    link = [gateway.connection() for _ in range(24)]

    def ask(number: int) -> str:
        headers = {HEADER: "the-hot-one"}
        replies = [gateway.ask(infer(name), headers=headers, link=link[number]) for _ in range(8)]
        assert {reply.status for reply in replies} == {200}
        return ",".join(reply.replica for reply in replies)

    with ThreadPoolExecutor(len(link)) as clients:
        answered = ",".join(clients.map(ask, range(len(link)))).split(",")
    for each in link:
        each.close()
    ((first, most), (second, _), *_) = Counter(answered).most_common()
    # What is above the bound goes to the next one, which may then have as many.
    assert owners_of(gateway, name, "the-hot-one") in (first, second)
    assert most < 0.65 * len(answered), "at most 1.67 even shares of what is in flight, and a few"
    assert len(set(answered)) > 2, "1.67 shares each: three of four are enough"


def owners_of(gateway: GatewayProcess, name: str, key: str) -> str:
    return gateway.ask(infer(name), headers={HEADER: key}).replica
