"""The `Agents` port over gRPC: agents open streams to us; we receive snapshots and send orders.

A server in a thread of its own, with its own loop. What it shares with the coordinator's thread is
`AgentConnections`. Each stream has a reader and a writer, so a slow agent holds up nobody else.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Self

import grpc
import grpc.aio

from holdfast.control.decide.commands import Decision, StartWorker
from holdfast.control.decide.facts import ObservedState
from holdfast.control.rpc.connections import AgentConnections, OrderRefused
from holdfast.control.rpc.join_endpoint import (
    Context,
    JoinEndpoint,
    ServerIdentity,
    check_peer,
    left_s,
    not_yours,
    server_credentials,
)
from holdfast.control.rpc.observing import ObserverEndpoint
from holdfast.control.rpc.stream import AgentStreamServer, first_of, hello_in
from holdfast.coordination import Config, Membership, Session
from holdfast.coordination.follow import Follow
from holdfast.coordination.membership import Members
from holdfast.system import logs
from holdfast.system.certificates import Authority
from holdfast.system.job_certificates import JobSecrets
from holdfast.system.retries import Retries
from holdfast.system.tasks import (
    ENDS_SOON,
    Died,
    OwnedThread,
    Tasks,
    ends_process,
    owned,
    start_thread,
    unexpected,
)
from holdfast.wire import rpc, tokens
from holdfast.wire.errors import Fenced, Occupied, Refused, RetryError, Unavailable
from holdfast.wire.limits import (
    CERTIFICATE_S,
    HELLO_S,
    RECONNECT_DELAY_S_MAX,
    RPC_STOP_S,
    SESSION_TIMEOUT_S,
    STREAMS_MAX,
    THREAD_END_S,
)
from holdfast.wire.rpc import Contact, Denied
from holdfast.wire.tokens import TokenKind

# A coordinator that cannot listen with its new certificate tries again so often, as long as the old
# one holds.
RENEW_AGAIN_S: Final = 1.0
# A message of a machine that wants to join: such a request, and some words.
JOIN_MESSAGE_BYTES_MAX: Final = 64 * 1024

log = logs.get(__name__)

_SERVING: Final = "what agents are served by"


@dataclass(frozen=True, slots=True)
class Listening:
    """Where the server listens, and by what names it is reached. Port 0: any free one."""

    host: str = "127.0.0.1"
    port: int = 0
    join_port: int = 0
    hosts: Sequence[str] = ("127.0.0.1", "localhost")
    certificate_s: float = CERTIFICATE_S


class GrpcAgents:
    """See `port.Agents`. Made by `start`; `close` ends its thread. `died` is called when it
    has ended unexpectedly: then no agent can speak to this coordinator any more, and without one
    this process ends."""

    def __init__(
        self, session: Session, authority: Authority, listening: Listening, died: Died | None
    ) -> None:
        self._session = session
        self._authority = authority
        self._secrets = JobSecrets(authority)
        self._listening = listening
        self._died = died or ends_process(_SERVING)
        self._connections = AgentConnections()
        self._term: int | None = None
        self._follow: Follow[Members] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._thread: OwnedThread | None = None
        self.address = ""
        self.join_address = ""

    @classmethod
    def start(
        cls,
        session: Session,
        authority: Authority,
        listening: Listening | None = None,
        died: Died | None = None,
    ) -> Self:
        """Listen. Agents are turned away until `begin`. `Occupied`: the port is in use."""
        agents = cls(session, authority, listening or Listening(), died)
        ready: Future[None] = Future()
        run = partial(agents._run, ready)
        agents._thread = start_thread(run, "holdfast-agents", agents._tell_death)
        ready.result()
        return agents

    def close(self) -> None:
        self.end()
        assert self._loop is not None and self._thread is not None
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(RPC_STOP_S + THREAD_END_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- the port -----------------------------------------------------------------------------

    def begin(self, term: int) -> None:
        """Lead: know who is alive, then let agents in, then say where we are.

        `Unavailable`: the coordination plane did not say in time who is alive. Without that, every
        machine would look as if it were gone.
        """
        self.end()
        self._term = term
        self._connections.begin(term)
        first: Future[None] = Future()
        membership = Membership(self._session, rpc.NODES_PATH)
        self._follow = membership.watch(partial(self._members_are, term, first))
        try:
            first.result(SESSION_TIMEOUT_S)
        except TimeoutError as error:
            self.end()
            raise Unavailable(
                "the coordination plane did not say which agents are alive",
                why=f"no answer within {SESSION_TIMEOUT_S:g} s",
                fix="look at the coordination plane; the next leader tries again",
            ) from error
        self._spawn(self._announce(term))

    def end(self) -> None:
        self._term = None
        self._connections.end()
        if self._follow is not None:
            # It may be in a call that waits for a server; its later words are not listened to.
            start_thread(self._follow.close, "unfollow agents", lasts=ENDS_SOON)
            self._follow = None

    def observed(self) -> ObservedState:
        return self._connections.observed()

    def connection(self, node: str) -> int:
        return self._connections.connection(node)

    def order(self, term: int, decision: Decision) -> None:
        order = decision.command
        if isinstance(order, StartWorker):
            secret = self._secrets.of(order.job)
            decision = replace(decision, command=replace(order, secret=secret))
        self._connections.order(term, decision)

    def wait(self, timeout_s: float) -> bool:
        return self._connections.wait(timeout_s)

    def wake(self) -> None:
        self._connections.wake()

    def refusals(self) -> tuple[OrderRefused, ...]:
        """The last orders that agents refused, for people."""
        return self._connections.refusals()

    # --- the coordination plane -----------------------------------------------------------------

    def _members_are(self, term: int, first: Future[None], members: Members) -> None:
        joined = {name: member.since_ms for name, member in members.items()}
        self._connections.set_members(term, joined)
        if not first.done():
            first.set_result(None)

    async def _announce(self, term: int) -> None:
        """Say where the leader of this term is. An older term never replaces a newer one."""
        config = Config(self._session, rpc.CONTACT_PATH)
        contact = Contact(term, self.address)

        def newest(value: Any) -> Any:
            known = rpc.contact_from(value)
            if known is not None and known.term > term:
                raise Fenced(f"term {known.term} has begun", fix="campaign again")
            return contact.value()

        while term == self._term:
            try:
                await asyncio.to_thread(config.update, newest)
            except RetryError as error:
                log.warning("the leader's address is not known yet", reason=str(error))
                await asyncio.sleep(RECONNECT_DELAY_S_MAX)
            except Fenced as error:
                log.warning("a newer leader has announced itself", reason=str(error))
                return
            else:
                log.info("agents are told where the leader is", term=term, address=self.address)
                return

    # --- the server -----------------------------------------------------------------------------

    def _spawn(self, work: Any) -> None:
        assert self._loop is not None
        owned(asyncio.run_coroutine_threadsafe(work, self._loop), self._tell_death)

    def _tell_death(self, error: BaseException) -> None:
        log.error("what agents are served by has died", exc_info=error)
        self._died(unexpected(_SERVING, error))

    def _run(self, ready: Future[None]) -> None:
        asyncio.run(self._serve(ready))

    async def _serve(self, ready: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        listening = self._listening
        identity = ServerIdentity(self._authority, listening.hosts, listening.certificate_s)
        servers: list[grpc.aio.Server] = []
        try:
            for port in (listening.port, listening.join_port):
                _check_free(listening.host, port)
            servers = await self._listen(identity, listening.port, listening.join_port)
        except BaseException as error:
            ready.set_exception(error)
            return
        ready.set_result(None)
        retiring = Tasks(self._tell_death)
        try:
            while not await self._stopped(identity.due_s()):
                # The new servers take the same ports. The old ones take no more connections, and
                # their streams go on: agents leave them one by one, with their own new
                # certificates.
                fresh = await self._listen_anew(identity)
                if not fresh:
                    break
                for server in servers:
                    retiring.start(server.stop(listening.certificate_s), "former server")
                servers = fresh
        finally:
            await asyncio.gather(*(server.stop(RPC_STOP_S) for server in servers))
            await retiring.close()

    async def _listen_anew(self, identity: ServerIdentity) -> list[grpc.aio.Server]:
        """Servers with the next certificate; empty: we are to stop. What keeps them from listening
        may pass; when the present certificate has ended too, there is nobody to wait for."""
        ports = [int(where.rpartition(":")[2]) for where in (self.address, self.join_address)]
        until_s = identity.until_s
        retries = Retries("showing agents the new certificate", sys.maxsize)
        while True:
            try:
                servers = await self._listen(identity, *ports)
            except Exception as error:  # whatever it is: tried again, or raised when time is over
                if self._authority.now_s() >= until_s:
                    raise
                retries.failed(error)
            else:
                retries.well()
                return servers
            if await self._stopped(RENEW_AGAIN_S):
                return []

    async def _stopped(self, within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                return await self._stop.wait()
        except TimeoutError:
            return False

    async def _listen(
        self, identity: ServerIdentity, port: int, join_port: int
    ) -> list[grpc.aio.Server]:
        endpoint = JoinEndpoint(self._session, self._authority, self._listening.certificate_s)
        people = ObserverEndpoint(self._connections, self._authority)
        agents = {
            "Attach": grpc.stream_stream_rpc_method_handler(self._attach),
            "Renew": grpc.unary_unary_rpc_method_handler(endpoint.renew),
        }
        endpoints = {
            "Join": grpc.unary_unary_rpc_method_handler(endpoint.join),
            "Stand": grpc.unary_unary_rpc_method_handler(endpoint.stand),
        }
        present = identity.present()
        closed = server_credentials(present, client_shows_one=True)
        opened = server_credentials(present, client_shows_one=False)
        host = self._listening.host
        servers: list[grpc.aio.Server] = []
        try:
            inside = {"holdfast.v1.Agents": agents, "holdfast.v1.People": people.methods()}
            self.address = _bind(servers, inside, closed, f"{host}:{port}")
            outside = {"holdfast.v1.Joining": endpoints}
            first = (TokenFirst(self._authority),)
            self.join_address = _bind(servers, outside, opened, f"{host}:{join_port}", first)
            for server in servers:
                await server.start()
        except BaseException:
            for server in servers:
                await server.stop(None)
            raise
        return servers

    async def _attach(self, _requests: Any, context: Context) -> None:
        try:
            # The first message is taken, also of those who may not come in: a refusal that meets it
            # under way would reach the agent without its reason. It is not looked into before the
            # token is.
            async with asyncio.timeout(HELLO_S):
                raw = await first_of(context)
                # Now, alone: a refusal that met it under way with the first message would fail.
                await context.send_initial_metadata(())
            peer = check_peer(self._authority, context)
            hello = hello_in(raw, self._authority.cluster)
            if hello.node != peer.node:
                raise not_yours(hello.node, peer)
            # A stream ends with the certificate it was opened with; agents renew long before.
            async with asyncio.timeout(left_s(peer)):
                await AgentStreamServer(self._connections, hello, context).run()
        except TimeoutError:
            await rpc.deny(context, _too_late())
        except Denied as denied:
            log.info("a stream of an agent ends", peer=context.peer(), reason=str(denied))
            await rpc.deny(context, denied)


def _bind(
    servers: list[grpc.aio.Server],
    services: dict[str, dict[str, Any]],
    credentials: grpc.ServerCredentials,
    address: str,
    interceptors: Sequence[Any] = (),
) -> str:
    options = rpc.SERVER_OPTIONS
    if interceptors:  # of the port that asks for no certificate
        most = ("grpc.max_receive_message_length", JOIN_MESSAGE_BYTES_MAX)
        options = (*(one for one in options if one[0] != most[0]), most)
    server = grpc.aio.server(
        options=options, interceptors=interceptors, maximum_concurrent_rpcs=2 * STREAMS_MAX
    )
    servers.append(server)
    for service, methods in services.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    try:
        bound = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise _occupied(address, error) from error
    return f"{address.rpartition(':')[0]}:{bound}"


def _check_free(host: str, port: int) -> None:
    """`Occupied` if somebody listens there. gRPC would share the port with him: it must, so that
    our next server can take over from the present one."""
    try:
        with socket.create_server((host, port)):
            return
    except OSError as error:
        raise _occupied(f"{host}:{port}", error) from error


def _occupied(address: str, error: Exception) -> Occupied:
    return Occupied(
        f"{address} cannot be listened on",
        why=str(error),
        fix="stop what listens there, or choose another port",
    )


def _too_late() -> Denied:
    return Denied(
        grpc.StatusCode.UNAUTHENTICATED,
        Refused(
            "no hello came in time, or the certificate of this stream has ended",
            fix="connect again, with the present certificate",
        ),
    )


# --- token first ----------------------------------------------------------------------------------
# At the port where machines join, nobody without a token of this cluster gets as far as a message.
#
# The port asks for no certificate, since a new machine has none. So the token, which comes ahead of
# the message, is checked before a byte of that is read; for whom it is made is compared afterwards,
# with the name that the message says.


_STAND: Final = "/Stand"


class TokenFirst(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Lets calls through that come with a token."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        shown = dict(details.invocation_metadata or ()).get(rpc.TOKEN_KEY, "")
        kind = TokenKind.STANDBY if details.method.endswith(_STAND) else TokenKind.JOIN
        try:
            self._check(shown if isinstance(shown, str) else "", kind)
        except Refused as error:
            return _refusing(Denied(grpc.StatusCode.UNAUTHENTICATED, error))
        return await continuation(details)

    def _check(self, text: str, kind: TokenKind) -> None:
        try:
            node = tokens.read(text).node or ""
        except Refused:
            node = ""  # what is wrong with it is said below
        tokens.check(self._authority, text, kind, node)


def _refusing(denied: Denied) -> grpc.RpcMethodHandler[Any, Any]:
    async def refuse(_requests: AsyncIterator[bytes], context: Context) -> None:
        log.warning("a machine was not let in", peer=context.peer(), reason=str(denied))
        await rpc.deny(context, denied)

    # As a stream: of a single message gRPC would read all before it called us.
    return grpc.stream_stream_rpc_method_handler(refuse)
