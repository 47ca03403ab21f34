"""The tables of a cluster, as they are applied: definitions in the coordination plane.

    /holdfast/features                 where the online store is (`cluster.features`)
    /holdfast/features/tables/TABLE    the table, in its newest schema

A definition says from which schema on, and until which, each column is in the rows: so the newest
reads every row that was ever written, and no older one is kept. Of a table that was removed its
last schema stays: another one of its name begins with the next, and never reads a row of the old
one as its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, Self

from holdfast.coordination import Config, Session, stamps
from holdfast.coordination.mirror import Mirror, Mirrored, single
from holdfast.features import records
from holdfast.features.columns import nearest
from holdfast.features.table import Table, TableChange, change
from holdfast.wire.errors import Conflict, Missing, Usage
from holdfast.wire.names import FEATURE_TABLES_PATH

# Each is a node that every process with tables reads when it begins.
TABLES_MAX: Final = 1_000
_REMOVED: Final = "removed_schema"

Prepare = Callable[[TableChange], None]


class TableRegistry:
    """Definitions, read and changed. Any thread may use it; whoever makes it closes it, and not the
    session. What it answers was so at some moment since the call began, or later."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tables: Mirrored[Table] = Mirrored(f"{FEATURE_TABLES_PATH}/*", single(_decoded))
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._woken.set()
        self._mirror = Mirror(session, self._tables, wake=self._woken.set)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._mirror.close()

    # --- reading ----------------------------------------------------------------------------------

    def tables(self) -> list[Table]:
        """All of them, by their names."""
        with self._lock:
            self._refresh()
            found = dict(self._tables.values)
        return [found[path] for path in sorted(found)]

    def table(self, name: str) -> Table:
        """The table as it is now; `Missing`, with the nearest name."""
        with self._lock:
            self._refresh()
            path = _path(name)
            found = self._tables.values.get(path)
            unreadable = self._tables.unreadable.get(path)
            known = [each.name for each in self._tables.values.values()]
        if found is not None:
            return found
        if unreadable is not None:
            raise unreadable
        raise Missing(
            f"there is no table {str(name)[:100]!r}",
            why=f"there are {', '.join(sorted(known)[:20])}" if known else "there is none at all",
            fix=nearest(str(name), known) or "holdfast features apply tables.py",
        )

    def known(self, name: str) -> Table:
        """As `table`, without asking the plane: what it was when this process last heard of it, a
        moment ago. For reads: they go on while the plane is away."""
        found = self._tables.values.get(_path(name))
        return self.table(name) if found is None or self._woken.is_set() else found

    # --- changing ---------------------------------------------------------------------------------

    def plan(self, wanted: Iterable[Table]) -> list[TableChange]:
        """What applying these would do; nothing is changed. Tables that are not among them stay."""
        stored = {table.name: table for table in self.tables()}
        changes = [change(stored.get(table.name), table) for table in wanted]
        if len(stored) + sum(each.is_new for each in changes) > TABLES_MAX:
            raise Usage(
                f"there would be more than {TABLES_MAX} tables",
                why="every process that has tables reads all definitions",
                fix="put features of one kind of entity into one table; holdfast features list",
            )
        return changes

    def apply(self, changes: Sequence[TableChange], prepare: Prepare) -> None:
        """Make it so. `prepare` makes what the stores need, or refuses, before the table is seen;
        twice is once. `Conflict`: somebody else has changed one meanwhile; those before it in the
        list are applied."""
        for each in changes:
            config = self._config(each.table.name)
            before = config.get()
            if _table_of(config.path, before.value) != each.before:
                raise Conflict(
                    f"table {each.table.name!r} was changed by somebody else meanwhile",
                    fix="holdfast features apply again: it shows the difference as it is now",
                )
            made = replace(each, table=_after(_removed_schema(before.value), each.table))
            prepare(made)
            if not each.is_empty:
                config.put(records.to_document(made.table), before.version)

    def remove(self, name: str, forget: Callable[[Table], None]) -> None:
        """Nobody finds the table any more; then `forget` removes what the stores have of it, and
        may be called again, here or before another table of that name is made."""
        table = self.table(name)
        config = self._config(name)
        before = config.get()
        if _table_of(config.path, before.value) is not None:
            config.put({_REMOVED: table.schema}, before.version)
        forget(table)

    # --- private ----------------------------------------------------------------------------------

    def _refresh(self) -> None:
        self._woken.clear()
        try:
            self._mirror.refresh()
        except BaseException:
            self._woken.set()
            raise

    def _config(self, name: str) -> Config:
        return Config(self._session, _path(name))


def _path(name: str) -> str:
    return f"{FEATURE_TABLES_PATH}/{name}"


def _decoded(path: str, data: bytes) -> Table | None:
    return _table_of(path, stamps.decoded(path, data).value)


def _table_of(path: str, value: Any) -> Table | None:
    if value is None or _removed_schema(value):
        return None
    return records.from_document(path, value)


def _removed_schema(value: Any) -> int:
    """The last schema of a table that was removed; 0: it was not."""
    return int(value[_REMOVED]) if isinstance(value, dict) and _REMOVED in value else 0


def _after(schema: int, table: Table) -> Table:
    """A new table, in a schema that no row was written in."""
    if not schema:
        return table
    columns = [replace(column, since=schema + 1) for column in table.columns]
    return replace(table, columns=tuple(columns), schema=schema + 1)
