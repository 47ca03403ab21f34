"""The agent's stream to the present leader: snapshots up, orders down.

    uplink = Uplink(agent, "gpu-7", wallet, session_id)
    Config(session, rpc.CONTACT_PATH).watch(uplink.contact_is)
    await uplink.run()

It follows the leader's address, and connects again for as long as it runs. Snapshots are levels:
what lies between two of them is never sent, so a slow network makes reports rarer, not later.
"""

from __future__ import annotations

import asyncio
import time
import uuid
import zlib
from collections.abc import Callable
from typing import Protocol

import grpc.aio

from holdfast.agent.diagnose import explained
from holdfast.agent.events import Answer
from holdfast.agent.reporting import Pace
from holdfast.agent.wallet import Wallet
from holdfast.coordination import Versioned
from holdfast.wire import backoff, logs, rpc, values
from holdfast.wire.backoff import Backoff
from holdfast.wire.errors import Full, HoldfastError, Refused, RetryError, TimedOut
from holdfast.wire.limits import HELLO_S, REPORT_S, UPLINK_RETRY_S, UPLINK_RETRY_S_MAX
from holdfast.wire.orders import Order
from holdfast.wire.proto import cluster_pb2 as pb
from holdfast.wire.reports import NodeFacts
from holdfast.wire.rpc import AgentStream, Contact
from holdfast.wire.tasks import until_one_ends

log = logs.get(__name__)


class Reporter(Protocol):
    """What the uplink needs of an agent."""

    async def deliver(self, term: int, order: Order) -> Answer: ...

    def snapshot(self) -> NodeFacts: ...

    @property
    def version(self) -> int: ...

    async def changed(self, version: int) -> int: ...


class Uplink:
    """Runs in the agent's loop. `session_id` gives the agent's present session in the coordination
    plane: an order of a former one is not obeyed, since its room may be promised by now."""

    def __init__(
        self, agent: Reporter, node: str, wallet: Wallet, session_id: Callable[[], str]
    ) -> None:
        self._agent = agent
        self._node = node
        self._wallet = wallet
        self._session_id = session_id
        self._process = uuid.uuid4().hex
        self._serial = 0
        self._loop = asyncio.get_running_loop()
        self._contact: Contact | None = None
        self._moved = asyncio.Event()
        self._pace = Pace()
        # Its own part of each pause: agents that were cut off together do not return together.
        self._phase = zlib.crc32(node.encode()) / 2**32
        self.connected_to: Contact | None = None
        self.trouble: HoldfastError | None = None  # why it is not connected, for people

    def contact_is(self, versioned: Versioned) -> None:
        """The leader's address, from the coordination plane. May be called from any thread."""
        self.point_to(rpc.contact_from(versioned.value))

    def point_to(self, contact: Contact | None) -> None:
        """Where the leader is now. May be called from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._point_to, contact)

    def _point_to(self, contact: Contact | None) -> None:
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

    def _note(self, error: HoldfastError, contact: Contact) -> None:
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

    async def _follow(self, contact: Contact) -> None:
        """Be connected to this leader, until there is another, or a reason to connect anew."""
        papers = self._wallet.papers
        async with rpc.channel_to(contact.address, papers.identity) as channel:
            call = AgentStream(channel, papers.token)
            session = self._session_id()
            try:
                await self._introduce(call, contact, session)
                await until_one_ends(
                    self._report(call, session),
                    self._obey(call, session),
                    self._renew(channel, contact.address),
                    self._moved.wait(),
                    name="uplink",
                )
            except grpc.aio.AioRpcError as failed:
                error = rpc.error_from(failed, contact.address)
                if self.connected_to is None and not rpc.explains_itself(failed):
                    error = await explained(error, contact.address, papers.identity)
                raise error from None
            finally:
                call.cancel()

    async def _introduce(self, call: AgentStream, contact: Contact, session: str) -> None:
        self._serial += 1
        hello = pb.Hello(
            protocol=rpc.PROTOCOL,
            cluster=self._wallet.papers.identity.peer.cluster,
            node=self._node,
            session=session,
            process=self._process,
            serial=self._serial,
        )
        try:
            async with asyncio.timeout(HELLO_S):
                await _send(call, pb.FromAgent(hello=hello))
                message = await _read(call)
        except TimeoutError:
            raise TimedOut(
                f"the coordinator at {contact.address} does not answer",
                why=f"no welcome within {HELLO_S:g} s",
                fix="look whether it hangs; it is tried again",
            ) from None
        if message is None or message.WhichOneof("message") != "welcome":
            raise values.malformed(f"{contact.address} did not say welcome")
        self.connected_to, self.trouble = contact, None
        self._pace = Pace()
        self._pace.told(message.welcome.steps_s)
        log.info("connected to the leader", address=contact.address, term=message.welcome.term)

    async def _report(self, call: AgentStream, session: str) -> None:
        """Send the present snapshot: at once when it matters, and as a sign of life."""
        pace, version = self._pace, -1
        while session == self._session_id():
            facts, version = self._agent.snapshot(), self._agent.version
            wait_s = pace.wait_s(facts, time.monotonic())
            if wait_s <= 0.0:
                await _send(call, pb.FromAgent(snapshot=values.facts_bytes(facts)))
                pace.sent(facts, time.monotonic())
                wait_s = REPORT_S
            try:
                async with asyncio.timeout(wait_s):
                    await self._agent.changed(version)
            except TimeoutError:
                continue

    async def _obey(self, call: AgentStream, session: str) -> None:
        while (message := await _read(call)) is not None:
            kind = message.WhichOneof("message")
            if kind is None and message.ByteSize():
                log.warning("the coordinator sent what this version does not know")
                continue
            if kind != "orders":
                raise values.malformed("not orders, in the middle of a stream")
            batch = message.orders
            self._pace.told(batch.steps_s)
            # All at once: the agent makes them durable together.
            answers = await asyncio.gather(
                *(self._deliver(batch, order, session) for order in _orders(batch))
            )
            for spelled, answer in zip(batch.orders, answers, strict=True):
                if not answer.accepted:
                    await _send(call, pb.FromAgent(refusal=_refusal(batch.term, spelled, answer)))

    async def _deliver(self, batch: pb.Orders, order: Order | Refused, session: str) -> Answer:
        if not batch.session == session == self._session_id():
            return Answer(False, "it was sent in a former session of this agent")
        try:
            if isinstance(order, Refused):
                raise order
            if order.node != self._node:
                return Answer(False, f"it is for node {order.node}, and this is {self._node}")
            return await self._agent.deliver(batch.term, order)
        except (Refused, Full) as error:
            return Answer(False, str(error))

    async def _renew(self, channel: grpc.aio.Channel, address: str) -> None:
        """Return when there are new papers: the next stream is opened with them."""
        again = Backoff(2 * REPORT_S, 60 * REPORT_S)
        while True:
            await asyncio.sleep(max(0.0, self._wallet.renewal_s - time.time()))
            try:
                await self._wallet.renew(channel, address)
            except HoldfastError as error:
                log.warning("the certificate is not renewed yet", reason=str(error))
                await asyncio.sleep(again.failed())
            else:
                log.info("the certificate was renewed")
                return


def _orders(batch: pb.Orders) -> list[Order | Refused]:
    """Each order, or why it is none."""
    found: list[Order | Refused] = []
    before: Order | None = None
    for spelled in batch.orders:
        try:
            before = values.order_from(spelled, before)
            found.append(before)
        except Refused as error:
            before = None
            found.append(error)
    return found


async def _send(call: AgentStream, message: pb.FromAgent) -> None:
    await call.write(message.SerializeToString())


async def _read(call: AgentStream) -> pb.ToAgent | None:
    raw = await call.read()
    return None if raw is None else rpc.parsed(pb.ToAgent, raw)


def _refusal(term: int, spelled: bytes, answer: Answer) -> pb.Refusal:
    order = values.named(spelled)
    return pb.Refusal(
        term=term,
        job=order.job,
        worker=order.worker,
        order=order.kind,
        reason=values.text(answer.reason),
        fenced=answer.fenced,
    )
