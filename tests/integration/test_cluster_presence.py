"""An agent that loses its place among the nodes gets it again, and its workers notice nothing."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from holdfast.agent import ports
from holdfast.agent.plane_session import opener
from holdfast.agent.presence import Presence
from holdfast.control.decide.facts import Phase
from holdfast.coordination import Config, Membership, Session, connect
from holdfast.launch import local
from holdfast.wire.rpc import CONTACT_PATH, NODES_PATH, Contact
from tests.integration.clusters import PLANE, Home
from tests.waiting import eventually


def nodes(session: Session) -> set[str]:
    return set(Membership(session, NODES_PATH).members())


def test_an_agent_that_slept_past_its_session_comes_back_with_its_worker(home: Home) -> None:
    """Nobody leads meanwhile: so nobody decides that the worker is lost."""
    home.up()
    home.submit()
    worker = home.started()
    coordinator = home.process("coordinator")
    coordinator.send(signal.SIGTERM)
    assert coordinator.wait(60.0)
    agent = home.process("agent")
    with home.cluster.session() as session:
        agent.send(signal.SIGSTOP)
        eventually(lambda: not nodes(session), "its session ends")
        agent.send(signal.SIGCONT)
        eventually(lambda: nodes(session) == {"node-1"}, "it joins again")
    assert home.process("agent").pid == agent.pid
    home.up()
    home.release()
    assert home.ended().status.phase is Phase.SUCCEEDED
    assert home.starts() == [worker]


def test_a_job_whose_agent_slept_past_its_session_under_a_leader_still_ends_well(
    home: Home,
) -> None:
    """The leader takes its worker for lost; when the node is back, that one is stopped."""
    home.up()
    home.submit()
    home.started()
    agent = home.process("agent")
    with home.cluster.session() as session:
        agent.send(signal.SIGSTOP)
        eventually(lambda: not nodes(session), "its session ends")
        agent.send(signal.SIGCONT)
    home.release()
    assert home.ended().status.phase is Phase.SUCCEEDED
    assert home.process("agent").pid == agent.pid


def test_an_agent_starts_and_keeps_its_worker_while_the_coordination_plane_is_away(
    home: Home,
) -> None:
    home.up()
    home.submit()
    worker = home.started()
    for kind in ("coordinator", "agent"):
        home.kill(kind)
    server = home.process("server")
    server.send(signal.SIGSTOP)
    started = local.start_agent(home.cluster, node="node-1")
    eventually(lambda: started.process, "the agent lives")
    eventually(lambda: "no place in the coordination plane" in started.log.read_text(), "it waits")
    server.send(signal.SIGCONT)
    home.up()
    home.release()
    assert home.ended().status.phase is Phase.SUCCEEDED
    assert home.starts() == [worker]


async def soon(condition: object, what: str) -> None:
    assert callable(condition)
    await asyncio.to_thread(eventually, condition, what)


def test_an_agent_whose_name_was_taken_does_not_fight_and_is_back_when_it_is_free(
    tmp_path: Path,
) -> None:
    address = f"embedded:{tmp_path}/{PLANE.partition(':')[2]}"
    pointed: list[ports.LeaderAddress | None] = []

    async def story() -> None:
        with connect(address) as session:
            Config(session, CONTACT_PATH).put(Contact(1, "127.0.0.1:1").value())
            presence = Presence(opener(lambda: connect(address)), "node-1", {"host": "a"})
            task = asyncio.create_task(presence.run(pointed.append))
            membership = Membership(session, NODES_PATH)
            await soon(lambda: pointed and pointed[-1], "it has its place, and knows the leader")
            newer = await asyncio.to_thread(membership.join, "node-1", {"host": "b"})
            await soon(lambda: pointed[-1] is None, "it does not speak to the leader any more")
            await asyncio.sleep(2.0)
            assert membership.members()["node-1"].data == {"host": "b"}
            assert not newer.displaced
            await asyncio.to_thread(newer.leave)
            await soon(lambda: pointed[-1] is not None, "it is back")
            assert membership.members()["node-1"].data == {"host": "a"}
            task.cancel()
            await asyncio.wait([task])
            await presence.leave()
            assert not membership.members()

    asyncio.run(story())
