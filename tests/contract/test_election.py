"""One leader at a time, by terms that only grow."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.coordination import Election, Leader, Session
from holdfast.wire.errors import Cancelled, Conflict, Fenced, TimedOut
from tests.contract.actors import Actor, Failed
from tests.contract.expiring import expire
from tests.contract.planes import TIMEOUT_S, Plane
from tests.waiting import eventually

Sessions = Callable[..., Session]
Actors = Callable[..., Actor]


def test_the_first_candidate_leads_with_term_one_and_the_next_with_a_higher_one(
    session: Session, another: Sessions
) -> None:
    first, second = Election(session, "/lead", "first"), Election(another(), "/lead", "second")
    assert first.current_leader() is None
    leadership = first.campaign()
    assert (leadership.term, leadership.holder, leadership.acting) == (1, "first", True)
    assert second.current_leader() == Leader("first", 1)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(second.campaign)
        eventually(lambda: len(first.candidates()) == 2, "the second candidate stands in line")
        assert [one.name for one in first.candidates()] == ["first", "second"]
        with pytest.raises(TimedOut):
            Election(session, "/lead", "third").campaign(timeout_s=0.2)
        assert not waiting.done()
        assert first.current_leader() == Leader("first", 1)
        leadership.resign()
        assert not leadership.acting
        assert leadership.lost
        next_one = waiting.result(60)
    assert next_one.term == 2
    assert first.current_leader() == Leader("second", 2)


def test_a_candidate_that_times_out_or_is_called_off_leaves_nothing_behind(
    session: Session, another: Sessions
) -> None:
    leader, other = Election(session, "/lead", "leader"), Election(another(), "/lead", "other")
    leader.campaign()
    with pytest.raises(TimedOut) as timed_out:
        other.campaign(timeout_s=0.1)
    assert "'leader' is before us" in str(timed_out.value)
    assert [one.name for one in leader.candidates()] == ["leader"]
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(other.campaign)
        eventually(lambda: len(leader.candidates()) == 2, "the other stands in line")
        other.cancel()
        with pytest.raises(Cancelled):
            waiting.result(60)
    assert [one.name for one in leader.candidates()] == ["leader"]


def test_a_leaders_transaction_is_all_or_nothing(session: Session) -> None:
    leadership = Election(session, "/lead").campaign()
    leadership.transaction().create("/facts/a", b"1").create("/facts/b", b"1").commit()
    with pytest.raises(Conflict):
        leadership.transaction().replace("/facts/a", b"2", 0).replace("/facts/b", b"2", 7).commit()
    found = session.nodes.read("/facts/a")
    assert found is not None
    assert found.data == b"1"
    leadership.transaction().replace("/facts/a", b"2", 0).remove("/facts/b", 0).commit()
    assert session.nodes.children("/facts") == ["a"]


def test_a_lost_session_ends_the_term_and_fences_its_writes(
    session: Session, another: Sessions
) -> None:
    election = Election(session, "/lead", "old")
    leadership = election.campaign()
    leadership.transaction().create("/fact", b"old").commit()
    told = threading.Event()
    leadership.on_lost(told.set)
    prepared = leadership.transaction().replace("/fact", b"too late")
    expire(session)
    assert leadership.wait_lost(60)
    assert told.wait(60)
    assert not leadership.acting
    with pytest.raises(Fenced):
        prepared.commit()
    with pytest.raises(Fenced):
        election.as_leader(leadership.term)
    with pytest.raises(Fenced):
        leadership.check()
    assert Election(another(), "/lead", "new").campaign().term == 2
    # The new session of the old leader does not revive its term.
    assert not leadership.acting
    found = session.nodes.read("/fact")
    assert found is not None
    assert found.data == b"old"


def test_a_term_ends_when_somebody_removes_the_leaders_node(
    session: Session, another: Sessions
) -> None:
    leadership = Election(session, "/lead", "first").campaign()
    (candidate,) = Election(another(), "/lead").candidates()
    another().nodes.delete(f"/lead/candidates/{candidate.node}")
    assert leadership.wait_lost(60)
    with pytest.raises(Fenced):
        leadership.transaction().create("/fact", b"").commit()
    assert session.nodes.read("/fact") is None


def test_watchers_see_the_present_leader_and_survive_a_failing_callback(
    session: Session, another: Sessions
) -> None:
    seen: list[Leader | None] = []

    def callback(leader: Leader | None) -> None:
        seen.append(leader)
        if leader is not None and leader.term == 1:
            raise ValueError("a callback of a user may fail")

    with Election(another(), "/lead").watch(callback):
        first = Election(session, "/lead", "first").campaign()
        eventually(lambda: seen[-1:] == [Leader("first", 1)], "the first leader is seen")
        first.resign()
        Election(session, "/lead", "second").campaign()
        eventually(lambda: seen[-1:] == [Leader("second", 2)], "the second leader is seen")
    assert all(one != other for one, other in itertools.pairwise(seen))


def test_a_killed_leader_is_followed_by_the_next_with_a_higher_term(
    session: Session, actor: Actors
) -> None:
    first, second = actor(), actor()
    assert first.do("campaign", "/lead", "first") == 1
    second.send("campaign", "/lead", "second")
    election = Election(session, "/lead")
    eventually(lambda: len(election.candidates()) == 2, "the second candidate stands in line")
    first.kill()
    assert second.answer() == 2
    assert election.current_leader() == Leader("second", 2)


def test_a_leader_paused_past_its_session_neither_acts_nor_writes_when_it_wakes(
    session: Session, actor: Actors
) -> None:
    session.nodes.create("/fact", b"nobody")
    sleeper, heir = actor(), actor()
    sleeper.do("campaign", "/lead", "sleeper")
    sleeper.do("commit", "/fact", "sleeper")
    heir.send("campaign", "/lead", "heir")
    sleeper.pause()
    assert heir.answer() == 2
    heir.do("commit", "/fact", "heir")
    sleeper.resume()
    assert sleeper.do("acting") is False
    with pytest.raises(Failed) as refused:
        sleeper.do("commit", "/fact", "sleeper again")
    assert refused.value.kind == "Fenced"
    found = session.nodes.read("/fact")
    assert found is not None
    assert found.data == b"heir"
    _assert_one_at_a_time({1: sleeper.do("acted"), 2: heir.do("acted")})


def test_terms_grow_and_no_two_act_at_once_while_the_plane_is_disturbed(
    plane: Plane, session: Session, actor: Actors
) -> None:
    election = Election(session, "/lead")
    acted: dict[int, list[float]] = {}
    leader = actor(TIMEOUT_S)
    term = leader.do("campaign", "/lead", "0")

    def knows() -> bool:
        return bool(leader.do("acting") or leader.do("lost"))

    for number, how in enumerate(plane.disturbances, start=1):
        heir = actor(TIMEOUT_S)
        heir.send("campaign", "/lead", str(number))
        plane.disturb(how)
        # On a slow machine the disturbance may have cost the leader its session; both are right.
        eventually(knows, f"the leader knows after: {how}")
        acted[term] = leader.do("acted")
        leader.kill()
        following = heir.answer()
        assert following > term, f"after: {how}"
        leader, term = heir, following
    eventually(lambda: leader.do("acting"), "the last leader acts")
    acted[term] = leader.do("acted")
    assert election.current_leader() == Leader(str(len(plane.disturbances)), term)
    _assert_one_at_a_time(acted)


def _assert_one_at_a_time(acted: dict[int, list[float]]) -> None:
    """Nobody was seen acting in a term after a later term was seen acting."""
    for term, (_first, last) in acted.items():
        for later, (first, _last) in acted.items():
            if later > term:
                assert last <= first, f"term {term} acted at {last}, term {later} from {first}"
