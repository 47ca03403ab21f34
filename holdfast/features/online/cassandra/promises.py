"""Whether the ring, as it is set up, keeps what a strong table promises."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import cassandra
from cassandra.query import SimpleStatement

from holdfast.features.online.cassandra import failures, statements
from holdfast.features.online.cassandra.connection import Ring
from holdfast.features.table import Level, Table
from holdfast.wire.errors import Refused, Unavailable

# One of them may die, and a majority is left.
COPIES_MIN: Final = 3
SETTINGS_S: Final = 5.0
# How a node's answer means that the row is on its disk.
SYNCED: Final = ("batch", "group")
# A node of this kind goes on without what was on a disk that it lost, and counts as a copy.
_GOES_ON: Final = "best_effort"
_EVENTUAL: Final = "or make the table eventual"

_log = logging.getLogger(__name__)


def check_home(table: Table, centers: Mapping[str, int]) -> None:
    """`Refused`: the table's home is no data center of the ring."""
    if table.home is not None and table.home not in centers:
        raise Refused(
            f"table {table.name!r} cannot be kept here",
            why=f"its home is {table.home!r}, and the ring has {', '.join(sorted(centers))}",
            fix=f"write home={sorted(centers)[0]!r}, for example",
        )


def check_copies(table: Table, copies: Mapping[str, int], centers: Mapping[str, int]) -> None:
    """`Refused`: fewer copies than the death of one node leaves a majority of. A ring of one node
    may have one copy; that is told, once for each table."""
    if table.write_level is not Level.STRONG:
        return
    route = statements.route_of(table, Level.STRONG)
    counted = {route.center: copies.get(route.center, 0)} if route.center else dict(copies)
    held = sum(counted.values())
    if held >= COPIES_MIN:
        return
    where = f" in {route.center}" if route.center else ""
    if sum(centers.values()) == 1 and held == 1:
        _log.warning(
            "table %r has one copy, on the only node: it is as durable as that node's disk",
            table.name,
        )
        return
    keyspace = f"the keyspace of {table.copies} copies has {held}{where}"
    raise Refused(
        f"strong table {table.name!r} cannot be kept here",
        why=f"{keyspace}: with less than {COPIES_MIN} a majority is all of them, or is not there"
        " when a node dies",
        fix=f"write copies={COPIES_MIN}, let the data center have so many nodes; a keyspace that is"
        f" there gets more by ALTER KEYSPACE and `nodetool repair -full`; {_EVENTUAL}",
    )


def warn_of_copies(
    table: Table, keyspace: str, copies: Mapping[str, int] | None, centers: Mapping[str, int]
) -> None:
    """Tell of data centers with fewer copies than the table asks for. `copies`: of the keyspace, if
    it is there."""
    for center, count in sorted(centers.items()):
        possible = min(table.copies, count)
        held = possible if copies is None else copies.get(center, 0)
        if held < possible:
            _log.warning(
                "keyspace %s has %d copies in %s, and could have %d: ALTER KEYSPACE gives it more,"
                " and `nodetool repair -full %s` their rows (`rebuild`, where there were none)",
                *(keyspace, held, center, possible, keyspace),
            )
        elif held < table.copies:
            _log.warning(
                "table %r asks for %d copies; %s has %d nodes, and so many copies",
                *(table.name, table.copies, center, count),
            )


def check_settings(ring: Ring, table: Table) -> None:
    """`Refused`: a node answers before its disk has the row, or ties would not be decided as all
    engines do. A node that does not answer is told of: it is not known how it is set."""
    if table.write_level is not Level.STRONG:
        return
    what = f"strong table {table.name!r} cannot be kept here"
    if not ring.takes_clock and table.ttl_s is not None:
        raise Refused(
            what,
            why="it has a ttl, and these servers speak no protocol 5: of two rows of one time they"
            " would keep the one that was written later",
            fix=f"take Cassandra 4.0 or newer, leave ttl out, {_EVENTUAL}",
        )
    settings = _settings(ring, table, what)
    silent = sorted(name for name, found in settings.items() if found is None)
    if len(silent) == len(settings):
        raise Unavailable(what, why="no node says how it is set", fix="look whether the nodes run")
    if silent:
        _log.warning(
            "table %r: %s did not say whether it syncs what it acknowledges",
            table.name,
            ", ".join(silent),
        )
    for name, found in sorted(settings.items()):
        if found is not None:
            _check_node(name, found, what)


def check_read_repair(table: Table, read_repair: str) -> None:
    """`Refused`: two strong reads could see a row come and go."""
    if table.write_level is Level.STRONG and read_repair.upper() != "BLOCKING":
        raise Refused(
            f"strong table {table.name!r} cannot be kept here",
            why=f"its read_repair is {read_repair}: a read would not leave a majority with what it"
            " has seen",
            fix=f"ALTER TABLE … WITH read_repair = 'BLOCKING'; {_EVENTUAL}",
        )


# --- private --------------------------------------------------------------------------------------


def _check_node(name: str, found: Mapping[str, str], what: str) -> None:
    sync = found.get("commitlog_sync", "not known")
    if sync not in SYNCED:
        raise Refused(
            what,
            why=f"commitlog_sync is {sync} at {name}: it acknowledges what a crash would lose",
            fix="set commitlog_sync: batch (or group) in cassandra.yaml of every node; "
            + _EVENTUAL,
        )
    if found.get("disk_failure_policy") == _GOES_ON:
        raise Refused(
            what,
            why=f"disk_failure_policy is {_GOES_ON} at {name}: after the loss of a disk it counts"
            " as a copy without what was there",
            fix=f"set disk_failure_policy: stop (or die) in cassandra.yaml; {_EVENTUAL}",
        )


def _settings(ring: Ring, table: Table, what: str) -> dict[str, dict[str, str] | None]:
    """What each node that counts for the table says of itself; None where it does not answer."""
    asked = SimpleStatement(
        "SELECT name, value FROM system_views.settings"
        " WHERE name IN ('commitlog_sync', 'disk_failure_policy')"
    )
    ring.reached()
    hosts = [host for host in ring.hosts() if table.home in (None, host.datacenter)]
    futures = {
        str(host.endpoint): ring.session.execute_async(asked, timeout=SETTINGS_S, host=host)
        for host in hosts
    }
    return {name: _answer(future, what) for name, future in futures.items()}


def _answer(future: Any, what: str) -> dict[str, str] | None:
    try:
        return {str(name): str(value).lower() for name, value in future.result()}
    except (cassandra.Unauthorized, cassandra.InvalidRequest) as error:
        reason = failures.translate(error, what).why
        raise Refused(
            what,
            why=f"the nodes cannot be asked whether they sync what they acknowledge: {reason}",
            fix=f"GRANT SELECT ON KEYSPACE system_views TO the address' user; {_EVENTUAL}",
        ) from error
    except Exception as error:
        _log.debug("a node does not say how it is set: %s", error)
        return None
