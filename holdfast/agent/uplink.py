"""The agent's stream to the present leader: snapshots up, orders down.

    uplink = Uplink(agent, "gpu-7", GrpcTransport("gpu-7", store), session_id)
    await until_one_ends(presence.run(uplink.point_to), uplink.run(), name="agent")

It follows the leader's address, and connects again for as long as it runs. Snapshots are levels:
what lies between two of them is never sent, so a slow network makes reports rarer, not later.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from holdfast.agent.events import OrderAnswer
from holdfast.agent.ports import LeaderAddress, LeaderStream, LeaderTransport, OrderBatch
from holdfast.system import backoff, logs
from holdfast.system.tasks import until_one_ends
from holdfast.wire.errors import Full, HoldfastError, Refused, RetryError, TimedOut
from holdfast.wire.limits import (
    HELLO_S,
    REPORT_S,
    REPORT_STEPS_S,
    REPORT_STEPS_S_MAX,
    UPLINK_RETRY_S,
    UPLINK_RETRY_S_MAX,
)
from holdfast.wire.orders import Order
from holdfast.wire.reports import NodeFacts, WorkerFacts

log = logs.get(__name__)


class Reporter(Protocol):
    """What the uplink needs of an agent."""

    async def deliver(self, term: int, order: Order) -> OrderAnswer: ...

    def snapshot(self) -> NodeFacts: ...

    @property
    def version(self) -> int: ...

    async def changed(self, version: int) -> int: ...


class Uplink:
    """Runs in the agent's loop. `session_id` gives the agent's present session in the coordination
    plane: an order of a former one is not obeyed, since its room may be promised by now."""

    def __init__(
        self, agent: Reporter, node: str, transport: LeaderTransport, session_id: Callable[[], str]
    ) -> None:
        self._agent = agent
        self._node = node
        self._transport = transport
        self._session_id = session_id
        self._contact: LeaderAddress | None = None
        self._moved = asyncio.Event()
        self._pace = Pace()
        # Its own part of each pause: agents that were cut off together do not return together.
        self._phase = zlib.crc32(node.encode()) / 2**32
        self.connected_to: LeaderAddress | None = None
        self.trouble: HoldfastError | None = None  # why it is not connected, for people

    def point_to(self, contact: LeaderAddress | None) -> None:
        """Where the leader is now."""
        if contact != self._contact:
            self._contact = contact
            self._moved.set()

    @property
    def steps_s(self) -> float:
        """How often steps alone are reported now."""
        return self._pace.steps_s

    async def run(self) -> None:
        """Until it is cancelled. Troubles are logged, and tried again."""
        tries = 0
        while True:
            self._moved.clear()
            contact = self._contact
            if contact is None:
                await self._moved.wait()
                continue
            try:
                await self._follow(contact)
            except HoldfastError as error:
                tries = 0 if self.connected_to else tries + 1
                self._note(error, contact)
            else:
                tries = 0
            finally:
                self.connected_to = None
            if not self._moved.is_set():
                await self._pause(tries)

    def _note(self, error: HoldfastError, contact: LeaderAddress) -> None:
        if str(error) != str(self.trouble):
            say = log.info if isinstance(error, RetryError) else log.error
            say("no stream to the coordinator", address=contact.address, reason=str(error))
        self.trouble = error

    async def _pause(self, tries: int) -> None:
        """Longer each time; a new address ends it."""
        longest_s = backoff.pause_s(tries + 1, UPLINK_RETRY_S, UPLINK_RETRY_S_MAX)
        try:
            async with asyncio.timeout(backoff.spread(longest_s, self._phase)):
                await self._moved.wait()
        except TimeoutError:
            return

    # --- one stream -----------------------------------------------------------------------------

    async def _follow(self, contact: LeaderAddress) -> None:
        """Be connected to this leader, until there is another, or a reason to connect anew."""
        async with self._transport.connect(contact) as stream:
            session = self._session_id()
            await self._introduce(stream, contact, session)
            await until_one_ends(
                self._report(stream, session),
                self._obey(stream, session),
                stream.until_stale(),
                self._moved.wait(),
                name="uplink",
            )

    async def _introduce(self, stream: LeaderStream, contact: LeaderAddress, session: str) -> None:
        try:
            async with asyncio.timeout(HELLO_S):
                welcome = await stream.introduce(session)
        except TimeoutError:
            raise TimedOut(
                f"the coordinator at {contact.address} does not answer",
                why=f"no welcome within {HELLO_S:g} s",
                fix="look whether it hangs; it is tried again",
            ) from None
        self.connected_to, self.trouble = contact, None
        self._pace = Pace()
        self._pace.ask_steps(welcome.steps_s)
        log.info("connected to the leader", address=contact.address, term=welcome.term)

    async def _report(self, stream: LeaderStream, session: str) -> None:
        """Send the present snapshot: at once when it matters, and as a sign of life."""
        pace, version, now_s = self._pace, -1, asyncio.get_running_loop().time
        while session == self._session_id():
            facts, version = self._agent.snapshot(), self._agent.version
            wait_s = pace.wait_s(facts, now_s())
            if wait_s <= 0.0:
                await stream.report(facts)
                pace.sent(facts, now_s())
                wait_s = REPORT_S
            try:
                async with asyncio.timeout(wait_s):
                    await self._agent.changed(version)
            except TimeoutError:
                continue

    async def _obey(self, stream: LeaderStream, session: str) -> None:
        while (batch := await stream.receive()) is not None:
            self._pace.ask_steps(batch.steps_s)
            # All at once: the agent makes them durable together.
            answers = await asyncio.gather(
                *(self._deliver(batch, order, session) for order in batch.orders)
            )
            for index, answer in enumerate(answers):
                if not answer.accepted:
                    await stream.refuse(batch, index, answer)

    async def _deliver(
        self, batch: OrderBatch, order: Order | Refused, session: str
    ) -> OrderAnswer:
        if not batch.session == session == self._session_id():
            return OrderAnswer(False, "it was sent in a former session of this agent")
        try:
            if isinstance(order, Refused):
                raise order
            if order.node != self._node:
                return OrderAnswer(False, f"it is for node {order.node}, and this is {self._node}")
            return await self._agent.deliver(batch.term, order)
        except (Refused, Full) as error:
            return OrderAnswer(False, str(error))


# --- reporting ------------------------------------------------------------------------------------
# When a snapshot is worth sending. Pure.
#
# Whatever a decision may hang on goes at once: a worker that came, changed or ended, a part that is
# durable. Steps change all the time, and nothing is decided on the last of them: they go together,
# a few times a second. An unchanged snapshot goes as a sign of life. A leader of many agents asks
# each for fewer.


class Pace:
    """What was sent last, and when; and how often steps are wanted."""

    def __init__(self) -> None:
        self.steps_s = REPORT_STEPS_S
        self._facts: NodeFacts | None = None
        self._at_s = 0.0

    def ask_steps(self, steps_s: float) -> None:
        """The leader wants steps this often; 0, or anything that is no pace: it does not say."""
        if REPORT_STEPS_S <= steps_s <= REPORT_STEPS_S_MAX:
            self.steps_s = steps_s

    def sent(self, facts: NodeFacts, now_s: float) -> None:
        self._facts = facts
        self._at_s = now_s

    def wait_s(self, facts: NodeFacts, now_s: float) -> float:
        """How long this snapshot may wait; 0: send it now."""
        if self._facts is None:
            return 0.0
        if facts == self._facts:
            pause_s = max(REPORT_S, self.steps_s)
        elif _differ_in_steps_alone(facts, self._facts):
            pause_s = self.steps_s
        else:
            return 0.0
        return max(0.0, self._at_s + pause_s - now_s)


def _differ_in_steps_alone(facts: NodeFacts, before: NodeFacts) -> bool:
    if len(facts.workers) != len(before.workers):
        return False
    if replace(facts, workers=()) != replace(before, workers=()):
        return False
    return all(
        one == other or _without_step(one) == _without_step(other)
        for one, other in zip(facts.workers, before.workers, strict=True)
    )


def _without_step(facts: WorkerFacts) -> WorkerFacts:
    """Holding a state or not does matter; which step's, and what people see of it, does not."""
    return replace(facts, step=None if facts.step is None else 0, metrics={}, trouble="")
