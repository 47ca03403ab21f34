"""The `Agents` port over gRPC: real sockets, real certificates, an embedded plane."""

from __future__ import annotations

import asyncio
import dataclasses
from functools import partial

import pytest

from holdfast.control.decide.facts import WorkerPhase
from holdfast.control.rpc import connections
from holdfast.control.rpc.connections import ORDERS_WAITING_MAX
from holdfast.coordination import Config, Membership, Session
from holdfast.system.job_certificates import JobSecrets
from holdfast.wire import rpc
from holdfast.wire.limits import REPORT_STEPS_S
from holdfast.wire.orders import Forget, GiveView, Order, StartWorker, StopWorker, View
from tests.contract.rpc_stage import Play, play, rpc_session
from tests.contract.rpc_world import World, decided, soon, start

__all__ = ["play", "rpc_session"]  # fixtures


def test_an_order_goes_down_and_its_effect_comes_up(play: Play) -> None:
    async def scenario(world: World) -> None:
        n1 = await world.join("n1")
        await world.heard("n1")
        world.agents.order(1, decided(start("n1")))
        await soon(lambda: world.agents.observed().nodes["n1"].workers, "the worker is reported")
        assert n1.agent.delivered == [(1, start("n1"))]
        order = n1.agent.delivered[0][1]
        assert isinstance(order, StartWorker)
        assert order.secret == JobSecrets(world.authority).of("j"), "put in when it was sent"
        assert world.agents.observed().nodes["n1"] == n1.agent.snapshot()

    play(scenario)


def test_all_workers_of_a_machine_get_the_view_that_they_share(play: Play) -> None:
    async def scenario(world: World) -> None:
        n1 = await world.join("n1")
        await world.heard("n1")
        view = View(1, {1: (0,), 2: (1,), 3: (2,)}, 0, "", {1: "10.0.0.1:1"})
        orders = [GiveView("n1", "j", worker, view) for worker in (1, 2, 3)]
        for order in orders:
            world.agents.order(1, decided(start("n1", order.worker)))
        for order in orders:
            world.agents.order(1, decided(order))
        await soon(lambda: len(n1.agent.delivered) == 6, "all are delivered")
        assert [order for _, order in n1.agent.delivered[3:]] == orders
        assert not world.agents.refusals()

    play(scenario)


def test_a_leader_of_more_agents_asks_each_of_them_for_fewer_reports(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REPORTS_PER_S_MAX", 10)  # one agent is as many as it likes

    async def scenario(world: World) -> None:
        n1 = await world.join("n1")
        await world.heard("n1")
        assert n1.uplink.steps_s == REPORT_STEPS_S
        n2 = await world.join("n2")
        await soon(lambda: n1.uplink.steps_s == 2 * REPORT_STEPS_S, "n1 is told on its stream")
        await soon(lambda: n2.uplink.steps_s == 2 * REPORT_STEPS_S, "n2 is told at its welcome")
        world.agents.order(1, decided(start("n1")))
        await soon(lambda: world.agents.observed().nodes["n1"].workers, "orders go on")

    play(scenario)


def test_a_worker_that_died_is_news_to_the_coordinator(play: Play) -> None:
    async def scenario(world: World) -> None:
        n1 = await world.join("n1")
        await world.heard("n1")
        world.agents.order(1, decided(start("n1")))
        await soon(lambda: world.agents.observed().nodes["n1"].workers, "the worker is reported")
        await soon(lambda: not world.agents.wait(0.0), "no more news")
        waiting = asyncio.create_task(asyncio.to_thread(world.agents.wait, 30.0))
        await n1.agent.dies("j", 1)
        assert await waiting
        (worker,) = world.agents.observed().nodes["n1"].workers
        assert worker.phase is WorkerPhase.GONE

    play(scenario)


def test_an_agent_is_unheard_until_it_reports_and_not_observed_without_its_node(
    play: Play, rpc_session: Session
) -> None:
    async def scenario(world: World) -> None:
        membership = Membership(rpc_session, rpc.NODES_PATH)
        ghost = await asyncio.to_thread(membership.join, "ghost")
        await soon(
            lambda: world.agents.observed().unreported == {"ghost"}, "the ghost is unreported"
        )
        n1 = await world.join("n1", member=False)
        await soon(lambda: n1.uplink.connected_to, "n1 is connected")
        assert world.agents.observed().nodes == {}
        assert world.agents.connection("n1") == 0
        member = await asyncio.to_thread(membership.join, "n1")
        await world.heard("n1")
        assert world.agents.connection("n1") > 0
        member.leave()
        await soon(lambda: not world.agents.observed().nodes, "n1 is gone")
        ghost.leave()
        await soon(lambda: not world.agents.observed().unreported, "the ghost is gone")

    play(scenario)


def test_what_was_said_to_a_former_term_is_forgotten(play: Play) -> None:
    async def scenario(world: World) -> None:
        n1 = await world.join("n1")
        await world.heard("n1")
        n1.uplink.point_to(None)
        await soon(lambda: world.agents.connection("n1") == 0, "n1 has hung up")
        assert set(world.agents.observed().nodes) == {"n1"}
        await asyncio.to_thread(world.agents.begin, 2)
        assert world.agents.observed().unreported == {"n1"}
        n1.uplink.point_to(world.contact(2))
        await world.heard("n1")
        world.agents.order(1, decided(start("n1")))
        world.agents.order(2, decided(start("n1", 2)))
        await soon(lambda: n1.agent.delivered, "an order came")
        assert n1.agent.delivered == [(2, start("n1", 2))]

    play(scenario)


def test_orders_twice_and_late_start_a_worker_once(play: Play) -> None:
    async def scenario(world: World) -> None:
        n1 = await world.join("n1")
        await world.heard("n1")
        stop = StopWorker("n1", "j", 1, 1.0)
        orders: list[Order] = [start("n1"), start("n1"), stop, start("n1")]

        def came(count: int) -> bool:
            return len(n1.agent.delivered) == count

        for number, order in enumerate(orders, start=1):
            world.agents.order(1, decided(order))
            # One that waits to be sent would be replaced by the next.
            await soon(partial(came, number), "it came")
        await n1.agent.dies("j", 1)
        world.agents.order(1, decided(Forget("n1", "j", 1)))
        world.agents.order(1, decided(start("n1")))
        await soon(lambda: len(n1.agent.delivered) == 6, "the late ones came")
        assert len(n1.agent.started) == 1

    play(scenario)


def test_an_order_of_an_older_term_is_answered_with_the_reason(
    play: Play,
) -> None:
    async def scenario(world: World) -> None:
        n1 = await world.join("n1")
        await world.heard("n1")
        first = world.agents.connection("n1")
        await n1.agent.deliver(7, start("n1", 9))
        # Many, with snapshots between them: refusals and reports share the stream.
        for worker in range(20, 70):
            world.agents.order(1, decided(start("n1", worker)))
            await n1.agent.deliver(7, start("n1", 100 + worker))
        await soon(lambda: len(world.agents.refusals()) == 50, "the refusals came")
        assert world.agents.connection("n1") == first
        refusal = world.agents.refusals()[0]
        assert (refusal.node, refusal.term, refusal.fenced) == ("n1", 1, True)
        assert "7" in refusal.reason

    play(scenario)


def test_an_order_of_a_former_session_of_the_agent_is_not_obeyed(
    play: Play,
) -> None:
    async def scenario(world: World) -> None:
        n1 = await world.join("n1")
        await world.heard("n1")
        first = world.agents.connection("n1")
        n1.session[0] = "session-2"
        world.agents.order(1, decided(start("n1")))
        await soon(world.agents.refusals, "the refusal came")
        assert n1.agent.delivered == []
        await soon(lambda: world.agents.connection("n1") > first, "it said hello again")
        world.agents.order(1, decided(start("n1")))
        await soon(lambda: n1.agent.delivered, "it obeys in the new session")

    play(scenario)


def test_an_agent_that_hangs_holds_up_nobody_and_the_newest_order_counts(
    play: Play,
) -> None:
    async def scenario(world: World) -> None:
        slow, quick = await world.join("slow"), await world.join("quick")
        await world.heard("slow", "quick")
        slow.agent.held.clear()
        world.agents.order(1, decided(start("slow", 1)))
        await asyncio.sleep(0.1)
        for notice in range(3_000):
            world.agents.order(1, decided(StopWorker("slow", "j", 1, float(notice))))
        world.agents.order(1, decided(start("quick")))
        await soon(lambda: quick.agent.started, "the other one goes on")
        assert slow.agent.delivered == []
        slow.agent.held.set()
        last = StopWorker("slow", "j", 1, 2_999.0)
        await soon(lambda: (1, last) in slow.agent.delivered, "the newest order came")
        assert len(slow.agent.delivered) < 3_000

    play(scenario)


def test_an_agent_that_does_not_read_is_cut_and_may_come_back(play: Play) -> None:
    async def scenario(world: World) -> None:
        n1 = await world.join("n1")
        await world.heard("n1")
        first = world.agents.connection("n1")
        n1.agent.held.clear()
        words = {"words": "x" * 10_000}
        for worker in range(ORDERS_WAITING_MAX + 3_000):
            order = dataclasses.replace(start("n1", worker), environment=words)
            world.agents.order(1, decided(order))
        assert world.agents.connection("n1") != first
        n1.agent.held.set()
        await soon(lambda: world.agents.connection("n1") > first, "it is back")
        world.agents.order(1, decided(start("n1", 9_999)))
        await soon(lambda: (1, start("n1", 9_999)) in n1.agent.delivered, "it obeys again")

    play(scenario)


def test_the_leader_says_where_it_is_and_an_older_one_does_not_overrule_it(
    play: Play, rpc_session: Session
) -> None:
    async def scenario(world: World) -> None:
        config = Config(rpc_session, rpc.CONTACT_PATH)

        def known() -> rpc.Contact | None:
            return rpc.contact_from(config.get().value)

        await soon(lambda: known() == world.contact(1), "the address is known")
        other = rpc.Contact(9, "127.0.0.1:9")
        await asyncio.to_thread(config.put, other.value())
        await asyncio.to_thread(world.agents.begin, 8)
        await asyncio.sleep(0.3)
        assert known() == other
        await asyncio.to_thread(world.agents.begin, 10)
        await soon(lambda: known() == world.contact(10), "the newer term is known")

    play(scenario)
