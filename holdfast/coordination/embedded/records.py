"""One logged write, as bytes.

A record is the request that asked for the write, as it came on the wire, with who asked, when,
and which zxid it was given:

    length u32 | zxid i64 | time_ms i64 | session i64 | opcode i32 | identities u32
    | identities | body | crc32 u32

`length` counts the whole record. The checksum covers everything before it, the length too. A
record does not say where it belongs; the batch in which it is written does (`log`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple
from zlib import crc32

from holdfast.coordination.embedded.jute import JuteReader, encode_string
from holdfast.coordination.embedded.requests import decode_write
from holdfast.coordination.embedded.transactions import AuthIdentity, WriteTransaction

_HEAD: Final = struct.Struct("!IqqqiI")
_CRC: Final = struct.Struct("!I")
_ZXID_TIME: Final = struct.Struct("!4xqq")
_FIXED_BYTES: Final = _HEAD.size + _CRC.size

_pack_head = _HEAD.pack
_pack_crc = _CRC.pack


class LoggedRecord(NamedTuple):
    """A write as it was logged."""

    zxid: int
    time_ms: int
    session: int
    opcode: int
    identities: bytes
    body: bytes


class BadRecord(Exception):
    """The bytes at `offset` (from the start of what was read) are not a record."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"{reason} at {offset}")
        self.offset = offset
        self.reason = reason


def encode_identities(identities: tuple[AuthIdentity, ...]) -> bytes:
    """The form in which a record carries who asked."""
    return b"".join(encode_string(one.scheme) + encode_string(one.id) for one in identities)


@lru_cache(maxsize=4096)
def decode_identities(raw: bytes) -> tuple[AuthIdentity, ...]:
    """What `encode_identities` was given; `Malformed` for other bytes."""
    reader = JuteReader(raw)
    found = []
    while reader.at < len(raw):
        found.append(AuthIdentity(reader.string(), reader.string()))
    return tuple(found)


def encode_record(
    zxid: int, time_ms: int, session: int, opcode: int, identities: bytes, body: bytes
) -> bytes:
    """The record of a write. It runs for every write, so it is one pack, one join, one crc."""
    who = len(identities)
    head = _pack_head(_FIXED_BYTES + who + len(body), zxid, time_ms, session, opcode, who)
    data = b"".join((head, identities, body))
    return data + _pack_crc(crc32(data))


def zxid_and_time(record: bytes) -> tuple[int, int]:
    """The zxid and the time of an encoded record, unchecked."""
    return _ZXID_TIME.unpack_from(record)


def decode_records(payload: bytes) -> Iterator[LoggedRecord]:
    """The records in `payload`, one after the other; `BadRecord` at the first that is not one."""
    at, end = 0, len(payload)
    while at < end:
        if end - at < _FIXED_BYTES:
            raise BadRecord(at, "the record is cut off")
        length, zxid, time_ms, session, opcode, who = _HEAD.unpack_from(payload, at)
        if not _FIXED_BYTES + who <= length <= end - at:
            raise BadRecord(at, "the record's length is wrong")
        tail = at + length - _CRC.size
        if crc32(payload[at:tail]) != _CRC.unpack_from(payload, tail)[0]:
            raise BadRecord(at, "the record's checksum is wrong")
        start = at + _HEAD.size
        yield LoggedRecord(
            zxid,
            time_ms,
            session,
            opcode,
            payload[start : start + who],
            payload[start + who : tail],
        )
        at += length


def transaction_of(record: LoggedRecord) -> WriteTransaction:
    """What the record asks the tree to apply; `Malformed` if its body is no write."""
    return WriteTransaction(
        record.session,
        decode_identities(record.identities),
        decode_write(record.opcode, record.body),
    )
