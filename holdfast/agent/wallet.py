"""A node's papers: certificate, key, token and whom to trust, in one file that only it can read.

One file, replaced whole: a crash leaves the old papers or the new ones, never a certificate with
another's key.
"""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import grpc.aio

from holdfast.wire import rpc, tokens
from holdfast.wire.certificates import Authority, Identity, peer_of, request_for
from holdfast.wire.disk import make_folder, replace_durably
from holdfast.wire.errors import Corrupt, Missing, Refused
from holdfast.wire.proto import cluster_pb2 as pb

_FILE: Final = "papers.json"
Asked = tuple[bytes, bytes]  # a request for a certificate, and its key

_KEYS: Final = ("certificate_pem", "key_pem", "trust_pem")


@dataclass(frozen=True, slots=True)
class Papers:
    """Who this node is, and its member token."""

    identity: Identity
    token: str

    def __repr__(self) -> str:
        return f"Papers({self.identity!r})"


class Wallet:
    """The papers of a node, in its folder."""

    def __init__(self, folder: Path, papers: Papers) -> None:
        self._path = folder / _FILE
        self.papers = papers

    @classmethod
    def open(cls, folder: Path) -> Self:
        path = folder / _FILE
        try:
            body = json.loads(path.read_bytes())
            identity = Identity(*(base64.b64decode(body[key], validate=True) for key in _KEYS))
            papers = Papers(identity, str(body["token"]))
            peer_of(identity.certificate_pem)
        except FileNotFoundError as error:
            raise Missing(
                f"{folder} has no papers of a node",
                why="this machine has not joined a cluster",
                fix="join it, with a join token of the cluster",
            ) from error
        except (ValueError, KeyError, TypeError, Refused):
            # Without its cause: that would quote what is in the file.
            raise Corrupt(
                f"{path} is damaged", fix="remove it, and join the cluster again with a join token"
            ) from None
        return cls(folder, papers)

    @property
    def renewal_s(self) -> float:
        """When the papers should be renewed, on the wall clock."""
        return self.papers.identity.peer.renewal_s()

    def store(self, papers: Papers) -> None:
        make_folder(self._path.parent, 0o700)
        self._path.parent.parent.chmod(0o700)  # made on the way, for whoever that is
        identity = papers.identity
        body = {key: base64.b64encode(getattr(identity, key)).decode() for key in _KEYS}
        replace_durably(self._path, json.dumps(body | {"token": papers.token}).encode())
        self.papers = papers

    async def renew(self, channel: grpc.aio.Channel, address: str) -> None:
        """Get new papers for a new key, by the right of the present ones, and keep them."""
        node = self.papers.identity.peer.node
        assert node is not None, "the papers are a node's"
        call = (rpc.RENEW, address, node, self.papers.token)
        papers, _ = await _papers(channel, *call, request_for(node))
        await asyncio.to_thread(self.store, papers)


def made_by(authority: Authority, folder: Path, node: str) -> Wallet:
    """Papers of `node`, where the authority itself is: no door has to be knocked at."""
    request_pem, key_pem = request_for(node)
    certificate = authority.sign(request_pem, node)
    identity = Identity(certificate, key_pem, authority.trust_pem)
    token = tokens.member_token(authority, node, identity.peer.until_s)
    wallet = Wallet(folder, Papers(identity, token))
    wallet.store(wallet.papers)
    return wallet


async def join(
    folder: Path, node: str, door_address: str, token: str, asked: Asked | None = None
) -> tuple[Wallet, bytes]:
    """Get the first papers of `node`, with a join token, and keep them in `folder`; and the secret
    of the coordination plane, for the caller to keep. `asked`: the same at each door that is tried,
    so that it is one use of the token.

    `Refused` says why not; `Unavailable`: nobody of the cluster answers there.
    """
    trust_pem = tokens.read(token).trust_pem
    if not trust_pem:
        raise Refused(
            "this is not a join token",
            why="it does not say whom to trust",
            fix="ask a coordinator's machine for a join token",
        )
    async with rpc.door_to(door_address, trust_pem) as channel:
        asked = asked or request_for(node)
        call = (rpc.JOIN, door_address, node, token.strip())
        papers, access = await _papers(channel, *call, asked)
    wallet = Wallet(folder, papers)
    await asyncio.to_thread(wallet.store, papers)
    return wallet, access


async def _papers(
    channel: grpc.aio.Channel, method: str, address: str, node: str, token: str, asked: Asked
) -> tuple[Papers, bytes]:
    request_pem, key_pem = asked
    request = pb.CertificateRequest(protocol=rpc.PROTOCOL, request_pem=request_pem)
    try:
        raw = await rpc.call_once(channel, method, request.SerializeToString(), token)
    except grpc.aio.AioRpcError as failed:
        raise rpc.error_from(failed, address) from None
    reply = rpc.parsed(pb.CertificateReply, raw)
    identity = Identity(reply.certificate_pem, key_pem, reply.trust_pem)
    if identity.peer.node != node:
        raise Refused(
            f"the certificate is for {identity.peer.node}, not {node}",
            fix="run the same version of holdfast on both machines",
        )
    return Papers(identity, reply.token), reply.access
