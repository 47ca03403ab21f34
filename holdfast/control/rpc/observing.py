"""What people are shown of running jobs and machines: the leader's side. `observer` is the other.

Levels, not logs: an observer gets the latest that agents said of a job's workers, a few times a
second, and misses whatever lay between two looks. It comes from memory, and never goes to the
coordination plane. Only the leader has agents, so only it answers; a standby says that it does not
lead, and the observer follows the leader's contact.

Whoever has credentials of the cluster (certificate and token) may look. Nothing here changes
anything.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import Any, Final

import grpc
import grpc.aio

from holdfast.control.rpc.connections import AgentConnections, ObservedAgents, not_leading
from holdfast.control.rpc.join_endpoint import Context, check_peer, left_s
from holdfast.system.certificates import Authority
from holdfast.wire import rpc, values
from holdfast.wire.errors import Full, Refused
from holdfast.wire.limits import OBSERVE_SILENCE_S
from holdfast.wire.proto import cluster_pb2 as pb
from holdfast.wire.reports import NodeFacts
from holdfast.wire.rpc import Denied

# People who look at jobs at once, on one coordinator: each costs a look a few times a second.
OBSERVERS_MAX: Final = 64
# What people are shown is looked at so often; nobody reads faster.
OBSERVE_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Observation:
    """What agents say now of one job's workers. `nodes` holds only those workers, without parts.

    `unreported`: machines that are alive and have told this leader nothing yet.
    """

    term: int
    nodes: tuple[NodeFacts, ...] = ()
    unreported: frozenset[str] = frozenset()

    def message(self) -> pb.Observation:
        nodes = [values.facts_bytes(facts) for facts in self.nodes]
        return pb.Observation(term=self.term, nodes=nodes, unreported=sorted(self.unreported))

    @classmethod
    def parsed(cls, raw: bytes) -> Observation:
        message = rpc.parsed(pb.Observation, raw)
        nodes = tuple(values.facts_from(facts) for facts in message.nodes)
        return cls(message.term, nodes, frozenset(message.unreported))


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """A machine whose agent is alive. `facts` None: it has told this leader nothing yet.

    `connected`: its agent has a stream to the leader now, so its facts are fresh.
    """

    node: str
    since_ms: int
    connected: bool
    facts: NodeFacts | None


def observation_of(agents: ObservedAgents, job: str) -> Observation:
    """The part of a look that is about one job."""
    nodes = []
    for facts in agents.facts.values():
        workers = tuple(replace(held, parts={}) for held in facts.workers if held.job == job)
        if workers:
            nodes.append(replace(facts, workers=workers))
    return Observation(
        agents.term, tuple(nodes), frozenset(agents.members) - frozenset(agents.facts)
    )


def nodes_message(agents: ObservedAgents) -> pb.NodesReply:
    reply = pb.NodesReply(term=agents.term)
    for node, since_ms in sorted(agents.members.items()):
        seen = reply.nodes.add(node=node, since_ms=since_ms, connected=node in agents.connected)
        facts = agents.facts.get(node)
        if facts is not None:
            bare = tuple(replace(held, parts={}) for held in facts.workers)
            seen.facts = values.facts_bytes(replace(facts, workers=bare))
    return reply


def nodes_from(raw: bytes) -> list[NodeSeen]:
    return [
        NodeSeen(
            seen.node,
            seen.since_ms,
            seen.connected,
            values.facts_from(seen.facts) if seen.facts else None,
        )
        for seen in rpc.parsed(pb.NodesReply, raw).nodes
    ]


class ObserverEndpoint:
    """Serves `Observe` and `Nodes` out of the leader's connections. Lives in the server's loop."""

    def __init__(self, connections: AgentConnections, authority: Authority) -> None:
        self._connections = connections
        self._authority = authority
        self._observers = 0

    def methods(self) -> dict[str, Any]:
        return {
            "Observe": grpc.unary_stream_rpc_method_handler(self._observe),
            "Nodes": grpc.unary_unary_rpc_method_handler(self._nodes),
        }

    async def _observe(self, raw: bytes, context: Context) -> None:
        try:
            peer = check_peer(self._authority, context)
            request = _parsed(pb.ObserveRequest, raw)
            rpc.check_protocol(request.protocol)
            if self._observers >= OBSERVERS_MAX:
                raise _too_many()
            self._observers += 1
            try:
                # As an agent's stream, it ends with the certificate that it was opened with.
                async with asyncio.timeout(left_s(peer)):
                    await self._send(request.job, context)
            finally:
                self._observers -= 1
        except TimeoutError:
            return  # the observer opens another, with its present credentials
        except Denied as denied:
            await rpc.deny(context, denied)

    async def _send(self, job: str, context: Context) -> None:
        sent: Observation | None = None
        sent_s = 0.0
        while True:
            now = observation_of(self._observed_agents(), job)
            now_s = time.monotonic()
            if now != sent or now_s >= sent_s + OBSERVE_SILENCE_S:
                await context.write(now.message().SerializeToString())
                sent, sent_s = now, now_s
            await asyncio.sleep(OBSERVE_S)

    async def _nodes(self, raw: bytes, context: Context) -> bytes:
        try:
            check_peer(self._authority, context)
            rpc.check_protocol(_parsed(pb.NodesRequest, raw).protocol)
            return nodes_message(self._observed_agents()).SerializeToString()
        except Denied as denied:
            await rpc.deny(context, denied)

    def _observed_agents(self) -> ObservedAgents:
        agents = self._connections.observed_agents()
        if agents is None:
            raise not_leading()
        return agents


def _parsed(kind: Any, raw: bytes) -> Any:
    try:
        return rpc.parsed(kind, raw)
    except Refused as error:
        raise Denied(grpc.StatusCode.INVALID_ARGUMENT, error) from error


def _too_many() -> Denied:
    return Denied(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        Full(
            f"{OBSERVERS_MAX} people look at jobs already",
            why="each look costs the leader a little",
            fix="close one of them; `holdfast jobs` and `holdfast why` work without",
        ),
    )
