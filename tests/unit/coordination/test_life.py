"""The lease of a session, by a clock of our own."""

from __future__ import annotations

import pytest

from holdfast.coordination.life import LEASE_FRACTION, Life
from holdfast.wire.errors import SessionLost


class HandClock:
    """A clock that stands still until it is turned."""

    def __init__(self) -> None:
        self.at_s = 100.0

    def now_s(self) -> float:
        return self.at_s

    def wall_ms(self) -> int:
        return 0


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def life(clock: HandClock) -> Life:
    return Life(7, 9.0, clock)


def test_nothing_is_sure_before_the_first_contact(life: Life) -> None:
    assert not life.sure
    assert not life.lost


def test_the_lease_runs_from_when_the_question_was_sent_not_from_its_answer(
    life: Life, clock: HandClock
) -> None:
    sent_s = clock.at_s
    clock.at_s += 5
    life.confirmed(sent_s)
    assert life.sure
    clock.at_s = sent_s + LEASE_FRACTION * 9.0 - 0.001
    assert life.sure
    clock.at_s = sent_s + LEASE_FRACTION * 9.0
    assert not life.sure


def test_a_process_that_slept_is_not_sure_when_it_wakes_though_it_heard_nothing(
    life: Life, clock: HandClock
) -> None:
    life.confirmed(clock.at_s)
    clock.at_s += 60
    assert not life.sure
    assert not life.lost


def test_an_answer_that_comes_late_does_not_shorten_the_lease(life: Life, clock: HandClock) -> None:
    life.confirmed(clock.at_s)
    life.confirmed(clock.at_s - 50)
    assert life.sure


def test_the_lease_ends_before_the_servers_may_end_the_session() -> None:
    assert LEASE_FRACTION < 1


def test_an_end_is_final_and_wakes_everyone_once(life: Life, clock: HandClock) -> None:
    woken: list[str] = []
    forgotten = lambda: woken.append("forgotten")  # noqa: E731
    life.confirmed(clock.at_s)
    life.on_end(lambda: woken.append("early"))
    life.on_end(forgotten)
    life.forget(forgotten)
    life.end("it was silent")
    life.end("again")
    life.on_end(lambda: woken.append("late"))
    assert woken == ["early", "late"]
    life.confirmed(clock.at_s)
    assert life.lost
    assert not life.sure
    with pytest.raises(SessionLost, match="it was silent"):
        life.check()
