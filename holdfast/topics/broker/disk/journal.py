"""The journal: every write of the broker, in order, one `fdatasync` for what gathered.

    header   magic, format, salt, its first entry's number, and how the segment before it ended
    group    head, then its entries: what one sync made durable
    ...
    zeros    written ahead, so that an append changes no file size

A group's head says where it stands, which entries it holds, how long it is, its checksum, and the
checksum of the group before it; the head's own checksum is seeded by the segment's salt. So bytes
of another segment, or a journal that a client stored as a record, are never taken for a group.

A torn tail or damage
---------------------
A crash may leave the last group incomplete: it was never acknowledged, and is cut. Anything else
that does not check is damage and is refused. They are told apart as the coordination server does:
a group is written only after the one before it is durable, so a good group after a bad one means
damage; what lies before the mark in the file `durable` (told after each sync, itself not synced)
was durable; and a segment that is not the last ends as the header of the next one says.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import google_crc32c

from holdfast.system import disk
from holdfast.system.durable import write_all
from holdfast.topics.broker.disk import folder as files
from holdfast.wire.errors import DiskFailed, Full

_MAGIC: Final = b"HFTJRN\r\n"
# Also to be raised when `BrokerState.apply` decides anything differently: the journal holds
# commands.
_FORMAT: Final = 1
_HEADER: Final = struct.Struct("!8sI8sQQQI")
_CRC: Final = struct.Struct("!I")
HEADER_BYTES: Final = _HEADER.size + _CRC.size
_GROUP_MAGIC: Final = b"\xf6HFG"
_GROUP: Final = struct.Struct("!4sIQQQII")
GROUP_HEAD_BYTES: Final = _GROUP.size + _CRC.size
_ENTRY: Final = struct.Struct("!Iq")
_MARK: Final = struct.Struct("!QQQ")
# One page each, so that one write can damage only one of them.
_SLOT_BYTES: Final = 4096
# An append that does not change the file's size needs no commit of the file system's own journal.
AHEAD_BYTES: Final = 1024 * 1024


class Entry(NamedTuple):
    """One command as it lies in the journal."""

    number: int
    time_ms: int
    data: bytes


class SegmentEnding(NamedTuple):
    """How a segment ends: its first entry, its length, the checksum of its last group."""

    first: int = 0
    size: int = 0
    chain: int = 0


class JournalTail(NamedTuple):
    """Where writing goes on."""

    path: Path
    first: int
    salt: bytes
    end: int
    chain: int
    last: int
    cut_bytes: int


def crc(data: bytes, seed: int = 0) -> int:
    return int(google_crc32c.extend(seed, data))


def encode_entry(time_ms: int, data: bytes) -> bytes:
    return _ENTRY.pack(len(data), time_ms) + data


# --- reading --------------------------------------------------------------------------------------


class JournalReader:
    """Reads the groups of a segment up to the first that is not good.

    Afterwards: `end`, `chain` and `last` are of the good part; `fault` says why it stopped there,
    and is empty where nothing, or zeros, follow.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = path.read_bytes()
        self.first, self.salt, self.previous, self.chain = self._read_header()
        self.end = HEADER_BYTES
        self.last = self.first - 1
        self.fault = ""

    @property
    def size(self) -> int:
        return len(self._data)

    def _read_header(self) -> tuple[int, bytes, SegmentEnding, int]:
        raw = self._data[:HEADER_BYTES]
        if len(raw) < HEADER_BYTES:
            raise files.corrupt(self.path, 0, "the file is shorter than its header")
        magic, version, salt, first, *previous = _HEADER.unpack_from(raw)
        chain = crc(raw[: _HEADER.size])
        if magic != _MAGIC or chain != _CRC.unpack_from(raw, _HEADER.size)[0]:
            raise files.corrupt(self.path, 0, "the header's checksum is wrong")
        if version != _FORMAT:
            why = f"the journal has format {version} and this program knows {_FORMAT}"
            raise files.corrupt(self.path, 8, why)
        if self.path.name != files.journal_path(self.path.parent, first).name:
            raise files.corrupt(self.path, 0, f"it begins with entry {first:#x}, unlike its name")
        return first, salt, SegmentEnding(*previous), chain

    def __iter__(self) -> Iterator[Entry]:
        while True:
            payload = self._group_at(self.end, self.chain)
            if payload is None:
                break
            at, number = 0, self.last + 1
            while at < len(payload):
                size, time_ms = _ENTRY.unpack_from(payload, at)
                at += _ENTRY.size
                yield Entry(number, time_ms, payload[at : at + size])
                at += size
                number += 1
            self.end += GROUP_HEAD_BYTES + len(payload)
            self.chain = self._next_chain
            self.last = self._next_last
        rest = self._data[self.end :]
        if rest.strip(b"\0"):
            self.fault = "a group does not check"

    _next_chain = 0
    _next_last = 0

    def _group_at(self, at: int, chain: int | None) -> bytes | None:
        """The entries of the group there; None: there is no good one. `chain` None: any."""
        head = self._data[at : at + _GROUP.size]
        if len(head) < _GROUP.size or not head.startswith(_GROUP_MAGIC):
            return None
        if (
            _CRC.pack(crc(head, crc(self.salt)))
            != self._data[at + _GROUP.size : at + GROUP_HEAD_BYTES]
        ):
            return None
        _, size, stands, first, last, before, after = _GROUP.unpack(head)
        payload = self._data[at + GROUP_HEAD_BYTES : at + GROUP_HEAD_BYTES + size]
        if stands != at or len(payload) != size or crc(payload, before) != after:
            return None
        if chain is not None and (before != chain or first != self.last + 1):
            return None
        self._next_chain, self._next_last = after, last
        return payload

    def has_good_group_after(self, at: int) -> bool:
        """Whether a good group stands anywhere behind `at`: then what is there was durable."""
        found = self._data.find(_GROUP_MAGIC, at + 1)
        while found >= 0:
            if self._group_at(found, None) is not None:
                return True
            found = self._data.find(_GROUP_MAGIC, found + 1)
        return False


def read_mark(folder: Path) -> tuple[int, int, int] | None:
    """The segment, the length and the last entry up to which the journal is known to be good."""
    try:
        raw = (folder / files.DURABLE).read_bytes()
    except FileNotFoundError:
        return None
    found = []
    for at in (0, _SLOT_BYTES):
        slot = raw[at : at + _MARK.size + 4]
        if len(slot) == _MARK.size + 4 and _CRC.pack(crc(slot[:-4])) == slot[-4:]:
            found.append(_MARK.unpack(slot[:-4]))
    return max(found, key=lambda mark: mark[2], default=None)


class JournalReplay:
    """All entries after `after`, in order. When it is through, `tail` is where writing goes on;
    None: there is no journal."""

    def __init__(self, folder: Path, after: int) -> None:
        self._folder = folder
        self._after = after
        self.tail: JournalTail | None = None

    def __iter__(self) -> Iterator[Entry]:
        segments = files.numbered(self._folder, "journal")
        ending: SegmentEnding | None = None
        for position, (first, path) in enumerate(segments):
            reader = JournalReader(path)
            if ending is None and first > self._after + 1:
                raise files.corrupt(path, 0, f"the entries before {first:#x} are missing")
            if ending is not None and reader.previous != ending:
                raise files.corrupt(path, 0, "the segment before it ends otherwise than it says")
            for entry in reader:
                if entry.number > self._after:
                    yield entry
            is_last = position == len(segments) - 1
            self._check_end(reader, is_last)
            ending = SegmentEnding(reader.first, reader.end, reader.chain)
            if is_last:
                cut = reader.size - reader.end if reader.fault else 0
                self._check_mark(reader.last)
                self.tail = JournalTail(
                    path, first, reader.salt, reader.end, reader.chain, reader.last, cut
                )

    def _check_mark(self, last: int) -> None:
        """Refuse a journal that ends before what is known to have been durable: a file is gone."""
        mark = read_mark(self._folder)
        if mark is not None and mark[2] > last:
            path = files.journal_path(self._folder, mark[0])
            why = f"it is missing: entries {last + 1:#x} to {mark[2]:#x} were durable there"
            raise files.corrupt(path, 0, why)

    def _check_end(self, reader: JournalReader, is_last: bool) -> None:
        """Refuse damage; a torn tail of the last segment is none."""
        mark = read_mark(self._folder)
        if mark is not None and mark[0] == reader.first and reader.end < mark[1]:
            raise files.corrupt(reader.path, reader.end, "what was durable there does not check")
        if not reader.fault:
            return
        if not is_last:
            raise files.corrupt(reader.path, reader.end, "it is not the last segment")
        if reader.has_good_group_after(reader.end):
            raise files.corrupt(reader.path, reader.end, "a good group follows a bad one")


# --- writing --------------------------------------------------------------------------------------


class BrokerJournal:
    """The end of the journal. Used by one thread."""

    def __init__(self, tail: JournalTail) -> None:
        self.folder = tail.path.parent
        self.path = tail.path
        self.last = tail.last
        self.end = tail.end
        self._first, self._salt, self._chain = tail.first, tail.salt, tail.chain
        self._handle = os.open(tail.path, os.O_WRONLY | os.O_CLOEXEC)
        self._size = tail.end
        self._mark_slot = 0
        try:
            # What a killed process had written and not synced is durable before anybody is told of
            # it, and what follows the good part never comes back.
            os.ftruncate(self._handle, tail.end)
            os.fsync(self._handle)
            disk.sync_folder(self.folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
            self._marks = os.open(self.folder / files.DURABLE, flags, 0o600)
            try:
                self._tell()
            except OSError as error:
                if error.errno not in disk.NO_ROOM:
                    raise
            os.fsync(self._marks)
        except BaseException:
            os.close(self._handle)
            raise

    @classmethod
    def create(
        cls, folder: Path, first: int, previous: SegmentEnding | None = None
    ) -> BrokerJournal:
        """A segment that begins with this entry: durable before it has its name."""
        salt = os.urandom(8)
        raw = _HEADER.pack(_MAGIC, _FORMAT, salt, first, *(previous or SegmentEnding()))
        chain = crc(raw)
        path = files.journal_path(folder, first)
        disk.replace_durably(path, raw + _CRC.pack(chain))
        return cls(JournalTail(path, first, salt, HEADER_BYTES, chain, first - 1, 0))

    def append(self, entries: Sequence[bytes]) -> None:
        """Make these (`encode_entry`) durable, all or none.

        `Full`: none is kept, and a later one may be. `DiskFailed`: nothing may be acknowledged any
        more.
        """
        payload = b"".join(entries)
        last = self.last + len(entries)
        after = crc(payload, self._chain)
        head = _GROUP.pack(
            _GROUP_MAGIC, len(payload), self.end, self.last + 1, last, self._chain, after
        )
        data = b"".join((head, _CRC.pack(crc(head, crc(self._salt))), payload))
        end = self.end + len(data)
        try:
            if end > self._size:
                self._write_ahead(data, end)
            else:
                write_all(self._handle, data, self.end)
            os.fdatasync(self._handle)
        except OSError as error:
            self._cut(error)
            if error.errno not in disk.NO_ROOM:
                raise self._failed(error) from error
            raise Full(
                f"no room on the disk for {self.path}",
                why=str(error),
                fix=f"make room: df {self.folder}; writes go on by themselves then",
            ) from error
        self.end, self._chain, self.last = end, after, last
        try:
            self._tell()
        except OSError as error:
            if error.errno not in disk.NO_ROOM:  # the older mark stays true, and proves less
                raise self._failed(error) from error

    def _write_ahead(self, data: bytes, end: int) -> None:
        """Write a group that makes the file longer, with zeros behind it if there is space."""
        try:
            write_all(self._handle, data + bytes(AHEAD_BYTES), self.end)
            self._size = end + AHEAD_BYTES
        except OSError as error:
            if error.errno not in disk.NO_ROOM:
                raise
            os.ftruncate(self._handle, self.end)
            write_all(self._handle, data, self.end)
            self._size = end

    def _cut(self, cause: OSError) -> None:
        """Take back what the failed group left. After a failed sync pages may count as clean that
        never reached the disk; cutting drops them, and the sync after it speaks for the rest."""
        try:
            os.ftruncate(self._handle, self.end)
            os.fsync(self._handle)
        except OSError as error:
            raise self._failed(error) from cause
        self._size = self.end

    def _failed(self, error: OSError) -> DiskFailed:
        return DiskFailed(
            f"{self.path} could not be written or synced",
            why=str(error),
            fix="look at the disk's health (`dmesg`), then start the broker again: what was"
            " acknowledged is checked at the start",
        )

    def _tell(self) -> None:
        mark = _MARK.pack(self._first, self.end, self.last)
        os.pwrite(self._marks, mark + _CRC.pack(crc(mark)), self._mark_slot * _SLOT_BYTES)
        self._mark_slot ^= 1

    def roll(self) -> BrokerJournal:
        """Go on in a new segment. An `OSError` leaves this one as usable as it was."""
        if self.last < self._first:
            return self
        self.finish()
        following = BrokerJournal.create(
            self.folder, self.last + 1, SegmentEnding(self._first, self.end, self._chain)
        )
        self.close()
        return following

    def finish(self) -> None:
        """Give back what was written ahead: nothing more follows here. Where that is not durable,
        zeros stay, and count for nothing."""
        os.ftruncate(self._handle, self.end)
        self._size = self.end

    def close(self) -> None:
        os.close(self._handle)
        os.close(self._marks)
