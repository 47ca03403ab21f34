"""One logged write: it comes back as it was, and nothing else is taken for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.coordination.embedded.records import (
    BadRecord,
    LoggedRecord,
    decode_identities,
    decode_records,
    encode_identities,
    encode_record,
    zxid_and_time,
)
from holdfast.coordination.embedded.transactions import AuthIdentity
from tests.unit.embedded.histories import flipped, record_at

signed64 = st.integers(-(2**63), 2**63 - 1)
signed32 = st.integers(-(2**31), 2**31 - 1)
identities = st.lists(st.builds(AuthIdentity, st.text(max_size=20), st.text(max_size=20))).map(
    tuple
)
records = st.builds(
    LoggedRecord,
    signed64,
    signed64,
    signed64,
    signed32,
    st.binary(max_size=40),
    st.binary(max_size=200),
)


@given(st.lists(records, max_size=5))
def test_records_come_back_in_order_as_they_were(written: list[LoggedRecord]) -> None:
    payload = b"".join(encode_record(*record) for record in written)
    assert list(decode_records(payload)) == written


@given(identities)
def test_identities_come_back_as_they_were(who: tuple[AuthIdentity, ...]) -> None:
    assert decode_identities(encode_identities(who)) == who


@given(records)
def test_zxid_and_time_are_read_without_decoding_the_rest(record: LoggedRecord) -> None:
    assert zxid_and_time(encode_record(*record)) == (record.zxid, record.time_ms)


def test_every_flipped_byte_of_a_record_is_found() -> None:
    good = record_at(4)
    for offset in range(len(good)):
        with pytest.raises(BadRecord):
            list(decode_records(flipped(good, offset)))


def test_every_cut_record_is_found_and_those_before_it_are_kept() -> None:
    first, second = record_at(3), record_at(4)
    for length in range(1, len(second)):
        reading = decode_records(first + second[:length])
        assert next(reading).zxid == 3
        with pytest.raises(BadRecord) as caught:
            next(reading)
        assert caught.value.offset == len(first)
