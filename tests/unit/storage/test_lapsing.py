"""Blobs that are needed until a day: never removed before it, and always after it."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.storage import Blobs, Retrying
from holdfast.storage.keys import digest_of, digest_of_key
from holdfast.storage.lapsing import (
    DAY_S,
    LAPSE_SLACK_DAYS,
    day_of,
    day_of_key,
    lapse_day,
    lapsing_key,
    put_lapsing,
    remove_lapsed,
)
from holdfast.storage.memory import MemoryBackend
from tests.unit.storage.test_address import HandClock

KIND = "predictions/digits"
TIMES = st.floats(0, 4e9)
SPANS = st.floats(0, 400 * DAY_S)


def store() -> tuple[Blobs, HandClock]:
    clock = HandClock()
    return Blobs(MemoryBackend("test"), Retrying(clock=clock)), clock


@given(TIMES, SPANS)
def test_a_blob_stays_a_day_longer_than_asked_and_goes_two_days_later(
    now_s: float, keep_s: float
) -> None:
    day = lapse_day(now_s, keep_s)
    assert day_of(now_s + keep_s + (LAPSE_SLACK_DAYS - 1) * DAY_S) < day
    assert day_of(now_s + keep_s + LAPSE_SLACK_DAYS * DAY_S) >= day


@given(st.binary(), TIMES)
def test_the_key_names_the_day_and_the_content(data: bytes, now_s: float) -> None:
    key = lapsing_key(KIND, digest_of(data), day_of(now_s))
    assert day_of_key(key) == day_of(now_s)
    assert digest_of_key(key) == digest_of(data)


@pytest.mark.parametrize(
    "key", ["parts/2020-01-01/x", "lapsing/20200101/x", "lapsing/2020-W01-1/x", "lapsing", ""]
)
def test_what_is_not_named_as_ours_has_no_day(key: str) -> None:
    assert day_of_key(key) is None


def test_blobs_go_when_their_day_has_come_and_others_stay() -> None:
    blobs, clock = store()
    blobs.put("lapsing/not-ours", b"x")
    kept = blobs.put("parts/x", b"x").key
    short = put_lapsing(blobs, KIND, b"one", 1 * DAY_S)
    long = put_lapsing(blobs, KIND, b"one", 9 * DAY_S)
    assert short.digest == long.digest and short.key != long.key
    clock.at_s += (1 + LAPSE_SLACK_DAYS) * DAY_S - 1_001
    assert remove_lapsed(blobs) == 0
    clock.at_s += 1_001
    assert remove_lapsed(blobs) == 1
    assert not blobs.exists(short.key) and blobs.exists(long.key) and blobs.exists(kept)
    assert blobs.exists("lapsing/not-ours")


def test_many_go_in_several_steps() -> None:
    blobs, clock = store()
    for number in range(5):
        put_lapsing(blobs, KIND, b"%d" % number, 0)
    clock.at_s += 3 * DAY_S
    assert [remove_lapsed(blobs, most=2) for _ in range(4)] == [2, 2, 1, 0]


def test_content_that_is_used_again_while_its_old_blob_is_removed_is_kept() -> None:
    """A writer never counts on a blob that may go, so no order of the two can hurt."""
    blobs, clock = store()
    put_lapsing(blobs, KIND, b"content", DAY_S)
    clock.at_s += 3 * DAY_S
    start, used = threading.Barrier(2), []

    def use_again() -> None:
        start.wait(10)
        used.append(put_lapsing(blobs, KIND, b"content", DAY_S))

    writer = threading.Thread(target=use_again)
    writer.start()
    start.wait(10)
    assert remove_lapsed(blobs) == 1
    writer.join()
    assert remove_lapsed(blobs) == 0
    assert blobs.get(used[0].key) == b"content"


def test_the_same_content_on_the_same_day_is_written_once() -> None:
    blobs, clock = store()
    first = put_lapsing(blobs, KIND, b"content", DAY_S)
    written = blobs.stat(first.key)
    clock.at_s += 60
    assert put_lapsing(blobs, KIND, bytearray(b"content"), DAY_S) == first
    assert blobs.stat(first.key) == written


class Confirming(MemoryBackend):
    """Knows which blobs somebody has asked to be durable."""

    def __init__(self) -> None:
        super().__init__("test")
        self.confirmed: list[str] = []

    def confirm(self, key: str) -> None:
        self.confirmed.append(key)
        super().confirm(key)


def test_content_that_another_writer_has_just_put_there_is_durable_before_it_is_referred_to() -> (
    None
):
    backend = Confirming()
    blobs = Blobs(backend, Retrying(clock=HandClock()))
    blob = put_lapsing(blobs, KIND, b"content", DAY_S)
    assert backend.confirmed == []
    put_lapsing(blobs, KIND, b"content", DAY_S)
    assert backend.confirmed == [blob.key]
