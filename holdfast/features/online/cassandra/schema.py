"""Keyspaces and tables, made and removed.

All statements that change the schema go to one node, the same for all who ask: two nodes that make
one table at the same time make two, and lose the rows of one (CASSANDRA-10699). While processes
disagree about which nodes run this does not help, so callers serialise `prepare` and `forget`; the
coordinator of the cluster does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, Final

from cassandra.query import SimpleStatement

from holdfast.features.online.cassandra import failures, statements
from holdfast.features.online.cassandra.connection import AGREE_S, Ring
from holdfast.features.table import Table
from holdfast.wire.errors import Conflict, HoldfastError, Refused, TimedOut, Unavailable

# Making a table syncs files on every node.
CHANGE_S: Final = 30.0
PAUSE_S: Final = 0.05
_TABLE: Final = (
    "SELECT read_repair FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
)
_COLUMNS: Final = (
    "SELECT column_name, type, kind FROM system_schema.columns"
    " WHERE keyspace_name = %s AND table_name = %s"
)
_TOPOLOGY: Final = "NetworkTopologyStrategy"

_log = logging.getLogger(__name__)


def replication_of(ring: Ring, keyspace: str, what: str) -> dict[str, int] | None:
    """How many copies each data center has; None: there is no such keyspace. `Refused`: it is kept
    in a way in which nothing can be promised."""
    rows = ask(
        ring,
        "SELECT replication, durable_writes FROM system_schema.keyspaces WHERE keyspace_name = %s",
        (keyspace,),
        what,
    )
    if not rows:
        return None
    found, durable = dict(rows[0][0]), rows[0][1]
    strategy = found.pop("class").rpartition(".")[2]
    if strategy != _TOPOLOGY or not all(count.isdigit() for count in found.values()):
        raise Refused(
            what,
            why=f"the keyspace {keyspace} is replicated by {strategy} {found or ''}".rstrip(),
            fix=f"ALTER KEYSPACE {keyspace} WITH replication = {{'class': '{_TOPOLOGY}', …}}, or"
            " another keyspace= in the address",
        )
    if not durable:
        raise Refused(
            what,
            why=f"keyspace {keyspace} has durable_writes = false: its writes are only in memory",
            fix=f"ALTER KEYSPACE {keyspace} WITH durable_writes = true",
        )
    return {center: int(count) for center, count in found.items()}


def read_repair_of(ring: Ring, keyspace: str, table: str, what: str) -> str | None:
    """How a table repairs what it reads; None: there is no such table. `Conflict`: it is somebody
    else's."""
    named = (keyspace, table)
    found = ask(ring, _TABLE, named, what)
    if not found:
        return None
    rows = ask(ring, _COLUMNS, named, what)
    if sorted(rows) != [("key", "blob", "partition_key"), ("row", "blob", "regular")]:
        raise Conflict(
            what,
            why=f"{keyspace}.{table} is there, and was not made by Holdfast",
            fix="call the table otherwise, or write another keyspace= in the address",
        )
    return str(found[0][0])


def make_keyspace(ring: Ring, keyspace: str, replication: Mapping[str, int], what: str) -> None:
    text = statements.create_keyspace(keyspace, replication)
    try:
        _change(ring, text, what)
    except Refused as error:
        if "CREATE" not in error.why:
            raise
        raise Refused(
            what,
            why=error.why,
            fix=f"let an administrator run: {text}; and GRANT ALL ON KEYSPACE {keyspace} TO"
            " the address' user",
        ) from error


def make_table(ring: Ring, keyspace: str, table: str, what: str) -> None:
    _change(ring, statements.create_table(keyspace, table), what)


def remove_table(ring: Ring, keyspace: str, table: Table) -> None:
    what = f"table {table.name!r} cannot be removed"
    if read_repair_of(ring, keyspace, table.name, what) is not None:
        _change(ring, statements.drop_table(keyspace, table.name), what)


def ask(ring: Ring, text: str, given: tuple[Any, ...], what: str) -> list[Any]:
    """A question to the node that changes the schema: it knows what it has changed."""
    try:
        answer = ring.session.execute(
            SimpleStatement(text), given, timeout=ring.answer_s, host=_changing(ring, what)
        )
        return list(answer)
    except Exception as error:
        raise failures.translate(error, what) from error


def wait_until_agreed(ring: Ring, what: str) -> None:
    """Return when all nodes that run have the same tables."""
    until_s = time.monotonic() + AGREE_S
    while True:
        versions = _versions(ring)
        if versions and len(set(versions.values())) == 1 and None not in versions.values():
            return
        if time.monotonic() > until_s:
            silent = [host for host, version in versions.items() if version is None]
            raise TimedOut(
                what,
                why=f"{', '.join(silent)} did not answer within {AGREE_S:g} s"
                if silent
                else f"the nodes do not agree on their tables within {AGREE_S:g} s",
                fix="`nodetool describecluster` shows which do not; then do it again",
            )
        time.sleep(PAUSE_S)


# --- private --------------------------------------------------------------------------------------


def _changing(ring: Ring, what: str) -> Any:
    """The node that changes the schema: of those that run the one with the least id."""
    running = ring.reached()
    if not running:
        raise Unavailable(what, why="no node can be reached", fix="look whether the nodes run")
    return min(running, key=lambda host: str(host.host_id))


def _change(ring: Ring, text: str, what: str) -> None:
    try:
        host = _changing(ring, what)
        ring.session.execute(SimpleStatement(text), timeout=CHANGE_S, host=host)
    except HoldfastError:
        raise
    except Exception as error:
        raise failures.translate(error, what) from error


def _versions(ring: Ring) -> dict[str, Any]:
    """Of each node that runs the version of its tables; None where it does not answer."""
    asked = SimpleStatement("SELECT schema_version FROM system.local")
    futures = {
        str(host.endpoint): ring.session.execute_async(asked, timeout=AGREE_S, host=host)
        for host in ring.reached()
    }
    found: dict[str, Any] = {}
    for name, future in futures.items():
        try:
            found[name] = future.result().one()[0]
        except Exception as error:
            _log.debug("%s says no version of its tables: %s", name, error)
            found[name] = None
    return found
