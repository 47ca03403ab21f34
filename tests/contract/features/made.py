"""Tables and rows for the contract of online stores."""

from __future__ import annotations

import time
from collections.abc import Sequence

from holdfast.features import rows
from holdfast.features.online.store import Asked, Found, OnlineStore
from holdfast.features.rows import Row, RowVersion
from holdfast.features.table import Level, Table
from tests.contract.features.backends import Backend

COLUMNS = {"trips": "int64", "rating": "float32", "city": "string"}
# Some day of 2023: for tables whose rows stay for ever.
DAY_US = 1_700_000_000_000_000


def table_of(
    backend: Backend,
    name: str,
    *,
    key: str = "string",
    ttl: str | None = None,
    columns: dict[str, str] | None = None,
) -> Table:
    """As strong as the engine can have one."""
    return Table(
        name,
        key={"driver": key},
        columns=columns or COLUMNS,
        ttl=ttl,
        consistency="strong" if backend.strong else "eventual",
    )


def prepared(store: OnlineStore, backend: Backend, name: str, **how: object) -> Table:
    made = table_of(backend, name, **how)  # type: ignore[arg-type]
    store.prepare(made)
    return made


def row_of(
    table: Table,
    driver: object = "a",
    at_us: int = DAY_US,
    writer: int = 1,
    sequence: int = 0,
    **values: object,
) -> Row:
    return rows.encode(table, RowVersion(at_us, writer, sequence), {"driver": driver, **values})


def deletion(
    table: Table, driver: object = "a", at_us: int = DAY_US, writer: int = 1, sequence: int = 0
) -> Row:
    return rows.deleted(table, RowVersion(at_us, writer, sequence), table.key_bytes(driver))


def look(store: OnlineStore, table: Table, *keys: bytes) -> list[Found]:
    """What is there under these keys, by a strong read where the table has one."""
    (found,) = store.read([Asked(table, keys, table.read_level)])
    return found


def newest(store: OnlineStore, table: Table, row: Row) -> Found:
    return look(store, table, row.key)[0]


def everything(store: OnlineStore, table: Table) -> dict[bytes, bytes]:
    """All rows that a scan sees."""
    found: dict[bytes, bytes] = {}
    after = b""
    while True:
        page, after = store.scan(table, after)
        found.update(page)
        if not after:
            return found


def now_us() -> int:
    return time.time_ns() // 1_000


def all_levels(table: Table, keys: Sequence[bytes]) -> list[Asked]:
    return [Asked(table, keys, level) for level in Level]
