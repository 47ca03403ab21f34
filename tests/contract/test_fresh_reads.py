"""A fresh read is no older than its question; and a write whose reply was lost is found, however
late the servers do it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from holdfast.coordination import (
    Config,
    DoubleBarrier,
    Election,
    Facts,
    Lock,
    Queue,
    Session,
    connect,
)
from holdfast.coordination.embedded import protocol
from holdfast.coordination.nodes import Op, ReplyLost
from holdfast.wire.errors import TimedOut, Unavailable
from tests.contract.lagging import LaggingProxy, is_vote, part
from tests.contract.planes import EnsemblePlane, Plane
from tests.waiting import eventually

EITHER_WAY = pytest.mark.parametrize(
    "past_votes", [False, True], ids=["until-a-vote", "past-a-vote"]
)


@pytest.fixture
def lagging(plane: Plane, session: Session) -> Iterator[LaggingProxy]:
    """In front of one server of the plane (`session` has started it)."""
    with LaggingProxy(plane.a_port()) as made:
        yield made


@pytest.fixture
def behind(plane: Plane, lagging: LaggingProxy, closing: ExitStack) -> Session:
    """A session through the proxy."""
    return closing.enter_context(connect(plane.by_port(lagging.port, timeout_s=20)))


def votes(proxy: LaggingProxy) -> int:
    with proxy.lock:
        return sum(is_vote(one.kind, one.body) for one in proxy.seen)


@pytest.mark.parametrize("passed", [True, False], ids=["answered", "unanswered"])
def test_a_fence_that_was_sent_over_another_connection_does_not_count(
    lagging: LaggingProxy,
    behind: Session,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    passed: bool,
) -> None:
    Config(session, "/settings").put("old")
    session.nodes.ensure("/list/old")
    reads: dict[str, Callable[[], Any]] = {
        "/settings": lambda: Config(behind, "/settings").get().value,
        "/list": lambda: Facts(behind).names("/list", fresh=True),
    }
    assert [read() for read in reads.values()] == ["old", ["old"]]
    Config(session, "/settings").put("new")
    session.nodes.ensure("/list/new")
    send = behind._client.sync_async

    def send_and_lose_the_link(path: str) -> Any:
        answer = send(path)
        if doomed and path.endswith(doomed[0]):
            doomed.clear()
            opened = lagging.opened
            if passed:
                answer.wait(60)
                lagging.cut()
            lagging.light.set()
            eventually(lambda: lagging.opened > opened, "there is another connection")
        return answer

    found = []
    for path, read in reads.items():
        doomed = [path]
        lagging.fall_behind()
        if not passed:
            lagging.lose_the_next(protocol.SYNC, path.encode())
        monkeypatch.setattr(behind._client, "sync_async", send_and_lose_the_link)
        found.append(read())
        monkeypatch.undo()
        assert not doomed
    assert found == ["new", ["new", "old"]]


def test_a_write_in_flight_is_seen_by_who_looks_for_it_and_only_that_costs_a_vote(
    lagging: LaggingProxy, behind: Session
) -> None:
    nodes = behind.nodes
    nodes.ensure("/list")
    nodes.create("/fact", b"0")
    lagging.keep_in_flight(protocol.MULTI)
    with pytest.raises(ReplyLost):
        nodes.transact([Op("put", "/fact", b"1", 0)], nodes.deadline(None))
    found = nodes.read("/fact", fresh=True)
    assert found is not None
    assert (found.data, found.version) == (b"1", 1)
    lagging.keep_in_flight(protocol.MULTI)
    with pytest.raises(ReplyLost):
        nodes.transact([Op("create", "/list/one")], nodes.deadline(None))
    assert nodes.children("/list", fresh=True) == ["one"]
    assert votes(lagging) == 2
    nodes.read("/fact", fresh=True)
    nodes.children("/list", fresh=True)
    lagging.cut()
    nodes.read("/fact", fresh=True)
    assert votes(lagging) == 2


def test_what_is_not_seen_by_who_looks_for_it_does_not_come_later(
    plane: Plane, lagging: LaggingProxy, behind: Session
) -> None:
    nodes = behind.nodes
    nodes.create("/fact", b"0")
    lagging.strand_the_next(protocol.MULTI)
    if isinstance(plane, EnsemblePlane):  # from a follower to the leader
        lagging.upstream = plane._ensemble.leader().port
    with pytest.raises(ReplyLost):
        nodes.transact([Op("put", "/fact", b"1", 0)], nodes.deadline(None))
    before = nodes.read("/fact", fresh=True)
    lagging.deliver_the_stranded()
    nodes.ensure("/another")
    assert nodes.read("/fact", fresh=True) == before
    assert before is not None
    assert before.data == b"0"


@EITHER_WAY
def test_an_update_in_flight_is_made_once(
    lagging: LaggingProxy, behind: Session, session: Session, past_votes: bool
) -> None:
    config = Config(behind, "/count")
    config.put(0)
    lagging.keep_in_flight(protocol.MULTI, past_votes=past_votes)
    assert config.update(lambda value: value + 1) == (1, 1)
    lagging.keep_in_flight(protocol.MULTI, past_votes=past_votes)
    assert config.put("mine", expect=1) == 2
    assert Config(session, "/count").get() == ("mine", 2)
    assert lagging.in_flight is None


@EITHER_WAY
def test_an_item_in_flight_is_put_and_acknowledged_once(
    lagging: LaggingProxy, behind: Session, session: Session, past_votes: bool
) -> None:
    queue = Queue(behind, "/jobs", 10)
    lagging.keep_in_flight(protocol.MULTI, past_votes=past_votes)
    queue.put(b"one")
    assert len(Queue(session, "/jobs", 10)) == 1
    item = queue.take(timeout_s=60)
    lagging.keep_in_flight(protocol.MULTI, past_votes=past_votes)
    item.ack()
    assert len(Queue(session, "/jobs", 10)) == 0
    assert lagging.in_flight is None


def test_a_consumer_knows_its_claim_that_was_in_flight(
    lagging: LaggingProxy, behind: Session
) -> None:
    queue = Queue(behind, "/jobs", 10)
    queue.put(b"one")
    lagging.keep_in_flight(protocol.MULTI)
    item = queue.take(timeout_s=60)
    assert (item.value, item.deliveries) == (b"one", 1)
    item.ack()
    assert len(queue) == 0


def test_a_contender_in_flight_stands_in_the_line_once(
    lagging: LaggingProxy, behind: Session, session: Session
) -> None:
    Lock(behind, "door").acquire().release()
    lagging.keep_in_flight(protocol.CREATE2)
    with Lock(behind, "door", "me").acquire(timeout_s=60):
        assert [one.name for one in Lock(session, "door").holders()] == ["me"]
        assert Lock(session, "door").waiting() == []
    assert Lock(session, "door").holders() == []


@EITHER_WAY
def test_a_leaders_term_and_commit_in_flight_are_its_own(
    lagging: LaggingProxy, behind: Session, session: Session, past_votes: bool
) -> None:
    election = Election(behind, "/lead", "me")
    election.campaign().resign()
    lagging.keep_in_flight(protocol.MULTI, past_votes=past_votes)
    leadership = election.campaign(timeout_s=60)
    assert leadership.term == 2
    leadership.transaction().create("/fact", b"0").commit()
    lagging.keep_in_flight(protocol.MULTI, past_votes=past_votes)
    leadership.transaction().replace("/fact", b"1", version=0).commit()
    assert not leadership.lost
    found = session.nodes.read("/fact", fresh=True)
    assert found is not None
    assert (found.data, found.version) == (b"1", 1)


def test_a_leader_goes_on_after_a_commit_that_it_gave_up(
    plane: Plane, lagging: LaggingProxy, session: Session, closing: ExitStack
) -> None:
    address = plane.by_port(lagging.port, timeout_s=20)
    leader = closing.enter_context(connect(address, operation_timeout_s=2))
    leadership = Election(leader, "/lead", "me").campaign()
    leadership.transaction().create("/fact", b"0").commit()
    lagging.lose_the_next(protocol.MULTI, part(protocol.SET_DATA))
    with pytest.raises(Unavailable):
        leadership.transaction().replace("/fact", b"1", version=0).commit()
    lagging.light.set()
    eventually(lambda: leader.connected, "it is connected again")
    leadership.transaction().replace("/fact", b"2", version=1).commit()
    assert not leadership.lost
    found = session.nodes.read("/fact", fresh=True)
    assert found is not None
    assert (found.data, found.version) == (b"2", 2)


@EITHER_WAY
def test_a_member_in_flight_stands_in_a_barriers_round_once(
    lagging: LaggingProxy, behind: Session, session: Session, past_votes: bool
) -> None:
    barrier = DoubleBarrier(behind, "/gate", 1)
    barrier.enter(60)
    barrier.leave(60)
    lagging.keep_in_flight(protocol.MULTI, past_votes=past_votes)
    barrier.enter(60)
    assert len(session.nodes.children("/gate/members", fresh=True)) == 1
    barrier.leave(60)
    assert session.nodes.children("/gate/members", fresh=True) == []


def test_a_member_that_withdrew_is_not_in_the_round_that_begins_before_it_knows(
    lagging: LaggingProxy, behind: Session, session: Session
) -> None:
    lagging.lose_the_next(protocol.MULTI, part(protocol.DELETE))
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(DoubleBarrier(behind, "/gate", 2, "late").enter, 0)
        eventually(lambda: lagging.kinds().count(protocol.MULTI) >= 2, "it withdraws")
        eventually(
            lambda: session.nodes.children("/gate/members", fresh=True) == [], "it has withdrawn"
        )
        others = [DoubleBarrier(session, "/gate", 2, name) for name in ("one", "two")]
        for entered in [pool.submit(other.enter, 60) for other in others]:
            entered.result(60)
        lagging.light.set()
        with pytest.raises(TimedOut):
            waiting.result(60)
