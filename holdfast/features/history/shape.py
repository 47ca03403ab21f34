"""A table as columns of Delta Lake, and rows as a frame of them. No I/O.

Beside the user's own columns there are ours, whose names begin with "_": when a row arrived, who
wrote it and as which, whether it says that there is none any more, and the day of its event, by
which the files lie. Delta Lake has no unsigned numbers: `_writer` and `_sequence` lie 2^63 lower
than they are, so that every engine orders them as we do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl
from deltalake import Field, Schema
from deltalake.schema import ArrayType, PrimitiveType

from holdfast.features import rows as feature_rows
from holdfast.features import values
from holdfast.features.columns import Column, ColumnType
from holdfast.features.rows import Row, RowVersions
from holdfast.features.table import Table
from holdfast.wire.errors import BugError, Usage

ARRIVED: Final = "_arrived"
WRITER: Final = "_writer"
SEQUENCE: Final = "_sequence"
DELETED: Final = "_deleted"
DAY: Final = "_day"
DAY_US: Final = 86_400 * 1_000_000

_SIGN: Final = np.uint64(1 << 63)
TIME: Final = pl.Datetime("us", "UTC")
_POLARS: Final[dict[str, pl.DataType]] = {
    "int64": pl.Int64(),
    "int32": pl.Int32(),
    "float32": pl.Float32(),
    "float64": pl.Float64(),
    "bool": pl.Boolean(),
    "timestamp": TIME,
    "string": pl.String(),
    "bytes": pl.Binary(),
}
_DELTA: Final = {
    "int64": "long",
    "int32": "integer",
    "float32": "float",
    "float64": "double",
    "bool": "boolean",
    "timestamp": "timestamp",
    "string": "string",
    "bytes": "binary",
}
_TIMESTAMP: Final = ColumnType("timestamp")


# --- a table --------------------------------------------------------------------------------------


def polars_type(kind: ColumnType) -> pl.DataType:
    """What a column is in a file: a vector is a list there, since Delta Lake knows no length."""
    inner = _POLARS[kind.base]
    return inner if kind.length is None else pl.List(inner)


def result_type(kind: ColumnType) -> pl.DataType:
    """What a column is in an answer."""
    inner = _POLARS[kind.base]
    return inner if kind.length is None else pl.Array(inner, kind.length)


def columns_of(table: Table) -> dict[str, ColumnType]:
    """The key, the time and all columns that ever were, with their types."""
    keys = dict(zip(table.key, table.key_types, strict=True))
    rest = {column.name: column.type for column in table.columns}
    return {**keys, table.time: _TIMESTAMP, **rest}


def frame_schema(table: Table) -> dict[str, pl.DataType]:
    """What the files of a history hold; the day is in the log alone."""
    own = {ARRIVED: TIME, WRITER: pl.Int64(), SEQUENCE: pl.Int64(), DELETED: pl.Boolean()}
    theirs = {name: polars_type(kind) for name, kind in columns_of(table).items()}
    return {**theirs, **own}


def delta_schema(table: Table) -> Schema:
    """The same for Delta's log."""
    own = {ARRIVED: "timestamp", WRITER: "long", SEQUENCE: "long", DELETED: "boolean", DAY: "date"}
    fields = [delta_field(name, kind) for name, kind in columns_of(table).items()]
    return Schema([*fields, *(Field(name, PrimitiveType(kind)) for name, kind in own.items())])


def delta_field(name: str, kind: ColumnType) -> Field:
    inner = PrimitiveType(_DELTA[kind.base])
    return Field(name, inner if kind.length is None else ArrayType(inner, contains_null=False))


# --- rows -----------------------------------------------------------------------------------------


def frame_of_rows(table: Table, given: Sequence[Row], arrived_us: Any) -> pl.DataFrame:
    """Rows as they are in the table's topic. `arrived_us`: when each did, or one time for all.
    `Missing`: one was written by a newer definition of the table; read that first."""
    batch = feature_rows.decode_batch({table.schema: table}, [row.data for row in given])
    parts = list(zip(*(table.key_of(row.key) for row in given), strict=True))
    keys = {name: parts[place] if parts else () for place, name in enumerate(table.key)}
    columns: dict[str, Any] = {}
    for name, found in batch.columns.items():
        valid = batch.valid[name]
        if isinstance(found, np.ndarray):
            mask = ~valid if found.ndim == 1 else np.repeat(~valid[:, None], found.shape[1], 1)
            columns[name] = found if valid.all() else np.ma.MaskedArray(found, mask)
        else:
            columns[name] = found
    return frame_of(
        table, keys, batch.versions, columns, arrived_us=arrived_us, deleted=~batch.present
    )


def frame_of(
    table: Table,
    keys: Mapping[str, Any],
    versions: RowVersions,
    columns: Mapping[str, Any],
    *,
    arrived_us: Any,
    deleted: Any = None,
) -> pl.DataFrame:
    """Rows as a history keeps them, of arrays, masked arrays, lists or polars' columns. A column
    that is not given is null. `Usage` names the column, and the row, that do not fit."""
    count = len(versions)
    made: dict[str, pl.Series] = {}
    for name, kind in zip(table.key, table.key_types, strict=True):
        made[name] = key_series(table, name, kind, _given(table, keys, name, count))
    made[table.time] = _time_series(table.time, versions.at_us)
    for name in columns:
        table.column(name)
    for column in table.columns:
        if column.name in columns:
            data = _given(table, columns, column.name, count)
            made[column.name] = series_of(column, data)
        else:
            made[column.name] = pl.Series(
                column.name, [None], polars_type(column.type)
            ).new_from_index(0, count)
    arrived = np.broadcast_to(np.asarray(arrived_us, np.int64), count)
    made[ARRIVED] = _time_series(ARRIVED, arrived)
    made[WRITER] = pl.Series(WRITER, as_ordered(versions.writer))
    made[SEQUENCE] = pl.Series(SEQUENCE, as_ordered(versions.sequence))
    flags = np.zeros(count, bool) if deleted is None else np.asarray(deleted, bool)
    made[DELETED] = pl.Series(DELETED, np.broadcast_to(flags, count))
    frame = pl.DataFrame(list(made.values()))
    if dict(frame.schema) != frame_schema(table):
        raise BugError(f"table {table.name!r}: rows were read as {dict(frame.schema)}")
    return frame


def as_ordered(unsigned: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """uint64 as int64 of the same order."""
    return (np.ascontiguousarray(unsigned, np.uint64) ^ _SIGN).view(np.int64)


def as_unsigned(ordered: Any) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """What `as_ordered` was given."""
    return np.ascontiguousarray(ordered, np.int64).view(np.uint64) ^ _SIGN


def key_series(table: Table, name: str, kind: ColumnType, data: Any) -> pl.Series:
    """A part of a key as a column, with nothing missing in it."""
    try:
        found = series_of(Column(name, kind, 1), data)
    except Usage as error:
        raise Usage(f"table {table.name!r}: {error.what}", why=error.why, fix=error.fix) from error
    empty = found.is_null()
    why = "it is None"
    if not empty.any() and kind.base in ("string", "bytes"):
        empty = found.cast(pl.Binary).bin.size() == 0
        why = "it is empty"
    if empty.any():
        row = int(empty.arg_max() or 0)
        raise Usage(
            f"table {table.name!r}: row {row} has no {name!r}",
            why=f"{why}, and a key needs all its parts: {', '.join(table.key)}",
            fix="leave such rows out",
        )
    return found


def series_of(column: Column, data: Any) -> pl.Series:
    """Values as a column of a history; `Usage` names what is wrong."""
    if isinstance(data, pl.Series):
        return _cast(column, data)
    if not column.type.is_fixed:
        raw, null = values.free(column, data)
        texts = (
            raw
            if null is None
            else [None if gone else each for each, gone in zip(raw, null.tolist(), strict=True)]
        )
        found = pl.Series(column.name, texts, pl.Binary())
        return found.cast(pl.String()) if column.type.base == "string" else found
    array, null = values.fixed(column, data)
    if column.type.length is not None:
        found = pl.Series(column.name, np.ascontiguousarray(array)).arr.to_list()
        found = found.cast(polars_type(column.type))
    elif column.type.base == "timestamp":
        found = _time_series(column.name, array.view(np.int64))
    else:
        found = pl.Series(column.name, np.ascontiguousarray(array))
    if null is None:
        return found
    return pl.select(pl.when(~pl.Series(null)).then(found)).to_series().alias(column.name)


def _time_series(name: str, at_us: Any) -> pl.Series:
    return pl.Series(name, np.ascontiguousarray(at_us, np.int64)).cast(TIME)


def _given(table: Table, given: Mapping[str, Any], name: str, count: int) -> Any:
    if name not in given:
        raise Usage(
            f"table {table.name!r}: {name!r} of the key is missing",
            why=f"a key is made of {', '.join(table.key)}",
            fix=f"give a value of {name!r} for each row",
        )
    if len(given[name]) != count:
        raise Usage(
            f"table {table.name!r}: {name!r} has {len(given[name])} values for {count} rows",
            why="each row has one of each",
            fix="give columns of one length",
        )
    return given[name]


# --- polars' own columns --------------------------------------------------------------------------


def _cast(column: Column, data: pl.Series) -> pl.Series:
    """A column of polars in the type of a history, if nothing is lost on the way."""
    base, wanted = column.type.base, polars_type(column.type)
    data = data.alias(column.name)
    if data.dtype == wanted and column.type.length is None:
        return data
    try:
        if column.type.length is not None:
            return _cast_vectors(column, data)
        if data.dtype == pl.Null or _fits(base, data.dtype):
            found = (
                data.cast(pl.Int64()).cast(wanted)
                if data.dtype.is_integer() and (base == "timestamp")
                else data.cast(wanted)
            )
            if base == "float32" and (found.is_infinite() & ~data.is_infinite()).any():
                raise _unfit(column, data, "a number in it is too large")
            return found
    except pl.exceptions.PolarsError as error:
        raise _unfit(column, data, str(error).partition("\n")[0]) from error
    if isinstance(data.dtype, pl.Datetime) and base == "timestamp":
        raise _unfit(column, data, "its times have no time zone")
    if data.dtype.is_float() and data.is_nan().any():
        raise _unfit(column, data, f"there is a NaN in row {data.is_nan().arg_max()}")
    raise _unfit(column, data, "")


def _fits(base: str, dtype: pl.DataType) -> bool:
    if base in ("int64", "int32"):
        return dtype.is_integer()
    if base in ("float32", "float64"):
        return dtype.is_numeric() and not dtype.is_decimal()
    if base == "timestamp":
        return dtype.is_integer() or (
            isinstance(dtype, pl.Datetime) and dtype.time_zone is not None
        )
    if base == "string":
        return isinstance(dtype, pl.Categorical | pl.Enum)
    return False


def _cast_vectors(column: Column, data: pl.Series) -> pl.Series:
    if not isinstance(data.dtype, pl.List | pl.Array):
        raise _unfit(column, data, "")
    inner = data.dtype.inner
    lists = data.arr.to_list() if isinstance(data.dtype, pl.Array) else data
    if not isinstance(inner, pl.DataType) or not (
        inner == _POLARS[column.type.base] or _fits(column.type.base, inner)
    ):
        raise _unfit(column, data, "")
    lengths = lists.list.len()
    if ((lengths != column.type.length) & lists.is_not_null()).any():
        raise _unfit(column, data, f"a vector in it does not have {column.type.length} numbers")
    if lists.explode().null_count() > lists.null_count():
        raise _unfit(column, data, "a number in a vector is null")
    return lists.cast(polars_type(column.type))


def _unfit(column: Column, data: pl.Series, why: str) -> Usage:
    return Usage(
        f"the column {column.name!r} is of polars' type {data.dtype}, and not {column.type}",
        why=why,
        fix=f"cast it: pl.col({column.name!r}).cast({polars_type(column.type)!r})"
        if column.type.base != "timestamp"
        else f"pl.col({column.name!r}).dt.replace_time_zone(...) says in which zone they are",
    )
