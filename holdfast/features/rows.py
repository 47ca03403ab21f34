"""A row as one value of bytes, and back: one at a time, and many at once without a Python object
for each value. Pure; `features.layout` says where what is.

A row holds its version, and no row is ever a mixture of two writes; of two rows the larger bytes
are the newer. A value that is not what was written is `Corrupt`: each row carries a check of all
its bytes.
"""

from __future__ import annotations

import datetime
import operator
import struct
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Final

import numpy as np

from holdfast.features import layout as places
from holdfast.features import values as taken
from holdfast.features.columns import Column, nearest
from holdfast.features.layout import RowLayout, field_of
from holdfast.features.table import ROW_BYTES_MAX, Table
from holdfast.features.values import time_us, times_us
from holdfast.features.versions import Array, RowVersion, RowVersions
from holdfast.wire.errors import Corrupt, TooLarge, Usage

__all__ = [
    "Batch",
    "Row",
    "RowBatch",
    "RowVersion",
    "RowVersions",
    "Version",
    "check_time",
    "decode",
    "decode_batch",
    "deleted",
    "encode",
    "encode_batch",
    "is_deleted",
    "time_us",
    "times_us",
    "version_of",
]

_HEADER: Final = struct.Struct(">QQQBI")
_CHECK: Final = struct.Struct("<I")
_HEADER_DTYPE: Final = np.dtype(places.HEADER)
_ROW_BYTES_MIN: Final = places.HEADER_BYTES + places.CHECK_BYTES
_SIGN: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class Row:
    """A row: the bytes of its key (`Table.key_bytes`), and its own."""

    key: bytes
    data: bytes

    @property
    def version(self) -> RowVersion:
        return version_of(self.data)

    @property
    def deleted(self) -> bool:
        return is_deleted(self.data)

    @property
    def at_us(self) -> int:
        return version_of(self.data).at_us


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Rows as columns, in the order in which they were asked for.

    Of a column with a fixed width an array, of vectors one of two dimensions; of strings and bytes
    a list. Where `valid` of the column is False there is no value: the array has NaN, NaT, 0 or
    False there, the list None. `present`: there is a row, and it is not deleted. The time and the
    version of a deleted row are its deletion's; where nothing was found they are 0.
    """

    columns: dict[str, Array | list[Any]]
    valid: dict[str, Array] = field(default_factory=dict)
    present: Array = field(default_factory=lambda: np.zeros(0, bool))
    versions: RowVersions = field(default_factory=lambda: RowVersions.of([], [], []))

    @property
    def at_us(self) -> Array:
        return self.versions.at_us

    def __len__(self) -> int:
        return len(self.present)


# What they are called where only rows are meant.
Version = RowVersion
Batch = RowBatch


# --- one row --------------------------------------------------------------------------------------


def encode(table: Table, version: RowVersion, values: Mapping[str, object]) -> Row:
    """The row of these values, by their names, with those of the key among them. A column that is
    None or not there is null: a row is always written whole. `Usage` names what does not fit."""
    _check_names(table, values)
    key = table.key_bytes(*[values.get(name) for name in table.key])
    if values.get(table.time) is not None and time_us(values[table.time]) != version.at_us:
        raise _another_time(table, version.at_us, values[table.time])
    layout = table.layout()
    nulls, end = 0, 0
    fixed, ends, free = [], [], []
    for place, column in enumerate(layout.columns):
        data = taken.packed(column, values.get(column.name))
        if data is None:
            nulls |= 1 << place
            data = bytes(column.type.width_bytes)
        if column.type.is_fixed:
            fixed.append(data)
            continue
        end += len(data)
        ends.append(min(end, ROW_BYTES_MAX).to_bytes(4, "little"))  # too large is refused below
        free.append(data)
    body = b"".join([nulls.to_bytes(layout.null_bytes, "little"), *fixed, *ends, *free])
    return Row(key, _closed(table, _header(version, 0, layout.schema) + body))


def deleted(table: Table, version: RowVersion, key: bytes) -> Row:
    """The row that says: what was there until this version is deleted."""
    return Row(key, _closed(table, _header(version, places.DELETED, table.schema)))


def decode(table: Table, data: bytes, columns: Sequence[str] | None = None) -> dict[str, object]:
    """The values of a row by their names, None where one is null or the column was not there yet;
    `columns`: by default all but the retired ones. A time is a `datetime` in UTC, a vector an
    array. Of a deleted row nothing: {}; nor of one that another table of this name has left."""
    header = _opened(table, data)
    names = [column.name for column in table.living] if columns is None else columns
    for name in names:
        table.column(name)
    if header[3] & places.DELETED or header[4] < table.first_schema:
        return {}
    layout = table.layout(header[4])
    head, ends = _read_heads(table, layout, [data])
    nulls = int.from_bytes(head["nulls"].tobytes(), "little")
    found: dict[str, object] = {}
    for name in names:
        place = layout.places.get(name)
        if place is None or nulls >> place & 1:
            found[name] = None
        elif (free := layout.ends.get(name)) is not None:
            found[name] = _text_of(table, layout, [data], ends, free)[0]
        else:
            found[name] = _python(head[field_of(name)][0])
    return found


def is_deleted(data: bytes) -> bool:
    """Whether the row says that there is none any more."""
    return bool(_opened(None, data)[3] & places.DELETED)


def version_of(data: bytes) -> RowVersion:
    """The version of a row, deleted or not."""
    at, writer, sequence, _, _ = _opened(None, data)
    return RowVersion(at - _SIGN, writer, sequence)


def check_time(table: Table, at_us: int | Array, now_us: int) -> None:
    """`Usage`, if an event (one of these) is further in the future of the writer's clock than the
    table allows: until then it would win over everything that really happens."""
    latest = int(np.max(at_us, initial=-_SIGN))
    ahead_s = (latest - now_us) / 1e6
    if ahead_s > table.skew_max_s:
        raise Usage(
            f"table {table.name!r}: an event lies {ahead_s:,.1f}s in the future",
            why=f"the clock allows {table.skew_max_s:g}s (skew_max_s): it would win over all that"
            " happens until then",
            fix="check its time and unit (microseconds since 1970) and the machines' clocks",
        )


# --- many rows ------------------------------------------------------------------------------------


def encode_batch(table: Table, versions: RowVersions, columns: Mapping[str, Any]) -> list[Row]:
    """`encode` of many: each column is an array, a masked array or a list, those of the key among
    them. `Usage` names the column and the row that do not fit; then none was encoded."""
    _check_names(table, columns)
    count = len(versions)
    for name, column in columns.items():
        if len(column) != count:
            raise Usage(
                f"table {table.name!r}: {name!r} has {len(column)} values, and there are {count}"
                " versions",
                why="each row has one of each",
                fix="give columns of one length",
            )
    keys = table.keys_bytes({name: columns[name] for name in table.key if name in columns})
    if table.time in columns:
        _check_times(table, versions, columns[table.time])
    layout = table.layout()
    heads = np.zeros(count, layout.head)
    _write_versions(heads, versions, layout)
    null = np.zeros((count, len(layout.columns)), bool)
    free: list[list[bytes]] = []
    for place, column in enumerate(layout.columns):
        given = columns.get(column.name)
        if given is None:
            null[:, place] = True
            free += [] if column.type.is_fixed else [[b""] * count]
            continue
        if column.type.is_fixed:
            array, empty = taken.fixed(column, given)
            heads[field_of(column.name)] = array
            if empty is not None:
                heads[field_of(column.name)][empty] = np.zeros(1, array.dtype)[0]
        else:
            texts, empty = taken.free(column, given)
            free.append(texts)
        if empty is not None:
            null[:, place] = empty
    heads["nulls"] = np.packbits(null, axis=1, bitorder="little")
    if free:
        lengths = [np.fromiter(map(len, texts), np.int64, count) for texts in free]
        heads["ends"] = np.cumsum(lengths, axis=0).T
    return _joined(table, keys, heads, free)


def decode_batch(
    schemas: Mapping[int, Table],
    found: Sequence[bytes | None],
    columns: Sequence[str] | None = None,
) -> RowBatch:
    """What a store found, as columns. `schemas`: the table's definitions by their schema; the
    newest is enough, since it reads all older rows. `Corrupt`: a row is damaged. `Missing`: one was
    written by a newer definition, which has to be read first."""
    table = schemas[max(schemas)]
    names = [column.name for column in table.living] if columns is None else columns
    wanted = [table.column(name) for name in names]
    count = len(found)
    where = [place for place, data in enumerate(found) if data is not None]
    full = len(where) == count
    rows: Sequence[bytes] = found if full else [found[place] for place in where]  # type: ignore[assignment,misc]
    heads = _headers(table, rows)
    at = np.array(where, np.intp)
    own = heads["schema"] >= table.first_schema
    if not own.all():
        full, at, heads = False, at[own], heads[own]
        rows = [found[place] for place in at.tolist()]
    batch = _Filling(count, wanted)
    batch.mark(at, heads)
    living = heads["flags"] == 0
    every = bool(living.all())
    for schema in np.unique(heads["schema"] if every else heads["schema"][living]).tolist():
        layout = table.layout(schema)
        group = living & (heads["schema"] == schema)
        if group.all():
            batch.fill(table, layout, rows, None if full else at)
        else:
            picked = np.flatnonzero(group)
            batch.fill(table, layout, [rows[place] for place in picked.tolist()], at[picked])
    return batch.finished()


class _Filling:
    """A batch while it is filled, one schema after the other."""

    def __init__(self, count: int, wanted: Sequence[Column]) -> None:
        self._count = count
        self._wanted = wanted
        self._columns: dict[str, Array | list[Any]] = {}
        self._valid: dict[str, Array] = {}
        self._present = np.zeros(count, bool)
        self._versions = RowVersions(
            np.zeros(count, np.int64), np.zeros(count, np.uint64), np.zeros(count, np.uint64)
        )

    def mark(self, at: Array, heads: Array) -> None:
        """Note what the headers of the rows at these places say."""
        self._present[at] = heads["flags"] == 0
        self._versions.at_us[at] = (heads["at"].astype(np.uint64) ^ np.uint64(_SIGN)).view(np.int64)
        self._versions.writer[at] = heads["writer"]
        self._versions.sequence[at] = heads["sequence"]

    def fill(
        self, table: Table, layout: RowLayout, rows: Sequence[bytes], at: Array | None
    ) -> None:
        """Take the columns of rows of one schema. `at`: their places; None: they are all."""
        head, ends = _read_heads(table, layout, rows)
        nulls = head["nulls"]
        bits = np.unpackbits(nulls, axis=1, bitorder="little").view(bool) if nulls.any() else None
        full = np.ones(len(rows), bool)
        full.flags.writeable = False  # one for all columns
        for column in self._wanted:
            place = layout.places.get(column.name)
            if place is None:
                continue
            valid = full if bits is None else ~bits[:, place]
            found: Array | list[Any]
            if (free := layout.ends.get(column.name)) is None:
                found = head[field_of(column.name)].copy()
                if not (valid is full or valid.all()):
                    found[~valid] = _blank(found.dtype)
            else:
                found = _text_of(table, layout, rows, ends, free)
                if not (valid is full or valid.all()):
                    kept = valid.tolist()
                    found = [
                        each if is_there else None
                        for each, is_there in zip(found, kept, strict=True)
                    ]
            self._put(column, found, valid, at)

    def _put(
        self, column: Column, found: Array | list[Any], valid: Array, at: Array | None
    ) -> None:
        if at is None:
            self._columns[column.name], self._valid[column.name] = found, valid
            return
        self._make(column)
        self._valid[column.name][at] = valid
        kept = self._columns[column.name]
        if isinstance(kept, list):
            for place, each in zip(at.tolist(), found, strict=True):
                kept[place] = each
        else:
            kept[at] = found

    def _make(self, column: Column) -> None:
        if column.name in self._columns:
            return
        self._valid[column.name] = np.zeros(self._count, bool)
        dtype = column.type.dtype
        if dtype is None:
            self._columns[column.name] = [None] * self._count
        else:
            blank = _blank(dtype.base)
            self._columns[column.name] = np.full((self._count, *dtype.shape), blank, dtype.base)

    def finished(self) -> RowBatch:
        for column in self._wanted:
            self._make(column)
        columns = {column.name: self._columns[column.name] for column in self._wanted}
        return RowBatch(columns, self._valid, self._present, self._versions)


# --- the bytes ------------------------------------------------------------------------------------


def _header(version: RowVersion, flags: int, schema: int) -> bytes:
    return _HEADER.pack(version.at_us + _SIGN, version.writer, version.sequence, flags, schema)


def _closed(table: Table, data: bytes) -> bytes:
    """The row with the check of its bytes, if it is not too large."""
    if len(data) + places.CHECK_BYTES > ROW_BYTES_MAX:
        raise _too_large(table, len(data) + places.CHECK_BYTES)
    return data + zlib.crc32(data).to_bytes(places.CHECK_BYTES, "little")


def _opened(table: Table | None, data: bytes) -> tuple[int, int, int, int, int]:
    """The header of a row whose bytes are those that were written."""
    if len(data) < _ROW_BYTES_MIN or zlib.crc32(data) != places.RESIDUE:
        raise _damaged(table, f"its {len(data)} bytes are not those that were written")
    header = _HEADER.unpack_from(data)
    if header[3] & ~places.DELETED:
        raise _damaged(table, f"this version does not know its flags {header[3]:#x}")
    return header


def _headers(table: Table, rows: Sequence[bytes]) -> Array:
    """The headers of all rows; as `_opened` of each."""
    if set(map(zlib.crc32, rows)) - {places.RESIDUE} or (
        min(map(len, rows), default=_ROW_BYTES_MIN) < _ROW_BYTES_MIN
    ):
        for row in rows:
            _opened(table, row)
    heads = np.frombuffer(b"".join([row[: places.HEADER_BYTES] for row in rows]), _HEADER_DTYPE)
    if heads["flags"].max(initial=0) > places.DELETED:
        for row in rows:
            _opened(table, row)
    return heads


def _read_heads(table: Table, layout: RowLayout, rows: Sequence[bytes]) -> tuple[Array, Array]:
    """What has a fixed width in rows of one schema, and the ends of what has not: all of them lie
    within their rows, one after the other."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    if not layout.free:
        if (lengths != layout.whole.itemsize).any():
            raise _damaged(table, f"its length is not that of schema {layout.schema}")
        return np.frombuffer(b"".join(rows), layout.whole), np.zeros((len(rows), 0), np.int64)
    size = layout.head_bytes
    if (lengths < size + places.CHECK_BYTES).any():
        raise _damaged(table, f"it is shorter than schema {layout.schema} has it")
    head = np.frombuffer(b"".join([row[:size] for row in rows]), layout.head)
    ends = head["ends"].astype(np.int64)
    if (np.diff(ends, axis=1) < 0).any() or (
        ends[:, -1] + size + places.CHECK_BYTES != lengths
    ).any():
        raise _damaged(table, f"its length is not that of schema {layout.schema}")
    return head, ends


def _text_of(
    table: Table, layout: RowLayout, rows: Sequence[bytes], ends: Array, place: int
) -> list[Any]:
    """The strings, or bytes, of one column."""
    size = layout.head_bytes
    lasts = (ends[:, place] + size).tolist()
    firsts = (ends[:, place - 1] + size).tolist() if place else [size] * len(rows)
    pieces = zip(rows, firsts, lasts, strict=True)
    if layout.free[place].type.base == "bytes":
        return [row[first:last] for row, first, last in pieces]
    try:
        return [row[first:last].decode() for row, first, last in pieces]
    except UnicodeDecodeError as error:
        raise _damaged(table, f"{layout.free[place].name!r} in it is no text") from error


def _joined(
    table: Table, keys: list[bytes], heads: Array, free: Sequence[list[bytes]]
) -> list[Row]:
    """Rows of their parts, each with its check."""
    bodies: list[bytes] = heads.view(f"V{heads.dtype.itemsize}").tolist()
    if free:
        bodies = list(map(b"".join, zip(bodies, *free, strict=True)))
        if max(map(len, bodies), default=0) + places.CHECK_BYTES > ROW_BYTES_MAX:
            raise _too_large(table, max(map(len, bodies)) + places.CHECK_BYTES)
    checks = map(_CHECK.pack, map(zlib.crc32, bodies))
    # By their slots: the constructor of a frozen class would take a third of the whole time.
    made = list(map(object.__new__, repeat(Row, len(bodies))))
    for slot, parts in (("key", keys), ("data", map(operator.add, bodies, checks))):
        deque(map(Row.__dict__[slot].__set__, made, parts), maxlen=0)
    return made


def _write_versions(heads: Array, versions: RowVersions, layout: RowLayout) -> None:
    heads["at"] = versions.at_us.astype(np.int64).view(np.uint64) ^ np.uint64(_SIGN)
    heads["writer"] = versions.writer
    heads["sequence"] = versions.sequence
    heads["schema"] = layout.schema


def _blank(dtype: np.dtype[Any]) -> Any:
    """What stands where there is no value."""
    if dtype.kind == "f":
        return np.nan
    return np.datetime64("NaT") if dtype.kind == "M" else dtype.type(0)


def _python(value: Any) -> object:
    """One value of numpy's as Python has it."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, np.datetime64):
        found = value.item()
        return found.replace(tzinfo=datetime.UTC) if isinstance(found, datetime.datetime) else None
    return value.item()


# --- what is refused ------------------------------------------------------------------------------


def _check_names(table: Table, given: Mapping[str, object]) -> None:
    """`Usage`: a name is none of the table's, a column is retired, or one was not told apart."""
    by_name = table.by_name
    for name in given:
        column = by_name.get(name)
        if column is None and name != table.time and name not in table.key:
            names = [*table.key, table.time, *(each.name for each in table.living)]
            raise Usage(
                f"table {table.name!r} has no column {str(name)[:100]!r}",
                why=f"a row has {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}",
                fix=nearest(str(name), names) or f"holdfast features describe {table.name}",
            )
        if column is not None and column.retired:
            raise Usage(
                f"column {name!r} of table {table.name!r} is retired",
                why=f"since schema {column.until} nobody writes it",
                fix="leave it out",
            )


def _check_times(table: Table, versions: RowVersions, given: Any) -> None:
    at_us, null = times_us(given)
    wrong = np.flatnonzero((at_us != versions.at_us) & ~null)
    if wrong.size:
        row = int(wrong[0])
        raise _another_time(table, int(versions.at_us[row]), int(at_us[row]), row)


def _another_time(table: Table, at_us: int, given: object, row: int | None = None) -> Usage:
    return Usage(
        f"table {table.name!r}: the time of a row is not that of its version"
        + (f" (row {row})" if row is not None else ""),
        why=f"{table.time!r} is {given}, and the version has {at_us}",
        fix=f"make the version of {table.time!r}, or leave {table.time!r} out",
    )


def _too_large(table: Table, size: int) -> TooLarge:
    return TooLarge(
        f"a row of table {table.name!r} has {size} bytes",
        why=f"it may have {ROW_BYTES_MAX}: every write and every read copies it whole",
        fix="keep what is large in files, and their names in the table",
    )


def _damaged(table: Table | None, why: str) -> Corrupt:
    of = f" of table {table.name!r}" if table else ""
    return Corrupt(
        f"a row{of} is damaged",
        why=why,
        fix=f"holdfast features rebuild {table.name if table else 'TABLE'} makes it from history",
    )
