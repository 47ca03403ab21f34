"""Letting another machine in: a token made here, and joining with it there.

A token says whom to trust, where to join, and where the coordination plane and the store are. It is
signed by the cluster's authority, ends soon and is good for one machine; whoever has it first
may join, so it is passed on over a channel that nobody else reads. The secret of the coordination
plane is not in it: that comes with the certificate, over TLS.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from holdfast.agent import credential_store
from holdfast.cluster import Cluster, create, opened
from holdfast.cluster import processes as registered
from holdfast.cluster.folder import CREDENTIALS_NAME, readdressed
from holdfast.coordination import access
from holdfast.launch import wanted
from holdfast.launch.starting import COORDINATOR
from holdfast.storage.address import FolderAddress
from holdfast.storage.address import parse as parse_store
from holdfast.system import calls, disk
from holdfast.system.certificates import request_for
from holdfast.wire import tokens
from holdfast.wire.errors import Missing, Refused, RetryError, Unavailable
from holdfast.wire.limits import JOIN_TOKEN_S
from holdfast.wire.names import checked_name
from holdfast.wire.tokens import ClusterAddress, Token, TokenKind

T = TypeVar("T")


def token(
    cluster: Cluster,
    *,
    life_s: float = JOIN_TOKEN_S,
    node: str | None = None,
    kind: TokenKind = TokenKind.JOIN,
    uses: int = 1,
) -> str:
    """A token to join with, or to stand by, of a cluster whose coordinator runs here. `Missing`:
    this machine has only joined it."""
    if not cluster.has_authority:
        raise Missing(
            f"{cluster.folder} cannot make tokens",
            why="it has joined a cluster that was made elsewhere",
            fix="run holdfast token where the cluster was made, or where a coordinator stands by",
        )
    endpoints = tuple(
        str(one.facts["join_address"])
        for one in registered(cluster)
        if one.kind == COORDINATOR and one.facts.get("join_address")
    )
    if not endpoints:
        raise Unavailable(
            "no coordinator runs here",
            why="a machine that joins asks one for its certificate",
            fix="holdfast up",
        )
    store = parse_store(cluster.store)
    if kind is TokenKind.STANDBY and isinstance(store, FolderAddress):
        # It is made when something is first kept; the other machine looks whether it sees it.
        disk.make_folder(store.folder, 0o700)
    place = ClusterAddress(endpoints, cluster.coordination_for_others, cluster.store)
    return tokens.join_token(cluster.authority(), life_s, node, place, kind, uses)


@dataclass(frozen=True, slots=True)
class Joined:
    """A node of a cluster that was made elsewhere, with its folder here."""

    cluster: Cluster
    node: str
    new: bool


def join(folder: Path, text: str, node: str | None = None) -> Joined:
    """Join this machine, with `folder` for everything of it: credentials from an endpoint,
    addresses from the token. A node that has joined already gets new credentials.

    `Refused`: the token does not hold, or the folder belongs to another cluster. `Unavailable`: no
    endpoint answers.
    """
    said, place = read(text, TokenKind.JOIN)
    name = checked_name("node", node or said.node or own_name())
    folder = folder.expanduser().absolute()
    there = known(folder, said.cluster)
    credentials, asked = folder / CREDENTIALS_NAME / name, request_for(name)
    _, secret = ask_an_endpoint(
        place,
        lambda endpoint: calls.run(credential_store.join(credentials, name, endpoint, text, asked)),
    )
    cluster = made(folder, said.cluster, place) if there is None else moved(there, place)
    keep_secret(cluster, secret)
    if there is not None:
        wanted.begins(there)
    return Joined(cluster, name, new=there is None)


# --- what joining and standing by share -----------------------------------------------------------


def read(text: str, kind: TokenKind) -> tuple[Token, ClusterAddress]:
    """What a token says, and where the cluster is. `Refused`: it is good for something else."""
    said = tokens.read(text)
    if said.kind is not kind or said.place is None:
        does = {TokenKind.JOIN: "join with", TokenKind.STANDBY: "stand by with"}
        more = {TokenKind.STANDBY: " --standby"}
        raise Refused(
            f"this is not a token to {does[kind]}",
            why=f"it is a {said.kind.value} token"
            if said.kind is not kind
            else "it does not say where the cluster is",
            fix=f"holdfast token{more.get(kind, '')}, on a machine of the cluster",
        )
    return said, said.place


def known(folder: Path, cluster: str) -> Cluster | None:
    """The cluster of that folder; None if there is none. `Refused`: it is another one, or it was
    made here."""
    try:
        there = opened(folder)
    except Missing:
        return None
    if there.is_home or there.name != cluster:
        raise Refused(
            f"{folder} is the folder of cluster {there.name!r}",
            why="one folder belongs to one cluster, and the one where it was made does not join",
            fix="give another folder: --cluster DIR",
        )
    return there


def made(folder: Path, cluster: str, place: ClusterAddress) -> Cluster:
    """The folder of a cluster that was made elsewhere, with its addresses."""
    return create(
        folder,
        name=cluster,
        coordination=place.coordination,
        store=place.store,
        listen=_own_address(place.join_endpoints[0]),
    )


def moved(there: Cluster, place: ClusterAddress) -> Cluster:
    """The same folder with the coordination plane as the token has it: it may be reached with TLS
    now, and was not when this machine joined."""
    return there if there.is_home else readdressed(there, place.coordination)


def keep_secret(cluster: Cluster, secret: bytes) -> None:
    """Keep the secret of the coordination plane that came from an endpoint. Where the plane is a
    folder of this machine, it is there already."""
    if secret and cluster.embedded is None:
        access.keep(cluster.access_file, access.parsed(secret), anew=True)


def ask_an_endpoint(place: ClusterAddress, ask: Callable[[str], T]) -> T:
    """What the first endpoint that answers says. One that answers with a refusal speaks for all."""
    last: RetryError | None = None
    for endpoint in place.join_endpoints:
        try:
            return ask(endpoint)
        except RetryError as error:
            last = error
    raise Unavailable(
        f"no coordinator of the cluster answers at {', '.join(place.join_endpoints)}",
        why=last.why if last is not None else "the token names none",
        fix="look whether it runs and can be reached from here; make a new token: holdfast token",
    ) from last


def own_name() -> str:
    """This machine's name, as far as it can be a node's."""
    name = socket.gethostname().partition(".")[0]
    kept = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in name)
    return kept.strip("-_")[:63] or "node"


def _own_address(endpoint: str) -> str:
    """Our address in the network in which that endpoint is. Nothing is sent."""
    host, _, port = endpoint.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host.strip("[]"), int(port)))
        found: str = probe.getsockname()[0]
        return found
