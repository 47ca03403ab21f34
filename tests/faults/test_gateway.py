"""What breaks around a gateway: replicas, the plane, its own process, its Envoy, its files."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

from holdfast.serve.gateway import gateway as gateways
from holdfast.serve.gateway.admin import Admin
from holdfast.serve.records import Gateway, Limits
from holdfast.wire.errors import Occupied
from tests.faults.file_limit import files_no_larger_than
from tests.integration.gateway_world import GatewayProcess, Reply, World, load, pass_requests
from tests.servers.upstream import Upstream
from tests.waiting import eventually

STALE = "x-holdfast-stale-s"


def serving(world: World, **more: Any) -> tuple[GatewayProcess, list[Upstream]]:
    """Two replicas of version 1 that also hold version 2, behind a gateway."""
    world.service(**more)
    upstreams = [world.replica(number, (1, 2)) for number in (1, 2)]
    plan = world.plan("digits", (1, 10_000), hold=(1, 2))
    gateway = world.gateway()
    world.applied(plan)
    gateway.served()
    return gateway, upstreams


def test_replicas_that_are_killed_or_frozen_cost_no_request(world: World) -> None:
    gateway, (first, second) = serving(world, limits=Limits(timeout_s=6.0))
    third = world.replica(3, (1, 2))
    eventually(lambda: gateway.ask().replica == "3", "the third one answers")
    with load(gateway) as seen:
        pass_requests(seen, 200)
        first.kill()
        pass_requests(seen, 300)
        second.pause()
        pass_requests(seen, 300)
        second.resume()
        eventually(lambda: gateway.ask().replica == "2", "the one that slept answers again")
        third.kill()
        pass_requests(seen, 200)
    assert not seen.failed(), seen


def test_an_envoy_outlives_its_gateway_and_is_adopted_by_the_next_one(world: World) -> None:
    gateway, _ = serving(world)
    envoy = gateway.envoy()
    with load(gateway, threads=2) as seen:
        gateway.kill()
        pass_requests(seen, 100)
        plan = world.plan("digits", (2, 10_000), hold=(1, 2))
        gateway.launch()
        world.applied(plan)
        eventually(lambda: gateway.ask().version == "2", "the new plan has effect")
        pass_requests(seen, 100)
    assert not seen.failed(), seen
    assert gateway.envoy().pid == envoy.pid


def test_without_the_plane_it_serves_says_how_old_its_knowledge_is_and_even_starts(
    world: World,
) -> None:
    gateway, _ = serving(world)
    assert STALE not in gateway.ask().headers
    world.plane.kill()

    def age() -> int:
        reply = gateway.ask()
        assert reply.status == 200
        return int(reply.headers.get(STALE, "0"))

    eventually(lambda: age() >= 2, "answers say how old the knowledge is")
    gateway.kill()
    envoy = gateway.envoy()
    envoy.send(signal.SIGKILL)
    envoy.wait(30)
    gateway.start()
    reply = gateway.served()
    assert reply.version == "1"
    eventually(lambda: age() >= 4, "the age is that of what was remembered")
    world.plane.start()
    eventually(lambda: STALE not in gateway.ask().headers, "the knowledge is the present again")


def test_an_envoy_that_dies_is_back_on_the_same_port(world: World) -> None:
    gateway, _ = serving(world)
    first = gateway.envoy()
    first.send(signal.SIGKILL)
    first.wait(30)
    assert gateway.served().version == "1"
    assert gateway.envoy().pid != first.pid
    plan = world.plan("digits", (2, 10_000), hold=(1, 2))
    world.applied(plan)
    eventually(lambda: gateway.ask().version == "2", "the new Envoy follows")


def test_files_that_somebody_broke_are_written_again(world: World) -> None:
    gateway, _ = serving(world)
    files = ["rds/routes.json", "cds/clusters.json", "lds/listener.json"]
    whole = {name: (gateway.folder / name).read_bytes() for name in files}
    for name in files:
        path = gateway.folder / name
        draft = path.with_name("broken")
        draft.write_text('{"resources": [{"@type": "nonsense"')
        draft.replace(path)
    assert gateway.ask().status == 200
    eventually(
        lambda: all((gateway.folder / name).read_bytes() == whole[name] for name in files),
        "all are whole",
    )
    with load(gateway) as seen:
        path = gateway.folder / files[0]
        older = path.with_name("older")
        older.write_bytes(whole[files[0]].replace(b"version_info", b"unknown_field"))
        older.replace(path)
        eventually(lambda: path.read_bytes() == whole[files[0]], "it is whole again")
        pass_requests(seen, 50)
    assert not seen.failed()
    world.applied(world.plan("digits", (2, 10_000), hold=(1, 2)))
    eventually(lambda: gateway.ask().version == "2", "Envoy takes files as before")


def test_on_a_full_disk_it_serves_what_it_has_says_why_and_follows_when_there_is_room(
    world: World,
) -> None:
    gateway, _ = serving(world)
    assert gateway.child is not None
    with load(gateway, threads=2) as seen:
        with files_no_larger_than(0, gateway.child.pid):
            plan = world.plan("digits", (2, 10_000), hold=(1, 2))

            def told() -> Gateway | None:
                shown = world.shown()
                return shown if shown is not None and shown.why else None

            shown = eventually(told, "it says why it does not follow")
            assert "no room" in shown.why
            assert shown.applied["digits"] == plan.number - 1
            pass_requests(seen, 100)
            assert gateway.child.poll() is None, gateway.log()
        world.applied(plan)
        pass_requests(seen, 50)
    assert not seen.failed(), seen
    after = world.shown()
    assert after is not None
    assert not after.why
    eventually(lambda: gateway.ask().version == "2", "it follows again")


def test_what_a_gateway_has_told_it_also_remembers(world: World) -> None:
    gateway, _ = serving(world)
    for version in (2, 1, 2):
        plan = world.plan("digits", (version, 10_000), hold=(1, 2))
        world.applied(plan)
        remembered = gateways.recall(gateway.folder)
        assert remembered is not None
        assert remembered.services[0].plan == plan


def test_registrations_that_vanish_at_once_turn_no_healthy_replica_away(world: World) -> None:
    gateway, (first, second) = serving(world)
    with load(gateway) as seen:
        world.deregister(first)
        world.deregister(second)
        pass_requests(seen, 300)
        # Of those that are lost, one that is dead goes, and the healthy one stays.
        first.kill()
        places = gateway.folder / "cds/clusters.json"
        eventually(lambda: str(first.port) not in places.read_text(), "the dead one is dropped")
        pass_requests(seen, 100)
        assert str(second.port) in places.read_text()
        world.register(second)
        pass_requests(seen, 100)
    assert not seen.failed(), seen


def test_a_plane_that_comes_back_empty_empties_nothing(world: World) -> None:
    gateway, _ = serving(world)
    world.plane.kill()
    for path in sorted(world.plane.data.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    with load(gateway, threads=2) as seen:
        # It refuses whoever has seen more than it holds: the gateway goes on with what it knows.
        world.plane.start()
        pass_requests(seen, 300)
    assert not seen.failed(), seen


def test_a_gateway_that_is_stopped_ends_what_is_in_flight_and_its_envoy(world: World) -> None:
    gateway, upstreams = serving(world)
    before = sum(one.control(delay_ms=1_500) for one in upstreams)
    answers: list[Reply] = []
    clients = [threading.Thread(target=lambda: answers.append(gateway.ask())) for _ in range(6)]
    for client in clients:
        client.start()
    # Those that are not with a replica yet would be refused.
    eventually(lambda: sum(one.control() for one in upstreams) == before + 6, "all are there")
    envoy = gateway.envoy()
    assert gateway.terminate() == 0
    for client in clients:
        client.join(30)
    assert [reply.status for reply in answers] == [200] * 6
    assert not envoy.alive
    eventually(lambda: world.shown() is None, "the plane does not show it any more")
    assert not list(world.cluster.run_folder.glob("*.json"))


def test_three_regions_one_is_lost_and_comes_back(world: World) -> None:
    """Each region has an address of its own; ours is lost, the nearest one answers, marked."""
    world.service()
    hosts = {"eu": "127.0.0.2", "us": "127.0.0.3", "asia": "127.0.0.4"}
    upstreams = {
        region: [world.replica(10 * place + number, region=region, host=host) for number in (1, 2)]
        for place, (region, host) in enumerate(hosts.items(), start=1)
    }
    plan = world.plan()
    gateway = world.gateway("front", "--region", "eu", "--regions", "us,asia")
    world.applied(plan)

    def served_by() -> set[tuple[str, str]]:
        replies = [gateway.ask() for _ in range(40)]
        assert {reply.status for reply in replies} == {200}
        return {
            (reply.headers["x-holdfast-region"], reply.headers.get("x-holdfast-spill", ""))
            for reply in replies
        }

    gateway.served()
    eventually(lambda: served_by() == {("eu", "")}, "our own region answers")
    with load(gateway) as seen:
        pass_requests(seen, 100)
        for one in upstreams["eu"]:
            one.kill()
        eventually(lambda: served_by() == {("us", "1")}, "the nearest region answers, marked")
        for one in upstreams["us"]:
            one.kill()
        eventually(lambda: served_by() == {("asia", "1")}, "the last region answers")
        for one in upstreams["eu"]:
            one.start()
        eventually(lambda: served_by() == {("eu", "")}, "requests go home")
        pass_requests(seen, 100)
    assert not seen.failed(), seen


def test_of_two_gateways_at_one_address_the_other_answers_when_an_envoy_dies(world: World) -> None:
    first, _ = serving(world)
    second = world.gateway("second", port=first.port)
    world.applied(world.plans["digits"], gateway="second")
    # Nobody brings it back: whoever answers now is the other one.
    first.kill()
    envoy = first.envoy()
    envoy.send(signal.SIGKILL)
    envoy.wait(30)
    assert [first.ask().status for _ in range(50)] == [200] * 50
    first.launch()
    eventually(lambda: first.envoy().pid != envoy.pid and first.envoy().alive, "it is back")
    eventually(lambda: Admin(first.folder).ready(), "and takes requests")
    second.terminate()
    assert [first.ask().status for _ in range(50)] == [200] * 50


def test_a_gateway_of_another_cluster_does_not_share_our_address(
    world: World, tmp_path: Path
) -> None:
    first, _ = serving(world)
    other = World(tmp_path / "other")
    try:
        stranger = GatewayProcess(other, "front", (), port=first.port)
        other.gateways.append(stranger)
        stranger.launch()
        assert stranger.child is not None
        assert stranger.child.wait(60) == Occupied.exit_code, stranger.log()
    finally:
        other.close()
    assert first.ask().status == 200
