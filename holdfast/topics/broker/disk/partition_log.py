"""One partition's log on disk: its segments, and reading from them.

Nothing here is synced when it is written: the journal has it. A checkpoint syncs what is dirty.
"""

from __future__ import annotations

import errno
import os
import shutil
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.system import logs
from holdfast.topics.broker.core import batch
from holdfast.topics.broker.core.batch import Header
from holdfast.topics.broker.core.configs import TopicSettings
from holdfast.topics.broker.core.records import read_records
from holdfast.topics.broker.disk import folder as files
from holdfast.topics.broker.disk.compaction import SUFFIX
from holdfast.topics.broker.disk.segment import NO_TIME, DamagedSegment, OpenFiles, Segment
from holdfast.topics.broker.protocol.codec import MalformedMessage
from holdfast.wire.errors import Corrupt

# The index has four bytes for an offset within its segment.
_OFFSETS_PER_SEGMENT_MAX: Final = 2**31 - 1

log = logs.get(__name__)


class LogEnd(NamedTuple):
    """Where the log ends: the last segment and its length. What a snapshot remembers."""

    base_offset: int
    size: int


class FoundRecord(NamedTuple):
    """A record by its time."""

    offset: int
    timestamp: int


class PartitionLog:
    """The segments of a partition, the last of which is written.

    Where damage is found the log ends for readers: what is before it can be read, and from there on
    reading raises `DamagedSegment`.
    """

    __slots__ = ("_files", "_lost", "_unwritten", "damage", "folder", "is_dirty", "segments")

    def __init__(self, open_files: OpenFiles, folder: Path) -> None:
        self._files = open_files
        self.folder = folder
        self.segments: list[Segment] = []
        self.is_dirty = False
        self.damage: DamagedSegment | None = None  # the first that was found
        self._unwritten: list[tuple[Header, bytes]] = []
        self._lost: list[int] = []  # segments that a snapshot knows and the disk does not

    # --- opening ------------------------------------------------------------------------------

    def open(self, bases: list[int], end: LogEnd) -> None:
        """Take what a snapshot says is there, and forget what was written after it: the journal
        has that. Segments that are missing may have been removed later on; `check` asks. Nothing
        is read before `settle`: a start does not wait for ten thousand logs."""
        for base in sorted({*bases, end.base_offset}):
            path = self.folder / f"{base:020d}.log"
            try:
                size = path.stat().st_size
            except FileNotFoundError:
                if base != end.base_offset or end.size:
                    self._lost.append(base)
                continue
            if base == end.base_offset:
                if size < end.size:
                    why = f"it has {size} bytes, and {end.size} were durable"
                    raise files.corrupt(path, size, why)
                if size > end.size:
                    os.truncate(path, end.size)
                size = end.size
            self.segments.append(Segment(self._files, self.folder, base, size))

    def settle(self, settings: TopicSettings, end: int) -> bool:
        """Before it is used for the first time after a start: look into the segments, remove what
        nobody knows, write what was deferred. Whether there was space for that. `end`: the offset
        at which the log ends."""
        self._remove_strangers({one.base_offset for one in self.segments})
        limits = [one.base_offset for one in self.segments[1:]]
        limits.append(end if self.readable_end is None else self.readable_end)
        for segment, limit in zip(self.segments, limits, strict=False):
            segment.offset_limit = limit
            self._load(segment)
        return self.write_waiting(settings)

    def _load(self, segment: Segment) -> None:
        segment.load()
        if segment.damage is not None:
            self.note_damage(segment.damage)

    def note_damage(self, damage: DamagedSegment) -> None:
        """Remember it, and tell people once."""
        for segment in self.segments:
            if segment.base_offset == damage.base_offset:
                segment.note_damage(damage)
        if self.damage is not None and self.damage.base_offset <= damage.base_offset:
            return
        self.damage = damage
        told = self.describe_damage()
        if told is not None:
            log.error(
                "a partition's log is damaged: it is read up to there, and takes no writes",
                what=told.what,
                why=told.why,
                fix=told.fix,
            )

    def describe_damage(self) -> Corrupt | None:
        """The damage that was found, for people: where, why, and what to do."""
        if self.damage is None:
            return None
        path = self.folder / f"{self.damage.base_offset:020d}.log"
        return files.corrupt(path, self.damage.at, self.damage.why)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except DamagedSegment as damage:
            self.note_damage(damage)
            raise

    def _remove_strangers(self, known: set[int]) -> None:
        with suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            for entry in entries:
                base, _, kind = entry.name.partition(".")
                if not base.isdigit() or int(base) not in known or f".{kind}" == SUFFIX:
                    Path(entry.path).unlink()

    def check(self, log_start: int) -> None:
        """Refuse a log of which a part is missing that nobody removed."""
        if self._lost and self._lost[-1] >= log_start:
            path = self.folder / f"{self._lost[-1]:020d}.log"
            raise files.corrupt(path, 0, "it is missing")

    @property
    def end(self) -> LogEnd:
        if not self.segments:
            return LogEnd(0, 0)
        return LogEnd(self.segments[-1].base_offset, self.segments[-1].size)

    @property
    def bases(self) -> list[int]:
        return [one.base_offset for one in self.segments]

    @property
    def size(self) -> int:
        return sum(one.size for one in self.segments)

    # --- writing ------------------------------------------------------------------------------

    def append(self, data: bytes, settings: TopicSettings) -> None:
        """Write a batch that has its offset. It is in the journal: if there is no space for it
        here now, it is kept in memory until there is."""
        self.defer(data)
        self.write_waiting(settings)

    def defer(self, data: bytes) -> None:
        """Keep a batch in memory until `settle`: it is in the journal."""
        self.is_dirty = True
        self._unwritten.append((batch.read_header(data), data))

    def write_waiting(self, settings: TopicSettings) -> bool:
        """Write what waits for space; whether nothing waits any more."""
        done = 0
        try:
            for header, data in self._unwritten:
                self._segment_for(header, len(data), settings).append(header, data)
                done += 1
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
        del self._unwritten[:done]
        return not self._unwritten

    @property
    def readable_end(self) -> int | None:
        """The first offset that is not in a segment yet; None: all are."""
        return self._unwritten[0][0].base_offset if self._unwritten else None

    def _segment_for(self, header: Header, size: int, settings: TopicSettings) -> Segment:
        active = self.segments[-1] if self.segments else None
        if active is not None and active.size:
            aged = header.max_timestamp - active.since_ms > settings.segment_ms
            far = header.last_offset - active.base_offset > _OFFSETS_PER_SEGMENT_MAX
            full = active.size + size > settings.segment_bytes
            if not (full or far or (aged and active.since_ms != NO_TIME)):
                return active
        elif active is not None and active.base_offset == header.base_offset:
            return active
        made = Segment(self._files, self.folder, header.base_offset, 0)
        # Empty also if a process that was killed has left one there: the journal has its records.
        self._files.make(made.path)
        self.segments.append(made)
        return made

    # --- reading ------------------------------------------------------------------------------

    def read(self, offset: int, bytes_max: int, end: int | None, *, whole: bool) -> bytes:
        """Batches from the one that holds `offset` on, none that begins at `end` or later (None:
        the end of the log). `whole`: the first one complete, whatever `bytes_max` is.
        `DamagedSegment`: what lies there is not what was written."""
        readable = self.readable_end
        if readable is not None:
            if offset >= readable:
                return self._read_waiting(offset, bytes_max, end, whole=whole)
            end = readable if end is None else min(end, readable)
        with self._noting():
            return self._read_segments(offset, bytes_max, end, whole=whole)

    def _read_segments(self, offset: int, bytes_max: int, end: int | None, *, whole: bool) -> bytes:
        for segment in self._from(offset):
            start = segment.position_of(offset)
            if start >= segment.size:
                if segment.damage is not None:
                    raise segment.damage
                continue
            stop = segment.size
            if end is not None and not self._lies_before(segment, end):
                stop = self._stop_at(segment, start, end)
            if start >= stop:
                return b""
            wanted = min(stop - start, max(bytes_max, 0))
            if wanted < stop - start and whole:
                first = segment.header_at(start)
                wanted = max(wanted, first.size if first else 0)
            good = segment.check(start, start + wanted)
            if segment.damage is not None:
                self.note_damage(segment.damage)
            return segment.read(start, good - start)
        return b""

    def _read_waiting(self, offset: int, bytes_max: int, end: int | None, *, whole: bool) -> bytes:
        """Batches that wait for space. They are durable, and so can be read."""
        found: list[bytes] = []
        size = 0
        for header, data in self._unwritten:
            if end is not None and header.base_offset >= end:
                break
            if header.last_offset >= offset:
                if size + len(data) > bytes_max and (found or not whole):
                    break
                found.append(data)
                size += len(data)
        return b"".join(found)

    def bound_after(self, offset: int, size: int) -> int | None:
        """An offset that so many bytes, read from there on, do not reach; None: the log's end."""
        for segment, following in zip_longest(self._from(offset), self._from_next(offset)):
            start = segment.position_of(offset)
            if start < segment.size:
                bound = segment.offset_after(start + size)
                last = following.base_offset if following is not None else None
                return last if bound is None else bound
        return None

    def _from_next(self, offset: int) -> Iterator[Segment]:
        following = self._from(offset)
        next(following, None)
        return following

    def _lies_before(self, segment: Segment, end: int) -> bool:
        position = self.segments.index(segment)
        following = self.segments[position + 1 :]
        return bool(following) and following[0].base_offset <= end

    @staticmethod
    def _stop_at(segment: Segment, start: int, end: int) -> int:
        """Where the first batch at or after `end` begins."""
        try:
            position = segment.position_of(end)
        except DamagedSegment as damage:
            return max(damage.at, start)
        return max(position, start)

    def _from(self, offset: int) -> Iterator[Segment]:
        """The segments that may hold this offset or later ones."""
        first = bisect_right(self.segments, offset, key=lambda one: one.base_offset) - 1
        for segment in self.segments[max(first, 0) :]:
            if self.damage is not None and segment.base_offset > self.damage.base_offset:
                raise self.damage
            yield segment

    # --- by time ------------------------------------------------------------------------------

    def first_after(self, timestamp: int, log_start: int, end: int) -> FoundRecord | None:
        """The first record of this time or later; `DamagedSegment` as in reading."""
        with self._noting():
            found = self._first_in_segments(timestamp, log_start, end)
        if found is None and self._unwritten and self._unwritten[0][0].base_offset < end:
            for header, data in self._unwritten:
                if header.max_timestamp >= timestamp and header.base_offset < end:
                    return self._record_of(data, header, timestamp, log_start)
        return found

    def _first_in_segments(self, timestamp: int, log_start: int, end: int) -> FoundRecord | None:
        for segment in self._from(log_start):
            if segment.damage is None and segment.max_timestamp < timestamp:
                continue
            for header, at in segment.walk(segment.position_of_time(timestamp)):
                if header.base_offset >= end:
                    segment.check(at, at + header.size)
                    return None
                if header.max_timestamp < timestamp or header.last_offset < log_start:
                    continue
                segment.check(at, at + header.size)
                data = segment.read(at, header.size)  # of a marker, too: it has a time
                found = self._record_of(data, header, timestamp, log_start)
                if found is not None:
                    return found
            if segment.damage is not None:
                raise segment.damage  # it may have been there
        return None

    def latest(self, log_start: int, end: int) -> FoundRecord | None:
        """The first record with the largest time of all."""
        times = [one.max_timestamp for one in self.segments]
        if not times or max(times) < 0:
            return None
        return self.first_after(max(times), log_start, end)

    @staticmethod
    def _record_of(
        data: bytes, header: Header, timestamp: int, log_start: int
    ) -> FoundRecord | None:
        try:
            for record in read_records(data, header):
                if record.timestamp >= timestamp and record.offset >= log_start:
                    return FoundRecord(record.offset, record.timestamp)
        except MalformedMessage:
            # The records are not what their batch says: the batch itself is the best we know.
            return FoundRecord(max(header.base_offset, log_start), header.max_timestamp)
        return None

    # --- removing -----------------------------------------------------------------------------

    def trim(self, log_start: int) -> None:
        """Remove segments that lie before this offset; the last one stays."""
        while len(self.segments) > 1 and self.segments[1].base_offset <= log_start:
            self._remove(self.segments.pop(0))
        self._forget_damage()

    def _forget_damage(self) -> None:
        """What was damaged may be gone."""
        if self.damage is not None:
            left = (one.damage for one in self.segments if one.damage is not None)
            self.damage = next(left, None)

    def _remove(self, segment: Segment) -> None:
        self._files.drop(segment.path)
        segment.path.unlink(missing_ok=True)
        segment.index_path.unlink(missing_ok=True)

    def expired_until(self, settings: TopicSettings, log_start: int, end: int, now_ms: int) -> int:
        """The offset at which the log may begin by what its topic keeps. All of it may be too old;
        too much it is only in whole segments, and never the last one."""
        if not settings.deletes:
            return log_start
        start, size = log_start, self.size
        for segment, following in zip_longest(self.segments, self.segments[1:]):
            old = 0 <= settings.retention_ms < now_ms - segment.max_timestamp
            old = old and segment.max_timestamp != NO_TIME
            size -= segment.size
            large = 0 <= settings.retention_bytes <= size and following is not None
            if not (old or large):
                break
            start = max(start, end if following is None else following.base_offset)
        return start

    def replace(self, base_offset: int, cleaned: Path) -> None:
        """Put a compacted file in the place of its segment, if that is still there."""
        for position, segment in enumerate(self.segments[:-1]):
            if segment.base_offset == base_offset:
                self._files.drop(segment.path)
                segment.index_path.unlink(missing_ok=True)
                size = cleaned.stat().st_size
                cleaned.rename(segment.path)
                made = Segment(self._files, self.folder, base_offset, size)
                self._load(made)
                self.segments[position] = made
                made.write_index()
                return
        cleaned.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove all of it."""
        for segment in self.segments:
            self._files.drop(segment.path)
        self.segments.clear()
        self._unwritten.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- checkpoints --------------------------------------------------------------------------

    def dirty_paths(self, since: LogEnd) -> list[Path]:
        """The files that have changed since a place."""
        return [one.path for one in self.segments if one.base_offset >= since.base_offset]

    def write_indexes(self, since: LogEnd) -> None:
        for segment in self.segments:
            if segment.base_offset >= since.base_offset:
                segment.write_index()

    def check_all(self) -> Iterator[tuple[Path, int, str]]:
        """Every batch whose checksum is wrong: its file, its place, and why."""
        for segment in self.segments:
            try:
                for header, where in segment.walk(0):
                    if not batch.is_whole(segment.read(where, header.size), header):
                        yield segment.path, where, "the batch's checksum is wrong"
            except DamagedSegment as damage:
                yield segment.path, damage.at, damage.why
