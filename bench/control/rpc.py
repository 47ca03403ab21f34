"""`python -m bench.control.rpc`: what streams between agents and the coordinator cost.

200 agents in another process, one coordinator in this one, TLS both ways on the loopback. Measured:
how long all take to connect, orders a second until their effect is reported, and how long a change
at an agent takes until the coordinator's `observed` has it. Both processes share the machine's
cores, so this is the cost of both sides together.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from holdfast.agent.credential_store import CredentialStore, NodeCredentials
from holdfast.agent.grpc_transport import GrpcTransport
from holdfast.agent.uplink import Uplink
from holdfast.control.rpc.agents import GrpcAgents
from holdfast.coordination import Membership, Session, connect
from holdfast.system.certificates import Authority, TlsIdentity, request_for
from holdfast.wire import rpc, tokens
from tests.contract.rpc_world import MemoryAgent, decided, start

CHANGES = 300


def _credential_store(authority: Authority, folder: Path, node: str) -> CredentialStore:
    request, key = request_for(node)
    identity = TlsIdentity(authority.sign(request, node), key, authority.trust_pem)
    return CredentialStore(
        folder, NodeCredentials(identity, tokens.member_token(authority, node, 4e9))
    )


def _agents(folder: str, address: str, count: int, orders: Connection) -> None:
    """The other process: agents, and workers of theirs that die when they are told to."""
    authority = Authority.open(Path(folder))

    async def run() -> None:
        agents = {}
        tasks = []
        for number in range(count):
            node = f"n{number}"
            agents[node] = MemoryAgent(node)
            credential_store = _credential_store(authority, Path(folder), node)
            uplink = Uplink(agents[node], node, GrpcTransport(node, credential_store), lambda: "s")
            uplink.point_to(rpc.Contact(1, address))
            tasks.append(asyncio.create_task(uplink.run()))
        while (node := await asyncio.to_thread(orders.recv)) is not None:
            agent = agents[node]
            worker = len(agent.machine.snapshot().workers)
            orders.send(time.monotonic())
            await agent.dies("j", worker)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        orders.send(usage.ru_maxrss)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    asyncio.run(run())


def _until(agents: GrpcAgents, condition: object, what: str, timeout_s: float = 120.0) -> float:
    deadline_s = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline_s:
            raise TimeoutError(what)
        agents.wait(0.5)
    return time.monotonic()


def measure(session: Session, folder: Path, count: int, per_agent: int) -> dict[str, float]:
    authority = Authority.make(folder, "bench")
    members = Membership(session, rpc.NODES_PATH)
    joined = [members.join(f"n{number}") for number in range(count)]
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with GrpcAgents.start(session, authority) as agents:
        agents.begin(1)
        arguments = (str(folder), agents.address, count, theirs)
        other = context.Process(target=_agents, args=arguments)
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        other.start()
        _until(agents, lambda: agents.observed().nodes, "the first agent")
        begun_s = time.monotonic()
        connected_s = _until(agents, lambda: len(agents.observed().nodes) == count, "all") - begun_s

        def reported() -> int:
            return sum(len(facts.workers) for facts in agents.observed().nodes.values())

        begun_s = time.monotonic()
        for worker in range(1, per_agent + 1):
            for number in range(count):
                agents.order(1, decided(start(f"n{number}", worker)))
        ordered_s = time.monotonic() - begun_s
        done_s = _until(agents, lambda: reported() == count * per_agent, "all orders") - begun_s
        delays_ms = sorted(_delays_ms(agents, ours, per_agent, min(CHANGES, count)))
        after_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        ours.send(None)
        ours.recv()
        other.join(30.0)
    for member in joined:
        member.leave()
    orders = count * per_agent
    return {
        "agents": count,
        "connected_s_after_the_first": round(connected_s, 3),
        "orders": orders,
        "orders_per_s_given": round(orders / ordered_s),
        "orders_per_s_reported": round(orders / done_s),
        "snapshot_ms_p50": round(delays_ms[len(delays_ms) // 2], 2),
        "snapshot_ms_p99": round(delays_ms[int(len(delays_ms) * 0.99)], 2),
        "coordinator_kb_per_agent": round((after_kb - before_kb) / count, 1),
    }


def _delays_ms(agents: GrpcAgents, other: Connection, per_agent: int, changes: int) -> list[float]:
    """From a worker's death at its agent to the coordinator's own eyes, one at a time."""
    delays = []
    for number in range(changes):
        node = f"n{number}"
        other.send(node)
        died_s = other.recv()

        def seen(node: str = node) -> bool:
            return agents.observed().nodes[node].workers[per_agent - 1].exit is not None

        delays.append((_until(agents, seen, "the death") - died_s) * 1_000)
    return delays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--orders", type=int, default=20, help="for each agent")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        with connect(f"embedded:{name}/plane?linger_s=1") as session:
            found = measure(session, Path(name) / "authority", chosen.agents, chosen.orders)
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
