"""Looking at what runs, from a person's side: ask the leader, and follow it over failovers.

    with Watching(session, lambda: papers, "demo", bell.set) as watching:
        watching.latest          # what agents say of the job's workers now
    nodes(session, papers)       # every machine and what it runs

The leader's address comes from the coordination plane. `observing` is the leader's side.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, cast

import grpc.aio

from holdfast.agent.wallet import Papers
from holdfast.control import observing
from holdfast.control.observing import NodeSeen, Observation
from holdfast.coordination import Config, Session, Versioned
from holdfast.wire import logs, rpc
from holdfast.wire.errors import HoldfastError, RetryError, TimedOut, Unavailable
from holdfast.wire.limits import (
    OBSERVE_SILENCE_S,
    RPC_CALL_S,
    THREAD_END_S,
    UPLINK_RETRY_S,
    UPLINK_RETRY_S_MAX,
)
from holdfast.wire.proto import cluster_pb2 as pb
from holdfast.wire.rpc import Contact

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Heard:
    """An observation, and when it came (monotonic)."""

    observation: Observation
    at_s: float


class Watching:
    """Keeps the latest that the present leader says of one job. A thread with a loop of its own.

    `latest` is None until a leader has answered. It stays when the leader goes: how old it is,
    `at_s` tells. `trouble` says why nothing comes, in words; None while all is well. `news` is
    called after each change of either, on that thread; it must be quick. `papers` gives those to
    show now: they end, and a look may be longer.
    """

    def __init__(
        self,
        session: Session,
        papers: Callable[[], Papers],
        job: str,
        news: Callable[[], None],
    ) -> None:
        self.latest: Heard | None = None
        self.trouble: HoldfastError | None = None
        self._papers = papers
        self._job = job
        self._news = news
        self._contact: Contact | None = None
        self._loop = asyncio.new_event_loop()
        self._moved = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="holdfast-watching", daemon=True)
        self._thread.start()
        self._follow = Config(session, rpc.CONTACT_PATH).watch(self._contact_is)

    def close(self) -> None:
        """End the thread. May be called twice."""
        self._closing = True
        # It may be in a call that waits for a server; its later words are not listened to.
        threading.Thread(target=self._follow.close, daemon=True).start()
        with contextlib.suppress(RuntimeError):  # the loop has ended before
            self._loop.call_soon_threadsafe(self._cancel)
        self._thread.join(THREAD_END_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        # The runner also ends what gRPC has left in the loop.
        ended = contextlib.suppress(asyncio.CancelledError)
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner, ended:
            runner.run(self._watch())

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _contact_is(self, versioned: Versioned) -> None:
        contact = rpc.contact_from(versioned.value)

        def point() -> None:
            if contact != self._contact:
                self._contact = contact
                self._moved.set()

        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody wants to know
            self._loop.call_soon_threadsafe(point)

    async def _watch(self) -> None:
        self._task = asyncio.current_task()
        tries = 0
        while not self._closing:
            self._moved.clear()
            contact = self._contact
            if contact is None:
                await self._moved.wait()
                continue
            before = self.latest
            try:
                await self._hear(contact)
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
        pause_s = min(UPLINK_RETRY_S * 2 ** min(tries, 10), UPLINK_RETRY_S_MAX)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._moved.wait()

    async def _hear(self, contact: Contact) -> None:
        """Hear this leader until there is another. `HoldfastError`: it does not answer."""
        request = pb.ObserveRequest(protocol=rpc.PROTOCOL, job=self._job).SerializeToString()
        papers = self._papers()
        async with rpc.channel_to(contact.address, papers.identity) as channel:
            # Without serializers a call takes bytes; the stubs do not know that.
            opened = cast("Any", channel).unary_stream(rpc.OBSERVE)
            call = opened(request, metadata=((rpc.TOKEN_KEY, papers.token),))
            moved = asyncio.create_task(self._moved.wait())
            try:
                while (raw := await self._next(call, moved)) is not None:
                    observation = Observation.parsed(raw)
                    self.latest = Heard(observation, time.monotonic())
                    self.trouble = None
                    self._news()
            except grpc.aio.AioRpcError as failed:
                raise rpc.error_from(failed, contact.address) from None
            finally:
                moved.cancel()
                call.cancel()

    async def _next(self, call: Any, moved: asyncio.Task[Any]) -> bytes | None:
        """The next observation; None: there is another leader, or the stream is over."""
        reading = asyncio.ensure_future(call.read())
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


def nodes(session: Session, papers: Papers, timeout_s: float = RPC_CALL_S) -> list[NodeSeen]:
    """Every machine of the cluster and what its agent said last, by the present leader.

    `Unavailable`: no leader answers in time; why is in it.
    """
    return asyncio.run(_nodes(session, papers, time.monotonic() + timeout_s))


async def _nodes(session: Session, papers: Papers, until_s: float) -> list[NodeSeen]:
    config = Config(session, rpc.CONTACT_PATH)
    trouble: HoldfastError | None = None
    while time.monotonic() < until_s:
        contact = rpc.contact_from((await asyncio.to_thread(config.get)).value)
        if contact is not None:
            try:
                return await _ask_nodes(contact, papers)
            except RetryError as error:
                trouble = error
        await asyncio.sleep(UPLINK_RETRY_S)
    raise Unavailable(
        "no coordinator leads",
        why=str(trouble) if trouble else "none has said where it is",
        fix="holdfast up",
    )


async def _ask_nodes(contact: Contact, papers: Papers) -> list[NodeSeen]:
    request = pb.NodesRequest(protocol=rpc.PROTOCOL).SerializeToString()
    async with rpc.channel_to(contact.address, papers.identity) as channel:
        try:
            raw = await rpc.call_once(channel, rpc.NODES, request, papers.token)
        except grpc.aio.AioRpcError as failed:
            raise rpc.error_from(failed, contact.address) from None
    return observing.nodes_from(raw)
