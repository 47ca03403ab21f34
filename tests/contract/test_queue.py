"""The queue: bounded, in order, nothing lost, nothing acknowledged twice."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.coordination import Queue, Session
from holdfast.wire.errors import Conflict, Fenced, Full, TimedOut, Usage
from tests.contract.actors import Actor
from tests.contract.expiring import expire
from tests.contract.planes import Plane
from tests.waiting import eventually

Sessions = Callable[..., Session]
Actors = Callable[..., Actor]


def test_items_come_out_in_the_order_in_which_they_went_in(session: Session) -> None:
    queue = Queue(session, "/jobs", 10)
    for number in range(5):
        queue.put(str(number).encode())
    taken = [queue.take(timeout_s=0) for _ in range(3)]
    assert [item.value for item in taken] == [b"0", b"1", b"2"]
    assert len(queue) == 5
    taken[1].release()
    taken[0].ack()
    again = queue.take(timeout_s=0)
    assert (again.value, again.deliveries) == (b"1", 2)
    with pytest.raises(ValueError, match="on purpose"), queue.take(timeout_s=0) as item:
        assert item.value == b"3"
        raise ValueError("on purpose")
    with queue.take(timeout_s=0) as item:
        assert (item.value, item.deliveries) == (b"3", 2)
    assert len(queue) == 3
    with pytest.raises(Usage):
        taken[0].ack()


def test_a_full_queue_refuses_or_waits_and_an_empty_one_too(
    session: Session, another: Sessions
) -> None:
    queue, other = Queue(session, "/jobs", 2), Queue(another(), "/jobs", 2)
    with pytest.raises(TimedOut):
        queue.take(timeout_s=0)
    queue.put(b"1")
    other.put(b"2")
    with pytest.raises(Full) as full:
        queue.put(b"3")
    assert "2 of 2" in str(full.value)
    with pytest.raises(Full):
        queue.put(b"3", timeout_s=0.1)
    with ThreadPoolExecutor() as pool:
        putting = pool.submit(other.put, b"3", None)
        queue.take().ack()
        putting.result(60)
        assert [queue.take().value, queue.take().value] == [b"2", b"3"]
        taking = pool.submit(other.take)
        with pytest.raises(Full):  # what is being worked on takes room
            queue.put(b"4")
        expire(session)  # gives both back
        assert taking.result(60).value == b"2"


def test_sizes_that_cannot_be_are_refused(session: Session) -> None:
    for capacity in (0, -1, 1_000_000):
        with pytest.raises(Usage):
            Queue(session, "/jobs", capacity)
    queue = Queue(session, "/jobs", 5)
    with pytest.raises(Usage):
        queue.put(b"x" * 1_000_000)
    with pytest.raises(Conflict):
        Queue(session, "/jobs", 6)


def test_a_consumer_whose_session_is_lost_cannot_acknowledge(
    session: Session, another: Sessions
) -> None:
    mine, other = Queue(session, "/jobs", 5), Queue(another(), "/jobs", 5)
    mine.put(b"job")
    item = mine.take()
    expire(session)
    assert item.lost
    with pytest.raises(Fenced):
        item.ack()
    again = other.take(timeout_s=60)
    assert (again.value, again.deliveries) == (b"job", 2)
    item.release()
    with pytest.raises(TimedOut):
        mine.take(timeout_s=0)
    again.ack()
    assert len(other) == 0


def test_an_item_that_somebody_else_works_on_by_now_cannot_be_acknowledged(
    session: Session, another: Sessions
) -> None:
    mine, other = Queue(session, "/jobs", 5), Queue(another(), "/jobs", 5)
    mine.put(b"job")
    item = mine.take()
    # Its claim ends without its knowledge; the other's claim has the same name.
    session.nodes.delete("/jobs/claims/" + session.nodes.children("/jobs/claims")[0])
    again = other.take(timeout_s=60)
    with pytest.raises(Fenced):
        item.ack()
    item.release()
    assert len(session.nodes.children("/jobs/claims", fresh=True)) == 1
    again.ack()
    assert len(mine) == 0


def test_a_killed_consumers_item_returns_to_its_place(session: Session, actor: Actors) -> None:
    queue = Queue(session, "/jobs", 5)
    for value in (b"first", b"second"):
        queue.put(value)
    consumer = actor()
    assert consumer.do("take", "/jobs", 5) == "first"
    second = queue.take(timeout_s=0)
    assert second.value == b"second"
    second.release()
    consumer.kill()
    eventually(lambda: session.nodes.children("/jobs/claims") == [], "its claim is gone")
    assert queue.take(timeout_s=60).value == b"first"


def test_the_bound_holds_and_nothing_is_lost_or_doubled_by_processes_under_disturbance(
    plane: Plane, session: Session, actor: Actors, tmp_path: Path
) -> None:
    capacity, each = 8, 25
    queue = Queue(session, "/jobs", capacity)
    producers, consumers = [actor(8) for _ in range(2)], [actor(8) for _ in range(2)]
    logs = [tmp_path / f"{number}.log" for number in range(len(consumers))]
    wanted = [[f"{number}-{n}" for n in range(each)] for number in range(len(producers))]
    for producer, names in zip(producers, wanted, strict=True):
        producer.send("produce", "/jobs", capacity, names)
    for consumer, log in zip(consumers, logs, strict=True):
        log.touch()
        consumer.send("consume", "/jobs", capacity, str(log))
    eventually(lambda: sum(log.read_text().count("\n") for log in logs) > 5, "they work")
    for how in plane.disturbances:
        plane.disturb(how)
        assert len(session.nodes.children("/jobs/items")) <= capacity
    for producer in producers:
        producer.answer()
    for _ in consumers:
        queue.put(b"stop", timeout_s=None)
    for consumer in consumers:
        consumer.answer()
    done = [name for log in logs for name in log.read_text().split()]
    assert sorted(done) == sorted(name for names in wanted for name in names)
    assert len(queue) == 0
    assert session.nodes.children("/jobs/items") == []
