"""The history of one table: made, changed, appended to, read, erased from.

    lake = Lake("s3://bucket/data", drivers)
    lake.create()                            # also: the columns that were added since
    lake.append(shape.frame_of(drivers, ...))
    lake.scan(lake.log(), ["trips"])         # a lazy frame of polars

Rows are only added: a correction is a row with a higher version, and a deletion is a row that says
so. `erase` is for the law: it takes rows out of the newest version, and the vacuum takes them out
of the store.
"""

from __future__ import annotations

import datetime
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl
from deltalake.transaction import AddAction, RemoveAction

from holdfast.features import rows as feature_rows
from holdfast.features.history import log as history_log
from holdfast.features.history.files import is_small, removal, scan_files, write_files
from holdfast.features.history.log import LakeLog
from holdfast.features.history.places import LakePlace
from holdfast.features.history.shape import (
    columns_of,
    delta_field,
    delta_schema,
    frame_schema,
    key_series,
)
from holdfast.features.table import Table
from holdfast.system import backoff
from holdfast.system.clock import Clock, SystemClock
from holdfast.wire.errors import Conflict, TooLarge, Unavailable, Usage

# One append is sorted, encoded and uploaded in memory.
APPEND_ROWS_MAX: Final = 2_000_000
# Others commit too, and each try costs some milliseconds.
COMMIT_TRIES_MAX: Final = 100
COMMIT_PAUSE_S: Final = 0.005
COMMIT_PAUSE_S_MAX: Final = 0.5
# Of an erasure: how many files one commit replaces.
ERASE_FILES: Final = 16
ERASE_ROUNDS_MAX: Final = 1_000

_KEPT: Final = "_kept"
_MADE: Final = "_holdfast"
_FILE: Final = "_file"

Action = AddAction | RemoveAction


@dataclass(frozen=True, slots=True)
class Erased:
    """What an erasure did. `kept`: versions that still have the rows, and are kept until they are
    released; `version`: the first one without them."""

    rows: int
    files: int
    version: int
    kept: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LakeStatus:
    """How a history is. `small`: files that wait to be merged."""

    version: int
    rows: int
    files: int
    small: int
    size_bytes: int
    first_day: datetime.date | None
    last_day: datetime.date | None
    kept: tuple[int, ...]


class Lake:
    """See above. Any thread may use it; it keeps nothing open."""

    def __init__(self, store: str | Path, table: Table, *, clock: Clock | None = None) -> None:
        """No I/O. `store`: `file:DIR` or `s3://BUCKET/PREFIX?...`, as blobs are."""
        self.table = table
        self.place = LakePlace.of(store, table.name)
        self.clock: Clock = clock or SystemClock()

    # --- made and changed -------------------------------------------------------------------------

    def exists(self) -> bool:
        return history_log.is_there(self.place)

    def create(self) -> bool:
        """Make the history, or give it the columns that the table has by now; twice is once.
        Whether anything was done. `Refused`: the store cannot tell the first of two writes from the
        second. `Conflict`: there is a history of another table with that name."""
        # Also the check that the store has conditional puts, without which commits would be lost.
        self.place.blobs.put_if_absent(f"{self.place.root}/{_MADE}", self.table.name.encode())
        if not self.exists():
            try:
                history_log.create(self.place, self.table.name, delta_schema(self.table))
            except Conflict:
                pass  # somebody else was first
            else:
                return True
        return self._evolve()

    def _evolve(self) -> bool:
        log = self.log()

        def missing() -> list[Any]:
            there = log.fields
            fields = [delta_field(name, kind) for name, kind in columns_of(self.table).items()]
            for field in fields:
                if there.get(field.name, field.type.to_json()) != field.type.to_json():
                    raise Conflict(
                        f"{self.place}: {field.name!r} is of the type {there[field.name]}",
                        why=f"the table has {field.type.to_json()}, and a column is never retyped",
                        fix="give the table another name, or the store another folder",
                    )
            return [field for field in fields if field.name not in there]

        fields = missing()
        tried = 0
        while fields:
            try:
                log.add_columns(fields)
            except Conflict as error:
                tried = pause_after(tried, error)
                log.refresh()
                fields = missing()
            else:
                return True
        return False

    # --- read -------------------------------------------------------------------------------------

    def log(self, at: int | datetime.datetime | None = None) -> LakeLog:
        """The history at a version, or as of the last commit until a time; by default the newest.
        For one thread. `Missing`: there is none."""
        if isinstance(at, datetime.datetime) and at.utcoffset() is None:
            raise Usage(f"as of {at}: a time without its zone", fix="give a datetime in UTC")
        return LakeLog(self.place, at, self.clock)

    def scan(
        self, log: LakeLog, columns: Sequence[str] | None = None, files: pl.DataFrame | None = None
    ) -> pl.LazyFrame:
        """The rows of a version, all of them or those of some of its files."""
        chosen = log.files if files is None else files
        return scan_files(self.place, self.table, chosen["path"].to_list(), columns)

    def collect(self, frame: pl.LazyFrame) -> pl.DataFrame:
        """The rows of what `scan` began, read piece by piece; only errors of ours."""
        history_log.check_process()
        try:
            return frame.collect(engine="streaming")
        except (OSError, pl.exceptions.PolarsError) as error:
            raise self.place.translated(error, "reading a history") from error

    def status(self) -> LakeStatus:
        log = self.log()
        files = log.files
        return LakeStatus(
            version=log.version,
            rows=int(files["num_records"].sum()),
            files=files.height,
            small=sum(map(is_small, files["size_bytes"].to_list())),
            size_bytes=int(files["size_bytes"].sum()),
            first_day=files["day"].min(),  # type: ignore[arg-type]
            last_day=files["day"].max(),  # type: ignore[arg-type]
            kept=self.kept(),
        )

    # --- appended to ------------------------------------------------------------------------------

    def check(self, frame: pl.DataFrame) -> None:
        """`Usage`: these rows are not this table's, or lie in the future. `TooLarge`: there are too
        many at once."""
        history_log.check_process()
        wanted = frame_schema(self.table)
        if dict(frame.schema) != wanted:
            strange = [
                f"{name}: {kind}" for name, kind in frame.schema.items() if wanted.get(name) != kind
            ]
            missing = [name for name in wanted if name not in frame.schema]
            raise Usage(
                f"these are no rows of the table {self.table.name!r}",
                why=f"strange: {', '.join(strange) or 'none'};"
                f" missing: {', '.join(missing) or 'none'}",
                fix="make them with holdfast.features.history.shape.frame_of",
            )
        if frame.height > APPEND_ROWS_MAX:
            raise TooLarge(
                f"{frame.height} rows are appended at once",
                why=f"one commit takes at most {APPEND_ROWS_MAX}",
                fix="append them in several",
            )
        feature_rows.check_time(
            self.table,
            frame[self.table.time].to_physical().to_numpy(),
            self.clock.wall_ms() * 1_000,
        )

    def write(self, frame: pl.DataFrame) -> list[AddAction]:
        """Write rows into the store; a commit has still to name them."""
        self.check(frame)
        return write_files(self.place, self.table, frame, self.clock)

    def append(self, frame: pl.DataFrame) -> int:
        """Append rows that have no source to be read again from; the version that has them. After
        `Unavailable` they may be in it: with offsets that is decided (`exactly_once`)."""
        if not frame.height:
            raise Usage(f"no rows are appended to {self.place}", fix="leave the call out")
        added = self.write(frame)
        log = self.log()
        paths = {action.path for action in added}

        def decide(tried: int) -> Sequence[Action] | None:
            # An answer may be lost, and a commit that is repeated finds itself there.
            return None if tried and paths <= set(log.files["path"]) else added

        commit(log, decide)
        return log.version

    # --- erased from ------------------------------------------------------------------------------

    def erase(self, keys: Sequence[Any] | Mapping[str, Sequence[Any]]) -> Erased:
        """Take all rows of these keys out of the newest version. What is on its way to the history
        is not: write a deletion first, and wait until it has arrived. The rows leave the store with
        the next vacuum that reaches back so far."""
        wanted = self._keys(keys)
        log = self.log()
        rows = files = 0
        for _ in range(ERASE_ROUNDS_MAX):
            hits = self._files_with(log, wanted)
            if not hits:
                return Erased(rows, files, log.version, self.kept())
            for first in range(0, len(hits), ERASE_FILES):
                part = hits[first : first + ERASE_FILES]
                if self._erase_from(log, [path for path, _ in part], wanted):
                    rows, files = rows + sum(count for _, count in part), files + len(part)
            log.refresh()
        raise Unavailable(f"{self.place}: rows to erase come faster than they are erased")

    def _keys(self, keys: Sequence[Any] | Mapping[str, Sequence[Any]]) -> pl.DataFrame:
        table = self.table
        self.table.keys_bytes(keys)  # says what is wrong
        given = keys if isinstance(keys, Mapping) else {table.key[0]: keys}
        pairs = zip(table.key, table.key_types, strict=True)
        return pl.DataFrame([key_series(table, name, kind, given[name]) for name, kind in pairs])

    def _files_with(self, log: LakeLog, wanted: pl.DataFrame) -> list[tuple[str, int]]:
        paths = log.files["path"].to_list()
        by_uri = {self.place.uri_of(path): path for path in paths}
        found = (
            self.collect(
                scan_files(self.place, self.table, paths, self.table.key, file_column=_FILE)
                .join(wanted.lazy(), on=self.table.key, how="semi")
                .group_by(_FILE)
                .len()
            )
            if paths
            else pl.DataFrame({_FILE: [], "len": []})
        )
        return sorted((by_uri[uri], count) for uri, count in found.iter_rows())

    def _erase_from(self, log: LakeLog, paths: list[str], wanted: pl.DataFrame) -> bool:
        """Whether it was done; otherwise some of the files are others by now."""
        added: list[AddAction] = []
        for path in paths:
            left = self.collect(
                scan_files(self.place, self.table, [path]).join(
                    wanted.lazy(), on=self.table.key, how="anti"
                )
            )
            added += write_files(self.place, self.table, left, self.clock)
        return replace_files(self, log, paths, added, is_new=True)

    # --- versions that stay -----------------------------------------------------------------------

    def keep(self, version: int) -> None:
        """This version stays readable, whatever is merged, vacuumed and erased, until `release`."""
        self.log(version)
        self.place.blobs.put(self._kept_key(version), b"")

    def release(self, version: int) -> None:
        """The version may go; no error when it was not kept."""
        self.place.blobs.delete(self._kept_key(version))

    def kept(self) -> tuple[int, ...]:
        """The versions that stay."""
        found = self.place.blobs.list(f"{self.place.root}/{_KEPT}")
        names = [blob.key.rpartition("/")[2] for blob in found]
        return tuple(sorted(int(name) for name in names if name.isdigit()))

    def _kept_key(self, version: int) -> str:
        return f"{self.place.root}/{_KEPT}/{version}"


# --- commits --------------------------------------------------------------------------------------


def commit(
    log: LakeLog,
    decide: Callable[[int], Sequence[Action] | None],
    offsets: Mapping[str, int] | None = None,
) -> bool:
    """Commit what `decide` says of the version that `log` has now (it is told how often that was
    tried), again and again as long as others are faster; False: it said None."""
    tried = 0
    while True:
        actions = decide(tried)
        if actions is None:
            return False
        try:
            log.commit(actions, offsets)
        except Conflict as error:
            tried = pause_after(tried, error)
            log.refresh()
        else:
            return True


def pause_after(tried: int, error: Conflict) -> int:
    """Let the others finish; how often it was tried by now. `Unavailable` after too often."""
    tried += 1
    if tried >= COMMIT_TRIES_MAX:
        raise Unavailable(
            f"{error.what}: others were faster {tried} times", why=error.why, fix="try again"
        ) from error
    pause_s = backoff.pause_s(tried, COMMIT_PAUSE_S, COMMIT_PAUSE_S_MAX)
    time.sleep(backoff.spread(pause_s, random.random()))  # noqa: S311 - not a secret
    return tried


def replace_files(
    lake: Lake, log: LakeLog, paths: Sequence[str], added: Sequence[AddAction], *, is_new: bool
) -> bool:
    """Commit files in the place of others; False: some of the others are not there any more, and
    the vacuum takes the new ones."""

    def decide(tried: int) -> Sequence[Action] | None:
        there = log.files.filter(pl.col("path").is_in(paths))
        if there.height < len(paths):
            return None
        now_ms = lake.clock.wall_ms()
        removed = [
            removal(path, size_bytes, day, now_ms, is_new=is_new)
            for path, size_bytes, day in there.select("path", "size_bytes", "day").iter_rows()
        ]
        return [*removed, *added]

    if commit(log, decide):
        return True
    # The answer to our own commit may have been lost.
    return bool(added) and {action.path for action in added} <= set(log.files["path"])
