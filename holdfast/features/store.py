"""Reading and writing feature tables: all tables in one round trip, and of every value its age.

    with FeatureStore(registry.table, online) as features:
        features.put("drivers", {"driver_id": "d7", "at": now, "trips": 12})
        found = features.read({"drivers": ["d7", "d8"], "cities": ["rome", "rome"]})
        found["drivers"].columns["trips"], found["drivers"].age_s

A read goes to the engine once, however many tables it asks. A table that is `bounded` may be
answered from rows that this process has kept, none of them older than the table allows, and the
answer says how old. What is asked often is read again before it is too old.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

import numpy as np

from holdfast.features import rows
from holdfast.features.cache import RowCache
from holdfast.features.online.store import Asked, Found, OnlineStore
from holdfast.features.rows import Row, RowBatch, RowVersion
from holdfast.features.table import Level, Table
from holdfast.system import logs
from holdfast.system.clock import Clock, SystemClock
from holdfast.system.tasks import WAITED, owned
from holdfast.wire.errors import BugError, HoldfastError, Missing, TooLarge, Usage

log = logs.get(__name__)

# Keys of one read, of all tables together: what one answer of an engine is bounded by.
READ_KEYS_MAX: Final = 10_000
# Rows of one `put`.
PUT_ROWS_MAX: Final = 10_000
# A row may be larger than its age by the time that the answer took to come back; nobody waits for
# reads ahead, and one at a time is enough.
_AHEAD_THREADS: Final = 1

Keys = Sequence[object] | Mapping[str, Sequence[object]]


class TableLog(Protocol):
    """Where each write is durable before it is seen: the table's topic."""

    def append(self, table: Table, written: Sequence[Row]) -> None:
        """Returns when all of them are durable."""


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of one table, in the order in which they were asked for. `age_s`: how long ago at most
    the store said this (0: in this call). `stored`: the rows' own bytes, for whoever keeps them."""

    rows: RowBatch
    age_s: float
    stored: tuple[Found, ...]

    @property
    def columns(self) -> dict[str, Any]:
        return self.rows.columns

    @property
    def present(self) -> np.ndarray[Any, Any]:
        return self.rows.present


@dataclass(frozen=True, slots=True)
class FoundRow:
    """One row, as people look at it. `values` is empty where it was deleted."""

    key: tuple[object, ...]
    values: Mapping[str, object]
    version: RowVersion
    age_s: float
    expired: bool
    deleted: bool


class FeatureStore:
    """Tables by their names, on one online store. Any thread may use it; whoever makes it closes
    it, and with it the store."""

    def __init__(
        self,
        table: Callable[[str], Table],
        online: OnlineStore,
        *,
        written: TableLog | None = None,
        clock: Clock | None = None,
        writer: int | None = None,
    ) -> None:
        """`table` gives the definition of a name as it is now, or raises `Missing`. `writer`: who
        writes, as versions say; by default a number of this process that nobody else has."""
        self._table = table
        self._online = online
        self._written = written
        self._clock: Clock = clock or SystemClock()
        self._writer = int.from_bytes(os.urandom(8)) if writer is None else writer
        self._sequence = itertools.count(1)
        self._cache = RowCache()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._ahead: ThreadPoolExecutor | None = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._closed, ahead = True, self._ahead
        if ahead is not None:
            ahead.shutdown(cancel_futures=True)
        self._online.close()

    # --- reading ----------------------------------------------------------------------------------

    def read(
        self,
        entities: Mapping[str, Keys],
        columns: Mapping[str, Sequence[str]] | None = None,
        *,
        fresh: bool = False,
    ) -> dict[str, TableRows]:
        """The newest rows of these keys, of all tables in one round trip. `columns`: which, by
        table; by default all. `fresh`: nothing from what this process keeps. A row whose time to
        live is over is not there."""
        tables = {name: self._table(name) for name in entities}
        keys = {name: tables[name].keys_bytes(_listed(given)) for name, given in entities.items()}
        count = sum(map(len, keys.values()))
        if count > READ_KEYS_MAX:
            raise TooLarge(
                f"{count} keys are asked for at once",
                why=f"one read takes at most {READ_KEYS_MAX}",
                fix="ask in several calls",
            )
        stored = self._read(tables, keys, fresh=fresh)
        now_us = self._clock.wall_ms() * 1_000
        found = {}
        for name, (data, age_s) in stored.items():
            wanted = (columns or {}).get(name)
            batch = self._decoded(tables[name], data, wanted)
            _expire(tables[name], batch, now_us)
            found[name] = TableRows(batch, age_s, tuple(data))
        return found

    def get(self, table: str, *key: object, fresh: bool = False) -> FoundRow | None:
        """One row, also one that is expired or deleted; None: there was never one, or it is
        forgotten."""
        known = self._table(table)
        data = known.key_bytes(*key)
        (found,), age_s = self._read({table: known}, {table: [data]}, fresh=fresh)[table]
        if found is None:
            return None
        version = rows.version_of(found)
        over = known.ttl_s is not None and (
            version.at_us + known.ttl_s * 1e6 <= self._clock.wall_ms() * 1_000
        )
        try:
            values = rows.decode(known, found)
        except Missing:
            known = self._table(table)
            values = rows.decode(known, found)
        return FoundRow(
            known.key_of(data), values, version, age_s, over, deleted=rows.is_deleted(found)
        )

    def _read(
        self, tables: Mapping[str, Table], keys: Mapping[str, list[bytes]], *, fresh: bool
    ) -> dict[str, tuple[list[Found], float]]:
        """Of each table what was found, and how old it may be."""
        now_s = self._clock.now_s()
        found: dict[str, list[Found]] = {}
        missing: dict[str, list[int]] = {}
        oldest_s = dict.fromkeys(tables, now_s)
        ahead = []
        for name, table in tables.items():
            age_max_s = table.consistency.age_max_s
            if fresh or age_max_s is None:
                found[name], missing[name] = [None] * len(keys[name]), [*range(len(keys[name]))]
                continue
            with self._lock:
                looked = self._cache.look(name, keys[name], age_max_s, now_s)
            found[name], missing[name], oldest_s[name] = looked[:3]
            if looked.ahead:
                ahead.append(Asked(table, looked.ahead, table.read_level))
        asked = [
            Asked(tables[name], [keys[name][place] for place in places], tables[name].read_level)
            for name, places in missing.items()
            if places
        ]
        if asked:
            self._fetch(asked, {name: (found[name], missing[name]) for name in missing}, now_s)
        if ahead:
            self._read_ahead(ahead)
        return {name: (found[name], max(0.0, now_s - oldest_s[name])) for name in tables}

    def _fetch(
        self,
        asked: Sequence[Asked],
        into: Mapping[str, tuple[list[Found], list[int]]],
        began_s: float,
    ) -> None:
        for one, answers in zip(asked, self._online.read(asked), strict=True):
            rows_of, places = into[one.table.name]
            for place, answer in zip(places, answers, strict=True):
                rows_of[place] = answer
            if one.table.consistency.age_max_s is not None:
                with self._lock:
                    self._cache.fill(one.table.name, one.keys, answers, began_s)

    def _read_ahead(self, asked: Sequence[Asked]) -> None:
        with self._lock:
            if self._closed or self._pid != os.getpid():
                return
            if self._ahead is None:
                self._ahead = ThreadPoolExecutor(_AHEAD_THREADS, "features-ahead")
            future = self._ahead.submit(self._refresh, asked)
        owned(future, WAITED)

    def _refresh(self, asked: Sequence[Asked]) -> None:
        """What cannot be read now is read when it is too old, by whoever asks for it then."""
        began_s = self._clock.now_s()
        try:
            answers = self._online.read(asked)
        except HoldfastError as error:
            log.info("features were not read ahead", reason=str(error))
            return
        with self._lock:
            for one, found in zip(asked, answers, strict=True):
                self._cache.fill(one.table.name, one.keys, found, began_s)

    def _decoded(
        self, table: Table, data: Sequence[Found], columns: Sequence[str] | None
    ) -> RowBatch:
        try:
            return rows.decode_batch({table.schema: table}, data, columns)
        except Missing:
            # Somebody has changed the table since this process read its definition.
            table = self._table(table.name)
            return rows.decode_batch({table.schema: table}, data, columns)

    # --- writing ----------------------------------------------------------------------------------

    def put(
        self, table: str, given: Mapping[str, object] | Sequence[Mapping[str, object]]
    ) -> list[bool]:
        """Write rows, each whole, as mappings of names to values with key and time among them
        (without a time: now). Of each whether it is the newest now; False: a newer one was there.
        All are refused if one does not fit. After an error any of them may be written, and to write
        them again is harmless."""
        many = [given] if isinstance(given, Mapping) else list(given)
        known = self._table(table)
        if len(many) > PUT_ROWS_MAX:
            raise TooLarge(
                f"{len(many)} rows are written at once",
                why=f"one call takes at most {PUT_ROWS_MAX}",
                fix="write in several calls, or holdfast features ingest",
            )
        now_us = self._clock.wall_ms() * 1_000
        made = []
        for number, one in enumerate(many):
            try:
                at_us = _event_us(known, one, now_us)
                rows.check_time(known, at_us, now_us)
                made.append(rows.encode(known, self._version(at_us), one))
            except Usage as error:
                if len(many) == 1:
                    raise
                raise type(error)(
                    f"row {number}: {error.what}", why=error.why, fix=error.fix
                ) from error
        return self.write(known, made)

    def delete(self, table: str, *key: object) -> bool:
        """Delete a row, from now on: an event of before that comes late does not bring it back.
        Whether this deletion is the newest now."""
        known = self._table(table)
        now_us = self._clock.wall_ms() * 1_000
        data = known.key_bytes(*key)
        # Past what the clocks of other writers may have been ahead.
        newest = self._online.read([Asked(known, [data], Level.STRONG)])[0][0]
        at_us = now_us if newest is None else max(now_us, rows.version_of(newest).at_us)
        return self.write(known, [rows.deleted(known, self._version(at_us, last=True), data)])[0]

    def write(self, table: Table, made: Sequence[Row]) -> list[bool]:
        """Write rows that are encoded: durable in the table's topic first, then seen online."""
        if not made:
            return []
        if self._written is not None:
            self._written.append(table, made)
        done = self._online.write(table, made)
        if len(done) != len(made):
            raise BugError(f"{len(made)} rows were written, and {len(done)} answers came")
        with self._lock:
            self._cache.drop(table.name, [row.key for row in made], self._clock.now_s())
        return done

    def changed(self, table: str, keys: Sequence[bytes]) -> None:
        """Somebody else has written these rows: what is kept of them is forgotten."""
        with self._lock:
            self._cache.drop(table, keys, self._clock.now_s())

    def _version(self, at_us: int, *, last: bool = False) -> RowVersion:
        # A deletion wins over every writer of the same moment.
        return RowVersion(at_us, (1 << 64) - 1 if last else self._writer, next(self._sequence))


def _event_us(table: Table, given: Mapping[str, object], now_us: int) -> int:
    """When the event of a row was: now, if nobody says it."""
    at = given.get(table.time)
    if at is None:
        return now_us
    at_us = rows.time_us(at)
    if at_us is None:
        raise Usage(f"{table.time!r} is no time: {at}", fix="leave it out for now")
    return at_us


def _listed(given: Keys) -> Sequence[object] | Mapping[str, Sequence[object]]:
    if isinstance(given, str | bytes):
        raise Usage(
            f"{given!r:.100} is one key, and a list of them is asked for",
            fix=f"write [{given!r:.100}]",
        )
    return given


def _expire(table: Table, batch: RowBatch, now_us: int) -> None:
    """Rows whose time to live is over are not there, wherever they come from."""
    if table.ttl_s is None:
        return
    over = batch.present & (batch.at_us + int(table.ttl_s * 1e6) <= now_us)
    if not over.any():
        return
    batch.present[over] = False
    for name, valid in batch.valid.items():
        batch.valid[name] = valid & ~over
        kept = batch.columns[name]
        if isinstance(kept, list):
            gone = over.tolist()
            batch.columns[name] = [
                None if is_gone else each for each, is_gone in zip(kept, gone, strict=True)
            ]
        elif kept.dtype.kind == "f":
            kept[over] = np.nan
        elif kept.dtype.kind == "M":
            kept[over] = np.datetime64("NaT")
        else:
            kept[over] = 0
