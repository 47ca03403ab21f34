"""The records inside a batch: for offsets by time, and for compaction, which must look at keys.

Everything else leaves a batch as it came. What a batch unpacks to is bounded: a few kilobytes of
zstd can be gigabytes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from holdfast.topics.broker.core.batch import HEADER_BYTES, LOG_APPEND_TIME, Header
from holdfast.topics.broker.protocol.codec import Buffer, MalformedMessage

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
# What one batch may unpack to: a hundred times what a topic takes by default.
UNPACKED_BYTES_MAX: Final = 128 * 1024 * 1024
_XERIAL: Final = b"\x82SNAPPY\x00"
# What the codecs say of a buffer that does not suffice.
_TOO_SMALL: Final = "failed to write whole buffer"
_XERIAL_HEAD_BYTES: Final = 16
_VARINT_BYTES_MAX: Final = 10
# Of a batch that is to be appended: records whose lengths are followed to its end, those of them
# that are looked at whole, and how large it may be, packed and unpacked, to be unpacked for that.
FRAMES_CHECKED_MAX: Final = 16
RECORDS_CHECKED_MAX: Final = 2
PACKED_CHECKED_BYTES_MAX: Final = 1024
UNPACKED_CHECKED_BYTES_MAX: Final = 16 * 1024
_RECORD_BYTES_MIN: Final = 7
_MAGIC: Final = {1: b"\x1f\x8b", 3: b"\x04\x22\x4d\x18", 4: b"\x28\xb5\x2f\xfd"}


class UnpacksToMore(MalformedMessage):
    """A batch unpacks to more than is taken."""


def why_refused(data: bytes, header: Header) -> str:
    """Why the body of a batch is not the records that its header counts; "": what was looked at is
    as it should be. It is bounded: of a large batch the beginning is looked at."""
    count, at, end = header.records_count, HEADER_BYTES, header.size
    if header.codec:
        if not data.startswith(_MAGIC.get(header.codec, b""), at):
            return "the batch is not packed as its header says"
        large = end - at > PACKED_CHECKED_BYTES_MAX or count > FRAMES_CHECKED_MAX
        if large or header.codec == ZSTD:
            return ""  # of zstd each one costs half as much as a whole request
        try:
            data = unpack(data[at:end], header.codec, UNPACKED_CHECKED_BYTES_MAX)
        except UnpacksToMore:
            return ""
        except MalformedMessage as error:
            return str(error)
        at, end = 0, len(data)
    if end - at < count * _RECORD_BYTES_MIN:
        return "the batch has fewer records than its header counts"
    try:
        for number in range(min(count, FRAMES_CHECKED_MAX)):
            if number == RECORDS_CHECKED_MAX:
                at = _skip(data, at, min(count, FRAMES_CHECKED_MAX) - number)
                break
            length, at = read_varint(data, at)
            delta, fields_end = _measure(data, at)
            if length < 0 or fields_end != at + length:
                return "a record is not as long as it says"
            if delta != number:
                return "the offsets of a batch's records do not follow one another"
            at = fields_end
    except (IndexError, MalformedMessage):
        return "a record cannot be read"
    if at > end:
        return "a record is longer than its batch"
    if count <= FRAMES_CHECKED_MAX and at != end:
        return "the batch has more than the records that its header counts"
    return ""


def _skip(data: bytes, at: int, count: int) -> int:
    """Where so many records end, by their lengths. It is called for each batch: lengths of one and
    two bytes are read here."""
    for _ in range(count):
        first = data[at]
        if not first & 0x81:
            at += 1 + (first >> 1)
        elif not first & 1 and data[at + 1] < 0x80:
            at += 2 + ((first & 0x7F) >> 1 | data[at + 1] << 6)
        else:
            length, at = read_varint(data, at)
            if length < 0:
                raise MalformedMessage("a record has a negative length")
            at += length
    return at


def _measure(data: bytes, at: int) -> tuple[int, int]:
    """A record's offset in its batch, and where its fields end."""
    _, at = read_varint(data, at + 1)
    delta, at = read_varint(data, at)
    key, at = read_varint(data, at)
    if key > 0:
        at += key
    value, at = read_varint(data, at)
    if value > 0:
        at += value
    headers, at = read_varint(data, at)
    if headers < 0:
        raise MalformedMessage("a record has fewer than no headers")
    for _ in range(headers):
        length, at = read_varint(data, at)
        if length < 0:
            raise MalformedMessage("a header has no name")
        held, at = read_varint(data, at + length)
        if held > 0:
            at += held
    return delta, at


class LogRecord(NamedTuple):
    """One record, with its true offset and time."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def read_records(batch: Buffer, header: Header) -> Iterator[LogRecord]:
    """The records of a batch; `MalformedMessage` if they are not records."""
    data = unpack(bytes(batch[HEADER_BYTES : header.size]), header.codec)
    at = 0
    try:
        for _ in range(header.records_count):
            length, at = read_varint(data, at)
            end = at + length
            if length < 0 or end > len(data):
                raise MalformedMessage("a record is longer than its batch")
            yield _read_record(data, at, header)
            at = end
    except (IndexError, UnicodeDecodeError) as error:
        raise MalformedMessage(str(error)) from None


def _read_record(data: bytes, at: int, header: Header) -> LogRecord:
    time_delta, at = read_varint(data, at + 1)
    offset_delta, at = read_varint(data, at)
    key, at = _read_octets(data, at)
    value, at = _read_octets(data, at)
    count, at = read_varint(data, at)
    headers = []
    for _ in range(count):
        name, at = _read_octets(data, at)
        held, at = _read_octets(data, at)
        headers.append(((name or b"").decode(), held))
    appended = header.attributes & LOG_APPEND_TIME
    timestamp = header.max_timestamp if appended else header.base_timestamp + time_delta
    return LogRecord(header.base_offset + offset_delta, timestamp, key, value, tuple(headers))


def encode(
    offset_delta: int,
    time_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: tuple[tuple[str, bytes | None], ...] = (),
) -> bytes:
    """A record as it stands in a batch."""
    parts = [b"\0", varint(time_delta), varint(offset_delta), _octets(key), _octets(value)]
    parts.append(varint(len(headers)))
    for name, held in headers:
        parts += [_octets(name.encode()), _octets(held)]
    body = b"".join(parts)
    return varint(len(body)) + body


def _octets(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def _read_octets(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = read_varint(data, at)
    if length < 0:
        return None, at
    if at + length > len(data):
        raise MalformedMessage("a value is longer than its batch")
    return data[at : at + length], at + length


def read_varint(data: Buffer, at: int) -> tuple[int, int]:
    """A zigzag varint of up to 64 bits, and where it ends."""
    value = data[at]
    if value < 0x80:
        return (value >> 1) ^ -(value & 1), at + 1
    value = 0
    for position in range(_VARINT_BYTES_MAX):
        byte = data[at + position]
        value |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + position + 1
    raise MalformedMessage("a varint has more than ten bytes")


def varint(value: int) -> bytes:
    """The bytes of a zigzag varint."""
    raw = (value << 1) ^ (value >> 63)
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


# --- codecs ---------------------------------------------------------------------------------------


def unpack(data: bytes, codec: int, most: int | None = None) -> bytes:
    """What was compressed with this codec; `MalformedMessage` if it was not, or is too much."""
    most = UNPACKED_BYTES_MAX if most is None else most
    if codec == NONE:
        return data
    try:
        if codec == GZIP:
            return _ungzip(data, most)
        if codec == SNAPPY:
            return _unsnap(data, most)
        return _grow(LZ4 if codec == LZ4 else ZSTD, data, most)
    except MalformedMessage:
        raise
    except Exception as error:  # each codec has its own kinds
        raise MalformedMessage(f"a batch cannot be unpacked: {error}") from None


def pack(data: bytes, codec: int) -> bytes:
    """The same, compressed with this codec."""
    if codec == NONE:
        return data
    if codec == GZIP:
        packer = zlib.compressobj(wbits=31)
        return packer.compress(data) + packer.flush()
    import cramjam  # noqa: PLC0415 - as below

    if codec == SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data))
    packed = cramjam.lz4.Compressor(block_linked=False)  # Java's client reads no other
    packed.compress(data)
    return bytes(packed.finish())


def _ungzip(data: bytes, most: int) -> bytes:
    opened = zlib.decompressobj(wbits=31)
    out = opened.decompress(data, most)
    if opened.unconsumed_tail or (len(out) == most and not opened.eof):
        raise UnpacksToMore("a batch unpacks to more than is taken")
    if not opened.eof:
        raise MalformedMessage("a batch cannot be unpacked: it is cut")
    return out


def _unsnap(data: bytes, most: int) -> bytes:
    """Snappy: one raw block, or the frames that Java and Python clients write."""
    from cramjam import snappy  # noqa: PLC0415 - only who looks inside such batches needs it

    if not data.startswith(_XERIAL):
        return _unsnap_block(snappy, data, most)
    out, size, at = [], 0, _XERIAL_HEAD_BYTES
    while at < len(data):
        (length,) = struct.unpack_from("!i", data, at)
        if not 0 <= length <= len(data) - at - 4:
            raise MalformedMessage("a batch cannot be unpacked: it is cut")
        out.append(_unsnap_block(snappy, data[at + 4 : at + 4 + length], most))
        size += len(out[-1])
        if size > most:
            raise UnpacksToMore("a batch unpacks to more than is taken")
        at += 4 + length
    return b"".join(out)


def _unsnap_block(snappy: Any, block: bytes, most: int) -> bytes:
    if snappy.decompress_raw_len(block) > most:
        raise UnpacksToMore("a batch unpacks to more than is taken")
    return bytes(snappy.decompress_raw(block))


def _grow(codec: int, data: bytes, most: int) -> bytes:
    """Unpack into a buffer that is made larger until it suffices, or is too large."""
    import cramjam  # noqa: PLC0415 - as above

    module = cramjam.lz4 if codec == LZ4 else cramjam.zstd
    size = max(64 * 1024, 8 * len(data))
    while True:
        buffer = bytearray(min(size, most))
        try:
            return bytes(buffer[: module.decompress_into(data, buffer)])
        except cramjam.DecompressionError as error:
            if _TOO_SMALL not in str(error):
                raise
            if size >= most:
                raise UnpacksToMore("a batch unpacks to more than is taken") from None
            size *= 8
