"""Files of rows: written as Parquet, sorted by key and time, with what Delta's log says of each.

They are in the store, durably, before a commit names them. What no commit names is removed by the
vacuum, after days.
"""

from __future__ import annotations

import datetime
import io
import json
import uuid
from collections.abc import Sequence
from typing import Any, Final

import polars as pl
from deltalake.transaction import AddAction, RemoveAction

from holdfast.features.history.places import LakePlace
from holdfast.features.history.shape import ARRIVED, DAY, SEQUENCE, WRITER, frame_schema
from holdfast.features.table import Table
from holdfast.system.clock import Clock

# A file of this size is not merged again; so much is sorted in memory at a time.
FILE_BYTES_TARGET: Final = 64 << 20
# A file is sorted and written in memory, and so it is read.
FILE_ROWS_MAX: Final = 2_000_000
# Small enough that who asks for few keys passes over most of a large file.
GROUP_ROWS: Final = 65_536
# Bounds of texts in the log: longer ones are left out, which is allowed.
_BOUND_CHARACTERS_MAX: Final = 64
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def is_small(size_bytes: int) -> bool:
    """Whether a file of this size is merged with others, some day."""
    return size_bytes < FILE_BYTES_TARGET // 2


def write_files(
    place: LakePlace, table: Table, frame: pl.DataFrame, clock: Clock, *, is_new: bool = True
) -> list[AddAction]:
    """Write rows into files of one day each; what a commit adds to name them. `is_new`: the rows
    were in no file before."""
    by = [*table.key, table.time, WRITER, SEQUENCE]
    days = frame.with_columns(pl.col(table.time).dt.date().alias(DAY)).partition_by(
        DAY, as_dict=True, include_key=False
    )
    added = []
    for (day,), rows in sorted(days.items()):
        ordered = rows.sort(by)
        for first in range(0, ordered.height, FILE_ROWS_MAX):
            piece = ordered.slice(first, FILE_ROWS_MAX)
            added.append(_write_file(place, table, str(day), piece, clock, is_new=is_new))
    return added


def _write_file(
    place: LakePlace, table: Table, day: str, rows: pl.DataFrame, clock: Clock, *, is_new: bool
) -> AddAction:
    path = f"{DAY}={day}/{uuid.uuid4()}.parquet"
    data = io.BytesIO()
    rows.write_parquet(data, compression="zstd", compression_level=1, row_group_size=GROUP_ROWS)
    written = place.blobs.put(place.key_of(path), data.getvalue())
    return AddAction(
        path, written.size_bytes, {DAY: day}, clock.wall_ms(), is_new, _statistics(table, rows)
    )


def removal(
    path: str, size_bytes: int, day: datetime.date, now_ms: int, *, is_new: bool
) -> RemoveAction:
    """What a commit says to forget a file. `is_new`: its rows are in no other file now."""
    return RemoveAction(path, is_new, now_ms, size_bytes, {DAY: day.isoformat()})


def scan_files(
    place: LakePlace,
    table: Table,
    paths: Sequence[str],
    columns: Sequence[str] | None = None,
    *,
    file_column: str | None = None,
) -> pl.LazyFrame:
    """The rows of these files. A column that a file does not have is null in it. `file_column`: a
    column that says in which of them a row is."""
    schema = frame_schema(table)
    wanted = schema if columns is None else {name: schema[name] for name in columns}
    if not paths:
        return pl.LazyFrame(schema=wanted)
    return pl.scan_parquet(
        [place.uri_of(path) for path in paths],
        schema=wanted,
        missing_columns="insert",
        extra_columns="ignore",
        glob=False,
        hive_partitioning=False,
        storage_options=dict(place.polars_options) or None,
        include_file_paths=file_column,
    )


def _statistics(table: Table, rows: pl.DataFrame) -> str:
    """Bounds of the columns by which rows are found, for engines that pass over files."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    for name in (*table.key, table.time, ARRIVED):
        found = rows[name]
        if found.dtype == pl.Binary:
            continue
        low, high = found.min(), found.max()
        if isinstance(low, datetime.datetime):
            counts = found.to_physical()
            least[name] = _milliseconds(int(counts.min()))  # type: ignore[arg-type]
            # Delta Lake has milliseconds there; one that is cut off would hide the newest rows.
            most[name] = _milliseconds(int(counts.max()) + 999)  # type: ignore[arg-type]
        elif not isinstance(low, str) or max(len(low), len(str(high))) <= _BOUND_CHARACTERS_MAX:
            least[name], most[name] = low, high
    nulls = dict.fromkeys(least, 0)
    return json.dumps(
        {"numRecords": rows.height, "minValues": least, "maxValues": most, "nullCount": nulls}
    )


def _milliseconds(at_us: int) -> str:
    last = datetime.datetime.max.replace(tzinfo=datetime.UTC)
    at = min(_EPOCH + datetime.timedelta(microseconds=min(at_us, 253_402_300_799_999_999)), last)
    return at.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
