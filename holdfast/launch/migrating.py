"""`holdfast migrate`: the cluster of an earlier version, brought to this one while it is down."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.agent import leftovers
from holdfast.cluster import Cluster, migration
from holdfast.cluster import processes as registered
from holdfast.coordination import Session
from holdfast.coordination import launch as servers
from holdfast.launch import ending, wanted
from holdfast.launch.processes import alone, server_of
from holdfast.wire.errors import Occupied

# Sessions of processes that were killed end by themselves, soon after the time-out that they had.
SESSIONS_END_S: Final = 60.0
_LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Migrated:
    """What was moved: nodes of the coordination plane, and names in this folder. Nothing, if it
    was migrated before."""

    folder: Path
    nodes: int
    files: tuple[str, ...]


def migrate(
    cluster: Cluster,
    *,
    look: Callable[[str], None] = lambda _what: None,
    patience_s: float = SESSIONS_END_S,
    at_once: int = migration.MOVES_AT_ONCE,
) -> Migrated:
    """Give everything its present name. `Occupied`: a part of the cluster lives, here or on another
    machine. `look` is told how far it is. To be called again at any time, also after a kill."""

    def progress(done: int, everything: int) -> None:
        look(f"moved {done} of {everything} nodes")

    with alone(cluster, lambda what: look(f"waiting for {what}")):
        _check_nobody_here(cluster)
        with _plane(cluster) as session:
            _await_nobody(session, look, patience_s)
            nodes = migration.migrate_plane(session, progress, at_once)
        files = migration.migrate_folder(cluster)
    return Migrated(cluster.folder, nodes, tuple(files))


@contextmanager
def _plane(cluster: Cluster) -> Iterator[Session]:
    """A session with the plane. An embedded server that has to be started for it is ended after
    it, and stays ended if `down` had ended it."""
    folder, server = wanted.server_folder(cluster), server_of(cluster)
    was_forbidden = folder is not None and servers.forbidden(folder)
    if folder is not None:
        servers.allow(folder)
    try:
        with cluster.session() as session:
            yield session
    finally:
        if was_forbidden:
            wanted.ends(cluster)
        made = server_of(cluster) if server is None else None
        if made is not None:
            ending.end(made)


def _check_nobody_here(cluster: Cluster) -> None:
    found = [f"{one.kind} {one.name}" for one in registered(cluster)]
    for home in ending.homes(cluster):
        found += [f"a worker of {home.name}" for _ in leftovers.living(home)]
    if found:
        raise _lives(cluster, found)


def _await_nobody(session: Session, look: Callable[[str], None], patience_s: float) -> None:
    """The sessions of those who were killed end by themselves; those of the living do not."""
    until_s = time.monotonic() + patience_s
    while found := migration.living(session):
        if time.monotonic() > until_s:
            raise _lives(None, found)
        look(f"waiting for the sessions of {_listed(found)} to end")
        time.sleep(_LOOK_S)


def _lives(cluster: Cluster | None, found: list[str]) -> Occupied:
    where = "on this machine" if cluster is not None else "by the coordination plane"
    command = (
        f"holdfast down --cluster {cluster.folder}" if cluster is not None else "holdfast down"
    )
    machines = "" if cluster is not None else " on every machine of the cluster"
    return Occupied(
        f"the cluster is not down: {_listed(found)}",
        why=f"they live {where}, and would not find what is moved",
        fix=f"{command}{machines}, then run it again",
    )


def _listed(found: list[str]) -> str:
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return ", ".join(found[:5]) + more
