"""A coordinator's server and agents in memory, connected by real sockets with real certificates."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from holdfast.agent import credential_store as credential_stores
from holdfast.agent.credential_store import CredentialStore
from holdfast.agent.events import (
    Ending,
    Event,
    Identity,
    Key,
    OrderAnswer,
    OrderReceived,
    ProcessExited,
    ProcessStarted,
    Report,
    StartProcess,
    WorkerReport,
    key_of,
)
from holdfast.agent.grpc_transport import GrpcTransport
from holdfast.agent.machine import AgentMachine
from holdfast.agent.slots import Machine
from holdfast.agent.uplink import Uplink
from holdfast.control.decide.commands import Decision
from holdfast.control.rpc.agents import GrpcAgents
from holdfast.coordination import Membership, Session
from holdfast.system.certificates import Authority
from holdfast.wire import rpc, tokens
from holdfast.wire.orders import Order, StartWorker
from holdfast.wire.reports import NodeFacts
from holdfast.wire.resources import Resources
from holdfast.wire.rpc import Contact

RESOURCES = Resources(cpu=8.0, memory_bytes=1 << 34)
PATIENCE_S = 120.0


class MemoryAgent:
    """The real state machine of an agent; its processes and its journal are pretended."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.machine = AgentMachine(node, Machine(RESOURCES))
        self.delivered: list[tuple[int, Order]] = []
        self.started: list[Key] = []
        self._changed = asyncio.Condition()
        self._facts = self.machine.snapshot()
        self._version = 0
        self.held = asyncio.Event()  # cleared: orders wait, as for a stuck disk
        self.held.set()

    async def deliver(self, term: int, order: Order) -> OrderAnswer:
        await self.held.wait()
        self.delivered.append((term, order))
        answer = await self.happens(OrderReceived(term, order))
        assert answer is not None
        return answer

    async def happens(self, event: Event) -> OrderAnswer | None:
        actions = self.machine.handle(event, 0.0)
        for action in actions:
            if isinstance(action, StartProcess):
                key = key_of(action.order)
                self.started.append(key)
                await self.happens(ProcessStarted(key, Identity(len(self.started), 0, "boot")))
        if any(isinstance(action, Report) for action in actions):
            async with self._changed:
                self._facts = self.machine.snapshot()
                self._version += 1
                self._changed.notify_all()
        return next((action for action in actions if isinstance(action, OrderAnswer)), None)

    async def dies(self, job: str, worker: int) -> None:
        await self.happens(ProcessExited(Key(job, worker), Ending(signal=9)))

    async def steps(self, job: str, worker: int, step: int) -> None:
        await self.happens(WorkerReport(Key(job, worker), ready=True, step=step))

    def snapshot(self) -> NodeFacts:
        return self._facts

    @property
    def version(self) -> int:
        return self._version

    async def changed(self, version: int) -> int:
        async with self._changed:
            await self._changed.wait_for(lambda: self._version > version)
        return self._version


@dataclasses.dataclass
class Connected:
    """An agent in memory with its uplink."""

    agent: MemoryAgent
    uplink: Uplink
    credential_store: CredentialStore
    session: list[str]


async def soon(condition: Callable[[], object], what: str) -> None:
    """Until it is true."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {PATIENCE_S} s: {what}"
        await asyncio.sleep(0.005)


def start(node: str, worker: int = 1, job: str = "j") -> StartWorker:
    return StartWorker(node, job, worker, "", ("true",), Resources(cpu=0.01))


def decided(order: Order) -> Decision:
    return Decision(order, "a test wants it")


async def credentials(
    authority: Authority, folder: Path, node: str, join_address: str
) -> CredentialStore:
    token = tokens.join_token(authority, node=node)
    credential_store, _ = await credential_stores.join(folder / node, node, join_address, token)
    return credential_store


@asynccontextmanager
async def connected(
    credential_store: CredentialStore, node: str, contact: Contact | None
) -> AsyncIterator[Connected]:
    """An agent that has joined and runs its uplink."""
    agent, session = MemoryAgent(node), ["session-1"]
    uplink = Uplink(agent, node, GrpcTransport(node, credential_store), lambda: session[0])
    uplink.point_to(contact)
    task = asyncio.create_task(uplink.run())
    try:
        yield Connected(agent, uplink, credential_store, session)
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and task.exception():
            raise AssertionError("an uplink never ends by itself") from task.exception()


@dataclasses.dataclass
class World:
    """One coordinator, and its agents."""

    session: Session
    authority: Authority
    agents: GrpcAgents
    folder: Path
    stack: AsyncExitStack

    def contact(self, term: int = 1) -> Contact:
        return Contact(term, self.agents.address)

    async def join(
        self, node: str, contact: Contact | None = None, member: bool = True
    ) -> Connected:
        # A certificate first: nobody gets one under the name of a member.
        credential_store = await credentials(
            self.authority, self.folder, node, self.agents.join_address
        )
        if member:
            membership = Membership(self.session, rpc.NODES_PATH)
            self.stack.callback((await asyncio.to_thread(membership.join, node)).leave)
        return await self.stack.enter_async_context(
            connected(credential_store, node, contact or self.contact())
        )

    async def heard(self, *nodes: str) -> None:
        await soon(lambda: set(nodes) == set(self.agents.observed().nodes), f"heard of {nodes}")
