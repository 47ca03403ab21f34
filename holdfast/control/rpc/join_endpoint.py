"""Letting machines in: certificates for those with a token, and again for those with one.

`Join` is served without a client's certificate, since a new machine has none; its join token says
that it may have one. So is `Stand`, which lends the authority to a machine with a standby token.
`Renew` is served on the agents' port: the certificate in use is the right to the next one. Any
coordinator can do all of it, leader or not; how often a token was used, and which names are taken,
they agree upon in the coordination plane (`joins`). Whoever is let in also gets the secret of that
plane: over TLS, and not before.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio

from holdfast.control.store.joins import Joins, Use
from holdfast.coordination import Session
from holdfast.coordination.access import OWNER
from holdfast.system import logs
from holdfast.system.certificates import Authority, Peer, TlsIdentity, peer_of, requested_node
from holdfast.wire import rpc, tokens
from holdfast.wire.errors import HoldfastError, Refused, RetryError
from holdfast.wire.limits import CERTIFICATE_S
from holdfast.wire.proto import cluster_pb2 as pb
from holdfast.wire.rpc import Denied, parsed
from holdfast.wire.tokens import Token, TokenKind

log = logs.get(__name__)

Context = grpc.aio.ServicerContext[Any, Any]


class ServerIdentity:
    """A coordinator's own certificate: made anew when it is due. Streams that are open stay."""

    def __init__(
        self, authority: Authority, hosts: Sequence[str], life_s: float = CERTIFICATE_S
    ) -> None:
        self._authority = authority
        self._hosts = tuple(hosts)
        self._life_s = life_s
        self._lock = threading.Lock()
        self._identity = authority.serve(self._hosts, life_s)

    def present(self) -> TlsIdentity:
        with self._lock:
            if self._authority.now_s() >= self._identity.peer.renewal_s():
                self._identity = self._authority.serve(self._hosts, self._life_s)
                log.info("the coordinator's certificate was renewed")
            return self._identity

    @property
    def until_s(self) -> float:
        """When the one that was made last ends, on the wall clock."""
        with self._lock:
            return self._identity.peer.until_s

    def due_s(self) -> float:
        """How long until the next one is due."""
        with self._lock:
            return max(0.0, self._identity.peer.renewal_s() - self._authority.now_s())


def server_credentials(identity: TlsIdentity, *, client_shows_one: bool) -> grpc.ServerCredentials:
    """For a port. Never gRPC's dynamic credentials: replacing a certificate while others shake
    hands frees what they use, and the process dies (seen with grpcio 1.85)."""
    pair = [(identity.key_pem, identity.certificate_pem)]
    trust_pem = identity.trust_pem if client_shows_one else None
    return grpc.ssl_server_credentials(pair, trust_pem, client_shows_one)


class JoinEndpoint:
    """Serves `Join`, `Stand` and `Renew`."""

    def __init__(
        self, session: Session, authority: Authority, life_s: float = CERTIFICATE_S
    ) -> None:
        self._joins = Joins(session, authority.now_s)
        # Of an address that names a user, each machine has the password already, or nobody has.
        known = session.access is not None and session.access.user == OWNER
        self._access = session.access.document() if known and session.access else b""
        self._authority = authority
        self._life_s = life_s

    async def join(self, raw: bytes, context: Context) -> bytes:
        try:
            request = _request(raw)
            node = _checked(requested_node, request.request_pem)
            token = check_token(self._authority, context, TokenKind.JOIN, node)
            asked = hashlib.sha256(request.request_pem).hexdigest()
            await self._count(Use(token, node, asked, of_node=True))
            return self._reply(request, node, self._access)
        except Denied as denied:
            log.warning("a machine was not let in", peer=context.peer(), reason=str(denied))
            await rpc.deny(context, denied)

    async def stand(self, raw: bytes, context: Context) -> bytes:
        try:
            request = _checked(lambda data: parsed(pb.StandRequest, data), raw)
            rpc.check_protocol(request.protocol)
            token = check_token(self._authority, context, TokenKind.STANDBY, request.name)
            await self._count(Use(token, request.name, request.attempt, of_node=False))
        except Denied as denied:
            log.warning("a machine may not stand by", peer=context.peer(), reason=str(denied))
            await rpc.deny(context, denied)
        log.warning("the authority is lent", to=request.name, peer=context.peer())
        certificate_pem, key_pem = self._authority.lent()
        return pb.StandReply(
            certificate_pem=certificate_pem, key_pem=key_pem, access=self._access
        ).SerializeToString()

    async def renew(self, raw: bytes, context: Context) -> bytes:
        try:
            peer = check_peer(self._authority, context)
            request = _request(raw)
            node = _checked(requested_node, request.request_pem)
            if node != peer.node:
                raise not_yours(node, peer)
            return self._reply(request, node)
        except Denied as denied:
            log.warning("a certificate was not renewed", peer=context.peer(), reason=str(denied))
            await rpc.deny(context, denied)

    async def _count(self, use: Use) -> None:
        """Count a use of a token in the plane; `Denied`: it does not hold for this any more."""
        try:
            await asyncio.to_thread(self._joins.count, use)
        except RetryError as error:
            raise Denied(grpc.StatusCode.UNAVAILABLE, error) from error
        except HoldfastError as error:
            raise Denied(grpc.StatusCode.PERMISSION_DENIED, error) from error

    def _reply(self, request: pb.CertificateRequest, node: str, access: bytes = b"") -> bytes:
        authority = self._authority
        certificate = authority.sign(request.request_pem, node, self._life_s)
        until_s = peer_of(certificate).until_s
        log.info("a node has a certificate", node=node, until_s=until_s)
        return pb.CertificateReply(
            certificate_pem=certificate,
            trust_pem=authority.trust_pem,
            token=tokens.member_token(authority, node, until_s),
            access=access,
        ).SerializeToString()


def check_peer(authority: Authority, context: Context) -> Peer:
    """The node on the other side: its certificate (checked by TLS) and its member token."""
    shown = tuple(context.auth_context().get("x509_pem_cert", ()))
    peer = peer_of(shown[0]) if shown else None
    if peer is None or peer.node is None or peer.cluster != authority.cluster:
        raise Denied(
            grpc.StatusCode.UNAUTHENTICATED,
            Refused(
                "this is not a node of the cluster",
                why="its certificate is of something else",
                fix="join this machine to the cluster, with a join token",
            ),
        )
    check_token(authority, context, TokenKind.MEMBER, peer.node)
    return peer


def check_token(authority: Authority, context: Context, kind: TokenKind, node: str) -> Token:
    try:
        return tokens.check(authority, rpc.token_in(context), kind, node)
    except Refused as error:
        raise Denied(grpc.StatusCode.UNAUTHENTICATED, error) from error


def not_yours(node: str, peer: Peer) -> Denied:
    return Denied(
        grpc.StatusCode.PERMISSION_DENIED,
        Refused(
            f"node {peer.node} cannot speak for node {node}",
            why="its certificate is for another name",
            fix="start the agent with the name it joined with, or join again under this name",
        ),
    )


def _request(raw: bytes) -> pb.CertificateRequest:
    request: pb.CertificateRequest = _checked(lambda data: parsed(pb.CertificateRequest, data), raw)
    rpc.check_protocol(request.protocol)
    return request


def _checked(read: Any, raw: bytes) -> Any:
    try:
        return read(raw)
    except Refused as error:
        raise Denied(grpc.StatusCode.INVALID_ARGUMENT, error) from error


def left_s(peer: Peer) -> float:
    """How long the certificate of an open stream still holds."""
    return max(0.0, peer.until_s - time.time())
