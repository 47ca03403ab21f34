"""What every online store does, in the words of tables. Two engines stand behind it: Valkey (or
Redis) and Cassandra; one contract suite holds for all of them.

A row travels as one value of bytes (`features.rows`), which begins with its version. So a row is
never a mixture of two writes, and of two writes the larger bytes win, everywhere.

Every call may be made from any thread, ends in bounded time, and raises only errors of
`holdfast.wire.errors`: `Unavailable` and `TimedOut` where it is not known whether a write happened,
`Refused` where nothing did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast.features.rows import Row
from holdfast.features.table import Level, Table

# What a read gives of one key: the row's bytes, or None where there is none (or it was deleted and
# forgotten since). The bytes of a deleted row say so (`rows.is_deleted`).
Found = bytes | None


@dataclass(frozen=True, slots=True)
class Asked:
    """Keys of one table to be read (each as `Table.key_bytes` makes it), as strongly as said."""

    table: Table
    keys: Sequence[bytes]
    level: Level


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """How a store is: `nodes` by their address and state ("up", "down", "joining", "empty"), and
    what is wrong with it in a sentence, or nothing."""

    engine: str
    nodes: tuple[tuple[str, str], ...]
    trouble: str = ""


class OnlineStore(Protocol):
    """The newest row of each key."""

    def prepare(self, table: Table) -> None:
        """Make what the table needs; twice is once. `Refused`, with the reason and what to change:
        this engine, as it is set up, cannot keep what the table promises."""

    def forget(self, table: Table) -> None:
        """Remove the table with all its rows; twice is once."""

    def write(self, table: Table, rows: Sequence[Row]) -> list[bool]:
        """Write rows, all in one round trip; returns when all are as durable as the table promises.
        Of each: True, it is the newest now; False, a newer one was there (or this very one) and
        stays. An engine that does not know says True. On an error any of them may be written, and
        writing them again is harmless."""

    def read(self, asked: Sequence[Asked]) -> list[list[Found]]:
        """All keys of all tables in one round trip (one pipeline, or one wave of statements)."""

    def scan(self, table: Table, after: bytes = b"") -> tuple[list[tuple[bytes, bytes]], bytes]:
        """Some of the table's rows, as (key, row), and where to go on; b"" at the end. For checks
        and rebuilds: a row that is written meanwhile may be missed or seen twice."""

    def status(self) -> StoreStatus:
        """How it is now. Raises nothing: what is wrong stands in `trouble`."""

    def close(self) -> None: ...
