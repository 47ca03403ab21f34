"""What earlier versions called otherwise, moved to its present name once: `holdfast migrate`.

    /holdfast/jobs/JOB/asked            -> audit
    /holdfast/services/SERVICE/asked    -> audit
    /holdfast/services/SERVICE/course   -> plan
    /holdfast/conductor                 -> rollout-controller, with its term
    wallet/NODE/papers.json             -> credentials/NODE/credentials.json
    wanted.json                            conductors are controllers

The cluster is down meanwhile; `holdfast.launch.migrating` sees to that. Each move is one
transaction or one rename, so after a kill the next run goes on where this one was; what is moved is
passed over. The last step in the plane is the node `LAYOUT_PATH`, the last one in a folder the
format in its `cluster.json`: before that, nothing of this version opens it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.cluster.folder import CREDENTIALS_NAME, Cluster, is_of_older, mark_migrated
from holdfast.coordination import Fact, Facts, Session, stamps
from holdfast.supervise import wanted
from holdfast.system import disk
from holdfast.wire.errors import Conflict, Corrupt, Refused
from holdfast.wire.names import (
    AUDIT_NAME,
    GATEWAYS_PATH,
    JOBS_PATH,
    LEADER_PATH,
    NODES_PATH,
    PLAN_NAME,
    REPLICAS_NAME,
    ROLLOUT_CONTROLLER_PATH,
    SERVICES_PATH,
)

LAYOUT: Final = 2
LAYOUT_PATH: Final = "/holdfast/layout"
# Nodes that are moved in one transaction: some hundred bytes each, a few kilobytes at most.
MOVES_AT_ONCE: Final = 50
# Writes of one transaction with which a term is brought to its number.
_TERMS_AT_ONCE: Final = 200

_ASKED: Final = "asked"
_COURSE: Final = "course"
_CONDUCTOR_PATH: Final = "/holdfast/conductor"
_CANDIDATES: Final = "candidates"
_TERM: Final = "term"

Progress = Callable[[int, int], None]  # how many nodes are moved, of how many


@dataclass(frozen=True, slots=True)
class _NodeMove:
    """A node, its new path, and what becomes of its value."""

    path: str
    to: str
    rewrite: Callable[[str, bytes], bytes]


# --- whether there is something to do ------------------------------------------------------------


def check_plane(session: Session) -> None:
    """`Refused` if the plane of this session has the names of an earlier version, or of a later
    one. A new one is marked as ours."""
    found = _layout(session)
    if found == LAYOUT:
        return
    if found is not None:
        raise Refused(
            f"the coordination plane has layout {found}, and this version knows {LAYOUT}",
            why="a later version of holdfast has migrated it",
            fix="upgrade holdfast on this machine",
        )
    if _has_older_names(session):
        raise Refused(
            "the coordination plane is of an earlier version, and was not migrated yet",
            why="znodes have other names since; they are moved once, with the cluster down",
            fix="holdfast down on every machine, then holdfast migrate on each, then holdfast up",
        )
    _mark_plane(session)


def _layout(session: Session) -> int | None:
    node = session.nodes.read(LAYOUT_PATH, fresh=True)
    if node is None:
        return None
    try:
        return int(json.loads(node.data)["layout"])
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"{LAYOUT_PATH} does not hold a layout", why=str(error), fix="restore it from a backup"
        ) from error


def _has_older_names(session: Session) -> bool:
    """By the last job and the last service, which are moved last."""
    nodes = session.nodes
    if nodes.read(_CONDUCTOR_PATH) is not None:
        return True
    for top, names in ((JOBS_PATH, {_ASKED}), (SERVICES_PATH, {_ASKED, _COURSE})):
        known = sorted(nodes.children(top))
        if known and names & set(nodes.children(f"{top}/{known[-1]}")):
            return True
    return False


def _mark_plane(session: Session) -> None:
    session.nodes.ensure(LAYOUT_PATH.rpartition("/")[0])
    try:
        session.nodes.create(LAYOUT_PATH, json.dumps({"layout": LAYOUT}).encode())
    except Conflict:
        if _layout(session) != LAYOUT:
            raise


def living(session: Session) -> list[str]:
    """Who has a session with the plane as a part of the cluster, in any version."""
    nodes, found = session.nodes, []
    for path in (LEADER_PATH, _CONDUCTOR_PATH, ROLLOUT_CONTROLLER_PATH):
        for name in sorted(nodes.children(f"{path}/{_CANDIDATES}", fresh=True)):
            node = nodes.read(f"{path}/{_CANDIDATES}/{name}")
            kind = "coordinator" if path == LEADER_PATH else "rollout controller"
            if node is not None:
                found.append(f"{kind} {_name_in(node.data) or name}")
    for path, kind in ((NODES_PATH, "agent"), (GATEWAYS_PATH, "gateway")):
        found += [f"{kind} {name}" for name in sorted(nodes.children(path, fresh=True))]
    for service in sorted(nodes.children(SERVICES_PATH)):
        replicas = nodes.children(f"{SERVICES_PATH}/{service}/{REPLICAS_NAME}", fresh=True)
        found += [f"replica {name} of {service}" for name in sorted(replicas)]
    return found


def _name_in(data: bytes) -> str:
    try:
        return str(json.loads(data)["name"])
    except (ValueError, KeyError, TypeError):
        return ""


# --- the plane -----------------------------------------------------------------------------------


def migrate_plane(
    session: Session, progress: Progress = lambda _done, _all: None, at_once: int = MOVES_AT_ONCE
) -> int:
    """Move what has an older name; how many nodes that were."""
    if _layout(session) is not None:
        check_plane(session)
        return 0
    facts, done = Facts(session), 0
    moves = list(_moves(facts))
    has_election = session.nodes.read(_CONDUCTOR_PATH) is not None
    everything = len(moves) + has_election
    for start in range(0, len(moves), at_once):
        some = moves[start : start + at_once]
        _move(facts, some)
        done += len(some)
        progress(done, everything)
    if has_election:
        _move_election(session, facts)
        done += 1
        progress(done, everything)
    _mark_plane(session)
    return done


def _moves(facts: Facts) -> Iterator[_NodeMove]:
    for top, names in (
        (JOBS_PATH, {_ASKED: (AUDIT_NAME, _job_audit)}),
        (SERVICES_PATH, {_ASKED: (AUDIT_NAME, _as_it_is), _COURSE: (PLAN_NAME, _as_it_is)}),
    ):
        for name in facts.names(top):
            below = set(facts.names(f"{top}/{name}"))
            for old, (new, rewrite) in names.items():
                if old in below:
                    yield _NodeMove(f"{top}/{name}/{old}", f"{top}/{name}/{new}", rewrite)


def _as_it_is(_path: str, data: bytes) -> bytes:
    return data


def _job_audit(path: str, data: bytes) -> bytes:
    """What users asked of a job, with its rows under the name that they have in a service's."""
    stamped = stamps.decoded(path, data)
    plain: Any = stamped.value
    if isinstance(plain, dict) and _ASKED in plain:
        plain = {("entries" if key == _ASKED else key): value for key, value in plain.items()}
    return stamped._replace(value=plain).encoded(path)


def _move(facts: Facts, moves: list[_NodeMove]) -> None:
    """All of them in one transaction."""
    found = facts.read_all([move.path for move in moves])
    there = facts.read_all([move.to for move in moves])

    def happened() -> bool:
        return len(facts.read_all([move.to for move in moves])) == len(moves)

    transaction = facts.transaction(happened)
    for move in moves:
        fact = found.get(move.path)
        if fact is None:
            continue
        data = move.rewrite(move.path, fact.data)
        if move.to in there:
            _check_same(move, data, there[move.to])
        else:
            transaction.create(move.to, data)
        transaction.remove(move.path, fact.version)
    transaction.commit()


def _check_same(move: _NodeMove, data: bytes, there: Fact) -> None:
    if there.data != data:
        raise Conflict(
            f"{move.path} cannot be moved: {move.to} is there, and holds something else",
            why="an earlier and a later version have both written to this plane",
            fix=f"remove the one that is not wanted (zkCli: delete {move.path}), then run it again",
        )


def _move_election(session: Session, facts: Facts) -> None:
    """The election of rollout controllers, with its term: that is the version of its node, and only
    grows."""
    nodes = session.nodes
    nodes.ensure(f"{ROLLOUT_CONTROLLER_PATH}/{_CANDIDATES}")
    old, new = f"{_CONDUCTOR_PATH}/{_TERM}", f"{ROLLOUT_CONTROLLER_PATH}/{_TERM}"
    term = facts.read(old, fresh=True)
    if term is not None:
        while True:
            now = facts.read(new, fresh=True)
            if now is None:
                nodes.create(new, term.data)
                continue
            if now.version >= term.version:
                break
            _raise_version(facts, new, now, min(term.version - now.version, _TERMS_AT_ONCE))
        nodes.delete(old)
    nodes.delete(f"{_CONDUCTOR_PATH}/{_CANDIDATES}")
    nodes.delete(_CONDUCTOR_PATH)


def _raise_version(facts: Facts, path: str, now: Fact, by: int) -> None:
    wanted_version = now.version + by

    def happened() -> bool:
        fact = facts.read(path, fresh=True)
        return fact is not None and fact.version == wanted_version

    transaction = facts.transaction(happened)
    for version in range(now.version, wanted_version):
        transaction.replace(path, now.data, version)
    transaction.commit()


# --- a folder ------------------------------------------------------------------------------------


def migrate_folder(cluster: Cluster) -> list[str]:
    """Give what lies in this folder its present names; what was moved, for people."""
    if not is_of_older(cluster):
        return []
    top, moved = cluster.folder, []
    if (top / "wallet").is_dir():
        # Durable with `cluster.json`, which lies beside it and is written last.
        (top / "wallet").rename(top / CREDENTIALS_NAME)
        moved.append(f"wallet -> {CREDENTIALS_NAME}")
    for papers in sorted((top / CREDENTIALS_NAME).glob("*/papers.json")):
        disk.replace_durably(papers.with_name("credentials.json"), papers.read_bytes())
        papers.unlink()
        moved.append(f"{papers.name} -> credentials.json")
    moved += _migrate_wanted(top)
    for record in sorted(cluster.run_folder.glob("conductor-*")):
        record.unlink(missing_ok=True)  # of a process that has ended
    mark_migrated(cluster)
    return [*moved, "cluster.json"]


def _migrate_wanted(folder: Path) -> list[str]:
    """What was wanted is started by the modules and under the kinds of this version."""
    path = folder / wanted.FILE
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    found = text.replace("holdfast.serve.conductor", "holdfast.serve.controller")
    found = found.replace('"conductor', '"controller')
    if found == text:
        return []
    disk.replace_durably(path, found.encode())
    return [wanted.FILE]
