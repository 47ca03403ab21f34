"""What people see of running jobs: real sockets, real certificates, an embedded plane."""

from __future__ import annotations

import asyncio
import dataclasses
from functools import partial
from pathlib import Path

import grpc.aio
import pytest

from holdfast.agent.credential_store import NodeCredentials
from holdfast.control.rpc.agents import GrpcAgents
from holdfast.control.rpc.observer import LeaderObserver, nodes
from holdfast.control.rpc.observing import OBSERVERS_MAX, observation_of
from holdfast.coordination import Config
from holdfast.system import channels
from holdfast.system.certificates import TlsIdentity
from holdfast.wire import rpc, tokens
from holdfast.wire.errors import Refused, Unavailable
from holdfast.wire.reports import WorkerFacts
from tests.contract.rpc_stage import Play, play, rpc_session
from tests.contract.rpc_world import World, credentials, decided, soon, start

__all__ = ["play", "rpc_session"]  # fixtures


async def persons(world: World) -> NodeCredentials:
    """A person's credentials: of the cluster, and of no machine."""
    credential_store = await credentials(
        world.authority, world.folder, "person", world.agents.join_address
    )
    return credential_store.credentials


async def watch(world: World, person: NodeCredentials) -> LeaderObserver:
    return await asyncio.to_thread(LeaderObserver, world.session, lambda: person, "j", lambda: None)


def workers(watching: LeaderObserver) -> dict[int, WorkerFacts]:
    if watching.latest is None:
        return {}
    seen = watching.latest.observation.nodes
    return {worker.worker: worker for facts in seen for worker in facts.workers}


async def running(world: World, node: str, worker: int = 1, job: str = "j") -> None:
    world.agents.order(1, decided(start(node, worker, job)))
    await soon(
        lambda: any(
            held.worker == worker and held.job == job
            for held in world.agents.observed().nodes[node].workers
        ),
        "the worker is reported",
    )


def test_an_observer_sees_the_steps_of_its_job_and_of_no_other(play: Play) -> None:
    async def scenario(world: World) -> None:
        n1, n2 = await world.join("n1"), await world.join("n2")
        await world.heard("n1", "n2")
        await running(world, "n1", 1)
        await running(world, "n2", 2)
        await running(world, "n2", 7, job="other")
        person = await persons(world)
        watching = await asyncio.to_thread(
            LeaderObserver, world.session, lambda: person, "j", lambda: None
        )
        try:
            await soon(lambda: set(workers(watching)) == {1, 2}, "both workers are seen")
            await n1.agent.steps("j", 1, 41)
            await n2.agent.steps("j", 2, 40)
            await soon(
                lambda: {n: w.step for n, w in workers(watching).items()} == {1: 41, 2: 40},
                "their steps are seen",
            )
            assert watching.trouble is None
        finally:
            await asyncio.to_thread(watching.close)

    play(scenario)


def test_an_observer_follows_the_leader_to_another_coordinator(play: Play) -> None:
    async def scenario(world: World) -> None:
        n1 = await world.join("n1")
        await world.heard("n1")
        person = await persons(world)
        watching = await asyncio.to_thread(
            LeaderObserver, world.session, lambda: person, "j", lambda: None
        )
        standby = await asyncio.to_thread(GrpcAgents.start, world.session, world.authority)
        try:
            await soon(lambda: watching.latest, "the first leader answers")
            assert watching.latest is not None and watching.latest.observation.term == 1
            world.agents.end()
            await soon(lambda: watching.trouble, "the deposed leader says that it does not lead")
            assert "does not lead" in str(watching.trouble)
            await asyncio.to_thread(standby.begin, 2)
            n1.uplink.point_to(rpc.Contact(2, standby.address))
            await soon(lambda: standby.observed().nodes, "the agent is heard by the next leader")
            standby.order(2, decided(start("n1", 5)))
            await soon(lambda: 5 in workers(watching), "the observer has followed")
            assert watching.latest.observation.term == 2
            assert watching.trouble is None
        finally:
            await asyncio.to_thread(watching.close)
            await asyncio.to_thread(standby.close)

    play(scenario)


def test_observers_one_after_the_other_hear_in_one_loop_that_lives_on(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a call comes after it was cancelled. If its loop is closed by then, gRPC raises
    that in the loop of the next observer, which prints it."""
    heard_in: list[asyncio.AbstractEventLoop] = []
    channel_to = channels.channel_to

    def noted(address: str, identity: TlsIdentity) -> grpc.aio.Channel:
        heard_in.append(asyncio.get_running_loop())
        return channel_to(address, identity)

    async def scenario(world: World) -> None:
        person = await persons(world)
        monkeypatch.setattr(channels, "channel_to", noted)
        for _ in range(2):
            watching = await watch(world, person)
            try:
                await soon(partial(getattr, watching, "latest"), "the leader answers")
            finally:
                await asyncio.to_thread(watching.close)
        await asyncio.to_thread(nodes, world.session, person)
        assert len(heard_in) >= 3
        assert len(set(heard_in)) == 1
        assert heard_in[0].is_running()

    play(scenario)


def test_machines_are_listed_with_what_they_run_and_whether_they_were_heard(play: Play) -> None:
    async def scenario(world: World) -> None:
        await world.join("n1")
        await world.heard("n1")
        await running(world, "n1")
        person = await persons(world)
        ghosts = [await world.join("ghost", contact=rpc.Contact(9, "127.0.0.1:9"))]
        await soon(lambda: world.agents.observed().unreported, "the ghost is a member")
        seen = await asyncio.to_thread(nodes, world.session, person)
        assert [(node.node, node.connected) for node in seen] == [("ghost", False), ("n1", True)]
        assert seen[0].facts is None and ghosts
        assert seen[1].facts is not None
        assert [worker.worker for worker in seen[1].facts.workers] == [1]

    play(scenario)


def test_a_standby_does_not_answer_people_and_the_error_says_what_to_do(play: Play) -> None:
    async def scenario(world: World) -> None:
        person = await persons(world)
        await soon(
            lambda: Config(world.session, rpc.CONTACT_PATH).get().value, "the leader is announced"
        )
        world.agents.end()
        with pytest.raises(Unavailable) as caught:
            await asyncio.to_thread(nodes, world.session, person, 0.3)
        assert "does not lead" in caught.value.why
        assert caught.value.fix == "holdfast up"

    play(scenario)


def test_a_person_with_a_token_of_another_kind_is_refused(play: Play) -> None:
    async def scenario(world: World) -> None:
        person = await persons(world)
        wrong = dataclasses.replace(person, token=tokens.join_token(world.authority, node="person"))
        await soon(
            lambda: Config(world.session, rpc.CONTACT_PATH).get().value, "the leader is announced"
        )
        with pytest.raises(Refused):
            await asyncio.to_thread(nodes, world.session, wrong)

    play(scenario)


def test_observers_are_bounded_and_one_who_leaves_makes_room(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.control.rpc.observing.OBSERVERS_MAX", 1)
    assert OBSERVERS_MAX > 1

    async def scenario(world: World) -> None:
        person = await persons(world)
        first = await watch(world, person)
        await soon(lambda: first.latest, "the first is let in")
        second = await watch(world, person)
        try:
            await soon(lambda: second.trouble, "the second is turned away")
            assert "look at jobs already" in str(second.trouble)
            await asyncio.to_thread(first.close)
            await soon(lambda: second.latest, "there is room for it now")
        finally:
            await asyncio.to_thread(first.close)
            await asyncio.to_thread(second.close)

    play(scenario)


def test_parts_of_checkpoints_are_not_shown_to_people(play: Play, tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        n1 = await world.join("n1")
        await world.heard("n1")
        await running(world, "n1")
        facts = n1.agent.snapshot()
        (worker,) = facts.workers
        full = dataclasses.replace(worker, parts={1: ()})
        look = world.agents._connections.observed_agents()
        assert look is not None
        heavy = dataclasses.replace(look, facts={"n1": dataclasses.replace(facts, workers=(full,))})
        (seen,) = observation_of(heavy, "j").nodes
        assert seen.workers == (worker,)

    play(scenario)
