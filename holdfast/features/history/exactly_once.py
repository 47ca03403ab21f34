"""Rows and the offsets of their source in one commit: each record is once in the history, whatever
dies when.

    writer = HistoryWriter(lake, "topic:drivers")
    first = writer.position(0)                  # where partition 0 is to be read from
    writer.commit(SourceRows(frame, partition, offset, {0: first + len(frame)}))

The offsets lie in Delta's log, as its own application transactions (`topic:drivers:0`). They are
read from the very version that is then committed on, so nobody can have committed in between. Who
finds that another one has moved them is `Fenced`, and begins anew where that one is.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from deltalake.transaction import AddAction

from holdfast.features.history.lake import Lake, pause_after
from holdfast.system import logs
from holdfast.wire.errors import Conflict, Fenced, Usage

log: Final = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class SourceRows:
    """Records of a source as rows of a history (`shape.frame_of_rows`), with the partition and the
    offset of each. `upto`: of each partition the offset to go on at, behind all that was read: also
    what became no row, because it was no record or went to the dead letters."""

    frame: pl.DataFrame
    partition: Any
    offset: Any
    upto: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class HistoryCommit:
    """What a commit did: the version of the history, the rows that are new in it, and those that
    were left out since they were in already."""

    version: int
    rows: int
    repeated: int


class HistoryWriter:
    """Writes a source's records into a history, each once. Any thread may use it, one at a time.
    Several of them may write one history: of different partitions at the same time, of the same one
    only the last that has looked."""

    def __init__(self, lake: Lake, source: str) -> None:
        """`source`: what the offsets belong to, for example `topic:drivers`."""
        if not source or any(ord(each) < 32 for each in source):
            raise Usage(f"{source!r} cannot be the name of a source", fix="topic:NAME, for example")
        self._lake = lake
        self._source = source
        self._log = lake.log()
        self._known: dict[int, int] = {}
        self._fenced = self._unsure = False
        self._lock = threading.Lock()

    def position(self, partition: int) -> int:
        """The offset from which the partition is to be read: behind the last that is in. Of a
        partition that comes back from another writer: `reread` first."""
        with self._lock:
            if partition not in self._known:
                self._log.refresh()
            return self._position(partition)

    def reread(self) -> None:
        """Look at the history anew, as somebody who has just begun."""
        with self._lock:
            self._log.refresh()
            self._known.clear()
            self._fenced = self._unsure = False

    def commit(self, given: SourceRows) -> HistoryCommit:
        """All of it, with its offsets; what is in already is left out. `Fenced`: another writer has
        one of the partitions, and nothing was written; `reread`, and read the source from
        `position`. After `Unavailable` it is not known whether it was written: the same call again
        leaves out what was."""
        with self._lock:
            _check(given)
            if self._fenced:
                raise self._stop("it was told so before")
            if self._unsure:
                self._log.refresh()
                self._known.clear()
                self._unsure = False
            return self._commit(given)

    # --- below ------------------------------------------------------------------------------------

    def _position(self, partition: int) -> int:
        """As the version says that is committed on. What was said once stays said: if the offset
        moves, it is another writer's work."""
        if partition not in self._known:
            self._known[partition] = self._committed(partition)
        return self._known[partition]

    def _committed(self, partition: int) -> int:
        return self._log.offset(f"{self._source}:{partition}") or 0

    def _commit(self, given: SourceRows) -> HistoryCommit:
        known = {partition: self._position(partition) for partition in given.upto}
        upto = {each: offset for each, offset in given.upto.items() if offset > known[each]}
        frame = given.frame.filter(pl.Series(_is_new(given, known)))
        repeated = given.frame.height - frame.height
        if not upto:
            return HistoryCommit(self._log.version, 0, repeated)
        added = self._lake.write(frame) if frame.height else []
        offsets = {f"{self._source}:{partition}": offset for partition, offset in upto.items()}
        self._unsure = True  # until we know better
        if not self._commit_files(added, offsets, known, upto):
            log.info("a commit was there already", source=self._source, offsets=offsets)
        self._unsure = False
        self._known.update(upto)
        return HistoryCommit(self._log.version, frame.height, repeated)

    def _commit_files(
        self,
        added: Sequence[AddAction],
        offsets: Mapping[str, int],
        known: Mapping[int, int],
        upto: Mapping[int, int],
    ) -> bool:
        """False: it is in already, and only the answer was lost."""
        tried = 0
        while True:
            # Of the very version that is committed on: another commit of ours may have moved on to
            # one in which somebody else has this partition.
            now = {partition: self._committed(partition) for partition in known}
            if tried and now == {**known, **upto} and self._is_ours(added):
                return False
            if now != known:
                self._fenced, self._unsure = True, False
                raise self._stop(
                    ", ".join(
                        f"partition {each} is at {now[each]}, and was at {known[each]}"
                        for each in known
                        if now[each] != known[each]
                    )
                )
            try:
                self._log.commit(added, offsets)
            except Conflict as error:
                tried = pause_after(tried, error)
                self._log.refresh()
            else:
                return True

    def _is_ours(self, added: Sequence[AddAction]) -> bool:
        """Whether the newest version has these files. If they were merged since, it is taken for
        another's: then reading again from the offsets is right as well."""
        return {action.path for action in added} <= set(self._log.files["path"])

    def _stop(self, why: str) -> Fenced:
        return Fenced(
            f"another writer has {self._source} in {self._lake.place}",
            why=why,
            fix="read the source again from where the history is, or leave it to the other one",
        )


def _is_new(given: SourceRows, known: Mapping[int, int]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    partition, offset = np.asarray(given.partition), np.asarray(given.offset)
    new = np.ones(given.frame.height, bool)
    for each, position in known.items():
        new &= (partition != each) | (offset >= position)
    return new


def _check(given: SourceRows) -> None:
    partition, offset = np.asarray(given.partition), np.asarray(given.offset)
    count = given.frame.height
    if partition.shape != (count,) or offset.shape != (count,):
        raise Usage(
            f"{count} rows have {partition.size} partitions and {offset.size} offsets",
            why="each row has the place in its source that it comes from",
            fix="give one of each for each row",
        )
    if count and not (partition.dtype.kind in "iu" and offset.dtype.kind in "iu"):
        raise Usage("partitions and offsets are whole numbers", fix="give arrays of int64")
    if not given.upto:
        raise Usage("no partition is said to be read up to anywhere", fix="give upto={0: 17}")
    for each, upto in given.upto.items():
        if each < 0 or upto < 0:
            raise Usage(f"partition {each} up to {upto}: offsets begin with 0", fix="give those")
        mine = offset[partition == each]
        if mine.size and not 0 <= int(mine.min()) <= int(mine.max()) < upto:
            raise Usage(
                f"partition {each} is read up to {upto}, and has a row at {mine.max()}",
                why="the offset to go on at is behind all rows",
                fix=f"give upto={{{each}: {int(mine.max()) + 1}}}",
            )
    if strange := set(partition.tolist()) - set(given.upto):
        raise Usage(
            f"there are rows of partition {min(strange)}, which has no place in upto",
            fix="say for each partition how far it is read",
        )
