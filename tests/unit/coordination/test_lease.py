"""The lease of a session, by a clock of our own."""

from __future__ import annotations

import pytest

from holdfast.coordination.lease import LEASE_FRACTION, Lease
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
def lease(clock: HandClock) -> Lease:
    return Lease(7, 9.0, clock)


def test_nothing_is_sure_before_the_first_contact(lease: Lease) -> None:
    assert not lease.sure
    assert not lease.lost


def test_the_lease_runs_from_when_the_question_was_sent_not_from_its_answer(
    lease: Lease, clock: HandClock
) -> None:
    sent_s = clock.at_s
    clock.at_s += 5
    lease.confirmed(sent_s)
    assert lease.sure
    clock.at_s = sent_s + LEASE_FRACTION * 9.0 - 0.001
    assert lease.sure
    clock.at_s = sent_s + LEASE_FRACTION * 9.0
    assert not lease.sure


def test_a_process_that_slept_is_not_sure_when_it_wakes_though_it_heard_nothing(
    lease: Lease, clock: HandClock
) -> None:
    lease.confirmed(clock.at_s)
    clock.at_s += 60
    assert not lease.sure
    assert not lease.lost


def test_an_answer_that_comes_late_does_not_shorten_the_lease(
    lease: Lease, clock: HandClock
) -> None:
    lease.confirmed(clock.at_s)
    lease.confirmed(clock.at_s - 50)
    assert lease.sure


def test_the_lease_ends_before_the_servers_may_end_the_session() -> None:
    assert LEASE_FRACTION < 1


def test_an_end_is_final_and_wakes_everyone_once(lease: Lease, clock: HandClock) -> None:
    woken: list[str] = []
    forgotten = lambda: woken.append("forgotten")  # noqa: E731
    lease.confirmed(clock.at_s)
    lease.on_end(lambda: woken.append("early"))
    lease.on_end(forgotten)
    lease.forget(forgotten)
    lease.end("it was silent")
    lease.end("again")
    lease.on_end(lambda: woken.append("late"))
    assert woken == ["early", "late"]
    lease.confirmed(clock.at_s)
    assert lease.lost
    assert not lease.sure
    with pytest.raises(SessionLost, match="it was silent"):
        lease.check()
