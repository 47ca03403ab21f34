"""One stream of an agent, on the coordinator's side: hello, then snapshots in and orders out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import grpc
import grpc.aio

from holdfast.control.rpc.connections import AgentConnections, AgentHello, OrderRefused
from holdfast.control.rpc.join_endpoint import Context
from holdfast.system import logs
from holdfast.system.tasks import WAITED, end, in_loop, start_task
from holdfast.wire import rpc, values
from holdfast.wire.errors import Refused, TimedOut
from holdfast.wire.limits import REPORT_S
from holdfast.wire.proto import cluster_pb2 as pb
from holdfast.wire.rpc import Denied

# A stream without a report for so long is cut: its agent hangs, or the network lost it.
REPORT_SILENCE_S: Final = 5 * REPORT_S

log = logs.get(__name__)


class AgentStreamServer:
    """One open stream: a reader, a writer, and whoever wants to end it."""

    def __init__(self, connections: AgentConnections, hello: AgentHello, context: Context) -> None:
        loop = asyncio.get_running_loop()
        self._connections = connections
        self._context = context
        self._wakeup = asyncio.Event()
        self._over: asyncio.Future[None] = loop.create_future()
        self._connection = connections.attach(hello, _soon(loop, self._wakeup.set), self._cut(loop))

    def _cut(self, loop: asyncio.AbstractEventLoop) -> Callable[[Denied], None]:
        def end(denied: Denied) -> None:
            if not self._over.done():
                self._over.set_exception(denied)

        return lambda denied: _soon(loop, partial(end, denied))()

    async def run(self) -> None:
        """Until the agent hangs up, or raises `Denied` to say why not any longer."""
        connection = self._connection
        log.info("an agent is connected", node=connection.hello.node, connection=connection.number)
        works = {"receive": self._receive(), "send": self._send()}
        tasks = [start_task(work, name, WAITED) for name, work in works.items()]
        try:
            done, _ = await asyncio.wait([*tasks, self._over], return_when=asyncio.FIRST_COMPLETED)
            for ended in done:
                ended.result()
        finally:
            self._connections.detach(connection)
            await end(*tasks)
            self._over.cancel()
            log.info("an agent is not connected any more", node=connection.hello.node)

    async def _receive(self) -> None:
        node = self._connection.hello.node
        while True:
            try:
                async with asyncio.timeout(REPORT_SILENCE_S):
                    raw = await self._context.read()
            except TimeoutError:
                raise _silent(node) from None
            if raw is rpc.EOF:
                return
            self._received(_parsed(raw), node)

    def _received(self, message: pb.FromAgent, node: str) -> None:
        match message.WhichOneof("message"):
            case "snapshot":
                facts = _checked(values.facts_from, message.snapshot)
                if facts.node != node:
                    raise _bad(f"a snapshot of {facts.node} on the stream of {node}")
                self._connections.report(self._connection, facts)
            case "refusal":
                refusal = message.refusal
                refused = OrderRefused(
                    node,
                    refusal.term,
                    refusal.order,
                    refusal.job,
                    refusal.worker,
                    refusal.reason,
                    refusal.fenced,
                )
                log.warning("an agent refused an order", refusal=refused)
                self._connections.refused(refused)
            case None if message.ByteSize():
                log.warning("an agent sent what this version does not know", node=node)
            case other:
                raise _bad(f"{other or 'nothing'} in the middle of a stream")

    async def _send(self) -> None:
        connection, steps_s = self._connection, self._connections.steps_s
        welcome = pb.Welcome(term=connection.term, steps_s=steps_s)
        await self._context.write(_bytes(pb.ToAgent(welcome=welcome)))
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            while (
                orders := self._connections.take(connection)
            ) or steps_s != self._connections.steps_s:
                steps_s = self._connections.steps_s
                batch = pb.Orders(
                    term=connection.term,
                    session=connection.hello.session,
                    steps_s=steps_s,
                    orders=orders,
                )
                await self._context.write(_bytes(pb.ToAgent(orders=batch)))


def _soon(loop: asyncio.AbstractEventLoop, work: Callable[[], object]) -> Callable[[], None]:
    """Do it in the loop, from any thread; a loop that has ended has nothing to do any more."""

    return partial(in_loop, loop, work)


async def first_of(context: Context) -> bytes:
    """The first message of a stream, as it came; nothing: there is none."""
    raw = await context.read()
    return b"" if raw is rpc.EOF else bytes(raw)


def hello_in(raw: bytes, cluster: str) -> AgentHello:
    """Who opened the stream, by its first message; `Denied` if that is nobody we speak to."""
    return _hello(_parsed(raw), cluster)


def _parsed(raw: bytes) -> pb.FromAgent:
    message: pb.FromAgent = _checked(lambda data: rpc.parsed(pb.FromAgent, data), raw)
    return message


def _checked(read: Any, what: Any) -> Any:
    try:
        return read(what)
    except Refused as error:
        raise Denied(grpc.StatusCode.INVALID_ARGUMENT, error) from error


def _hello(message: pb.FromAgent, cluster: str) -> AgentHello:
    """Who opened the stream, by its hello."""
    if message.WhichOneof("message") != "hello":
        raise _bad("a stream that does not begin with a hello")
    hello = message.hello
    rpc.check_protocol(hello.protocol)
    if hello.cluster != cluster:
        raise Denied(
            grpc.StatusCode.PERMISSION_DENIED,
            Refused(
                f"this is cluster {cluster!r}, not {hello.cluster!r}",
                why="the agent was made for another cluster",
                fix="join this machine to this cluster, or give it the other one's address",
            ),
        )
    if not hello.session or not hello.process:
        raise _bad("a hello without a session or a process")
    return AgentHello(hello.node, hello.session, hello.process, hello.serial)


def _bytes(message: pb.ToAgent) -> bytes:
    return message.SerializeToString()


def _bad(what: str) -> Denied:
    return Denied(grpc.StatusCode.INVALID_ARGUMENT, values.malformed(what))


def _silent(node: str) -> Denied:
    return Denied(
        grpc.StatusCode.DEADLINE_EXCEEDED,
        TimedOut(
            f"the agent of {node} has said nothing for {REPORT_SILENCE_S:g} s",
            fix="look at that machine; its agent connects again by itself",
        ),
    )
