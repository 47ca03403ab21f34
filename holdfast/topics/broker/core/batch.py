"""A record batch (magic 2): its header, whether it may be appended, what the broker writes into it.

The first 16 bytes (offset, length, leader epoch) are the broker's and outside the checksum, so a
batch is taken as the client sent it, compressed or not. With log-append time two more fields and
the checksum are ours.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import google_crc32c

from holdfast.topics.broker.protocol.codec import Buffer
from holdfast.topics.broker.protocol.codes import ErrorCode, KafkaError

HEADER: Final = struct.Struct("!qiibIhiqqqhii")
HEADER_BYTES: Final = HEADER.size
# What stands in front of what `length` counts.
LENGTH_AT_BYTES: Final = 12
# The checksum is of everything from here on.
_CHECKED_FROM: Final = 21
_OURS: Final = struct.Struct("!qii")
_STORED: Final = struct.Struct("!qiibIhi")
_LENGTH_MIN: Final = HEADER_BYTES - LENGTH_AT_BYTES

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
ZSTD: Final = 4
NO_PRODUCER: Final = -1
LEADER_EPOCH: Final = 0

ABORT: Final = 0
COMMIT: Final = 1


class Header(NamedTuple):
    """The header's fields, in their order."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size(self) -> int:
        """All bytes of the batch."""
        return LENGTH_AT_BYTES + self.length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; sequences go round after 2147483647."""
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


def read_header(buffer: Buffer, at: int = 0) -> Header:
    """The header that begins at `at`; `struct.error` if there are too few bytes for one."""
    return Header._make(HEADER.unpack_from(buffer, at))


def crc32c(data: bytes) -> int:
    """The checksum that batches have."""
    return int(google_crc32c.value(data))


def is_whole(batch: Buffer, header: Header) -> bool:
    """Whether the checksum of these bytes is the one in their header."""
    return crc32c(bytes(batch[_CHECKED_FROM : header.size])) == header.crc


def find_wrong(data: bytes, first: int, limit: int | None) -> tuple[int, str]:
    """Where in this part of a log a batch is not what was written, and why; "": all are. The first
    one begins with offset `first`, and none reaches `limit` (None: that is not known)."""
    at, before, least, size = 0, 0, first, len(data)
    unpack, checksum = _STORED.unpack_from, google_crc32c.value
    while at < size:
        if at + HEADER_BYTES > size:
            return at, "no batch begins there"
        base, length, epoch, magic, crc, _, last_delta = unpack(data, at)
        end = at + LENGTH_AT_BYTES + length
        if magic != 2 or epoch != LEADER_EPOCH or length < _LENGTH_MIN or end > size:
            return at, "no batch begins there"
        if checksum(data[at + _CHECKED_FROM : end]) != crc:
            return at, "a batch's checksum is wrong"
        last = base + last_delta
        if base < least or last < base:
            return before, "a batch's offset is not in order"  # that of this one, or the one before
        if (at == 0 and base != first) or (limit is not None and last >= limit):
            return at, "a batch's offset is not in order"
        at, before, least = end, at, last + 1
    return size, ""


def check(records: Buffer | None, bytes_max: int) -> Header:
    """The header of the one batch that a client sent for a partition, if it may be appended.

    What only the log can tell (sequences, keys of compacted topics) is not looked at here.
    """
    if records is None or len(records) < HEADER_BYTES:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "there is no whole record batch")
    header = read_header(records)
    if header.magic != 2:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"batches of format {header.magic} are not taken"
        )
    if header.size > bytes_max:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {header.size} bytes and the topic takes {bytes_max}",
        )
    if header.length < HEADER_BYTES - LENGTH_AT_BYTES or header.size > len(records):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the batch's length is not that of its bytes")
    if header.size != len(records):
        raise KafkaError(ErrorCode.INVALID_RECORD, "a partition takes one batch in a request")
    if not is_whole(records, header):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the batch's checksum is wrong")
    if header.records_count <= 0 or header.last_offset_delta != header.records_count - 1:
        raise KafkaError(ErrorCode.INVALID_RECORD, "the batch's offsets do not count its records")
    if header.base_offset != 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a batch's offsets begin with 0")
    if header.is_control:
        raise KafkaError(ErrorCode.INVALID_RECORD, "clients write no control batches")
    if header.codec > ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"no codec has number {header.codec}"
        )
    if header.attributes & LOG_APPEND_TIME:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP, "the time of the append is the broker's to say"
        )
    if header.producer_id != NO_PRODUCER and (
        header.base_sequence < 0 or header.producer_epoch < 0
    ):
        raise KafkaError(ErrorCode.INVALID_RECORD, "a producer's batch has a sequence and an epoch")
    if header.producer_id == NO_PRODUCER and header.is_transactional:
        raise KafkaError(ErrorCode.INVALID_RECORD, "a transaction's batch has a producer")
    return header


def stamp(batch: Buffer, base_offset: int, append_time_ms: int | None = None) -> bytes:
    """The batch with its place in the log, and perhaps the time of its append."""
    view = memoryview(batch)
    length = len(view) - LENGTH_AT_BYTES
    ours = _OURS.pack(base_offset, length, LEADER_EPOCH)
    if append_time_ms is None:
        return b"".join((ours, view[_OURS.size :]))
    header = read_header(batch)
    attributes = header.attributes | LOG_APPEND_TIME
    fields = (attributes, header.last_offset_delta, header.base_timestamp, append_time_ms)
    checked = b"".join((struct.pack("!hiqq", *fields), view[43:]))
    return b"".join((ours, struct.pack("!bI", 2, crc32c(checked)), checked))


def make(
    records: list[bytes],
    *,
    timestamp: int,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
    max_timestamp: int | None = None,
) -> bytes:
    """A batch of these encoded records (`records.encode`), at offset 0."""
    body = b"".join(records)
    last = timestamp if max_timestamp is None else max_timestamp
    fields = (attributes, len(records) - 1, timestamp, last)
    checked = (
        struct.pack("!hiqqqhii", *fields, producer_id, producer_epoch, base_sequence, len(records))
        + body
    )
    length = HEADER_BYTES - LENGTH_AT_BYTES + len(body)
    return _OURS.pack(0, length, LEADER_EPOCH) + struct.pack("!bI", 2, crc32c(checked)) + checked


def remake(header: Header, body: bytes, count: int) -> bytes:
    """The batch with this header and another body of so many records, at the same offsets."""
    fields = header._replace(
        length=HEADER_BYTES - LENGTH_AT_BYTES + len(body), crc=0, records_count=count
    )
    data = bytearray(HEADER.pack(*fields) + body)
    struct.pack_into("!I", data, 17, crc32c(bytes(data[_CHECKED_FROM:])))
    return bytes(data)


def marker(kind: int, producer_id: int, producer_epoch: int, timestamp: int) -> bytes:
    """The control batch that ends a transaction in a partition: one record, one offset."""
    key = struct.pack("!hh", 0, kind)
    value = struct.pack("!hi", 0, LEADER_EPOCH)
    # No timestamp or offset delta; lengths as zigzag varints.
    body = b"\0\0\0" + bytes((len(key) * 2,)) + key + bytes((len(value) * 2,)) + value + b"\0"
    return make(
        [bytes((len(body) * 2,)) + body],
        timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=TRANSACTIONAL | CONTROL,
    )
