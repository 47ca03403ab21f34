"""How each node is; and whether it has what it said it has.

A node that comes back without its rows, under its old name, answers as a copy that never had any:
two of three copies are then a majority without the rows that were on it and on one other. Cassandra
itself does not let a node back whose whole disk is gone ("A node with address … already exists").
It does let one back that lost one of its disks, or whose files were put back from an old copy, and
one that joined without taking over its part.

So each keyspace has rows that all copies have acknowledged, some for each node, and a list of them:
a node that runs, has to have one of them, and answers without it, is "empty". It is "up" again when
a repair has brought them, and with them all other rows. What this does not see: rows that are lost
while those of the list are kept, as with a commit log that is gone while older files are there.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import cassandra
from cassandra import ConsistencyLevel
from cassandra.query import SimpleStatement

from holdfast.features.online.cassandra import schema, statements
from holdfast.features.online.cassandra.connection import Ring

UP: Final = "up"
DOWN: Final = "down"
EMPTY: Final = "empty"
JOINING: Final = "joining"
LEAVING: Final = "leaving"

# For each node, of those rows for which it is the first.
WITNESSES: Final = 4
# So many keys are tried before some node goes without: it has a tiny part of the ring.
TRIES_A_NODE: Final = 200
LOOK_S: Final = 3.0
# A node that is asked for a row at ONE reads it from its own files, unless it finds that another
# is much quicker: so it is asked some times. Without the row: that is sure.
LOOKS: Final = 3
_LIST_KEY: Final = b"list"
_GOSSIP: Final = {"BOOT": JOINING, "BOOT_REPLACE": JOINING, "LEAVING": LEAVING, "MOVING": JOINING}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CassandraNode:
    """A node: where it is, Cassandra's own id of it, and its state: "up", "down", "joining",
    "leaving" or "empty"."""

    address: str
    data_center: str
    host_id: str
    state: str


def look(ring: Ring, base: str) -> tuple[CassandraNode, ...]:
    """All nodes of the ring, as this process finds them now."""
    ring.reached()
    hosts = ring.hosts()
    answers = _ask_each(
        ring, {host: SimpleStatement("SELECT host_id FROM system.local") for host in hosts}
    )
    running = [host for host in hosts if answers[host]]
    gossip = _gossip(ring, running)
    empty = {
        host
        for keyspace in _keyspaces(ring, base)
        for host in _without(ring, keyspace, running, _witnesses(ring, keyspace))
    }
    found = []
    for host in hosts:
        address = str(host.endpoint)
        state = gossip.pop(address, UP) if host in running else DOWN
        state = EMPTY if host in empty else state
        found.append(CassandraNode(address, str(host.datacenter), str(host.host_id), state=state))
    coming = [CassandraNode(name, "", "", state) for name, state in gossip.items() if state != UP]
    return (*found, *sorted(coming, key=lambda node: node.address))


def trouble_of(nodes: Sequence[CassandraNode], near: str) -> str:
    """What is wrong with them, in a sentence, or nothing."""
    by_state: dict[str, list[str]] = {}
    for node in nodes:
        by_state.setdefault(node.state, []).append(node.address)
    told = []
    if down := by_state.get(DOWN):
        told.append(f"{', '.join(down)} {'does' if len(down) == 1 else 'do'} not answer")
    if empty := by_state.get(EMPTY):
        told.append(
            f"{', '.join(empty)} came back without rows that it had: stop it, or run `nodetool"
            " repair -full` there before it counts as a copy"
        )
    if all(node.state == DOWN for node in nodes if node.data_center == near) and len(nodes) > len(
        down or ()
    ):
        told.append(f"the data center {near} is away: eventual reads are answered by others")
    return "; ".join(told)


def make_table(ring: Ring, keyspace: str, what: str) -> None:
    """Where the rows will be by which an empty node is known."""
    if schema.read_repair_of(ring, keyspace, statements.NODES, what) is None:
        schema.make_table(ring, keyspace, statements.NODES, what)


def make_rows(ring: Ring, keyspace: str) -> None:
    """Make these rows for nodes that have none yet. Not while a node is away, or is empty: all
    copies have to acknowledge them. Then a later call does it."""
    known = _witnesses(ring, keyspace)
    hosts = ring.hosts()
    if known is None or ring.reached() != hosts:
        return
    made = _chosen(ring, keyspace, known)
    if not made or _without(ring, keyspace, hosts, known):
        return
    write = statements.statements(keyspace, statements.NODES).write
    listed = json.dumps(sorted(key.decode() for key in {*known, *made})).encode()
    try:
        prepared = ring.session.prepare(write)
        prepared.consistency_level = ConsistencyLevel.ALL
        # The time of a write of the list is the number of what it has: a longer one stays.
        for key, row in [*((key, b"here") for key in sorted(made)), (_LIST_KEY, listed)]:
            given = (len(known) + len(made), 0, row, key)
            ring.session.execute(prepared, given, timeout=ring.answer_s)
    except Exception as error:  # the next one does it
        _log.debug("%s: not all of %d nodes have acknowledged: %s", keyspace, len(hosts), error)


# --- private --------------------------------------------------------------------------------------


def _chosen(ring: Ring, keyspace: str, known: set[bytes]) -> set[bytes]:
    """More keys, so that each node is the first for enough of them."""
    metadata = ring.metadata
    hosts = ring.hosts()
    missing = dict.fromkeys(hosts, WITNESSES)

    def first_for(key: bytes) -> Any:
        replicas = metadata.get_replicas(keyspace, key)
        return replicas[0] if replicas else None

    for key in known:
        host = first_for(key)
        if host in missing:
            missing[host] -= 1
    chosen: set[bytes] = set()
    for number in range(TRIES_A_NODE * len(hosts)):
        if all(count <= 0 for count in missing.values()):
            break
        key = b"node-%d" % number
        if key in known:
            continue
        host = first_for(key)
        if missing.get(host, 0) > 0:
            missing[host] -= 1
            chosen.add(key)
    return chosen


def _keyspaces(ring: Ring, base: str) -> list[str]:
    """Those of ours that have such rows."""
    found = ring.metadata.keyspaces
    return sorted(
        name
        for name in list(found)
        if statements.copies_of(base, name) is not None and statements.NODES in found[name].tables
    )


def _witnesses(ring: Ring, keyspace: str) -> set[bytes] | None:
    """The keys that all copies have acknowledged; None: the list cannot be read now."""
    name = statements.full_name(keyspace, statements.NODES)
    asked = SimpleStatement(
        f"SELECT row FROM {name} WHERE key = %s",  # noqa: S608 (names of ours)
        consistency_level=ConsistencyLevel.QUORUM,
    )
    try:
        found = ring.session.execute(asked, (_LIST_KEY,), timeout=LOOK_S).one()
        return {key.encode() for key in json.loads(found[0])} if found else set()
    except Exception as error:
        _log.debug("%s: the rows that all nodes have are not known: %s", keyspace, error)
        return None


def _without(
    ring: Ring, keyspace: str, hosts: Sequence[Any], keys: Iterable[bytes] | None
) -> set[Any]:
    """The nodes that answer without a row that they have acknowledged."""
    if not keys:
        return set()
    metadata = ring.metadata
    held: dict[Any, list[bytes]] = {}
    for key in sorted(keys):
        for host in metadata.get_replicas(keyspace, key):
            held.setdefault(host, []).append(key)
    name = statements.full_name(keyspace, statements.NODES)
    asked = {}
    for host in hosts:
        if host in held:
            text = ", ".join(f"0x{key.hex()}" for key in held[host])
            asked[host] = SimpleStatement(
                f"SELECT key FROM {name} WHERE key IN ({text})",  # noqa: S608 (names of ours)
                consistency_level=ConsistencyLevel.ONE,
            )
    empty = set()
    for _ in range(LOOKS):
        for host, rows in _ask_each(ring, asked).items():
            if rows is not None and len(rows) < len(held[host]):
                empty.add(host)
    return empty


def _ask_each(ring: Ring, asked: Mapping[Any, Any]) -> dict[Any, list[Any] | None]:
    """The answers of nodes that are asked themselves; None: it does not answer."""
    futures = {
        host: ring.session.execute_async(statement, timeout=LOOK_S, host=host)
        for host, statement in asked.items()
    }
    found: dict[Any, list[Any] | None] = {}
    for host, future in futures.items():
        try:
            found[host] = list(future.result())
        except Exception as error:
            _log.debug("%s: %s", host, error)
            found[host] = None
    return found


def _gossip(ring: Ring, running: Sequence[Any]) -> dict[str, str]:
    """Nodes that are on their way in or out, as one of the others has heard."""
    text = "SELECT native_address_and_port, status_with_port FROM system_views.gossip_info"
    for host in running:
        try:
            rows = ring.session.execute(SimpleStatement(text), timeout=LOOK_S, host=host)
        except (cassandra.Unauthorized, cassandra.InvalidRequest):
            return {}
        except Exception as error:
            _log.debug("%s: %s", host, error)
            continue
        heard = {str(name): _GOSSIP.get(str(status).split(",")[0]) for name, status in rows}
        return {name: state for name, state in heard.items() if state is not None}
    return {}
