"""A table's definition as a document, for the coordination plane: plain values, and what a version
does not know of it, it passes over (`wire.documents`). So it may be read by older and newer ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.features.columns import Column, ColumnType
from holdfast.features.consistency import Consistency
from holdfast.features.table import COPIES, SKEW_MAX_S, Table
from holdfast.wire import documents
from holdfast.wire.errors import Usage


@dataclass(frozen=True, slots=True)
class ColumnRecord:
    """A column; `type` as users write it."""

    name: str
    type: str
    number: int
    since: int = 1
    until: int | None = None


@dataclass(frozen=True, slots=True)
class TableRecord:
    """A table in one of its schemas. What stands within another record is this."""

    name: str
    key: tuple[str, ...]
    key_types: tuple[str, ...]
    time: str
    columns: tuple[ColumnRecord, ...]
    ttl_s: float | None = None
    consistency: str = "strong"
    home: str | None = None
    copies: int = COPIES
    skew_max_s: float = SKEW_MAX_S
    schema: int = 1

    @classmethod
    def of(cls, table: Table) -> TableRecord:
        assert not table.retired, "what is to be stored comes from `change`"
        columns = [
            ColumnRecord(each.name, each.type.text(), each.number, each.since, each.until)
            for each in table.columns
        ]
        return cls(
            name=table.name,
            key=table.key,
            key_types=tuple(kind.text() for kind in table.key_types),
            time=table.time,
            columns=tuple(columns),
            ttl_s=table.ttl_s,
            consistency=table.consistency.text(),
            home=table.home,
            copies=table.copies,
            skew_max_s=table.skew_max_s,
            schema=table.schema,
        )

    def table(self, path: str) -> Table:
        """The table; `Corrupt`, naming the path, if it cannot be one: a newer version may know
        types that this one does not."""
        try:
            columns = [
                Column(each.name, ColumnType.parse(each.type), each.number, each.since, each.until)
                for each in self.columns
            ]
            return Table(
                self.name,
                key=self.key,
                key_types=[ColumnType.parse(text) for text in self.key_types],
                time=self.time,
                columns=columns,
                ttl_s=self.ttl_s,
                consistency=Consistency.parse(self.consistency),
                home=self.home,
                copies=self.copies,
                skew_max_s=self.skew_max_s,
                schema=self.schema,
            )
        except (Usage, ValueError) as error:
            why = error.sentence if isinstance(error, Usage) else str(error)
            raise documents.corrupt(path, why) from error


def to_document(table: Table) -> dict[str, Any]:
    """A stored table as a plain document."""
    return documents.document(TableRecord.of(table))


def from_document(path: str, plain: Any) -> Table:
    """The table of a plain document; `Corrupt`, naming the path, if it is none."""
    return documents.from_document(path, TableRecord, plain).table(path)


def to_bytes(table: Table) -> bytes:
    """A stored table as the bytes of a node."""
    return documents.to_bytes(TableRecord.of(table))


def from_bytes(path: str, data: bytes) -> Table:
    """The table that `to_bytes` wrote; `Corrupt`, naming the path, if it is none."""
    return documents.from_bytes(path, TableRecord, data).table(path)
