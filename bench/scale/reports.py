"""`python -m bench.scale.reports [--json]`: what agents' reports cost the coordinator.

Agents in another process, each with ten workers that step all the time, so that each agent reports
ten times a second (`REPORT_STEPS_S`); the coordinator's server in a process of its own, with TLS,
on the loopback. Nothing is decided meanwhile. Measured on the coordinator's side: processor time
of a report, reports that arrive, resident memory of a connected agent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import tempfile
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.control.rpc import _credential_store
from bench.scale.records import WORKERS_A_NODE, report_of
from holdfast.agent.events import OrderAnswer
from holdfast.agent.grpc_transport import GrpcTransport
from holdfast.agent.uplink import Uplink
from holdfast.control.rpc.agents import GrpcAgents
from holdfast.control.rpc.connections import AgentConnections
from holdfast.coordination import Membership, connect
from holdfast.system.certificates import Authority
from holdfast.wire import rpc
from holdfast.wire.orders import Order
from holdfast.wire.reports import NodeFacts

SIZES = (50, 100, 200, 400)
SECONDS = 6.0
SETTLE_S = 2.0
CONNECT_S = 120.0


class Stepping:
    """An agent whose workers are a step further whenever one looks."""

    def __init__(self, node: str, workers: int) -> None:
        self._facts = replace(report_of(workers), node=node)
        self.version = 0

    def snapshot(self) -> NodeFacts:
        workers = tuple(replace(held, step=self.version) for held in self._facts.workers)
        return replace(self._facts, workers=workers)

    async def changed(self, version: int) -> int:
        await asyncio.sleep(0.02)
        self.version = version + 1
        return self.version

    async def deliver(self, term: int, order: Order) -> OrderAnswer:
        return OrderAnswer(True, "taken")


def _agents(folder: str, address: str, nodes: list[str], workers: int, told: Connection) -> None:
    authority = Authority.open(Path(folder))

    async def run() -> None:
        tasks = []
        for node in nodes:
            transport = GrpcTransport(node, _credential_store(authority, Path(folder), node))
            uplink = Uplink(Stepping(node, workers), node, transport, lambda: "s")
            uplink.point_to(rpc.Contact(1, address))
            tasks.append(asyncio.create_task(uplink.run()))
        await asyncio.to_thread(told.recv)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    asyncio.run(run())


def resident_kb() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise RuntimeError("no VmRSS")


def measure(count: int, workers: int) -> dict[str, Any]:
    """In a process of its own: a coordinator's server and so many agents."""
    heard = 0
    report = AgentConnections.report

    def counted(self: AgentConnections, *given: Any) -> None:
        nonlocal heard
        heard += 1
        report(self, *given)

    AgentConnections.report = counted  # type: ignore[method-assign, assignment]
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as name,
        connect(f"embedded:{name}/plane?linger_s=1") as session,
    ):
        authority = Authority.make(Path(name) / "authority", "bench")
        nodes = [f"n{number}" for number in range(count)]
        members = Membership(session, rpc.NODES_PATH)
        joined = [members.join(node) for node in nodes]
        with GrpcAgents.start(session, authority) as agents:
            agents.begin(1)
            time.sleep(1.0)
            before_kb = resident_kb()
            ours, theirs = context.Pipe()
            arguments = (f"{name}/authority", agents.address, nodes, workers, theirs)
            other = context.Process(target=_agents, args=arguments)
            other.start()
            deadline_s = time.monotonic() + CONNECT_S
            while len(agents.observed().nodes) < count:
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"{count} agents do not connect")
                agents.wait(0.5)
            time.sleep(SETTLE_S)
            heard = 0
            begun_s, begun_cpu_s = time.monotonic(), time.process_time()
            time.sleep(SECONDS)
            took_s, used_s = time.monotonic() - begun_s, time.process_time() - begun_cpu_s
            reports, after_kb = heard, resident_kb()
            ours.send(None)
            other.join(30.0)
        for member in joined:
            member.leave()
    return {
        "agents": count,
        "workers_each": workers,
        "reports_per_s": round(reports / took_s),
        "cpu_us_per_report": round(1e6 * used_s / reports, 1),
        "coordinator_cores": round(used_s / took_s, 2),
        "kb_per_agent": round((after_kb - before_kb) / count, 1),
    }


def _in_child(count: int, workers: int, answer: Connection) -> None:
    answer.send(measure(count, workers))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of agents")
    parser.add_argument(
        "--workers", type=int, default=WORKERS_A_NODE, help="of each agent (default 10)"
    )
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    rows = []
    for count in options.sizes:
        ours, theirs = context.Pipe()
        child = context.Process(target=_in_child, args=(count, options.workers, theirs))
        child.start()
        theirs.close()
        rows.append(ours.recv())
        child.join()
        if not options.json:
            print(rows[-1], flush=True)
    if options.json:
        print(json.dumps({"reports": rows}, indent=2))


if __name__ == "__main__":
    main()
