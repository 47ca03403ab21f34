"""The newest rows of tables, in Cassandra.

Strong tables are kept by majorities: docs/decisions/0032. All statements of a call are sent at
once, to the nodes that have the rows; keys, and rows, of one node go together.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from cassandra import ConsistencyLevel
from cassandra.protocol import ProtocolException
from cassandra.query import BatchStatement, BatchType

from holdfast.features.address import FeaturesAddress
from holdfast.features.keys import KEY_BYTES_MAX
from holdfast.features.layout import HEADER_BYTES
from holdfast.features.online.cassandra import (
    expiry,
    failures,
    nodes,
    promises,
    schema,
    statements,
)
from holdfast.features.online.cassandra.connection import ANSWER_S, Ring
from holdfast.features.online.cassandra.nodes import CassandraNode
from holdfast.features.online.cassandra.routing import Owners
from holdfast.features.online.cassandra.waves import Sent, Waves
from holdfast.features.online.store import Asked, Found, StoreStatus
from holdfast.features.rows import Row, is_deleted
from holdfast.features.table import ROW_BYTES_MAX, Table
from holdfast.wire.errors import Conflict, HoldfastError, TooLarge, Usage

ENGINE: Final = "cassandra"
# Of one step of a scan. A row has at most 1 MiB, and Cassandra counts pages in rows.
SCAN_ROWS: Final = 256


class CassandraStore:
    """The newest rows, in a ring of Cassandra. Any thread may use it; a forked process opens one of
    its own."""

    def __init__(self, address: FeaturesAddress, answer_s: float = ANSWER_S) -> None:
        """`answer_s`: how long a statement may take, and how long one waits for its turn."""
        self._base = address.keyspace
        self._ring = Ring(address, answer_s)
        self._waves = Waves(self._ring)
        self._prepared: dict[tuple[str, str], Any] = {}
        self._preparing = threading.Lock()
        self._turns = itertools.count()

    # --- tables -----------------------------------------------------------------------------------

    def prepare(self, table: Table) -> None:
        """Make the table's keyspace and the table; twice is once, also in several processes at the
        same time while they see the same nodes. While nodes come and go callers take turns: see
        `schema`. Returns when all nodes that run know the table.

        A keyspace that is there stays as it is: more copies than it has are made by a person, with
        a repair, since a copy without rows would count at once.
        """
        what = f"table {table.name!r} cannot be prepared"
        ring = self._ring
        keyspace = statements.keyspace_of(self._base, table.copies)
        ring.session  # noqa: B018 (opened, or refused, before anything else is said)
        centers = ring.centers()
        promises.check_home(table, centers)
        promises.check_settings(ring, table)
        copies = schema.replication_of(ring, keyspace, what)
        wanted = statements.replication_for(table.copies, centers)
        promises.check_copies(table, wanted if copies is None else copies, centers)
        promises.warn_of_copies(table, keyspace, copies, centers)
        if copies is None:
            schema.make_keyspace(ring, keyspace, wanted, what)
        read_repair = schema.read_repair_of(ring, keyspace, table.name, what)
        if read_repair is None:
            schema.make_table(ring, keyspace, table.name, what)
        else:
            promises.check_read_repair(table, read_repair)
        nodes.make_table(ring, keyspace, what)
        schema.wait_until_agreed(ring, what)
        nodes.make_rows(ring, keyspace)

    def forget(self, table: Table) -> None:
        """Remove the table. Where `auto_snapshot` is on (the default) each node keeps its files
        until `nodetool clearsnapshot`."""
        keyspace = statements.keyspace_of(self._base, table.copies)
        what = f"table {table.name!r} cannot be removed"
        schema.remove_table(self._ring, keyspace, table)
        schema.wait_until_agreed(self._ring, what)

    # --- rows -------------------------------------------------------------------------------------

    def write(self, table: Table, rows: Sequence[Row]) -> list[bool]:
        """As the port has it. Cassandra does not say which row is the newest now: always True."""
        self._ring.check()
        _check_rows(table, rows)
        if rows:
            what = f"{len(rows)} rows of table {table.name!r} cannot be written"
            self._waves.run(self._writes(table, rows, what), what, writes=True)
        return [True] * len(rows)

    def read(self, asked: Sequence[Asked]) -> list[list[Found]]:
        self._ring.check()
        now_us = time.time_ns() // 1_000
        names = ", ".join(sorted({one.table.name for one in asked}))
        what = f"features cannot be read ({names})"
        sent: list[Sent] = []
        answers: list[tuple[int, Sequence[int]]] = []  # of which table, and of which keys
        for number, one in enumerate(asked):
            for places, statement in self._reads(one, what):
                sent.append(statement)
                answers.append((number, places))
        found: list[list[Found]] = [[None] * len(one.keys) for one in asked]
        results = self._waves.run(sent, what)
        for (number, places), result in zip(answers, results, strict=True):
            one, row_of = asked[number], dict(result.current_rows)
            oldest = statements.oldest(one.table, now_us)
            for place in places:
                row = row_of.get(one.keys[place])
                if row is not None and row >= oldest:
                    found[number][place] = row
        return found

    def scan(self, table: Table, after: bytes = b"") -> tuple[list[tuple[bytes, bytes]], bytes]:
        """As the port has it, as strongly as the table is written. A step may have no row and yet
        go on."""
        self._ring.check()
        what = f"table {table.name!r} cannot be gone over"
        keyspace = statements.keyspace_of(self._base, table.copies)
        statement = self._statement(keyspace, table.name, "scan", what).bind(())
        route = statements.route_of(table, table.write_level)
        statement.consistency_level = getattr(ConsistencyLevel, route.consistency)
        statement.fetch_size = SCAN_ROWS
        rows, after = self._page(statement, self._ring.profile(route.center), after, what)
        oldest = statements.oldest(table, time.time_ns() // 1_000)
        living = [(key, row) for key, row in rows if row is not None and row >= oldest]
        return living, after

    def purge(self, table: Table, older_s: float = statements.DELETED_KEPT_S) -> int:
        """Let go of rows that were deleted longer ago than this, in a table without a time to live,
        where they would stay for ever; how many there were. What is written for such a key with an
        older time, and so came later than that, is still covered until `gc_grace_seconds` are over,
        and comes back afterwards. In a table with a ttl there is nothing to do."""
        if statements.life_of(table) is not None:
            return 0
        what = f"deleted rows of table {table.name!r} cannot be let go"
        first_us = round((time.time() - older_s) * 1e6)
        count, after = 0, b""
        while True:
            rows, after = self.scan(table, after)
            old = [
                Row(key, row)
                for key, row in rows
                if is_deleted(row) and statements.timestamp_of(row) < first_us
            ]
            # The same row once more, with an end: of two equal ones the one that expires stays.
            self._waves.run(self._writes(table, old, what, ttl_s=1), what, writes=True)
            count += len(old)
            if not after:
                return count

    # --- the store --------------------------------------------------------------------------------

    def nodes(self) -> tuple[CassandraNode, ...]:
        """How each node of the ring is: see `nodes`."""
        what = "the nodes cannot be looked at"
        try:
            return nodes.look(self._ring, self._base)
        except Exception as error:
            raise failures.translate(error, what) from error

    def status(self) -> StoreStatus:
        try:
            found = self.nodes()
        except HoldfastError as error:
            return StoreStatus(ENGINE, (), error.sentence)
        trouble = nodes.trouble_of(found, self._ring.near)
        return StoreStatus(ENGINE, tuple((node.address, node.state) for node in found), trouble)

    def close(self) -> None:
        self._ring.close()

    # --- private ----------------------------------------------------------------------------------

    def _statement(self, keyspace: str, table: str, kind: str, what: str) -> Any:
        """A prepared statement of a table; each is prepared once."""
        found = self._prepared.get((keyspace, table))
        if found is None:
            session = self._ring.session
            with self._preparing:
                try:
                    made = [
                        session.prepare(text) for text in statements.statements(keyspace, table)
                    ]
                except Exception as error:
                    raise failures.translate(error, what) from error
                for one in made:
                    one.is_idempotent = True
                # Pages of keys would be read one key after the other.
                made[0].fetch_size = None
                found = self._prepared[keyspace, table] = statements.Statements(*made)
        return getattr(found, kind)

    def _reads(self, one: Asked, what: str) -> Iterable[tuple[Sequence[int], Sent]]:
        """The statements of one table, each with the places of its keys."""
        if not one.keys:
            return
        table = one.table
        keyspace = statements.keyspace_of(self._base, table.copies)
        prepared = self._statement(keyspace, table.name, "read", what)
        route = statements.route_of(table, one.level)
        profile = self._ring.profile(route.center)
        level = getattr(ConsistencyLevel, route.consistency)
        for owners, places in self._by_owner(keyspace, route.center, one.keys):
            for some in statements.chunks(places):
                # Each key once, however often it is asked for.
                bound = prepared.bind(([*dict.fromkeys(one.keys[place] for place in some)],))
                bound.consistency_level = level
                bound.owners = owners
                yield some, Sent(bound, profile)

    def _writes(
        self, table: Table, rows: Sequence[Row], what: str, ttl_s: int | None = None
    ) -> list[Sent]:
        """The statements of a write. `ttl_s`: how long the rows stay from now on, if not as long as
        their table says."""
        keyspace = statements.keyspace_of(self._base, table.copies)
        prepared = self._statement(keyspace, table.name, "write", what)
        route = statements.route_of(table, table.write_level)
        profile = self._ring.profile(route.center)
        level = getattr(ConsistencyLevel, route.consistency)
        life_s = statements.life_of(table)
        times = [statements.timestamp_of(row.data) for row in rows]
        ends = [statements.expiry_of(at_us, life_s) for at_us in times]
        if ttl_s is not None or not self._ring.takes_clock:
            now_s = int(time.time())
            ends = [
                statements.Expiry(None, ttl_s or statements.ttl_left(end, now_s)) for end in ends
            ]
        sizes = [len(row.data) + len(row.key) for row in rows]
        sent = []
        for owners, places in self._by_owner(keyspace, route.center, [row.key for row in rows]):
            by_clock: dict[int | None, list[int]] = {}
            for place in places:
                by_clock.setdefault(ends[place].clock_s, []).append(place)
            for clock_s, together in by_clock.items():
                for batch in statements.batches(together, sizes):
                    bound = [
                        prepared.bind((times[n], ends[n].ttl_s, rows[n].data, rows[n].key))
                        for n in batch
                    ]
                    statement = bound[0] if len(bound) == 1 else _batch(bound)
                    statement.consistency_level = level
                    statement.owners = owners
                    if clock_s is not None:
                        expiry.set_clock(statement, clock_s)
                    sent.append(Sent(statement, profile))
        return sent

    def _by_owner(
        self, keyspace: str, center: str | None, keys: Sequence[bytes]
    ) -> Iterable[tuple[tuple[Any, ...], list[int]]]:
        """The places of the keys, by the node that is asked first; with those asked after it."""
        near = center or self._ring.near
        owners = Owners(self._ring.metadata, keyspace, near, next(self._turns))
        found: dict[Any, tuple[tuple[Any, ...], list[int]]] = {}
        for place, key in enumerate(keys):
            having = owners.of(key)
            found.setdefault(having[:1], (having, []))[1].append(place)
        return found.values()

    def _page(
        self, statement: Any, profile: Any, after: bytes, what: str
    ) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """One step over a table, and where to go on."""
        session = self._ring.session
        try:
            result = session.execute(
                statement,
                timeout=self._ring.answer_s,
                execution_profile=profile,
                paging_state=after or None,
            )
        except Exception as error:
            if after and isinstance(error, ProtocolException):
                raise Conflict(what, why=str(error)[:500], fix="begin anew") from error
            raise failures.translate(error, what) from error
        return list(result.current_rows), result.paging_state or b""


def _batch(bound: Sequence[Any]) -> Any:
    """Rows of one node: not one change, only one message."""
    made = BatchStatement(BatchType.UNLOGGED)
    for one in bound:
        made.add(one)
    made.is_idempotent = True
    return made


def _check_rows(table: Table, rows: Sequence[Row]) -> None:
    """Nothing is written of rows of which one cannot be."""
    for row in rows:
        if len(row.data) > ROW_BYTES_MAX or len(row.key) > KEY_BYTES_MAX:
            raise TooLarge(
                f"a row of table {table.name!r} has {len(row.data):,} bytes, its key"
                f" {len(row.key):,}",
                why=f"a row has at most {ROW_BYTES_MAX:,}, a key {KEY_BYTES_MAX:,}",
                fix="keep large values in a blob store, and their names in the table",
            )
        if len(row.data) < HEADER_BYTES or not row.key:
            raise Usage(f"this is no row of table {table.name!r}", fix="make it with rows.encode")
