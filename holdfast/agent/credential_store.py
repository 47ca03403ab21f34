"""A node's credentials: certificate, key, token and whom to trust, in a file only it can read.

One file, replaced whole: a crash leaves the old ones or the new ones, never a certificate with
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

from holdfast.system import channels
from holdfast.system.certificates import Authority, TlsIdentity, peer_of, request_for
from holdfast.system.disk import make_folder, replace_durably
from holdfast.wire import rpc, tokens
from holdfast.wire.errors import Corrupt, Missing, Refused
from holdfast.wire.proto import cluster_pb2 as pb

_FILE: Final = "credentials.json"
Asked = tuple[bytes, bytes]  # a request for a certificate, and its key

_KEYS: Final = ("certificate_pem", "key_pem", "trust_pem")


@dataclass(frozen=True, slots=True)
class NodeCredentials:
    """Who this node is, and its member token."""

    identity: TlsIdentity
    token: str

    def __repr__(self) -> str:
        return f"NodeCredentials({self.identity!r})"


class CredentialStore:
    """The credentials of a node, in its folder."""

    def __init__(self, folder: Path, credentials: NodeCredentials) -> None:
        self._path = folder / _FILE
        self.credentials = credentials

    @classmethod
    def open(cls, folder: Path) -> Self:
        path = folder / _FILE
        try:
            body = json.loads(path.read_bytes())
            identity = TlsIdentity(*(base64.b64decode(body[key], validate=True) for key in _KEYS))
            credentials = NodeCredentials(identity, str(body["token"]))
            peer_of(identity.certificate_pem)
        except FileNotFoundError as error:
            raise Missing(
                f"{folder} has no credentials of a node",
                why="this machine has not joined a cluster",
                fix="join it, with a join token of the cluster",
            ) from error
        except (ValueError, KeyError, TypeError, Refused):
            # Without its cause: that would quote what is in the file.
            raise Corrupt(
                f"{path} is damaged", fix="remove it, and join the cluster again with a join token"
            ) from None
        return cls(folder, credentials)

    @property
    def renewal_s(self) -> float:
        """When the credentials should be renewed, on the wall clock."""
        return self.credentials.identity.peer.renewal_s()

    def store(self, credentials: NodeCredentials) -> None:
        make_folder(self._path.parent, 0o700)
        self._path.parent.parent.chmod(0o700)  # made on the way, for whoever that is
        identity = credentials.identity
        body = {key: base64.b64encode(getattr(identity, key)).decode() for key in _KEYS}
        replace_durably(self._path, json.dumps(body | {"token": credentials.token}).encode())
        self.credentials = credentials

    async def renew(self, channel: grpc.aio.Channel, address: str) -> None:
        """Get new credentials for a new key, by the right of the present ones, and keep them."""
        node = self.credentials.identity.peer.node
        assert node is not None, "the credentials are a node's"
        call = (rpc.RENEW, address, node, self.credentials.token)
        credentials, _ = await _credentials(channel, *call, request_for(node))
        await asyncio.to_thread(self.store, credentials)


def made_by(authority: Authority, folder: Path, node: str) -> CredentialStore:
    """The credentials of `node`, where the authority itself is: no endpoint has to be asked."""
    request_pem, key_pem = request_for(node)
    certificate = authority.sign(request_pem, node)
    identity = TlsIdentity(certificate, key_pem, authority.trust_pem)
    token = tokens.member_token(authority, node, identity.peer.until_s)
    credential_store = CredentialStore(folder, NodeCredentials(identity, token))
    credential_store.store(credential_store.credentials)
    return credential_store


async def join(
    folder: Path, node: str, join_address: str, token: str, asked: Asked | None = None
) -> tuple[CredentialStore, bytes]:
    """Get the first credentials of `node`, with a join token, and keep them in `folder`; and the
    secret of the coordination plane, for the caller to keep. `asked`: the same at each endpoint
    that is tried, so that it is one use of the token.

    `Refused` says why not; `Unavailable`: nobody of the cluster answers there.
    """
    trust_pem = tokens.read(token).trust_pem
    if not trust_pem:
        raise Refused(
            "this is not a join token",
            why="it does not say whom to trust",
            fix="ask a coordinator's machine for a join token",
        )
    async with channels.join_channel_to(join_address, trust_pem) as channel:
        asked = asked or request_for(node)
        call = (rpc.JOIN, join_address, node, token.strip())
        credentials, access = await _credentials(channel, *call, asked)
    credential_store = CredentialStore(folder, credentials)
    await asyncio.to_thread(credential_store.store, credentials)
    return credential_store, access


async def _credentials(
    channel: grpc.aio.Channel, method: str, address: str, node: str, token: str, asked: Asked
) -> tuple[NodeCredentials, bytes]:
    request_pem, key_pem = asked
    request = pb.CertificateRequest(protocol=rpc.PROTOCOL, request_pem=request_pem)
    try:
        raw = await channels.call_once(channel, method, request.SerializeToString(), token)
    except grpc.aio.AioRpcError as failed:
        raise rpc.error_from(failed, address) from None
    reply = rpc.parsed(pb.CertificateReply, raw)
    identity = TlsIdentity(reply.certificate_pem, key_pem, reply.trust_pem)
    if identity.peer.node != node:
        raise Refused(
            f"the certificate is for {identity.peer.node}, not {node}",
            fix="run the same version of holdfast on both machines",
        )
    return NodeCredentials(identity, reply.token), reply.access
