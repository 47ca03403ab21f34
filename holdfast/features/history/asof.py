"""What was known then: point-in-time correct features for training.

    found = history([drivers, cities], entities, ["drivers.trips", "cities.rain"], at="at")
    found.frame, found.digest, found.versions

Each entity (a key and a time) is told the values of the newest row that its key had at that time:
by the time of the event, and, with `arrived=True`, only of what had arrived by then. A row that is
as old as the table's time to live, or older, is not there, and neither is a deleted one; what was
before them does not come back. These are the rules by which the online store answers, too.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from holdfast.features.columns import nearest
from holdfast.features.history import dataset as tensors
from holdfast.features.history.entities import Asked, entity_frame, entity_keys, entity_times
from holdfast.features.history.joining import TableJoin
from holdfast.features.history.lake import Lake
from holdfast.system.clock import Clock, SystemClock
from holdfast.wire.errors import Usage

if TYPE_CHECKING:
    from torch.utils.data import TensorDataset

MEMORY_BYTES: Final = 1 << 30
MEMORY_BYTES_MIN: Final = 16 << 20

AsOf = int | datetime.datetime


@dataclass(frozen=True)
class History:
    """The entities with what was known of them. `versions`: of each table the version of its
    history that was read; with `as_of=versions` the same comes again, as long as they are kept.
    `columns`: the names of what was asked."""

    frame: pl.DataFrame
    versions: Mapping[str, int]
    columns: tuple[str, ...]

    def __len__(self) -> int:
        return self.frame.height

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all values with their names and types: the same for the same data."""
        return tensors.frame_digest(self.frame)

    def numpy(self, name: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """A column as an array (of vectors one of two dimensions), and where it has a value. Where
        it has none there is NaN, NaT, 0, False or None."""
        if name not in self.frame.columns:
            raise Usage(
                f"there is no column {name!r}",
                why=f"there are {', '.join(self.frame.columns[:20])}",
                fix=nearest(name, self.frame.columns),
            )
        return tensors.array_of(self.frame[name])

    def dataset(
        self,
        y: str | None = None,
        *,
        x: Sequence[str] | None = None,
        fill: float | Mapping[str, float] | None = None,
    ) -> TensorDataset:
        """A data set for `run.batches`: one sample for each entity, of float32 `x` (by default all
        columns that were asked for, vectors laid side by side) and, if it is named, of `y`. `fill`:
        what stands where there is no value; without it that is `Usage`. Its `facts` have the digest
        of its values: a job does not go on with others."""
        return tensors.tensor_dataset(self.frame, self.columns if x is None else x, y, fill)


def history(
    lakes: Lake | Sequence[Lake],
    entities: Asked,
    columns: Sequence[str],
    *,
    at: str | datetime.datetime = "at",
    arrived: bool = False,
    as_of: AsOf | Mapping[str, AsOf] | None = None,
    keys: Mapping[str, Mapping[str, str]] | None = None,
    memory_bytes: int = MEMORY_BYTES,
    clock: Clock | None = None,
) -> History:
    """What was known of each entity at its time.

    `entities`: a frame of polars or pandas, or a mapping of names to lists; it has the keys of all
    tables, and the times in the column `at` (or `at` is one time for all). `columns`: what is
    wanted, as `trips`, or `drivers.trips` where several tables have it; also the time itself, as
    `drivers.at`. They are called so in the answer. `keys`: which columns of the entities are a
    table's key, where they are called otherwise: `{"cities": {"city": "origin"}}`. `as_of`: the
    history as it was at a version or a time, of all tables or by table; what was written since is
    not seen. `memory_bytes`: about how much of a history is in memory at a time.
    """
    known = {lake.table.name: lake for lake in ([lakes] if isinstance(lakes, Lake) else lakes)}
    frame = entity_frame(entities)
    wanted = _wanted(known, frame, columns)
    if memory_bytes < MEMORY_BYTES_MIN:
        raise Usage(
            f"memory_bytes={memory_bytes} is too little",
            fix=f"give at least {MEMORY_BYTES_MIN}",
        )
    for name in keys or {}:
        if name not in known:
            raise Usage(f"keys= names {name!r}, which is no table here", fix=nearest(name, known))
    times = entity_times(frame, at, (clock or SystemClock()).wall_ms() * 1_000)
    asked = {
        name: entity_keys(frame, known[name].table, (keys or {}).get(name, {})) for name in wanted
    }
    versions: dict[str, int] = {}
    found: dict[str, pl.Series] = {}
    for name, pairs in wanted.items():
        log = known[name].log(_as_of(as_of, name))
        versions[name] = log.version
        names = [column for _, column in pairs]
        join = TableJoin(known[name], log, names, arrived=arrived, memory_bytes=memory_bytes)
        values = join.run(asked[name], times)
        found.update({called: values[column].alias(called) for called, column in pairs})
    result = frame.with_columns([found[called] for called in columns])
    return History(result, versions, tuple(columns))


def _as_of(as_of: AsOf | Mapping[str, AsOf] | None, table: str) -> AsOf | None:
    return as_of.get(table) if isinstance(as_of, Mapping) else as_of


def _wanted(
    known: Mapping[str, Lake], frame: pl.DataFrame, columns: Sequence[str]
) -> dict[str, list[tuple[str, str]]]:
    """By table: how each column is called in the answer, and in the table."""
    if isinstance(columns, str) or not columns:
        raise Usage("no columns are named", fix='give a list: ["drivers.trips", "drivers.rating"]')
    if twice := [name for name in dict.fromkeys(columns) if list(columns).count(name) > 1]:
        raise Usage(f"the column {twice[0]!r} is named twice", fix="name it once")
    wanted: dict[str, list[tuple[str, str]]] = {}
    for called in columns:
        table, dot, column = called.rpartition(".")
        if not dot:
            table = _owner(known, column)
        elif table not in known:
            raise Usage(
                f"{called!r}: there is no table {table!r} here",
                why=f"there are {', '.join(known)}",
                fix=nearest(table, known),
            )
        if column not in (known[table].table.time, *known[table].table.key):
            known[table].table.column(column)
        if called in frame.columns:
            raise Usage(
                f"the entities have a column {called!r} already",
                why="what was known then would take its place",
                fix=f"name it {table}.{column}" if not dot else "call theirs otherwise",
            )
        wanted.setdefault(table, []).append((called, column))
    return wanted


def _owner(known: Mapping[str, Lake], column: str) -> str:
    owners = [name for name, lake in known.items() if column in lake.table.by_name]
    if len(owners) == 1:
        return owners[0]
    names = [each.name for lake in known.values() for each in lake.table.living]
    raise Usage(
        f"{column!r} is a column of {' and of '.join(owners) if owners else 'no table here'}",
        why=f"tables here: {', '.join(known)}",
        fix=f"name it {owners[0]}.{column}, or of another" if owners else nearest(column, names),
    )
