"""Sessions live in buckets of a tick."""

from __future__ import annotations

import random

from holdfast.coordination.embedded.sessions import SessionTable


def test_a_session_ends_at_the_first_tick_after_its_time_out() -> None:
    table = SessionTable(tick_ms=1_000)
    table.open(1, 4_000, now_ms=500)
    assert table.expired(4_999) == []
    assert table.expired(5_000) == [1]
    assert table.expired(9_000) == []
    assert 1 not in table


def test_a_time_out_that_falls_on_a_tick_lasts_one_tick_more() -> None:
    table = SessionTable(tick_ms=1_000)
    table.open(1, 4_000, now_ms=0)
    assert table.expired(4_999) == []
    assert table.expired(5_000) == [1]


def test_a_touch_gives_a_fresh_time_out_and_an_ended_session_cannot_be_touched() -> None:
    table = SessionTable(tick_ms=1_000)
    table.open(1, 4_000, now_ms=0)
    assert table.touch(1, now_ms=4_500)
    assert table.expired(8_999) == []
    assert table.expired(9_000) == [1]
    assert not table.touch(1, now_ms=9_000)
    assert table.timeout_of(1) is None


def test_a_touch_with_an_older_time_does_not_shorten_a_life() -> None:
    table = SessionTable(tick_ms=1_000)
    table.open(1, 4_000, now_ms=10_000)
    table.touch(1, now_ms=0)
    assert table.expired(14_999) == []


def test_sessions_that_end_together_are_handed_out_earliest_first() -> None:
    table = SessionTable(tick_ms=1_000)
    table.open(1, 9_000, now_ms=0)
    table.open(2, 4_000, now_ms=0)
    table.open(3, 6_000, now_ms=0)
    assert table.expired(7_000) == [2, 3]
    table.close(1)
    assert table.expired(99_000) == []
    assert len(table) == 0


def test_opening_again_takes_the_new_time_out() -> None:
    table = SessionTable(tick_ms=1_000)
    table.open(1, 20_000, now_ms=0)
    table.open(1, 4_000, now_ms=0)
    assert table.timeout_of(1) == 4_000
    assert table.expired(5_000) == [1]
    table.close(1)


def test_a_refresh_gives_everyone_a_fresh_time_out() -> None:
    table = SessionTable(tick_ms=1_000)
    table.open(1, 4_000, now_ms=0)
    table.open(2, 8_000, now_ms=0)
    table.refresh(now_ms=60_000)
    assert table.expired(64_999) == []
    assert table.expired(65_000) == [1]


def test_a_time_out_is_clamped_to_two_and_twenty_ticks() -> None:
    table = SessionTable(tick_ms=2_000)
    assert [table.clamp(ms) for ms in (-1, 3_999, 10_000, 40_001)] == [4_000, 4_000, 10_000, 40_000]


def test_nothing_is_lost_or_kept_under_random_use() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    table, ends = SessionTable(tick_ms=100), {}
    now_ms = 0
    for _ in range(5_000):
        now_ms += chance.randrange(60)
        session = chance.randrange(40)
        action = chance.random()
        if action < 0.2:
            table.open(session, 100 * chance.randrange(2, 20), now_ms)
            ends[session] = now_ms + (table.timeout_of(session) or 0)
        elif action < 0.9:
            assert table.touch(session, now_ms) is (session in ends)
            if session in ends:
                ends[session] = now_ms + (table.timeout_of(session) or 0)
        else:
            table.close(session)
            ends.pop(session, None)
        due = {one for one, end in ends.items() if (end // 100 + 1) * 100 <= now_ms}
        assert set(table.expired(now_ms)) == due
        for one in due:
            del ends[one]
        assert len(table) == len(ends)
