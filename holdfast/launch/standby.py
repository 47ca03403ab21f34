"""A coordinator on another machine: what it needs to take part in the election.

    found = lent(folder, token)     # once: addresses from the token, the authority from an endpoint
    found = ready(folder)           # afterwards, and where the cluster was made

The authority is what makes a machine a coordinator's: with it, it shows agents that it is of their
cluster, checks their tokens and lets machines in. Whoever has it can do so for ever, so it is lent
for a standby token only, which is made for that and ends soon.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import grpc.aio

from holdfast.cluster import Cluster, opened
from holdfast.launch import joining, wanted
from holdfast.storage.address import FolderAddress
from holdfast.storage.address import parse as parse_store
from holdfast.system import calls, channels
from holdfast.system.certificates import Authority
from holdfast.wire import rpc
from holdfast.wire.errors import Missing, Refused
from holdfast.wire.names import checked_name
from holdfast.wire.proto import cluster_pb2 as pb
from holdfast.wire.tokens import TokenKind


def own_name() -> str:
    """What a coordinator of this machine is called unless it is told."""
    return checked_name("coordinator", f"standby-{joining.own_name()}"[:63].strip("-_."))


def lent(folder: Path, text: str, name: str) -> Cluster:
    """Let a coordinator of this name run here, with `folder` for everything of it. A machine that
    has joined already keeps its folder; one that stood by gets the authority anew.

    `Refused`: the token does not hold, or the folder belongs to another cluster. `Unavailable`: no
    endpoint answers.
    """
    said, place = joining.read(text, TokenKind.STANDBY)
    folder = folder.expanduser().absolute()
    there = joining.known(folder, said.cluster)
    _check_store(place.store)
    attempt = secrets.token_hex(16)
    certificate_pem, key_pem, secret = joining.ask_an_endpoint(
        place,
        lambda endpoint: calls.run(_ask(endpoint, said.trust_pem, text.strip(), name, attempt)),
    )
    if certificate_pem != said.trust_pem:
        raise Refused(
            "this is not the authority of the cluster",
            why="the token names another one",
            fix="make a new token: holdfast token --standby",
        )
    if there is None:
        cluster = joining.made(folder, said.cluster, place)
    else:
        cluster = joining.moved(there, place)
    joining.keep_secret(cluster, secret)
    Authority.keep(cluster.lent_folder, certificate_pem, key_pem)
    return ready(cluster.folder)


def ready(folder: Path) -> Cluster:
    """The cluster of that folder, if a coordinator can run here; `Missing` says how it could."""
    cluster = opened(folder)
    if not cluster.has_authority:
        raise Missing(
            f"{cluster.folder} has no authority of the cluster {cluster.name}",
            why="agents trust a coordinator only if it has one; this machine has only joined",
            fix="holdfast token --standby, where the cluster was made; then here: "
            "holdfast standby (it asks for the token)",
        )
    if cluster.is_home:
        wanted.check(cluster)
    else:
        wanted.begins(cluster)
        _check_store(cluster.store)
    return cluster


def _check_store(store: str) -> None:
    """A leader writes to the store. A folder that this machine does not see would be made, and what
    is written there nobody else would find."""
    address = parse_store(store)
    if isinstance(address, FolderAddress) and not address.folder.is_dir():
        raise Missing(
            f"this machine does not see the store {store}",
            why="it is a folder of another machine",
            fix="mount it here at the same path, or make the cluster with --store s3://BUCKET",
        )


async def _ask(
    endpoint: str, trust_pem: bytes, token: str, name: str, attempt: str
) -> tuple[bytes, bytes, bytes]:
    request = pb.StandRequest(protocol=rpc.PROTOCOL, name=name, attempt=attempt)
    async with channels.join_channel_to(endpoint, trust_pem) as channel:
        try:
            raw = await channels.call_once(channel, rpc.STAND, request.SerializeToString(), token)
        except grpc.aio.AioRpcError as failed:
            raise rpc.error_from(failed, endpoint) from None
    reply = rpc.parsed(pb.StandReply, raw)
    return reply.certificate_pem, reply.key_pem, reply.access
