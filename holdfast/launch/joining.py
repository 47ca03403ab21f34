"""Letting another machine in: a token made here, and joining with it there.

A token says whom to trust, where the doors are, and where the coordination plane and the store are.
It is signed by the cluster's authority and ends soon; whoever has it may join, so it is passed on
over a channel that nobody else reads.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from pathlib import Path

from holdfast.agent import wallet
from holdfast.cluster import Cluster, create, opened
from holdfast.cluster import processes as registered
from holdfast.launch import wanted
from holdfast.launch.starting import COORDINATOR
from holdfast.wire import tokens
from holdfast.wire.certificates import Authority, checked_name
from holdfast.wire.errors import Missing, Refused, RetryError, Unavailable
from holdfast.wire.limits import JOIN_TOKEN_S
from holdfast.wire.tokens import Kind, Place


def token(cluster: Cluster, *, life_s: float = JOIN_TOKEN_S, node: str | None = None) -> str:
    """A join token of a cluster that was made here and runs. `Missing`: it is another's."""
    if not cluster.is_home:
        raise Missing(
            f"{cluster.folder} cannot make tokens",
            why="it has joined a cluster that was made elsewhere",
            fix="run holdfast token on the machine where the cluster was made",
        )
    doors = tuple(
        str(one.facts["door"])
        for one in registered(cluster)
        if one.kind == COORDINATOR and one.facts.get("door")
    )
    if not doors:
        raise Unavailable(
            "no coordinator runs here",
            why="a machine that joins asks one for its certificate",
            fix="holdfast up",
        )
    place = Place(doors, cluster.coordination_for_others, cluster.store)
    authority = Authority.open(cluster.authority_folder)
    return tokens.join_token(authority, life_s, node, place)


@dataclass(frozen=True, slots=True)
class Joined:
    """A node of a cluster that was made elsewhere, with its folder here."""

    cluster: Cluster
    node: str
    new: bool


def join(folder: Path, text: str, node: str | None = None) -> Joined:
    """Join this machine, with `folder` for everything of it: papers from a door, addresses from the
    token. A node that has joined already gets new papers.

    `Refused`: the token does not hold, or the folder belongs to another cluster. `Unavailable`: no
    door answers.
    """
    said = tokens.read(text)
    if said.kind is not Kind.JOIN or said.place is None:
        raise Refused(
            "this is not a token to join with",
            why="it does not say where the cluster is",
            fix="holdfast token, on a machine of the cluster",
        )
    name = checked_name("node", node or said.node or _own_name())
    folder = folder.expanduser().absolute()
    there = _there(folder)
    if there is not None and (there.is_home or there.name != said.cluster):
        raise Refused(
            f"{folder} is the folder of cluster {there.name!r}",
            why="one folder belongs to one cluster, and the one where it was made does not join",
            fix="give another folder: --cluster DIR",
        )
    _papers(folder / "wallet" / name, name, said.place.doors, text)
    if there is not None:
        wanted.begins(there)
        return Joined(there, name, new=False)
    listen = _own_address(said.place.doors[0])
    made = create(
        folder,
        name=said.cluster,
        coordination=said.place.coordination,
        store=said.place.store,
        listen=listen,
    )
    return Joined(made, name, new=True)


def _papers(folder: Path, node: str, doors: tuple[str, ...], text: str) -> None:
    """From the first door that answers. One that answers with a refusal speaks for all."""
    last: RetryError | None = None
    for door in doors:
        try:
            asyncio.run(wallet.join(folder, node, door, text))
        except RetryError as error:
            last = error
        else:
            return
    raise Unavailable(
        f"no coordinator of the cluster answers at {', '.join(doors)}",
        why=last.why if last is not None else "the token names none",
        fix="look whether it runs and can be reached from here; make a new token: holdfast token",
    ) from last


def _there(folder: Path) -> Cluster | None:
    try:
        return opened(folder)
    except Missing:
        return None


def _own_name() -> str:
    """This machine's name, as far as it can be a node's."""
    name = socket.gethostname().partition(".")[0]
    kept = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in name)
    return kept.strip("-_")[:63] or "node"


def _own_address(door: str) -> str:
    """Our address in the network in which that door is. Nothing is sent."""
    host, _, port = door.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host.strip("[]"), int(port)))
        found: str = probe.getsockname()[0]
        return found
