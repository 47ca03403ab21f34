"""Fetch sessions: who has one, what they remember, how many there are."""

from __future__ import annotations

import pytest

from holdfast.topics.broker.core.sessions import (
    SESSION_IDLE_S,
    Key,
    Sessions,
    WantedPartition,
)
from holdfast.topics.broker.protocol.codes import ErrorCode, KafkaError

A: Key = ("a", bytes(16), 0)
B: Key = ("b", bytes(16), 0)
WANTED = WantedPartition(0, 100, -1)


def refused(sessions: Sessions, session_id: int, epoch: int) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        sessions.resume(session_id, epoch, {}, [], 0.0)
    return caught.value.code


def test_a_session_is_resumed_in_order() -> None:
    sessions = Sessions()
    made = sessions.begin(7, {A: WANTED}, 0.0)
    assert made is not None
    assert refused(sessions, 8, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert refused(sessions, 7, 2) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    again = sessions.resume(7, 1, {B: WANTED}, [], 1.0)
    assert list(again.wanted) == [A, B]
    assert refused(sessions, 7, 1) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert list(sessions.resume(7, 2, {}, [A], 1.0).wanted) == [B]


def test_who_was_served_comes_last_the_next_time() -> None:
    made = Sessions().begin(7, {A: WANTED, B: WANTED}, 0.0)
    assert made is not None
    made.served(A)
    assert list(made.wanted) == [B, A]


def test_a_full_table_gives_up_only_what_nobody_uses() -> None:
    sessions = Sessions(most=2)
    assert sessions.begin(1, {}, 0.0)
    assert sessions.begin(2, {}, 0.0)
    assert sessions.begin(3, {}, 1.0) is None
    sessions.resume(1, 1, {}, [], SESSION_IDLE_S)
    assert sessions.begin(3, {}, SESSION_IDLE_S + 1)
    assert refused(sessions, 2, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(sessions) == 2
    sessions.end(1)
    assert len(sessions) == 1
