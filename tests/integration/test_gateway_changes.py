"""What a real Envoy does for each request, and for each change of what it is given."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.serve.gateway.admin import Admin
from tests.conftest import require_service
from tests.integration.gateway_world import GatewayProcess, World, load, pass_requests
from tests.servers.envoy import envoy_missing
from tests.servers.upstream import Upstream
from tests.waiting import eventually


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    require_service(envoy_missing())
    made = World(tmp_path_factory.mktemp("changes"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def gateway(world: World) -> GatewayProcess:
    return world.gateway("front", "--no-access-log")


def infer(name: str) -> str:
    return f"/v2/models/{name}/infer"


def test_what_nobody_reads_is_neither_counted_nor_made_up(
    world: World, gateway: GatewayProcess
) -> None:
    world.service("plain")
    world.replica(1, service="plain")
    world.applied(world.plan("plain"), "plain")
    seen = gateway.served(infer("plain")).json()["headers"]
    assert "x-request-id" not in seen
    assert seen["x-envoy-attempt-count"] == "1", "a full replica reads it"
    told = gateway.ask(infer("plain"), headers={"x-request-id": "mine"})
    assert told.json()["headers"]["x-request-id"] == "mine"
    assert "x-holdfast-spill" not in told.headers
    admin = Admin(gateway.folder)
    try:
        # What is needed to end without losing a request is there.
        with load(gateway, path=infer("plain")) as traffic:
            pass_requests(traffic, 20)
            eventually(lambda: admin.number("http.front.downstream_cx_active"), "it is counted")
        assert not traffic.failed(), traffic
        assert admin.number("cluster.plain@1.upstream_rq_200") == 0
        assert admin.taken().keys() >= {"cluster_manager.cds", "listener_manager.lds"}
    finally:
        admin.close()


@contextmanager
def restless(world: World, upstream: Upstream, service: str) -> Iterator[None]:
    """Its registration, and so its cluster, changes twenty times in a second."""
    stop = threading.Event()

    def change() -> None:
        for turn in itertools.count():
            if stop.wait(0.05):
                return
            world.register(upstream, service, region="here" if turn % 2 else "there")

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)


def test_a_new_replica_is_asked_though_another_hangs_and_its_cluster_changes_all_the_time(
    world: World, gateway: GatewayProcess
) -> None:
    """Each change of the cluster has Envoy check the one that hangs, for a second."""
    name = "restless"
    world.service(name)
    first, hangs = (world.replica(number, service=name) for number in (1, 2))
    world.applied(world.plan(name), name)
    gateway.served(infer(name))
    hangs.pause()
    with restless(world, first, name):
        admin = Admin(gateway.folder)
        try:
            eventually(lambda: f"{name}@1" in admin.warming_clusters(), "a change is checked")
        finally:
            admin.close()
        world.replica(3, service=name)
        eventually(lambda: gateway.ask(infer(name)).replica == "3", "the new one answers")
    hangs.resume()
