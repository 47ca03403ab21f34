"""Looking into a coordination plane, for people and their tools: what is under a path. Reads only.

Programs that decide something use the recipes; nothing is decided by what is seen here.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Final

from holdfast.coordination.session import Session
from holdfast.wire.errors import TerminalError, Usage
from holdfast.wire.names import SECRETS_PATH

# A tree on a terminal: beyond it nobody reads, and each node costs a round trip.
LISTED_NODES_MAX: Final = 10_000
# How much of a node's data a listing shows.
SHOWN_DATA_BYTES_MAX: Final = 80


@dataclass(frozen=True)
class ListedNode:
    """A node, with as much of its data as a person wants to see."""

    path: str
    children: int
    version: int
    czxid: int
    ephemeral: bool
    data_bytes: int
    data: str


def checked(path: str) -> str:
    """The path without a slash at its end; `Usage` if it is not absolute."""
    if not path.startswith("/"):
        raise Usage(f"{path!r} is not a path", fix=f"paths begin with a slash: /{path}")
    return path.rstrip("/") or "/"


def round_trip_s(session: Session) -> float:
    """How long one question takes that reaches the ensemble's leader."""
    before_s = time.perf_counter()
    session.nodes.read("/", fresh=True)
    return time.perf_counter() - before_s


def names(session: Session, path: str, *, empty: bool = True) -> list[str]:
    """What is right below a path; nothing if there is no such node. Without those that are `empty`:
    they were made for what was to be below them, and may have outlived it."""
    found = session.nodes.children(path)
    if empty:
        return found
    read = {name: session.nodes.read(f"{path}/{name}") for name in found}
    return [name for name, node in read.items() if node is not None and node.data]


def below(session: Session, path: str, *, depth: int) -> tuple[list[ListedNode], bool]:
    """The node at `path` and what is below it, parents first; whether the bound cut it short."""
    found: list[ListedNode] = []
    waiting = deque([(path, 0)])
    while waiting:
        here, level = waiting.popleft()
        node = session.nodes.read(here)
        if node is None:
            if here == path:
                raise TerminalError(
                    f"there is no node {path}",
                    why="nobody has made it, or it has been removed",
                    fix="holdfast coord tree /",
                )
            continue  # removed since its parent was listed
        names = sorted(session.nodes.children(here))
        found.append(
            ListedNode(
                here,
                len(names),
                node.version,
                node.czxid,
                bool(node.owner),
                len(node.data),
                "(hidden)" if f"{SECRETS_PATH}/" in here else _text(node.data),
            )
        )
        if level < depth:
            if len(found) + len(waiting) + len(names) > LISTED_NODES_MAX:
                return sorted(found, key=_parts), True
            waiting.extend((f"{here.rstrip('/')}/{name}", level + 1) for name in names)
    return sorted(found, key=_parts), False


def _parts(seen: ListedNode) -> list[str]:
    """Depth first: a node directly before what is below it."""
    return [part for part in seen.path.split("/") if part]


def _text(data: bytes) -> str:
    shown = data[:SHOWN_DATA_BYTES_MAX]
    text = shown.decode(errors="replace")
    more = "…" if len(data) > len(shown) else ""
    return "".join(letter if letter.isprintable() else "·" for letter in text) + more
