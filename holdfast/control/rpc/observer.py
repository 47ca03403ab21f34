"""Looking at what runs, from a person's side: ask the leader, and follow it over failovers.

    with LeaderObserver(session, lambda: credentials, "demo", woken.set) as observer:
        observer.latest          # what agents say of the job's workers now
    nodes(session, credentials)  # every machine and what it runs

The leader's address comes from the coordination plane. `observing` is the leader's side.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, cast

import grpc.aio

from holdfast.agent.credential_store import NodeCredentials
from holdfast.control.rpc import observing
from holdfast.control.rpc.observing import NodeSeen, Observation
from holdfast.coordination import Config, Session, Versioned
from holdfast.system import backoff, calls, channels, logs
from holdfast.system.tasks import ENDS_SOON, WAITED, ends_process, start_task, start_thread
from holdfast.wire import rpc
from holdfast.wire.errors import HoldfastError, RetryError, TimedOut, Unavailable
from holdfast.wire.limits import (
    OBSERVE_SILENCE_S,
    RPC_CALL_S,
    UPLINK_RETRY_S,
    UPLINK_RETRY_S_MAX,
)
from holdfast.wire.proto import cluster_pb2 as pb
from holdfast.wire.rpc import Contact

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Received:
    """An observation, and when it came (monotonic)."""

    observation: Observation
    at_s: float


class LeaderObserver:
    """Keeps the latest that the present leader says of one job, in the loop of calls.

    `latest` is None until a leader has answered. It stays when the leader goes: how old it is,
    `at_s` tells. `trouble` says why nothing comes, in words; None while all is well. `news` is
    called after each change of either, in that loop; it must be quick. `credentials` gives those to
    show now: they end, and a look may be longer.
    """

    def __init__(
        self,
        session: Session,
        credentials: Callable[[], NodeCredentials],
        job: str,
        news: Callable[[], None],
    ) -> None:
        self.latest: Received | None = None
        self.trouble: HoldfastError | None = None
        self._credentials = credentials
        self._job = job
        self._news = news
        self._contact: Contact | None = None
        self._moved = asyncio.Event()
        self._going = calls.Going(self._watch(), ends_process("watching the leader"))
        self._follow = Config(session, rpc.CONTACT_PATH).watch(self._contact_is)

    def close(self) -> None:
        """Watch no more. May be called twice."""
        # It may be in a call that waits for a server; its later words are not listened to.
        start_thread(self._follow.close, "unfollow the leader", lasts=ENDS_SOON)
        self._going.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- in the loop ----------------------------------------------------------------------------

    def _contact_is(self, versioned: Versioned) -> None:
        contact = rpc.contact_from(versioned.value)

        def point() -> None:
            if contact != self._contact:
                self._contact = contact
                self._moved.set()

        self._going.loop.call_soon_threadsafe(point)

    async def _watch(self) -> None:
        tries = 0
        while True:
            self._moved.clear()
            contact = self._contact
            if contact is None:
                await self._moved.wait()
                continue
            before = self.latest
            try:
                await self._follow_leader(contact)
            except HoldfastError as error:
                tries = tries + 1 if self.latest is before else 0
                if str(error) != str(self.trouble):
                    log.debug("the leader does not answer", reason=str(error))
                self.trouble = error
                self._news()
            if not self._moved.is_set():
                await self._pause(tries)

    async def _pause(self, tries: int) -> None:
        """Longer each time; a new leader's address ends it."""
        pause_s = backoff.pause_s(tries + 1, UPLINK_RETRY_S, UPLINK_RETRY_S_MAX)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._moved.wait()

    async def _follow_leader(self, contact: Contact) -> None:
        """Follow this leader until there is another. `HoldfastError`: it does not answer."""
        request = pb.ObserveRequest(protocol=rpc.PROTOCOL, job=self._job).SerializeToString()
        credentials = self._credentials()
        async with channels.channel_to(contact.address, credentials.identity) as channel:
            # Without serializers a call takes bytes; the stubs do not know that.
            opened = cast("Any", channel).unary_stream(rpc.OBSERVE)
            call = opened(request, metadata=((rpc.TOKEN_KEY, credentials.token),))
            moved = start_task(self._moved.wait(), "moved", WAITED)
            try:
                while (raw := await self._next(call, moved)) is not None:
                    observation = Observation.parsed(raw)
                    self.latest = Received(observation, time.monotonic())
                    self.trouble = None
                    self._news()
            except grpc.aio.AioRpcError as failed:
                raise rpc.error_from(failed, contact.address) from None
            finally:
                moved.cancel()
                call.cancel()

    async def _next(self, call: Any, moved: asyncio.Task[Any]) -> bytes | None:
        """The next observation; None: there is another leader, or the stream is over."""
        reading = start_task(call.read(), "reading", WAITED)
        reading.add_done_callback(_forget)
        try:
            done, _ = await asyncio.wait(
                (reading, moved),
                timeout=RPC_CALL_S + OBSERVE_SILENCE_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
        except BaseException:
            reading.cancel()
            raise
        if reading not in done:
            reading.cancel()
            if not done:
                raise TimedOut(
                    "the leader says nothing", fix="nothing: it is asked again, or the next one"
                )
            return None
        raw = reading.result()
        return None if raw is rpc.EOF else cast("bytes", raw)


def _forget(reading: asyncio.Task[Any]) -> None:
    """How a read ends that is not waited for any more, nobody asks, and nobody is told."""
    if not reading.cancelled():
        reading.exception()


def nodes(
    session: Session, credentials: NodeCredentials, timeout_s: float = RPC_CALL_S
) -> list[NodeSeen]:
    """Every machine of the cluster and what its agent said last, by the present leader.

    `Unavailable`: no leader answers in time; why is in it.
    """
    return calls.run(_nodes(session, credentials, time.monotonic() + timeout_s))


async def _nodes(session: Session, credentials: NodeCredentials, until_s: float) -> list[NodeSeen]:
    config = Config(session, rpc.CONTACT_PATH)
    trouble: HoldfastError | None = None
    while time.monotonic() < until_s:
        contact = rpc.contact_from((await asyncio.to_thread(config.get)).value)
        if contact is not None:
            try:
                return await _ask_nodes(contact, credentials)
            except RetryError as error:
                trouble = error
        await asyncio.sleep(UPLINK_RETRY_S)
    raise Unavailable(
        "no coordinator leads",
        why=str(trouble) if trouble else "none has said where it is",
        fix="holdfast up",
    )


async def _ask_nodes(contact: Contact, credentials: NodeCredentials) -> list[NodeSeen]:
    request = pb.NodesRequest(protocol=rpc.PROTOCOL).SerializeToString()
    async with channels.channel_to(contact.address, credentials.identity) as channel:
        try:
            raw = await channels.call_once(channel, rpc.NODES, request, credentials.token)
        except grpc.aio.AioRpcError as failed:
            raise rpc.error_from(failed, contact.address) from None
    return observing.nodes_from(raw)
