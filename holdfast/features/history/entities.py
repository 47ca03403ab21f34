"""Whom somebody asks about, and for which times: frames of polars or pandas, or a mapping of names
to arrays and lists. What is wrong in them is said before anything is read."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import polars as pl

from holdfast.features import values
from holdfast.features.columns import Column, ColumnType, nearest
from holdfast.features.history.shape import key_series, series_of
from holdfast.features.table import Table
from holdfast.wire.errors import Usage

# Clocks differ; what lies later than this has not happened.
AHEAD_S_MAX: Final = 60.0

Asked = Any  # a frame of polars or pandas, or a mapping


def entity_frame(entities: Asked) -> pl.DataFrame:
    """The frame of whatever was given; `Usage`: it is none, or it is empty."""
    if isinstance(entities, pl.LazyFrame):
        entities = entities.collect()
    if isinstance(entities, pl.DataFrame):
        frame = entities
    elif type(entities).__module__.partition(".")[0] == "pandas" and hasattr(entities, "columns"):
        frame = pl.DataFrame([_of_pandas(str(name), entities[name]) for name in entities.columns])
    elif isinstance(entities, Mapping):
        frame = _of_mapping(entities)
    else:
        raise Usage(
            f"entities are no {type(entities).__name__}",
            fix="give a frame of polars or pandas, or a mapping of names to lists",
        )
    if not frame.height:
        raise Usage(
            "there are no entities",
            why="the frame has no row, and nothing could be learned from it",
            fix="look at what made it",
        )
    return frame


def entity_times(
    frame: pl.DataFrame, at: str | datetime.datetime, now_us: int
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Of each entity the time for which is asked, in microseconds since 1970. `Usage`: there is
    none, or it lies in the future."""
    if isinstance(at, str):
        if at not in frame.columns:
            raise Usage(
                f"the entities have no time: there is no column {at!r}",
                why=f"they have {', '.join(frame.columns[:12])}",
                fix=nearest(at, frame.columns) or "name the column of times: at=...",
            )
        found = series_of(Column(at, ColumnType("timestamp"), 1), frame[at])
        if found.null_count():
            row = int(found.is_null().arg_max() or 0)
            raise Usage(f"row {row} of the entities has no {at!r}", fix="leave such rows out")
        times = found.to_physical().to_numpy()
    else:
        one = values.time_us(at)
        assert one is not None
        times = np.full(frame.height, one, np.int64)
    ahead_s = (int(times.max()) - now_us) / 1e6
    if ahead_s > AHEAD_S_MAX:
        raise Usage(
            f"row {int(times.argmax())} of the entities asks for a time {ahead_s:,.0f}s from now",
            why="what will be known then is not known, and the answer would be another one later",
            fix="check the times and their zone and unit (microseconds since 1970)",
        )
    return times


def entity_keys(frame: pl.DataFrame, table: Table, names: Mapping[str, str]) -> pl.DataFrame:
    """The parts of a table's key, as the history has them. `names`: which columns of the entities
    they are; by default those of the same name."""
    for name in names:
        if name not in table.key:
            raise Usage(
                f"table {table.name!r}: {name!r} is no part of its key",
                why=f"the key is made of {', '.join(table.key)}",
                fix=nearest(name, table.key),
            )
    made = []
    for name, kind in zip(table.key, table.key_types, strict=True):
        column = names.get(name, name)
        if column not in frame.columns:
            raise Usage(
                f"table {table.name!r}: the entities have no column {column!r}",
                why=f"its key is made of {', '.join(table.key)}, and they have"
                f" {', '.join(frame.columns[:12])}",
                fix=f"say which it is: keys={{{table.name!r}: {{{name!r}: 'COLUMN'}}}}",
            )
        made.append(key_series(table, name, kind, frame[column]))
    return pl.DataFrame(made)


def _of_mapping(entities: Mapping[Any, Any]) -> pl.DataFrame:
    lengths = {
        str(name): len(column) for name, column in entities.items() if hasattr(column, "__len__")
    }
    if len(set(lengths.values())) > 1:
        raise Usage(
            "the columns of the entities are of different lengths",
            why=", ".join(f"{name} has {length}" for name, length in lengths.items()),
            fix="give columns of one length",
        )
    return pl.DataFrame([_of_values(str(name), column) for name, column in entities.items()])


def _of_values(name: str, column: Any) -> pl.Series:
    if isinstance(column, pl.Series):
        return column.alias(name)
    if type(column).__module__.partition(".")[0] == "pandas":
        return _of_pandas(name, column)
    if isinstance(column, np.ndarray) and column.dtype.kind == "M":
        return pl.Series(name, values.times_us(column)[0]).cast(pl.Datetime("us", "UTC"))
    if isinstance(column, np.ndarray) and column.dtype.kind == "O":
        column = column.tolist()
    try:
        return pl.Series(name, column)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
        raise Usage(
            f"the entities' column {name!r} cannot be read",
            why=str(error).partition("\n")[0][:200],
            fix="give a list or an array of one type",
        ) from error


def _of_pandas(name: str, column: Any) -> pl.Series:
    """Without pyarrow, which polars would need for it."""
    kind = column.dtype
    if getattr(kind, "tz", None) is not None:
        moments = column.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy("datetime64[us]")
        gone = np.isnat(moments)
        found = pl.Series(name, moments.view(np.int64)).cast(pl.Datetime("us", "UTC"))
        return (
            found
            if not gone.any()
            else pl.select(pl.when(~pl.Series(gone)).then(found)).to_series().alias(name)
        )
    if isinstance(kind, np.dtype) and kind.kind in "biuf":
        return pl.Series(name, column.to_numpy())
    if isinstance(kind, np.dtype) and kind.kind == "M":
        return pl.Series(name, column.to_numpy("datetime64[us]"))  # without a zone, and so refused
    gone = column.isna().to_numpy()
    plain = column.astype(object).tolist()
    return _of_values(
        name, [None if lost else each for each, lost in zip(plain, gone.tolist(), strict=True)]
    )
