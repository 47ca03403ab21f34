"""What entities are told of one table: its history is read a few days at a time, each file once,
and of what was read only what can still matter is carried on. So memory is bounded by the entities,
by one row for each of their keys, and by a part of the history of the size that is allowed.

Where a few days alone are too many rows, they are read several times, each time for some of the
keys. Files are sorted by key: most of a file is then passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from holdfast.features.history.lake import Lake
from holdfast.features.history.log import LakeLog
from holdfast.features.history.newest import HistoryRows, Timeline
from holdfast.features.history.shape import (
    ARRIVED,
    DAY_US,
    DELETED,
    SEQUENCE,
    WRITER,
    columns_of,
    result_type,
)

Array = np.ndarray[Any, Any]

# Texts and bytes, in the middle; and what sorting a row takes beside its values.
FREE_BYTES: Final = 48
SORTING_BYTES: Final = 120
# A row of values is there when it is read and when it is joined, with some room between.
COPIES: Final = 3
ROWS_MIN: Final = 10_000

_CODE: Final = "_code"
_ALWAYS: Final = (-(2**62), 2**62)


@dataclass(frozen=True, slots=True)
class HistoryWindow:
    """Some days of a history: the entities whose times lie in it, and the files of their rows."""

    begin_us: int
    end_us: int
    files: pl.DataFrame

    @property
    def rows(self) -> int:
        return int(self.files["num_records"].sum())


class TableJoin:
    """One table at one version, joined with entities. `arrived`: a row counts from its arrival on,
    and otherwise from the time of its event on."""

    def __init__(
        self,
        lake: Lake,
        log: LakeLog,
        columns: Sequence[str],
        *,
        arrived: bool,
        memory_bytes: int,
    ) -> None:
        self._lake, self._log = lake, log
        self._table = table = lake.table
        self._values = list(dict.fromkeys(columns))
        self._arrived = arrived
        self._ttl_us = None if table.ttl_s is None else int(table.ttl_s * 1e6)
        kinds = columns_of(table)
        width = sum(kinds[name].width_bytes or FREE_BYTES for name in self._values)
        self._rows_max = max(ROWS_MIN, memory_bytes // (COPIES * width + SORTING_BYTES))
        self._types = {name: result_type(kinds[name]) for name in self._values}

    def run(self, keys: pl.DataFrame, times: Array) -> pl.DataFrame:
        """The values of the newest row that each entity's key had at its time, null where there was
        none."""
        known = keys.unique().sort(keys.columns).with_row_index(_CODE)
        code = keys.join(known, on=keys.columns, how="left", maintain_order="left")[
            _CODE
        ].to_numpy()
        order = np.argsort(times, kind="stable")
        ordered = times[order]
        pieces: list[tuple[Array, pl.DataFrame]] = []
        carried: pl.DataFrame | None = None
        for window in windows(self._log.files, ordered, self._ttl_us, self._rows_max):
            first, last = np.searchsorted(ordered, (window.begin_us, window.end_us))
            asked = order[first:last]
            left = []
            for part in self._parts(window, known):
                among = asked[_within(code[asked], part)]
                rows = self._rows(window, known, part, int(ordered[-1]), carried)
                offset = int(part[_CODE][0])
                timeline = self._timeline(rows, offset, part.height)
                pieces.append(self._found(rows, timeline, among, code[among] - offset, times))
                left.append(self._left(rows, timeline, window.end_us))
            carried = pl.concat(left)
        return self._joined(pieces, keys.height)

    # --- one window -------------------------------------------------------------------------------

    def _parts(self, window: HistoryWindow, known: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """The keys, all at once or in parts: no more rows of one part than are allowed, unless one
        key alone has more."""
        if window.rows <= self._rows_max or known.height == 1:
            yield known
            return
        scan = self._lake.scan(self._log, self._table.key, window.files)
        counted = self._lake.collect(
            scan.join(known.lazy(), on=self._table.key).group_by(_CODE).len()
        )
        counts = np.zeros(known.height, np.int64)
        counts[counted[_CODE].to_numpy()] = counted["len"].to_numpy()
        begin = total = 0
        for place, count in enumerate(counts.tolist()):
            if total and total + count > self._rows_max:
                yield known.slice(begin, place - begin)
                begin, total = place, 0
            total += count
        yield known.slice(begin)

    def _rows(
        self,
        window: HistoryWindow,
        known: pl.DataFrame,
        part: pl.DataFrame,
        latest_us: int,
        carried: pl.DataFrame | None,
    ) -> pl.DataFrame:
        """The rows of these keys in this window, and what the windows before it have left."""
        key, time = self._table.key, self._table.time
        own = [time, WRITER, SEQUENCE, DELETED, *([ARRIVED] if self._arrived else [])]
        names = list(dict.fromkeys([*key, *own, *self._values]))
        scan = self._lake.scan(self._log, names, window.files).filter(
            pl.col(time) <= pl.lit(latest_us).cast(pl.Datetime("us", "UTC"))
        )
        lowest, highest = part[key[0]][0], part[key[0]][-1]  # they are sorted
        scan = scan.filter(pl.col(key[0]).is_between(pl.lit(lowest), pl.lit(highest)))
        if self._arrived:
            latest = pl.lit(latest_us).cast(pl.Datetime("us", "UTC"))
            scan = scan.filter(pl.col(ARRIVED) <= latest)
        wanted = list(dict.fromkeys([_CODE, *own, *self._values]))
        found = self._lake.collect(scan.join(part.lazy(), on=key).select(wanted))
        if carried is None:
            return found
        first, last = int(part[_CODE][0]), int(part[_CODE][-1])
        return pl.concat([carried.filter(pl.col(_CODE).is_between(first, last)), found])

    def _timeline(self, rows: pl.DataFrame, offset: int, codes: int) -> Timeline:
        at_us = rows[self._table.time].to_physical().to_numpy()
        known_us = rows[ARRIVED].to_physical().to_numpy() if self._arrived else None
        code = rows[_CODE].to_numpy() - np.uint32(offset)
        writer, sequence = rows[WRITER].to_numpy(), rows[SEQUENCE].to_numpy()
        return Timeline(HistoryRows(code, at_us, writer, sequence, known_us), codes)

    def _found(
        self, rows: pl.DataFrame, timeline: Timeline, asked: Array, code: Array, times: Array
    ) -> tuple[Array, pl.DataFrame]:
        """Of those who asked the ones who are told something, and what."""
        row = timeline.newest(code, times[asked])
        there = row >= 0
        asked, row = asked[there], row[there]
        is_valid = ~rows[DELETED].to_numpy()[row]
        if self._ttl_us is not None:
            at_us = rows[self._table.time].to_physical().to_numpy()[row]
            is_valid &= at_us + self._ttl_us > times[asked]
        asked, row = asked[is_valid], row[is_valid]
        return asked, rows.select(self._values)[row]

    def _left(self, rows: pl.DataFrame, timeline: Timeline, end_us: int) -> pl.DataFrame:
        """What the next windows need of it."""
        left = rows[timeline.remaining(end_us)]
        if self._ttl_us is None:
            return left
        # What is older than that has no value any more, and what is older still has none either.
        at_us = left[self._table.time].to_physical()
        return left.filter(at_us + self._ttl_us > end_us)

    def _joined(self, pieces: list[tuple[Array, pl.DataFrame]], count: int) -> pl.DataFrame:
        """One row for each entity, in their order."""
        if not pieces:
            return pl.DataFrame(schema=self._types).clear(count)
        place = np.full(count, -1, np.int64)
        told = np.concatenate([asked for asked, _ in pieces])
        place[told] = np.arange(len(told))
        values = pl.concat([rows for _, rows in pieces]) if len(pieces) > 1 else pieces[0][1]
        chosen = pl.select(pl.when(pl.Series(place) >= 0).then(pl.Series(place))).to_series()
        return values.select(
            [pl.col(name).gather(chosen).cast(kind) for name, kind in self._types.items()]
        )


def windows(
    files: pl.DataFrame, times: Array, ttl_us: int | None, rows_max: int
) -> Iterator[HistoryWindow]:
    """The days that somebody at one of these times (in their order) can be told of, one after the
    other, some together as long as their rows are few enough."""
    days = files.group_by("day").agg(pl.col("num_records").fill_null(rows_max).sum()).sort("day")
    chosen: list[tuple[int, int, list[Any]]] = []
    for day, count in days.iter_rows():
        begin_us = int(day.toordinal() - _EPOCH_DAY) * DAY_US
        following = int(np.searchsorted(times, begin_us))
        if following == len(times):
            break  # it, and all after it, lie after everybody's time
        if ttl_us is not None and int(times[following]) >= begin_us + DAY_US + ttl_us:
            continue  # its rows are forgotten before anybody asks
        if chosen and chosen[-1][1] + count <= rows_max:
            chosen[-1] = (chosen[-1][0], chosen[-1][1] + count, [*chosen[-1][2], day])
        else:
            chosen.append((begin_us, count, [day]))
    for number, (begin_us, _, listed) in enumerate(chosen):
        is_last = number + 1 == len(chosen)
        end_us = _ALWAYS[1] if is_last else chosen[number + 1][0]
        yield HistoryWindow(begin_us, end_us, files.filter(pl.col("day").is_in(listed)))


_EPOCH_DAY: Final = 719_163  # 1970-01-01, as `date.toordinal` counts


def _within(code: Array, part: pl.DataFrame) -> Array:
    return (code >= int(part[_CODE][0])) & (code <= int(part[_CODE][-1]))
