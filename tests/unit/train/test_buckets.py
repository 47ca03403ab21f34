"""Buckets grow with the lanes of a job, so that no message is all overhead."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.train.sums.exchange_plan import BUCKET_BYTES_MAX, CHUNK_BYTES_MIN, bucket_bytes
from holdfast.wire.limits import BUCKET_BYTES


def test_a_job_of_a_few_lanes_has_small_buckets_that_travel_early() -> None:
    assert {bucket_bytes(lanes) for lanes in (1, 2, 8, 64)} == {BUCKET_BYTES}


@given(st.integers(1, 100_000))
def test_a_members_part_of_a_bucket_stays_large_until_buckets_are_as_large_as_they_may(
    lanes: int,
) -> None:
    found = bucket_bytes(lanes)
    assert found == BUCKET_BYTES_MAX or found >= lanes * CHUNK_BYTES_MIN
    assert BUCKET_BYTES <= found <= BUCKET_BYTES_MAX
    assert bucket_bytes(lanes + 1) >= found
