"""Replies are lost after the server did what was asked: nothing is done twice, or forgotten."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from holdfast.coordination import (
    ABSENT,
    Config,
    DoubleBarrier,
    Election,
    Lock,
    Membership,
    Queue,
    Session,
    connect,
)
from holdfast.coordination.embedded import protocol
from holdfast.coordination.stamps import STAMPS_KEPT
from holdfast.wire.errors import Conflict, Fenced
from tests.contract.cutting import CuttingProxy
from tests.contract.planes import Plane
from tests.waiting import eventually

SEED = 20_240


def test_a_contender_finds_its_node_again(
    proxy: CuttingProxy, through: Session, session: Session
) -> None:
    lock = Lock(through, "door", "me")
    first = lock.acquire()
    first.release()
    proxy.cut_the_next(protocol.CREATE2)
    held = lock.acquire(timeout_s=60)
    assert proxy.cuts == 1
    assert held.token > first.token
    assert [one.name for one in Lock(session, "door").holders()] == ["me"]
    assert Lock(session, "door").waiting() == []
    proxy.cut_the_next(protocol.DELETE)
    held.release()
    assert proxy.cuts == 2
    assert Lock(session, "door").holders() == []


def test_a_winner_recognises_its_term(
    proxy: CuttingProxy, through: Session, session: Session
) -> None:
    election = Election(through, "/lead", "me")
    election.campaign().resign()
    proxy.cut_the_next(protocol.MULTI)
    leadership = election.campaign(timeout_s=60)
    assert proxy.cuts == 1
    assert leadership.term == 2
    assert Election(session, "/lead").current_leader() == ("me", 2)


def test_a_leaders_commit_is_done_once(
    proxy: CuttingProxy, through: Session, session: Session
) -> None:
    leadership = Election(through, "/lead", "me").campaign()
    leadership.transaction().create("/fact", b"0").commit()
    proxy.cut_the_next(protocol.MULTI)
    # Done twice, the second would fail: the version has gone on.
    leadership.transaction().replace("/fact", b"1", version=0).commit()
    assert proxy.cuts == 1
    found = session.nodes.read("/fact", fresh=True)
    assert found is not None
    assert (found.data, found.version) == (b"1", 1)
    leadership.transaction().replace("/fact", b"2", version=1).commit()
    assert not leadership.lost


def test_a_leader_that_did_not_hear_of_its_removal_is_fenced_by_the_server(
    proxy: CuttingProxy, through: Session, session: Session
) -> None:
    leadership = Election(through, "/lead", "me").campaign()
    proxy.drops_events = True
    (candidate,) = Election(session, "/lead").candidates()
    session.nodes.delete(f"/lead/candidates/{candidate.node}")
    assert not leadership.lost
    with pytest.raises(Fenced):
        leadership.transaction().create("/fact", b"").commit()
    assert session.nodes.read("/fact", fresh=True) is None
    assert leadership.wait_lost(60)


def test_a_configuration_is_made_and_changed_once(
    proxy: CuttingProxy, through: Session, session: Session
) -> None:
    config = Config(through, "/settings")
    proxy.cut_the_next()
    assert config.put({"n": 1}, expect=ABSENT) == 0
    proxy.cut_the_next()
    assert config.put({"n": 2}, expect=0) == 1
    proxy.cut_the_next()
    assert config.update(lambda value: {"n": value["n"] + 1}) == ({"n": 3}, 2)
    assert proxy.cuts == 3
    with pytest.raises(Conflict):
        config.put({"n": 9}, expect=1)
    assert Config(session, "/settings").get() == ({"n": 3}, 2)


def test_a_writer_knows_its_write_though_others_wrote_before_it_could_look(
    proxy: CuttingProxy, through: Session, session: Session
) -> None:
    config, other = Config(through, "/settings"), Config(session, "/settings")

    def in_doubt(expect: int) -> int:
        proxy.cut_the_next(then_dark=True)
        with ThreadPoolExecutor() as pool:
            writing = pool.submit(config.put, "mine", expect)
            eventually(lambda: other.get().value == "mine", "it is written")
            other.put("theirs")
            proxy.light_up()
            return writing.result(60)

    assert in_doubt(ABSENT) == 0
    assert in_doubt(1) == 2
    assert other.get() == ("theirs", 3)
    assert proxy.cuts == 2


def test_an_item_is_put_taken_and_acknowledged_once(
    proxy: CuttingProxy, through: Session, session: Session
) -> None:
    queue = Queue(through, "/jobs", 10)
    proxy.cut_the_next()
    queue.put(b"one")
    queue.put(b"two")
    assert len(queue) == 2
    proxy.cut_the_next()
    first = queue.take(timeout_s=60)
    assert (first.value, first.deliveries) == (b"one", 1)
    proxy.cut_the_next()
    first.ack()
    assert proxy.cuts == 3
    assert len(Queue(session, "/jobs", 10)) == 1
    second = queue.take(timeout_s=60)
    assert second.value == b"two"
    second.ack()
    assert len(queue) == 0


def test_put_and_acknowledgement_are_known_though_more_changes_came_than_marks_are_kept(
    proxy: CuttingProxy, through: Session, session: Session
) -> None:
    queue, other = Queue(through, "/jobs", 3), Queue(session, "/jobs", 3)

    def while_in_doubt(doing: Callable[[], None], size: int) -> None:
        proxy.cut_the_next(then_dark=True)
        with ThreadPoolExecutor() as pool:
            working = pool.submit(doing)
            eventually(lambda: len(other) == size, "it is done")
            held = other.take(timeout_s=60) if size else None
            for _ in range(STAMPS_KEPT // 2 + 1):
                other.put(b"in between")
                other.take(timeout_s=60).ack()
            if held is not None:
                held.release()
            proxy.light_up()
            working.result(60)

    while_in_doubt(lambda: queue.put(b"mine"), 1)
    assert len(other) == 1
    mine = queue.take(timeout_s=60)
    assert mine.value == b"mine"
    while_in_doubt(mine.ack, 0)
    assert len(other) == 0
    assert proxy.cuts == 2


def test_a_member_joins_once_and_is_not_displaced_by_itself(
    proxy: CuttingProxy, through: Session, session: Session
) -> None:
    proxy.cut_the_next()
    member = Membership(through, "/here").join("me", {"n": 1})
    proxy.cut_the_next()
    member.update({"n": 2})
    assert proxy.cuts == 2
    assert not member.displaced
    assert Membership(session, "/here").members()["me"].data == {"n": 2}


def test_a_barrier_lets_a_member_in_and_out(
    proxy: CuttingProxy, through: Session, session: Session
) -> None:
    barrier = DoubleBarrier(through, "/gate", 1)
    barrier.enter(60)
    barrier.leave(60)
    proxy.cut_the_next()
    barrier.enter(60)
    proxy.cut_the_next()
    barrier.leave(60)
    assert proxy.cuts == 2
    assert session.nodes.children("/gate/members") == []


def test_counting_is_exact_while_a_third_of_all_replies_are_lost(
    plane: Plane, proxy: CuttingProxy, through: Session, closing: ExitStack, session: Session
) -> None:
    print(f"seed {SEED}")
    others = [
        through,
        *(closing.enter_context(connect(plane.by_port(proxy.port, timeout_s=8))) for _ in range(2)),
    ]
    Queue(session, "/jobs", 100)
    proxy.cut_at_random(SEED, 1 / 3)

    def count_up(one: Session) -> None:
        config, queue = Config(one, "/count"), Queue(one, "/jobs", 100)
        for number in range(8):
            config.update(lambda value: (value or 0) + 1)
            queue.put(f"{one.session_id} {number}".encode())

    threads = [threading.Thread(target=count_up, args=(one,)) for one in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    proxy.cut_nothing()
    assert proxy.cuts > 0
    assert Config(session, "/count").get().value == 8 * len(others)
    queue = Queue(session, "/jobs", 100)
    taken = []
    for _ in range(8 * len(others)):
        with queue.take(timeout_s=60) as item:
            taken.append(item.value)
    assert len(queue) == 0
    assert len(set(taken)) == len(taken)
