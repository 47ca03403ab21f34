"""A segment of the log: batches of records behind a header.

    header   magic, version, salt, first zxid, the bound on nodes under which its writes were
             decided (a replay must decide the same), and how the segment before it ended; crc32
    batch    head, then its records (`records`)
    ...
    zeros    room written ahead, so that an append changes no file size

A batch is what one fsync made durable. Its head says where in the file it stands, which zxids it
holds, how long it is, the checksum of its records, and the checksum of the batch before it (the
header's for the first). The head's own checksum is seeded by the segment's random salt. So bytes
of another segment, of an older file on the same blocks, or of a log that a client stored as data
are never taken for a batch of this one, and no batch can be missing from the middle.

A torn tail or damage
---------------------
A crash may leave the last batch incomplete. That batch was never acknowledged, since its fsync
had not returned; it is cut off. Anything else that does not check is damage and is refused. The
two are told apart by this:

1. A batch is written only after the one before it is durable. If a good batch follows a bad one,
   the bad one had been durable: damage. The search for a good batch looks at every later byte, so
   a wrong length cannot hide what comes after it.
2. After each fsync the file `durable` is told how far the segment is good (not synced, for that
   would double the cost: it reaches the disk with the system's next write-back). A bad or missing
   byte before that mark is damage, also in the very last batch.
3. A segment that is not the last one must end exactly as the header of the next one says.

What cannot be told apart: the machine (not only the process) loses power within the seconds
before the mark was written back, AND the last batch written before that is damaged on disk. Then
the batch looks torn and is cut. After the death of the process alone, and after every start and
every clean end, the mark is exact.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple
from zlib import crc32

from holdfast.coordination.embedded.folder import DURABLE, corrupt, create_durably
from holdfast.system.durable import write_all

_MAGIC: Final = b"HFCLOG\r\n"
# Also to be raised when `Tree.apply` decides anything differently: a log holds requests.
_VERSION: Final = 1
_HEADER: Final = struct.Struct("!8sI8sqQqQI")
_CRC: Final = struct.Struct("!I")
HEADER_BYTES: Final = _HEADER.size + _CRC.size

_BATCH_MAGIC: Final = b"\xf5HFB"
_BATCH: Final = struct.Struct("!4sIQqqII")
BATCH_HEAD_BYTES: Final = _BATCH.size + _CRC.size
_SCAN_BYTES: Final = 1024 * 1024

_MARK_MAGIC: Final = b"HFCDUR\r\n"
_MARK: Final = struct.Struct("!8sQqQq")
# One page each, so that one write can damage only one of them.
_SLOT_BYTES: Final = 4096


class SegmentHeader(NamedTuple):
    """What a segment says of itself and of the one before it (`previous_zxid` 0: none)."""

    first_zxid: int
    salt: bytes
    nodes_max: int
    previous_zxid: int
    previous_bytes: int
    previous_chain: int
    chain: int


class LogBatch(NamedTuple):
    """A good batch: its place, its zxids, its records' bytes."""

    offset: int
    first_zxid: int
    last_zxid: int
    payload: bytes


class Fault(NamedTuple):
    """Where and why reading a segment stopped."""

    offset: int
    reason: str


def encode_header(
    first_zxid: int, nodes_max: int, previous: tuple[int, int, int] = (0, 0, 0)
) -> tuple[bytes, SegmentHeader]:
    """A new header; `previous` is the first zxid, the length and the chain of the one before."""
    salt = os.urandom(8)
    raw = _HEADER.pack(_MAGIC, _VERSION, salt, first_zxid, nodes_max, *previous)
    chain = crc32(raw)
    return raw + _CRC.pack(chain), SegmentHeader(first_zxid, salt, nodes_max, *previous, chain)


def read_header(path: Path) -> SegmentHeader:
    """The header of a segment; `Corrupt` if it is not one. It is durable before the name is."""
    with path.open("rb") as file:
        raw = file.read(HEADER_BYTES)
    if len(raw) < HEADER_BYTES:
        raise corrupt(path, 0, "the file is shorter than its header")
    body = raw[: _HEADER.size]
    magic, version, salt, first, nodes_max, previous, length, end_chain = _HEADER.unpack(body)
    chain = crc32(body)
    if chain != _CRC.unpack_from(raw, _HEADER.size)[0] or magic != _MAGIC:
        raise corrupt(path, 0, "the header's checksum is wrong")
    if version != _VERSION:
        raise corrupt(
            path,
            8,
            f"the segment has format {version} and this program knows {_VERSION}",
            "use the version of holdfast that wrote the folder",
        )
    if path.name != f"log-{first:016x}":
        raise corrupt(path, 0, f"the file's name is not that of its first zxid {first:#x}")
    return SegmentHeader(first, salt, nodes_max, previous, length, end_chain, chain)


def encode_batch(
    salt: bytes, chain: int, offset: int, first_zxid: int, last_zxid: int, payload: bytes
) -> tuple[bytes, int]:
    """A batch for this place in this segment, and the chain that the next one needs."""
    after = crc32(payload, chain)
    head = _BATCH.pack(_BATCH_MAGIC, len(payload), offset, first_zxid, last_zxid, chain, after)
    return b"".join((head, _CRC.pack(crc32(head, crc32(salt))), payload)), after


class SegmentReader:
    """Reads the batches of a segment up to the first that is not good.

    After the iteration: `end` is where the good part ends, `last_zxid` and `chain` are its last,
    `fault` says why it stopped there (None: only room written ahead follows, or nothing).
    """

    def __init__(self, path: Path, header: SegmentHeader) -> None:
        self.path = path
        self.header = header
        self.end = HEADER_BYTES
        self.last_zxid = header.first_zxid - 1
        self.chain = header.chain
        self.size = 0
        self.fault: Fault | None = None
        self._seed = crc32(header.salt)

    def batches(self) -> Iterator[LogBatch]:
        with self.path.open("rb", buffering=256 * 1024) as file:
            self.size = os.fstat(file.fileno()).st_size
            file.seek(self.end)
            while self.end < self.size:
                batch = self._next(file)
                if batch is None:
                    return
                yield batch

    def _next(self, file: BinaryIO) -> LogBatch | None:
        raw = file.read(BATCH_HEAD_BYTES)
        if not any(raw) and _only_zeros(file):
            return None
        reason = self._complain(raw)
        if reason is None:
            _, length, offset, first, last, _, after = _BATCH.unpack_from(raw)
            reason = "the file ends inside a batch"
            if length <= self.size - self.end - BATCH_HEAD_BYTES:
                payload = file.read(length)
                chain = crc32(payload, self.chain)
                if len(payload) == length and chain == after:
                    self.end += BATCH_HEAD_BYTES + length
                    self.chain = chain
                    self.last_zxid = last
                    return LogBatch(offset, first, last, payload)
                reason = "the checksum of a batch's records is wrong"
        self.fault = Fault(self.end, reason)
        return None

    def _complain(self, raw: bytes) -> str | None:
        """What is wrong with the head that should stand at `end`."""
        if len(raw) < BATCH_HEAD_BYTES:
            return "the file ends inside the head of a batch"
        magic, length, offset, first, last, chain, _ = _BATCH.unpack_from(raw)
        if magic != _BATCH_MAGIC or not self._sealed(raw, 0):
            return "the checksum of a batch's head is wrong"
        if offset != self.end or chain != self.chain:
            return "the batch belongs to another place"
        if first != self.last_zxid + 1 or last < first or not length:
            return f"the batch holds zxids {first:#x} to {last:#x} after {self.last_zxid:#x}"
        return None

    def _sealed(self, data: bytes, at: int) -> bool:
        head = data[at : at + _BATCH.size]
        return bool(crc32(head, self._seed) == _CRC.unpack_from(data, at + _BATCH.size)[0])

    def damaged_payload(self) -> bytes:
        """What stands where the records of the batch at the fault should, if its head is good."""
        with self.path.open("rb") as file:
            file.seek(self.end)
            raw = file.read(BATCH_HEAD_BYTES)
            if self._complain(raw) is not None:
                return b""
            (length,) = struct.unpack_from("!I", raw, len(_BATCH_MAGIC))
            return file.read(min(length, self.size))

    def later_batches(self) -> Iterator[tuple[int, int]]:
        """(offset, last zxid) of every head after `end` that is good for its place.

        That it exists proves that whatever stands before it had been durable.
        """
        with self.path.open("rb") as file:
            base, window = self.end + 1, b""
            file.seek(base)
            while fresh := file.read(_SCAN_BYTES):
                window += fresh
                at = window.find(_BATCH_MAGIC)
                while 0 <= at <= len(window) - BATCH_HEAD_BYTES:
                    _, _, offset, _, last, _, _ = _BATCH.unpack_from(window, at)
                    if offset == base + at and self._sealed(window, at):
                        yield offset, last
                    at = window.find(_BATCH_MAGIC, at + 1)
                # A head may lie across two windows.
                keep = window[-(BATCH_HEAD_BYTES - 1) :]
                base += len(window) - len(keep)
                window = keep


def _only_zeros(file: BinaryIO) -> bool:
    """Whether nothing but zeros is left; otherwise `file` stands where it stood."""
    start = file.tell()
    while chunk := file.read(_SCAN_BYTES):
        if chunk.strip(b"\0"):
            file.seek(start)
            return False
    return True


class Mark(NamedTuple):
    """The segment that begins with `first_zxid` is known to be on disk up to `length`, where
    `last_zxid` ends."""

    first_zxid: int
    length: int
    last_zxid: int


class DurableMark:
    """The file `durable`: two slots, written in turn, so that one is always good."""

    def __init__(self, handle: int, turn: int) -> None:
        self._handle = handle
        self._turn = turn

    @classmethod
    def open(cls, folder: Path, mark: Mark) -> DurableMark:
        """Set both slots to `mark`, durably, and keep the file open."""
        path = folder / DURABLE
        if not path.exists() or path.stat().st_size != 2 * _SLOT_BYTES:
            create_durably(path, _slot(0, mark) + _slot(1, mark))
        self = cls(os.open(path, os.O_WRONLY), 2)
        write_all(self._handle, _slot(2, mark), 0)
        write_all(self._handle, _slot(3, mark), _SLOT_BYTES)
        os.fsync(self._handle)
        self._turn = 4
        return self

    def advance(self, mark: Mark) -> None:
        """Write the mark, without waiting for the disk."""
        turn = self._turn
        data = _entry(turn, mark)
        os.pwrite(self._handle, data, (turn & 1) * _SLOT_BYTES)
        self._turn = turn + 1

    def sync(self) -> None:
        os.fsync(self._handle)

    def close(self) -> None:
        os.close(self._handle)


def _entry(turn: int, mark: Mark) -> bytes:
    data = _MARK.pack(_MARK_MAGIC, turn, *mark)
    return data + _CRC.pack(crc32(data))


def _slot(turn: int, mark: Mark) -> bytes:
    return _entry(turn, mark).ljust(_SLOT_BYTES, b"\0")


def read_mark(folder: Path) -> tuple[Mark | None, list[str]]:
    """The newest good mark (None: there is no such file), and what was wrong with the other.

    One bad slot costs nothing but a warning; `Corrupt` when both are bad.
    """
    path = folder / DURABLE
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None, []
    best: tuple[int, Mark] | None = None
    warnings = []
    for number in (0, 1):
        slot = raw[number * _SLOT_BYTES :][:_SLOT_BYTES]
        turn, mark = 0, Mark(0, 0, 0)
        if len(slot) == _SLOT_BYTES:
            _, turn, *values = _MARK.unpack_from(slot)
            mark = Mark(*values)
        if slot != _slot(turn, mark):
            warnings.append(f"{path} is damaged after byte {number * _SLOT_BYTES}")
        elif best is None or turn > best[0]:
            best = (turn, mark)
    if best is None:
        raise corrupt(path, 0, "both of its entries have a wrong checksum")
    return best[1], warnings
