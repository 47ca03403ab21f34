"""Rows whose bytes are not those that were written: each is refused, and nothing is read of it."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.features import rows
from holdfast.features.layout import HEADER_BYTES
from holdfast.features.table import Table
from holdfast.wire.errors import Corrupt
from tests.unit.features.made import DRIVERS, NOW


def refuses(table: Table, data: bytes) -> bool:
    """Whether every way to read it says that it is damaged."""
    good = rows.encode(table, NOW, {"driver_id": "good"}).data
    reads: list[Any] = [
        lambda: rows.decode(table, data),
        lambda: rows.version_of(data),
        lambda: rows.is_deleted(data),
        lambda: rows.decode_batch({1: table}, [good, data, good]),
    ]
    for read in reads:
        try:
            read()
        except Corrupt:
            continue
        return False
    return True


def test_a_row_with_any_bit_another_is_damaged() -> None:
    data = rows.encode(DRIVERS, NOW, {"driver_id": "a", "trips": 3, "city": "Köln"}).data
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        assert refuses(DRIVERS, bytes(changed)), f"bit {bit}"


def test_a_row_that_was_cut_anywhere_or_has_more_is_damaged() -> None:
    data = rows.encode(DRIVERS, NOW, {"driver_id": "a", "trips": 3, "city": "Köln"}).data
    for size in range(len(data)):
        assert refuses(DRIVERS, data[:size]), f"{size} bytes"
    for more in (b"\x00", data, bytes(40)):
        assert refuses(DRIVERS, data + more)
    gone = rows.deleted(DRIVERS, NOW, b"a").data
    for size in range(len(gone)):
        assert refuses(DRIVERS, gone[:size])


@given(st.binary(max_size=80))
def test_bytes_of_any_kind_are_no_row(data: bytes) -> None:
    assert refuses(DRIVERS, data)


@given(st.binary(max_size=400), st.binary(max_size=20))
def test_what_has_a_good_check_and_is_no_row_of_the_table_is_damaged_or_another_value(
    body: bytes, before: bytes
) -> None:
    """What somebody else wrote: whatever its ends say, nothing outside the row is read, and nothing
    but an error of ours comes."""
    header = rows.encode(DRIVERS, NOW, {"driver_id": "a"}).data[:HEADER_BYTES]
    for data in (header + body, before):
        closed = data + zlib.crc32(data).to_bytes(4, "little")
        outcomes = set()
        for read in (
            lambda d=closed: rows.decode(DRIVERS, d),
            lambda d=closed: rows.decode_batch({1: DRIVERS}, [d]),
        ):
            try:
                read()
            except Corrupt:
                outcomes.add("damaged")
            else:
                outcomes.add("read")
        assert len(outcomes) == 1


def test_ends_that_lead_out_of_a_row_are_damage() -> None:
    table = Table("t", key="id", columns={"a": "string", "b": "string"})
    data = rows.encode(table, NOW, {"id": "x", "a": "one", "b": "two"}).data
    at = table.layout().head_bytes - 8
    for first, second in ((7, 6), (3, 7), (3, 5), (2**32 - 1, 6), (0, 0)):
        body = (
            data[:at]
            + first.to_bytes(4, "little")
            + second.to_bytes(4, "little")
            + data[at + 8 : -4]
        )
        closed = body + zlib.crc32(body).to_bytes(4, "little")
        both: tuple[list[str] | None, ...] = (None, [])
        for columns in both:
            with pytest.raises(Corrupt):
                rows.decode(table, closed, columns)
            with pytest.raises(Corrupt):
                rows.decode_batch({1: table}, [closed], columns)


def test_a_text_that_is_none_is_damage() -> None:
    table = Table("t", key="id", columns={"a": "string"})
    other = Table("t", key="id", columns={"a": "bytes"})
    data = rows.encode(other, NOW, {"id": "x", "a": b"\xff"}).data
    with pytest.raises(Corrupt, match="'a' in it is no text"):
        rows.decode(table, data)
    with pytest.raises(Corrupt, match="'a' in it is no text"):
        rows.decode_batch({1: table}, [data])


def test_flags_of_a_newer_version_are_not_passed_over() -> None:
    data = bytearray(rows.encode(DRIVERS, NOW, {"driver_id": "a"}).data[:-4])
    data[24] = 2
    assert refuses(DRIVERS, bytes(data) + zlib.crc32(data).to_bytes(4, "little"))


def test_a_damaged_row_among_many_is_refused_with_its_table() -> None:
    good = rows.encode(DRIVERS, NOW, {"driver_id": "a"}).data
    with pytest.raises(Corrupt, match="table 'drivers'"):
        rows.decode_batch({1: DRIVERS}, [good, good[:-1], None])
