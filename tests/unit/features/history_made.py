"""A small table with a history in a folder, and rows for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from holdfast.features import Table
from holdfast.features.history import Lake
from holdfast.features.history.shape import as_ordered, frame_of
from holdfast.features.rows import RowVersions
from tests.unit.features.reference import Fact

HOUR_US = 3_600 * 1_000_000
DAY_US = 24 * HOUR_US
# 2024-03-01: in the past of every clock, with a day and its neighbours around it.
NOON_US = 1_709_294_400 * 1_000_000


def drivers(**changes: Any) -> Table:
    """A table of one key."""
    given: dict[str, Any] = {
        "key": {"driver_id": "int64"},
        "columns": {"trips": "int64", "rating": "float32", "city": "string"},
    }
    return Table("drivers", **{**given, **changes})


def pairs(**changes: Any) -> Table:
    """A table of a key of two parts, one of them a text."""
    given: dict[str, Any] = {
        "key": {"town": "string", "street": "int32"},
        "columns": {"trips": "int64"},
    }
    return Table("pairs", **{**given, **changes})


def made(folder: Path, table: Table | None = None) -> Lake:
    lake = Lake(folder, table or drivers())
    lake.create()
    return lake


def rows(
    table: Table, ids: Sequence[int], at_us: Any = NOON_US, *, first: int = 0, **columns: Any
) -> pl.DataFrame:
    """Rows of drivers: the sequence goes up from `first`, and so does `trips` by itself."""
    count = len(ids)
    numbers = np.arange(first, first + count)
    versions = RowVersions.of(np.broadcast_to(at_us, count), np.full(count, 7), numbers)
    given = {"trips": numbers, **columns}
    return frame_of(table, {"driver_id": list(ids)}, versions, given, arrived_us=at_us)


def frame_of_facts(table: Table, facts: Sequence[Fact]) -> pl.DataFrame:
    keys = {name: [fact.key[place] for fact in facts] for place, name in enumerate(table.key)}
    versions = RowVersions.of(
        [fact.at_us for fact in facts],
        [fact.writer for fact in facts],
        [fact.sequence for fact in facts],
    )
    return frame_of(
        table,
        keys,
        versions,
        {"trips": [fact.value for fact in facts]},
        arrived_us=[fact.arrived_us for fact in facts],
        deleted=[fact.deleted for fact in facts],
    )


def everything(lake: Lake) -> pl.DataFrame:
    """All rows of the newest version, in one order."""
    found = lake.collect(lake.scan(lake.log()))
    return found.sort([*lake.table.key, lake.table.time, "_writer", "_sequence"])


def sequences(lake: Lake) -> list[int]:
    """The sequences of all rows: of tests whose rows have each its own."""
    found = everything(lake)["_sequence"].to_numpy()
    return sorted((found.view(np.uint64) ^ np.uint64(1 << 63)).tolist())


__all__ = ["as_ordered", "drivers", "everything", "frame_of_facts", "made", "pairs", "rows"]
