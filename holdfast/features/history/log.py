"""Delta's log of one history: what is there at a version, and commits on the very version that was
read.

A commit succeeds only as the version that follows the one it was made on: whoever was faster, with
whatever library, makes it a `Conflict`, and then everything is read anew and decided anew. So
nothing depends on what a library takes for a conflict (deltalake 1.6 lets two commits remove the
same file, and doubles its rows), and an offset that was read is the one that counts.

On a folder a commit is durable before it is acknowledged: deltalake does not sync.
"""

from __future__ import annotations

import datetime
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl
from deltalake import (
    CommitProperties,
    DeltaTable,
    Field,
    PostCommitHookProperties,
    Schema,
    Transaction,
)
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from holdfast.features.history import mending
from holdfast.features.history.places import LOG, LakePlace
from holdfast.features.history.shape import DAY
from holdfast.system import disk, logs
from holdfast.system.clock import Clock, SystemClock
from holdfast.wire.errors import Conflict, HoldfastError, Missing, Refused, Usage

log: Final = logs.get(__name__)

# A version is opened from the checkpoint before it and what follows: so many commits at most.
CHECKPOINT_COMMITS: Final = 32
# What removes old commits lets be what is younger than twice this (`upkeep`): a commit on an older
# snapshot might find its place empty again. So such a snapshot is read anew first.
SNAPSHOT_S_MAX: Final = 1_800.0
CONFIGURATION: Final = {
    # Checkpoints and the removal of old commits are ours: bounded, and never in a commit's way.
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 30 days",
    "delta.deletedFileRetentionDuration": "interval 7 days",
}
_QUIETLY: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_FILES: Final = {
    "path": pl.String(),
    "size_bytes": pl.Int64(),
    "modification_time": pl.Int64(),
    "num_records": pl.Int64(),
    "day": pl.Date(),
}
# The process that deltalake's and polars' threads are in; 0 before their first use.
_threads_in = 0


def check_process() -> None:
    """`Usage`: this process was forked from one that has used the libraries already."""
    global _threads_in  # noqa: PLW0603  one for the process, as the libraries' threads are
    if _threads_in not in (0, os.getpid()):
        raise Usage(
            "this process was forked from one that uses a history",
            why="the threads of deltalake and polars stay behind in the parent, and a call would"
            " never end",
            fix="start processes with the method 'spawn', or fork before the first call",
        )
    _threads_in = os.getpid()


def is_there(place: LakePlace) -> bool:
    """Whether there is a history at all."""
    check_process()
    try:
        return bool(DeltaTable.is_deltatable(place.uri, dict(place.delta_options)))
    except (DeltaError, OSError) as error:
        raise place.translated(error, "looking for a history") from error


def create(place: LakePlace, name: str, schema: Schema) -> None:
    """Make an empty history; `Conflict`: there is one."""
    check_process()
    if place.folder is not None:
        disk.make_folder(place.folder / LOG)
    try:
        DeltaTable.create(
            place.uri,
            schema,
            mode="error",
            partition_by=[DAY],
            name=name,
            configuration=dict(CONFIGURATION),
            storage_options=dict(place.delta_options),
            commit_properties=CommitProperties(max_commit_retries=0),
            post_commithook_properties=_QUIETLY,
        )
    except (DeltaError, OSError) as error:
        if is_there(place):
            raise Conflict(f"there is already {place}") from error
        raise place.translated(error, "making a history") from error


class LakeLog:
    """A history at one version. Used by one thread at a time."""

    def __init__(
        self,
        place: LakePlace,
        at: int | datetime.datetime | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`at`: a version, or the last one that was committed by a time; by default the newest."""
        self.place = place
        self._clock = clock or SystemClock()
        self._at = at
        self._confirmed: int | None = None  # the last commit that we know to be durable
        self._open()

    def _open(self) -> None:
        check_process()
        self._read_s = self._clock.now_s()
        if self.place.folder is not None and self._at is None:
            mending.mend(self.place.folder / LOG)
        try:
            version = self._at if isinstance(self._at, int) else None
            options = dict(self.place.delta_options)
            self._table = DeltaTable(self.place.uri, version=version, storage_options=options)
            if isinstance(self._at, datetime.datetime):
                self._table.load_as_version(self._at)
        except (DeltaError, OSError, ValueError) as error:
            raise self._not_opened(error) from error
        self._files: pl.DataFrame | None = None
        self._opened = self.version
        _check_protocol(self.place, self._table)

    def _not_opened(self, error: Exception) -> HoldfastError:
        if isinstance(error, TableNotFoundError):
            return Missing(
                f"there is no history in {self.place.blobs.address} at {self.place.root}",
                why="no row was ever committed to it, or it lies in another store",
                fix="look at holdfast features list, or check the store's address",
            )
        if self._at is not None and not isinstance(error, OSError):
            return Missing(
                f"{self.place} is not there any more (or not yet) as of {self._at}",
                why=str(error).partition("\n")[0],
                fix="name another version or time; versions that are needed are kept by Lake.keep",
            )
        return self.place.translated(error, "opening a history")

    # --- what is there ----------------------------------------------------------------------------

    @property
    def version(self) -> int:
        return self._table.version()

    @property
    def fields(self) -> dict[str, str]:
        """The columns that the log knows, with their types as it spells them."""
        return {field.name: field.type.to_json() for field in self._table.schema().fields}

    def offset(self, source: str) -> int | None:
        """The offset that was last committed for a source."""
        try:
            try:
                return self._table.transaction_version(source)
            except DeltaError:
                # It looks into the log once more, and what is old may be removed by now.
                self._open()
                return self._table.transaction_version(source)
        except (DeltaError, OSError) as error:
            raise self.place.translated(error, f"reading the offset of {source}") from error

    @property
    def files(self) -> pl.DataFrame:
        """The files of this version: `path`, `size_bytes`, `modification_time` (in milliseconds),
        `num_records`, `day`."""
        if self._files is None:
            found = pl.DataFrame(self._table.get_add_actions(flatten=True))
            if not found.height:
                return pl.DataFrame(schema=_FILES)
            named = found.rename({f"partition.{DAY}": "day"}, strict=False)
            missing = [
                pl.lit(None, kind).alias(name)
                for name, kind in _FILES.items()
                if name not in named.columns
            ]
            self._files = named.with_columns(missing).select(*_FILES).cast(_FILES)  # type: ignore[arg-type]
        return self._files

    @property
    def age_s(self) -> float:
        """How long ago it was read."""
        return self._clock.now_s() - self._read_s

    def committed_s(self) -> float:
        """When this version was committed, in seconds since 1970 by its writer's clock."""
        found = self._table.history(1)
        return float(found[0].get("timestamp", 0)) / 1e3 if found else 0.0

    # --- commits ----------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read the newest version."""
        before = self.version
        if self.age_s > SNAPSHOT_S_MAX or before > self._opened + 2 * CHECKPOINT_COMMITS:
            # What followed the version that was opened is gone through at each step: others have
            # made checkpoints since.
            self._open()
            return
        self._read_s = self._clock.now_s()
        try:
            self._table.update_incremental()
        except (DeltaError, OSError) as error:
            if isinstance(error, OSError):
                raise self.place.translated(error, "reading a history") from error
            self._open()  # what lay between the two was removed
        if self.version != before:
            self._files = None

    def commit(
        self, actions: Sequence[AddAction | RemoveAction], offsets: Mapping[str, int] | None = None
    ) -> None:
        """All of it as the next version, or nothing: `Conflict`, somebody else was first; then
        `refresh`, and decide again. After any other error it is not known, and `refresh` shows."""
        if self.age_s > SNAPSHOT_S_MAX:
            raise _conflict(self.place, f"version {self.version} was read {self.age_s:.0f} s ago")
        transactions = [Transaction(name, offset) for name, offset in (offsets or {}).items()]
        told: dict[str, Any] = {mending.ACTIONS: 1 + len(actions) + len(transactions)}
        if not any(isinstance(action, RemoveAction) for action in actions):
            told["isBlindAppend"] = True
        properties = CommitProperties(
            custom_metadata=told, max_commit_retries=0, app_transactions=transactions
        )
        base = self.version
        try:
            self._table.create_write_transaction(
                list(actions),
                mode="append",
                schema=self._table.schema(),
                partition_by=[DAY],
                commit_properties=properties,
                post_commithook_properties=_QUIETLY,
            )
        except (DeltaError, OSError) as error:
            raise self._not_committed(error) from error
        self._finish(base, [action.path for action in actions if isinstance(action, AddAction)])

    def add_columns(self, fields: Sequence[Field]) -> None:
        """As `commit`, of columns that the history did not have."""
        base = self.version
        try:
            self._table.alter.add_columns(
                list(fields),
                commit_properties=CommitProperties(max_commit_retries=0),
                post_commithook_properties=_QUIETLY,
            )
        except (DeltaError, OSError) as error:
            raise self._not_committed(error) from error
        self._finish(base, ())

    def _not_committed(self, error: Exception) -> HoldfastError:
        if isinstance(error, CommitFailedError) or "Invalid table version" in str(error):
            return _conflict(self.place, f"somebody else committed after version {self.version}")
        return self.place.translated(error, "committing to a history")

    def _finish(self, base: int, added: Sequence[str]) -> None:
        """The commit was written: durable, and seen by everyone."""
        was_old = self.age_s > SNAPSHOT_S_MAX
        if was_old:
            # This process stood still in the middle. What lay in the place of its commit may have
            # been removed meanwhile; then nobody sees it.
            self._open()
            if self.version <= base or not set(added) <= set(self.files["path"]):
                raise _conflict(self.place, "this process stood still while it committed")
        self._confirm(base + 1)
        if not was_old:
            self.refresh()
        if (base + 1) % CHECKPOINT_COMMITS == 0:
            self.checkpoint()

    def _confirm(self, version: int) -> None:
        """On a folder: all commits up to this version are durable when this returns."""
        if self.place.folder is not None:
            self._confirmed = mending.make_durable(
                self.place.folder / LOG, self._confirmed, version
            )

    def vacuum(self, older_than_s: float, kept: Sequence[int]) -> list[str]:
        """Remove files that no version of this time needs, nor one of `kept`; their names."""
        try:
            return self._table.vacuum(
                retention_hours=math.ceil(older_than_s / 3_600),
                dry_run=False,
                enforce_retention_duration=False,
                full=True,
                keep_versions=list(kept) or None,
            )
        except (DeltaError, OSError) as error:
            raise self.place.translated(error, "vacuuming a history") from error

    def checkpoint(self) -> None:
        """Write down everything that is there at this version, so that it is opened quickly."""
        try:
            self._table.create_checkpoint()
        except (DeltaError, OSError) as error:
            # The next one comes soon; nothing but time is lost.
            log.warning("no checkpoint of a history", reason=str(error)[:200])
            return
        if self.place.folder is not None:
            mending.make_checkpoint_durable(self.place.folder / LOG, self.version)
        self._at = None
        self._open()


def _conflict(place: LakePlace, why: str) -> Conflict:
    return Conflict(f"{place}: not committed", why=why, fix="read it again, and decide again")


def _check_protocol(place: LakePlace, table: DeltaTable) -> None:
    """`Refused`: somebody has switched on what we would not see."""
    found = table.protocol()
    if found.min_reader_version <= 1 and found.min_writer_version <= 2:
        return
    features = sorted({*(found.reader_features or ()), *(found.writer_features or ())})
    raise Refused(
        f"{place} has features of Delta Lake that are not known here: {', '.join(features)}",
        why=f"its protocol is {found.min_reader_version} and {found.min_writer_version}, and rows"
        " would be read that were deleted, or written as they must not be",
        fix="drop these features with the engine that added them (ALTER TABLE ... DROP FEATURE)",
    )
