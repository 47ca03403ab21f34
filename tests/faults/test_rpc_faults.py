"""Streams that are cut, silent, or whose coordinator is killed."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.agent.uplink import Uplink
from holdfast.coordination import Config, Membership, Versioned, connect
from holdfast.system.certificates import Authority
from holdfast.system.tasks import in_loop
from holdfast.wire import rpc
from tests.contract.planes import EmbeddedPlane
from tests.contract.rpc_stage import Play, play, rpc_session
from tests.contract.rpc_world import Connected, World, connected, credentials, decided, soon, start
from tests.faults.tcp_proxy import TcpProxy

__all__ = ["play", "rpc_session"]  # fixtures

SEED = 20_261_115


def test_a_stream_that_is_cut_anywhere_is_opened_again_and_nothing_is_lost(play: Play) -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)

    async def scenario(world: World) -> None:
        proxy = await world.stack.enter_async_context(TcpProxy(world.agents.address))
        n1 = await world.join("n1", rpc.Contact(1, proxy.address))
        await world.heard("n1")
        for worker in range(1, 16):
            proxy.cut_after = chance.randrange(1, 600)
            sent = 0
            # As the coordinator does: sent again on a new connection while it is outstanding.
            for _ in range(2_000):
                connection = world.agents.connection("n1")
                if connection not in (0, sent):
                    sent = connection
                    world.agents.order(1, decided(start("n1", worker)))
                reported = world.agents.observed().nodes["n1"].workers
                if any(each.worker == worker for each in reported):
                    break
                await asyncio.sleep(0.005)
            await n1.agent.dies("j", worker)
        await soon(
            lambda: world.agents.observed().nodes["n1"] == n1.agent.snapshot(), "all is reported"
        )
        assert [key.worker for key in n1.agent.started] == list(range(1, 16))
        assert proxy.cuts >= 5

    play(scenario)


def test_an_agent_behind_a_silent_network_does_not_hold_up_others(play: Play) -> None:
    async def scenario(world: World) -> None:
        proxy = await world.stack.enter_async_context(TcpProxy(world.agents.address))
        far, near = await world.join("far", rpc.Contact(1, proxy.address)), await world.join("near")
        await world.heard("far", "near")
        proxy.go_silent()
        for worker in range(200):
            world.agents.order(1, decided(start("far", worker)))
        world.agents.order(1, decided(start("near")))
        await soon(lambda: near.agent.started, "the near one goes on")
        first = world.agents.connection("far")
        await soon(lambda: world.agents.connection("far") != first, "the silent stream is cut")
        assert far.agent.started == []
        proxy.pass_again()
        await soon(lambda: world.agents.connection("far") > first, "it is back")

    play(scenario)


class Coordinator:
    """`rpc_coordinator` as a process."""

    def __init__(self, plane: str, authority: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.rpc_coordinator", plane, str(authority)],
            stdout=subprocess.PIPE,
            text=True,
        )

    async def says(self, key: str, value: Any = None) -> Any:
        """Read on until it says this."""
        assert self.process.stdout is not None
        async with asyncio.timeout(60.0):
            while True:
                line = await asyncio.to_thread(self.process.stdout.readline)
                assert line, f"the coordinator ended with {self.process.wait()}"
                said = json.loads(line)
                if key in said and value in (None, said[key]):
                    return said[key]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def test_agents_follow_a_new_leader_after_a_kill_and_tell_it_everything(tmp_path: Path) -> None:
    plane = EmbeddedPlane(tmp_path / "plane")
    nodes = ["n1", "n2", "n3"]

    def pointed(uplink: Uplink, versioned: Versioned) -> None:
        in_loop(loop[0], uplink.point_to, rpc.contact_from(versioned.value))

    loop: list[asyncio.AbstractEventLoop] = []

    async def scenario(stack: AsyncExitStack, address: str, authority: Authority) -> None:
        session = stack.enter_context(connect(address))
        first = Coordinator(address, tmp_path / "authority")
        loop.append(asyncio.get_running_loop())
        stack.callback(first.kill)
        endpoint = await first.says("endpoint")
        assert await first.says("term") == 1
        second = Coordinator(address, tmp_path / "authority")
        stack.callback(second.kill)
        await second.says("endpoint")
        agents: list[Connected] = []
        for node in nodes:
            credential_store = await credentials(authority, tmp_path, node, endpoint)
            membership = Membership(session, rpc.NODES_PATH)
            stack.callback((await asyncio.to_thread(membership.join, node)).leave)
            agent = await stack.enter_async_context(connected(credential_store, node, None))
            follow = Config(session, rpc.CONTACT_PATH).watch(partial(pointed, agent.uplink))
            stack.callback(follow.close)
            agents.append(agent)
        await first.says("known", {node: [1] for node in nodes})
        first.process.kill()
        await agents[0].agent.dies("j", 1)
        assert await second.says("term") == 2
        await second.says("known", {node: [1, 2] for node in nodes})
        for agent in agents:
            assert [term for term, _ in agent.agent.delivered] == [1, 2]
        # What the killed one had still in its hands is refused from now on.
        late = await agents[0].agent.deliver(1, start("n1", 3))
        assert late.fenced

    async def staged(address: str, authority: Authority) -> None:
        async with AsyncExitStack() as stack:
            await scenario(stack, address, authority)

    with ExitStack() as closing:
        closing.callback(plane.end)
        authority = Authority.make(tmp_path / "authority", "reef")
        asyncio.run(staged(plane.address(), authority))
