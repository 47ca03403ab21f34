"""Record batches: what is taken, what is refused, what lies inside."""

from __future__ import annotations

import gzip
import struct

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.topics.broker.core import batch, records
from holdfast.topics.broker.protocol.codec import MalformedMessage
from holdfast.topics.broker.protocol.codes import ErrorCode, KafkaError


def made(count: int = 3, **given: int) -> bytes:
    body = [records.encode(at, at, b"k%d" % at, b"v%d" % at) for at in range(count)]
    return batch.make(body, timestamp=1000, max_timestamp=1000 + count - 1, **given)


def test_a_batch_has_the_layout_of_kafka() -> None:
    data = made(producer_id=7, producer_epoch=2, base_sequence=40)
    assert data[16] == 2
    assert struct.unpack_from("!i", data, 8)[0] == len(data) - 12
    assert struct.unpack_from("!qhi", data, 43) == (7, 2, 40)
    assert struct.unpack_from("!I", data, 17)[0] == batch.crc32c(data[21:])


def test_the_checksum_is_crc32c() -> None:
    assert batch.crc32c(b"123456789") == 0xE3069283


def test_a_good_batch_is_taken() -> None:
    header = batch.check(memoryview(made()), 10_000)
    assert (header.records_count, header.last_offset_delta) == (3, 2)


def refusal(data: bytes | None, bytes_max: int = 10_000) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        batch.check(data, bytes_max)
    return caught.value.code


def altered(at: int, form: str, value: int) -> bytes:
    """A batch with another value there and a right checksum."""
    data = bytearray(made())
    struct.pack_into(form, data, at, value)
    struct.pack_into("!I", data, 17, batch.crc32c(bytes(data[21:])))
    return bytes(data)


def test_what_is_no_batch_is_refused_with_kafkas_errors() -> None:
    assert refusal(None) is ErrorCode.CORRUPT_MESSAGE
    assert refusal(b"short") is ErrorCode.CORRUPT_MESSAGE
    assert refusal(made()[:-1]) is ErrorCode.CORRUPT_MESSAGE
    assert refusal(made() + made()) is ErrorCode.INVALID_RECORD
    assert refusal(made(), 50) is ErrorCode.MESSAGE_TOO_LARGE
    assert refusal(made()[:-1] + b"!") is ErrorCode.CORRUPT_MESSAGE
    assert refusal(altered(16, "!b", 1)) is ErrorCode.INVALID_RECORD
    assert refusal(altered(57, "!i", 9)) is ErrorCode.INVALID_RECORD
    assert refusal(altered(57, "!i", 0)) is ErrorCode.INVALID_RECORD
    assert refusal(altered(21, "!h", batch.CONTROL)) is ErrorCode.INVALID_RECORD
    assert refusal(altered(21, "!h", batch.LOG_APPEND_TIME)) is ErrorCode.INVALID_TIMESTAMP
    assert refusal(altered(21, "!h", 7)) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert refusal(altered(21, "!h", batch.TRANSACTIONAL)) is ErrorCode.INVALID_RECORD
    assert refusal(altered(43, "!q", 5)) is ErrorCode.INVALID_RECORD


@settings(max_examples=30)
@given(at=st.integers(16, 60 + 30), bit=st.integers(0, 7))
def test_a_flipped_bit_is_refused(at: int, bit: int) -> None:
    data = bytearray(made())
    data[at] ^= 1 << bit
    with pytest.raises(KafkaError):
        batch.check(bytes(data), 10_000)


def test_a_stamped_batch_has_its_offset_and_an_unchanged_checksum() -> None:
    data = batch.stamp(made(), 77)
    header = batch.read_header(data)
    assert (header.base_offset, header.last_offset) == (77, 79)
    assert batch.is_whole(data, header)
    assert data[16:] == made()[16:]


def test_the_brokers_time_is_that_of_every_record() -> None:
    data = batch.stamp(made(), 5, 123_456)
    header = batch.read_header(data)
    assert batch.is_whole(data, header)
    assert {record.timestamp for record in records.read_records(data, header)} == {123_456}


def test_a_marker_is_one_control_record_of_its_producer() -> None:
    data = batch.marker(batch.ABORT, 9, 3, 55)
    header = batch.read_header(data)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 3, -1)
    (record,) = records.read_records(data, header)
    assert record.key == b"\0\0\0\0"
    assert record.value == b"\0\0\0\0\0\0"


def test_sequences_go_round_after_the_largest() -> None:
    header = batch.read_header(made(producer_id=1, producer_epoch=0, base_sequence=2**31 - 1))
    assert header.last_sequence == 1


KEYS = st.none() | st.binary(max_size=20)
HEADERS = st.lists(st.tuples(st.text(max_size=5), KEYS), max_size=3).map(tuple)


@settings(max_examples=30)
@given(st.lists(st.tuples(KEYS, KEYS, HEADERS), min_size=1, max_size=5), st.integers(0, 4))
def test_records_come_back_whatever_packed_them(
    given_records: list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]],
    codec: int,
) -> None:
    body = b"".join(
        records.encode(at, at * 10, key, value, headers)
        for at, (key, value, headers) in enumerate(given_records)
    )
    packed = pack(body, codec)
    data = batch.make([packed], timestamp=100, attributes=codec)
    header = batch.read_header(data)._replace(records_count=len(given_records), base_offset=50)
    found = list(records.read_records(data, header))
    assert [(one.key, one.value, one.headers) for one in found] == given_records
    assert [one.offset for one in found] == list(range(50, 50 + len(found)))
    assert [one.timestamp for one in found] == [100 + 10 * at for at in range(len(found))]


def pack(body: bytes, codec: int) -> bytes:
    if codec == records.GZIP:
        return gzip.compress(body)
    if codec == records.SNAPPY:
        return bytes(cramjam.snappy.compress_raw(body))
    if codec == records.LZ4:
        return bytes(cramjam.lz4.compress(body))
    return bytes(cramjam.zstd.compress(body)) if codec == records.ZSTD else body


def test_the_snappy_frames_of_java_are_read() -> None:
    block = bytes(cramjam.snappy.compress_raw(b"abc" * 100))
    framed = b"\x82SNAPPY\x00" + struct.pack("!ii", 1, 1)
    framed += (struct.pack("!i", len(block)) + block) * 2
    assert records.unpack(framed, records.SNAPPY) == b"abc" * 200


@pytest.mark.parametrize("codec", [records.GZIP, records.ZSTD, records.LZ4])
def test_a_batch_that_unpacks_to_too_much_is_refused(
    codec: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "UNPACKED_BYTES_MAX", 100_000)
    with pytest.raises(MalformedMessage):
        records.unpack(pack(bytes(1_000_000), codec), codec)


@settings(max_examples=30)
@given(st.binary(max_size=100), st.integers(0, 4))
def test_bytes_that_are_no_records_are_refused(raw: bytes, codec: int) -> None:
    data = batch.make([raw], timestamp=1, attributes=codec)
    try:
        list(records.read_records(data, batch.read_header(data)._replace(records_count=3)))
    except MalformedMessage:
        return


@settings(max_examples=30)
@given(st.integers(-(2**63), 2**63 - 1))
def test_a_zigzag_varint_comes_back_as_it_was(value: int) -> None:
    raw = records.varint(value)
    assert records.read_varint(raw, 0) == (value, len(raw))
