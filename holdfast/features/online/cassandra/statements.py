"""What is said to Cassandra: names, statements, and how long a row stays there. Pure.

    holdfast_3.drivers (key blob PRIMARY KEY, row blob)

A row is one cell. Cassandra decides cell by cell: the larger timestamp stays, which is the time of
the event; of two cells with one timestamp the one that expires later; of two that expire at the
same time the larger bytes, which begin with the version. So when a row expires has to be the same
for all rows of one event time, whoever writes them and when: it is counted from the event, by a
clock that the write itself brings along (`expiry`), and never from the time of the write. For the
same reason a deletion expires exactly when a row of its time would.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from holdfast.features.table import Level, Table
from holdfast.wire.errors import Usage

# Of keyspaces and tables.
NAME_CHARACTERS_MAX: Final = 48
# A deleted row is remembered at least so long after its time.
DELETED_KEPT_S: Final = 86_400.0
# Readers look at the time of a row themselves. The servers forget it so much later, so that their
# clocks do not decide what is read.
CLOCKS_S: Final = 3_600.0
# Cassandra's own bound of a time to live: 20 years.
TTL_S_MAX: Final = 630_720_000
# Rows of about a year bring the same clock along, so that they may go in one batch.
EPOCH_S: Final = 1 << 25
LIFE_S_MAX: Final = TTL_S_MAX - EPOCH_S
# When the last cell expires: an unsigned 32-bit number of seconds, of which two have a meaning.
EXPIRES_S_MAX: Final = (1 << 32) - 3
# In one statement. A server warns of batches with more partitions or more than 5 KiB.
ROWS_A_BATCH_MAX: Final = 10
BYTES_A_BATCH_MAX: Final = 4_096
KEYS_A_STATEMENT_MAX: Final = 32
# What a row takes in a batch beside its bytes, about.
_ROW_OVERHEAD_BYTES: Final = 64
_SIGN: Final = 1 << 63

# Of each keyspace: keys that all copies have acknowledged (`nodes`). No user's table is called so.
NODES: Final = "_nodes"


# --- names ----------------------------------------------------------------------------------------


def keyspace_of(base: str, copies: int) -> str:
    """Where tables with so many copies are: Cassandra copies by the keyspace."""
    name = f"{base}_{copies}"
    if len(name) > NAME_CHARACTERS_MAX:
        raise Usage(
            f"keyspace={base} is too long",
            why=f"with the number of copies it is {name}, and Cassandra takes"
            f" {NAME_CHARACTERS_MAX} characters",
            fix="take a shorter one",
        )
    return name


def copies_of(base: str, keyspace: str) -> int | None:
    """How many copies a keyspace of ours is for; None: it is none of ours."""
    front, _, digits = keyspace.rpartition("_")
    return int(digits) if front == base and digits.isascii() and digits.isdigit() else None


def full_name(keyspace: str, table: str) -> str:
    return f'"{keyspace}"."{table}"'


# --- statements -----------------------------------------------------------------------------------


class Statements(NamedTuple):
    """Those of one table, to be prepared."""

    read: str
    write: str
    scan: str


def statements(keyspace: str, table: str) -> Statements:
    name = full_name(keyspace, table)
    return Statements(
        read=f"SELECT key, row FROM {name} WHERE key IN ?",  # noqa: S608 (checked names)
        # An UPDATE, since an INSERT would write a second thing with a time of its own: that there
        # is a row.
        write=f"UPDATE {name} USING TIMESTAMP ? AND TTL ? SET row = ? WHERE key = ?",  # noqa: S608
        scan=f"SELECT key, row FROM {name}",  # noqa: S608
    )


def create_keyspace(keyspace: str, replication: Mapping[str, int]) -> str:
    copies = ", ".join(f"{_text(center)}: {count}" for center, count in sorted(replication.items()))
    return (
        f'CREATE KEYSPACE IF NOT EXISTS "{keyspace}" WITH replication ='
        f" {{'class': 'NetworkTopologyStrategy', {copies}}} AND durable_writes = true"
    )


def create_table(keyspace: str, table: str) -> str:
    return (
        f"CREATE TABLE IF NOT EXISTS {full_name(keyspace, table)} (key blob PRIMARY KEY, row blob)"
        " WITH read_repair = 'BLOCKING' AND comment = 'Holdfast: the newest row of each key'"
    )


def drop_table(keyspace: str, table: str) -> str:
    return f"DROP TABLE IF EXISTS {full_name(keyspace, table)}"


def _text(value: str) -> str:
    quoted = value.replace("'", "''")
    return f"'{quoted}'"


# --- time -----------------------------------------------------------------------------------------


def timestamp_of(data: bytes) -> int:
    """The time of a row's event: what Cassandra is told as the time of the write."""
    # The least int64 is how Cassandra writes that there is none.
    return max(int.from_bytes(data[:8], "big") - _SIGN, 1 - _SIGN)


def life_of(table: Table) -> int | None:
    """How long after their events the servers keep rows, in seconds; None: for ever."""
    if table.ttl_s is None:
        return None
    life_s = math.ceil(max(table.ttl_s, DELETED_KEPT_S) + CLOCKS_S)
    return life_s if life_s <= LIFE_S_MAX else None


class Expiry(NamedTuple):
    """When a cell expires: so many seconds (`ttl_s`) after this time of the write's own clock.
    Without a clock: never."""

    clock_s: int | None
    ttl_s: int


FOR_EVER: Final = Expiry(None, 0)


def expiry_of(at_us: int, life_s: int | None) -> Expiry:
    """The same second for all rows of one time. What is too early or too late for Cassandra's
    clock is taken as its first or last second; neither is a time of features."""
    if life_s is None:
        return FOR_EVER
    at_s = min(max(at_us // 1_000_000, 0), EXPIRES_S_MAX - life_s)
    clock_s = at_s // EPOCH_S * EPOCH_S
    return Expiry(clock_s, at_s - clock_s + life_s)


def ttl_left(expiry: Expiry, now_s: int) -> int:
    """The same by the clock of the server, for one that takes no other: about then it expires. A
    cell whose time is over gets the last second, so that it still covers what is older."""
    if expiry.clock_s is None:
        return 0
    return min(max(expiry.clock_s + expiry.ttl_s - now_s, 1), TTL_S_MAX)


def oldest(table: Table, now_us: int) -> bytes:
    """Rows below these bytes are too old to be read."""
    if table.ttl_s is None:
        return b""
    first_us = now_us - round(table.ttl_s * 1e6) + 1
    return min(max(first_us + _SIGN, 0), (1 << 64) - 1).to_bytes(8, "big")


# --- consistency ----------------------------------------------------------------------------------


class Route(NamedTuple):
    """How many copies have to answer, and the data center where they are asked; None: wherever it
    is near, and elsewhere if nobody is there."""

    consistency: str
    center: str | None


def route_of(table: Table, level: Level) -> Route:
    """Two majorities of the same copies share one: so a strong table is read and written in its
    home. Without a home the majority is of the copies in all data centers."""
    if level is Level.EVENTUAL:
        return Route("ONE", None)
    return Route("QUORUM", None) if table.home is None else Route("LOCAL_QUORUM", table.home)


def replication_for(copies: int, nodes: Mapping[str, int]) -> dict[str, int]:
    """So many copies in each data center, or as many as it has nodes."""
    return {center: min(copies, count) for center, count in nodes.items() if count}


# --- what goes together ---------------------------------------------------------------------------


def batches(places: Iterable[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    """Places of rows that are few and small enough for one batch; a large one goes alone."""
    batch: list[int] = []
    room = BYTES_A_BATCH_MAX
    for place in places:
        size = sizes[place] + _ROW_OVERHEAD_BYTES
        if batch and (size > room or len(batch) == ROWS_A_BATCH_MAX):
            yield batch
            batch, room = [], BYTES_A_BATCH_MAX
        batch.append(place)
        room -= size
    if batch:
        yield batch


def chunks(places: Sequence[int], count_max: int = KEYS_A_STATEMENT_MAX) -> Iterator[Sequence[int]]:
    for first in range(0, len(places), count_max):
        yield places[first : first + count_max]
