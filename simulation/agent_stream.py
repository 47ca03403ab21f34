"""An agent's stream to a leader, over the simulated network (`holdfast.agent.ports`).

A message that the network loses breaks the stream, as a connection that is cut. What arrives may
still come late, twice or out of order, and an order of a leader may come by a stream that was
opened to another one since: that is more than a real network does, and the agent stands it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from holdfast.agent.events import OrderAnswer
from holdfast.agent.ports import LeaderAddress, OrderBatch, Welcome
from holdfast.wire.errors import Unavailable
from holdfast.wire.orders import Order
from holdfast.wire.reports import NodeFacts

if TYPE_CHECKING:
    from simulation.agent import Agent
    from simulation.coordinator import Coordinator


class SentBatch(OrderBatch):
    """Orders, and who sent them."""

    leader: Coordinator


class Transport:
    """Reaches leaders by their names."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._streams = 0

    @asynccontextmanager
    async def connect(self, contact: LeaderAddress) -> AsyncIterator[Stream]:
        agent = self._agent
        leader = next(one for one in agent.world.coordinators if one.name == contact.address)
        self._streams += 1
        stream = Stream(agent, leader, contact.term, (agent.life, self._streams))
        agent.stream = stream
        try:
            yield stream
        finally:
            if agent.stream is stream:
                agent.stream = None


class Stream:
    """One connection; `mark` orders those of an agent."""

    def __init__(self, agent: Agent, leader: Coordinator, term: int, mark: tuple[int, int]) -> None:
        self._agent = agent
        self._leader = leader
        self._life = leader.life
        self._term = term
        self._mark = mark
        self._reports = 0
        self._session = ""
        self._is_broken = False
        self._received: deque[SentBatch | Welcome] = deque()
        self._arrived = asyncio.Event()

    async def introduce(self, session: str) -> Welcome:
        leader, term, mark = self._leader, self._term, self._mark
        self._session = session
        answer = lambda: leader.welcome(self._agent, self, term, session, mark)  # noqa: E731
        self._send(answer)
        while not isinstance(found := await self._next(), Welcome):
            pass  # an order that is late by a whole stream
        return found

    async def report(self, facts: NodeFacts) -> None:
        agent, leader, term, session = self._agent, self._leader, self._term, self._session
        agent.loop.check(agent.world.checks.reported, agent.host, facts)
        self._reports += 1
        mark = (*self._mark, self._reports)
        self._send(lambda: leader.receive_report(term, facts, session, mark))

    async def receive(self) -> OrderBatch | None:
        while not isinstance(found := await self._next(), SentBatch):
            pass  # a welcome that came twice
        return found

    async def refuse(self, batch: OrderBatch, index: int, answer: OrderAnswer) -> None:
        assert isinstance(batch, SentBatch)
        if answer.fenced:
            batch.leader.receive_refusal(self._agent.host.name, batch.term)

    async def until_stale(self) -> None:
        await self._agent.loop.create_future()  # nobody here has credentials

    # --- the network's side ----------------------------------------------------------------------

    def _send(self, action: object) -> None:
        agent, leader = self._agent, self._leader
        if self._is_broken or leader.life != self._life or not leader.up:
            raise Unavailable(f"{leader.name} is gone", fix="it is tried again")
        lost = lambda: agent.arrive(lambda: agent.loop.enter(self.cut))  # noqa: E731
        agent.world.network.send(agent.host.name, leader, leader.name, action, lost)  # type: ignore[arg-type]

    def put(self, message: SentBatch | Welcome) -> None:
        """Something has come for the agent."""
        self._received.append(message)
        self._arrived.set()

    def cut(self) -> None:
        """The connection breaks, and both its ends see it."""
        self._is_broken = True
        self._arrived.set()

    async def _next(self) -> SentBatch | Welcome:
        while not self._received:
            if self._is_broken:
                raise Unavailable(f"{self._leader.name} hung up", fix="it is tried again")
            self._arrived.clear()
            await self._arrived.wait()
        return self._received.popleft()


def sent_batch(term: int, session: int, order: Order, leader: Coordinator) -> SentBatch:
    batch = SentBatch(term, f"{session:x}", (order,))
    batch.leader = leader
    return batch
