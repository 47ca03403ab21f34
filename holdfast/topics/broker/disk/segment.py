"""A segment of a partition's log: batches one after the other, and an index into them.

The index has an entry for about every four kilobytes: the offset of a batch, its position, and
the largest timestamp of all batches before it. It is never needed to be right on disk: what is
missing at its end is scanned again, and one that does not fit is made anew.

What a segment had when it was opened is checked before it is first read: headers, order and
checksums of the batches between two entries of the index at a time, once a process. What this
process has appended itself is known to be right.
"""

from __future__ import annotations

import os
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from holdfast.topics.broker.core import batch
from holdfast.topics.broker.core.batch import HEADER_BYTES, Header

INDEX_INTERVAL_BYTES: Final = 4096
# The machine's order of bytes (the columns are in it), entries, and the segment's length and times.
_INDEX_HEAD: Final = struct.Struct("!8sIQqq")
_SCAN_BYTES: Final = 256 * 1024
# Open files of segments at a time; the one used longest ago is closed.
OPEN_FILES_MAX: Final = 2048
NO_TIME: Final = -1
# What is read at a time to be checked.
_CHECK_BYTES: Final = 1024 * 1024


class DamagedSegment(Exception):
    """What lies in a segment from `at` on is not what was written."""

    def __init__(self, base_offset: int, at: int, why: str) -> None:
        super().__init__(f"{why}, at byte {at} of the segment of offset {base_offset}")
        self.base_offset = base_offset
        self.at = at
        self.why = why


class OpenFiles:
    """Handles of segments, a bounded number of them."""

    def __init__(self, most: int = OPEN_FILES_MAX) -> None:
        self._most = most
        self._handles: OrderedDict[Path, int] = OrderedDict()

    def get(self, path: Path) -> int:
        """A handle to read and write."""
        handle = self._handles.get(path)
        if handle is None:
            handle = self._open(path, os.O_RDWR)
        else:
            self._handles.move_to_end(path)
        return handle

    def make(self, path: Path) -> None:
        """Make the file, empty, and its folder if need be."""
        self.drop(path)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        try:
            self._open(path, flags)
        except FileNotFoundError:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._open(path, flags)

    def _open(self, path: Path, flags: int) -> int:
        handle = os.open(path, flags | os.O_CLOEXEC, 0o600)
        self._handles[path] = handle
        if len(self._handles) > self._most:
            os.close(self._handles.popitem(last=False)[1])
        return handle

    def drop(self, path: Path) -> None:
        """Close it, if it is open."""
        handle = self._handles.pop(path, None)
        if handle is not None:
            os.close(handle)

    def close(self) -> None:
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()


class Segment:
    """Batches from `base_offset` on, `size` bytes of them."""

    __slots__ = (
        "_files",
        "_indexed_bytes",
        "_offsets",
        "_positions",
        "_times",
        "_unchecked",
        "_unchecked_bytes",
        "base_offset",
        "damage",
        "max_timestamp",
        "offset_limit",
        "path",
        "since_ms",
        "size",
    )

    def __init__(self, files: OpenFiles, folder: Path, base_offset: int, size: int) -> None:
        self._files = files
        self.base_offset = base_offset
        self.path = folder / f"{base_offset:020d}.log"
        self.size = size
        self.since_ms = NO_TIME  # when its first batch came
        self.max_timestamp = NO_TIME
        self._indexed_bytes = 0
        self._offsets = array("I")
        self._positions = array("I")
        self._times = array("q")
        self.damage: DamagedSegment | None = None
        self.offset_limit: int | None = None  # no batch that was there reaches it; None: not known
        self._unchecked_bytes = size  # of which nobody knows yet whether they are right
        self._unchecked: bytearray | None = None  # by entry of the index: 1, not checked yet

    @property
    def index_path(self) -> Path:
        return self.path.with_suffix(".index")

    # --- writing ------------------------------------------------------------------------------

    def append(self, header: Header, data: bytes) -> None:
        """Write a batch behind the others. An `OSError` leaves everything as it was."""
        handle = self._files.get(self.path)
        at, view = self.size, memoryview(data)
        try:
            while view:
                written = os.pwrite(handle, view, at)
                view, at = view[written:], at + written
        except OSError:
            with suppress(OSError):  # a full disk gets its last pages back
                os.ftruncate(handle, self.size)
            raise
        self.note(header, len(data))

    def note(self, header: Header, size: int) -> None:
        """Count a batch that lies at the end."""
        position = self.size
        if not self._offsets or position - self._indexed_bytes >= INDEX_INTERVAL_BYTES:
            self._offsets.append(header.base_offset - self.base_offset)
            self._positions.append(position)
            self._times.append(self.max_timestamp)
            self._indexed_bytes = position
        self.size += size
        self.max_timestamp = max(self.max_timestamp, header.max_timestamp)
        if self.since_ms == NO_TIME:
            self.since_ms = header.max_timestamp

    def write_index(self) -> None:
        """Keep the index for the next start; one that is made by a single read is not kept."""
        if self.size <= _SCAN_BYTES or self.damage is not None:
            self.index_path.unlink(missing_ok=True)
            return
        columns = (self._offsets, self._positions, self._times)
        head = _INDEX_HEAD.pack(
            sys.byteorder.encode(), len(self._offsets), self.size, self.max_timestamp, self.since_ms
        )
        data = b"".join((head, *(column.tobytes() for column in columns)))
        self.index_path.write_bytes(batch.crc32c(data).to_bytes(4, "big") + data)

    # --- opening ------------------------------------------------------------------------------

    def load(self) -> None:
        """Take the index from its file as far as it goes, and scan the rest of the segment. What
        cannot be read there is noted as `damage`."""
        known, size = 0, self.size
        with suppress(FileNotFoundError):
            known = self._take_index(self.index_path.read_bytes())
        if known != size:
            try:
                self._scan_rest()
            except DamagedSegment as damage:
                self.note_damage(damage)
            self.size = size
        self._unchecked = bytearray(b"\1" * len(self._positions))

    def _take_index(self, raw: bytes) -> int:
        """Take it, less what lies behind the segment's end. How long the segment was that it is
        of; 0: it is of none."""
        data = raw[4:]
        if len(data) < _INDEX_HEAD.size or batch.crc32c(data).to_bytes(4, "big") != raw[:4]:
            return 0
        order, count, size, latest, since_ms = _INDEX_HEAD.unpack_from(data)
        at = _INDEX_HEAD.size
        if order.rstrip(b"\0") != sys.byteorder.encode() or len(data) - at != 16 * count:
            return 0
        for column in (self._offsets, self._positions, self._times):
            column.frombytes(data[at : at + count * column.itemsize])
            at += count * column.itemsize
        kept = bisect_left(self._positions, self.size)
        for column in (self._offsets, self._positions, self._times):
            del column[kept:]
        if size == self.size:
            self.max_timestamp, self.since_ms = latest, since_ms
            self._indexed_bytes = self._positions[-1] if kept else 0
        return int(size)

    def _scan_rest(self) -> None:
        end, self.size = self.size, 0
        if self._positions:
            # The last entry's batch and what follows it are counted again.
            self.size = end  # as far as its headers may be read
            self.since_ms = self.first_timestamp()
            self.size = self._positions.pop()
            self._offsets.pop()
            self.max_timestamp = self._times.pop()
            self._indexed_bytes = self._positions[-1] if self._positions else 0
        least = self.base_offset + (self._offsets[-1] if self._offsets else 0)
        before = self.size
        for header, at in self._walk(self.size, end):
            if not least <= header.base_offset <= header.last_offset < self.base_offset + 2**31:
                # Of this one, or of the one before.
                raise DamagedSegment(self.base_offset, before, "a batch's offset is not in order")
            self.note(header, header.size)
            least, before = header.last_offset + 1, at

    def first_timestamp(self) -> int:
        header = self.header_at(0)
        return NO_TIME if header is None else header.max_timestamp

    # --- checking -----------------------------------------------------------------------------

    def check(self, start: int, stop: int) -> int:
        """Make sure that what lies from `start`, where a batch begins, to `stop` is what was
        written. How much of it is: up to `stop`, or to where damage begins. `DamagedSegment`:
        nothing of it is."""
        unchecked = self._unchecked
        if self.damage is not None and start >= self.damage.at:
            raise self.damage
        if unchecked is not None:
            first = max(bisect_right(self._positions, start) - 1, 0)
            last = bisect_left(self._positions, min(stop, self._unchecked_bytes))
            try:
                while (entry := unchecked.find(1, first, last)) >= 0:
                    after = unchecked.find(0, entry, last)
                    first = self._check_entries(entry, last if after < 0 else after)
                    unchecked[entry:first] = bytes(first - entry)
            except DamagedSegment as damage:
                self.note_damage(damage)
            else:
                if 1 not in unchecked and self.damage is None:
                    self._unchecked = None
        if self.damage is None or stop <= self.damage.at:
            return stop
        if start >= self.damage.at:
            raise self.damage
        return self.damage.at

    def note_damage(self, damage: DamagedSegment) -> None:
        """Nothing is read from there on."""
        if self.damage is None or damage.at < self.damage.at:
            self.damage = damage
            kept = bisect_left(self._positions, damage.at)
            gone = bisect_left(self._positions, self._unchecked_bytes)
            for column in (self._offsets, self._positions, self._times):
                del column[kept:gone]
            if self._unchecked is not None:
                del self._unchecked[kept:]

    def _check_entries(self, first: int, last: int) -> int:
        """Check batches of these entries, about a megabyte of them at a time. The first entry that
        was not looked at."""
        positions, base = self._positions, self.base_offset
        at = positions[first]
        last = min(last, max(first + 1, bisect_right(positions, at + _CHECK_BYTES) - 1))
        known = last < len(positions) and positions[last] <= self._unchecked_bytes
        end = positions[last] if known else self._unchecked_bytes
        if self.damage is not None:
            end = min(end, self.damage.at)
        data = os.pread(self._files.get(self.path), end - at, at)
        limit = base + self._offsets[last] if known else self.offset_limit
        wrong, why = batch.find_wrong(data, base + self._offsets[first], limit)
        if why or len(data) < end - at:
            raise DamagedSegment(base, at + wrong, why or "the file is too short")
        return last

    def _implausible(self, at: int) -> DamagedSegment:
        return DamagedSegment(self.base_offset, at, "no batch begins there")

    # --- reading ------------------------------------------------------------------------------

    def read(self, at: int, size: int) -> bytes:
        """So many bytes from there on, or fewer at the end."""
        return os.pread(self._files.get(self.path), min(size, self.size - at), at)

    def header_at(self, at: int) -> Header | None:
        """The header of the batch that begins there; None: it is not whole."""
        if at + HEADER_BYTES > self.size:
            return None
        raw = os.pread(self._files.get(self.path), HEADER_BYTES, at)
        if len(raw) < HEADER_BYTES:
            return None
        header = batch.read_header(raw)
        good = header.magic == 2 and header.length > 0 and at + header.size <= self.size
        return header if good else None

    def walk(self, at: int) -> Iterator[tuple[Header, int]]:
        """The headers of batches from there on, and where each stands; `DamagedSegment` where none
        is."""
        return self._walk(at, self.size)

    def _walk(self, at: int, end: int) -> Iterator[tuple[Header, int]]:
        handle = self._files.get(self.path)
        chunk, chunk_at = b"", at
        while at < end:
            within = at - chunk_at
            if within + HEADER_BYTES > len(chunk):
                chunk, chunk_at, within = os.pread(handle, _SCAN_BYTES, at), at, 0
                if len(chunk) < HEADER_BYTES:
                    raise self._implausible(at)
            header = batch.read_header(chunk, within)
            if header.magic != 2 or header.length <= 0 or at + header.size > end:
                raise self._implausible(at)
            yield header, at
            at += header.size

    def position_of(self, offset: int) -> int:
        """Where the batch begins that holds this offset, or the first one after it."""
        entry = bisect_right(self._offsets, offset - self.base_offset) - 1
        start = self._positions[entry] if entry >= 0 else 0
        for header, at in self.walk(start):
            if header.last_offset >= offset:
                return at
        return self.size

    def offset_after(self, position: int) -> int | None:
        """An offset that no batch before this position reaches; None: the index knows none."""
        entry = bisect_left(self._positions, position)
        if entry == len(self._positions):
            return None
        return self.base_offset + self._offsets[entry]

    def position_of_time(self, timestamp: int) -> int:
        """A place before which no batch has a record of this time or later."""
        # An entry's time is of what lies before it, so the batch is behind the last smaller one.
        entry = bisect_left(self._times, timestamp) - 1
        return self._positions[entry] if entry >= 0 else 0
