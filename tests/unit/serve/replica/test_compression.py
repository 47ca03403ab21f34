"""Packed bodies: unpacked within the limit, or refused with a sentence."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.serve.replica.bodies import Unknown, packed, unpacked
from holdfast.wire.errors import TooLarge, Usage


@given(st.binary(max_size=2_000))
def test_what_was_packed_comes_back(body: bytes) -> None:
    assert unpacked(gzip.compress(body), b"gzip", 2_000) == body
    assert unpacked(gzip.compress(body) + gzip.compress(b""), b" GZIP ", 2_000) == body
    assert unpacked(zlib.compress(body), b"deflate", 2_000) == body
    assert unpacked(body, b"identity", 0) == body
    for name in (b"gzip", b"deflate"):
        small, way = packed(body, name)
        assert unpacked(small, way, 2_000) == body


@given(st.binary(max_size=200), st.integers(0, 300))
def test_nothing_damaged_is_taken_and_nothing_else_is_raised(body: bytes, at: int) -> None:
    damaged = bytearray(gzip.compress(body))
    damaged[at % len(damaged)] ^= 0x55
    try:
        found = unpacked(bytes(damaged), b"gzip", 1_000)
    except Usage:
        return
    assert found == body  # a byte that says when or where it was packed


def test_a_body_at_the_limit_is_taken_and_one_byte_more_is_not() -> None:
    for pack, name in ((gzip.compress, b"gzip"), (zlib.compress, b"deflate")):
        assert len(unpacked(pack(bytes(1_000)), name, 1_000)) == 1_000
        with pytest.raises(TooLarge, match="1000"):
            unpacked(pack(bytes(1_001)), name, 1_000)
    with pytest.raises(TooLarge):
        unpacked(gzip.compress(bytes(600)) * 2, b"gzip", 1_000)


def test_a_packing_that_is_not_known_is_named() -> None:
    with pytest.raises(Unknown, match="br"):
        unpacked(b"x", b"br", 10)


def test_an_answer_is_packed_only_for_a_single_accepted_encoding() -> None:
    body = bytes(1_000)
    assert packed(body, b"gzip")[1] == b"gzip"
    for accepted in (b"gzip, deflate", b"br", b"", b"*", b"gzip;q=0"):
        assert packed(body, accepted) == (body, b"")
    assert packed(b"short", b"gzip") == (b"short", b"")
