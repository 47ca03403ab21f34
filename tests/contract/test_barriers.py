"""Barriers open for everyone, and no dead member holds them up."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.coordination import Barrier, DoubleBarrier, Session
from holdfast.wire.errors import TimedOut, Usage
from tests.contract.actors import Actor
from tests.contract.planes import Plane
from tests.waiting import eventually

Sessions = Callable[..., Session]
Actors = Callable[..., Actor]


def test_a_barrier_holds_everyone_until_it_is_opened(
    plane: Plane, session: Session, another: Sessions
) -> None:
    barrier = Barrier(session, "/gate")
    barrier.wait(0)  # it was never closed
    barrier.close()
    barrier.close()
    with pytest.raises(TimedOut):
        barrier.wait(0.1)
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(Barrier(another(10), "/gate").wait) for _ in range(3)]
        plane.disturb(plane.disturbances[0])
        assert not any(future.done() for future in waiting)
        barrier.open()
        for future in waiting:
            future.result(60)
    barrier.open()


def test_members_begin_together_and_end_together_round_after_round(
    session: Session, another: Sessions
) -> None:
    barriers = [DoubleBarrier(one, "/gate", 3) for one in (session, another(), another())]
    for _ in range(3):
        with ThreadPoolExecutor() as pool:
            early = [pool.submit(barrier.enter) for barrier in barriers[:2]]
            eventually(lambda: len(session.nodes.children("/gate/members")) == 2, "two are here")
            assert not any(future.done() for future in early)
            barriers[2].enter(60)
            for future in early:
                future.result(60)
            leaving = [pool.submit(barrier.leave) for barrier in barriers[:2]]
            eventually(lambda: len(session.nodes.children("/gate/members")) == 1, "two have left")
            assert not any(future.done() for future in leaving)
            barriers[2].leave(60)
            for future in leaving:
                future.result(60)


def test_a_member_that_times_out_does_not_count(session: Session, another: Sessions) -> None:
    one, two = DoubleBarrier(session, "/gate", 2), DoubleBarrier(another(), "/gate", 2)
    with pytest.raises(TimedOut):
        one.enter(0.1)
    assert session.nodes.children("/gate/members") == []
    with pytest.raises(TimedOut):
        two.enter(0.1)
    with pytest.raises(Usage):
        two.leave()


def test_a_member_killed_before_the_round_is_replaced_and_one_killed_in_it_is_not_waited_for(
    session: Session, actor: Actors
) -> None:
    first, second, third = actor(), actor(), actor()
    first.send("enter", "/gate", 2)
    eventually(lambda: len(session.nodes.children("/gate/members")) == 1, "the first is here")
    first.kill()
    eventually(lambda: session.nodes.children("/gate/members") == [], "the first is gone")
    second.send("enter", "/gate", 2)
    third.send("enter", "/gate", 2)
    assert (second.answer(), third.answer()) == (None, None)
    second.send("leave")
    third.kill()
    assert second.answer() is None
