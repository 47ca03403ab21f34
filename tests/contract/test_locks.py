"""Locks: one holder (or sharers), fair, with tokens that only grow."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.coordination import Lock, Semaphore, Session, SharedLock
from holdfast.wire.errors import Cancelled, Conflict, TimedOut, Usage
from tests.contract.actors import Actor, Failed
from tests.contract.planes import Plane
from tests.waiting import eventually

Sessions = Callable[..., Session]
Actors = Callable[..., Actor]
SEED = 7_013


def test_a_lock_has_one_holder_whose_name_everyone_sees(
    session: Session, another: Sessions
) -> None:
    mine, other = Lock(session, "door", "me"), Lock(another(), "door", "other")
    with mine.holding() as held:
        held.check()
        assert [one.name for one in other.holders()] == ["me"]
        with pytest.raises(TimedOut) as refused:
            other.acquire(timeout_s=0)
        assert "'me' is before us" in str(refused.value)
        assert other.waiting() == []
    with other.holding(timeout_s=30) as later:
        assert later.token > held.token
        (holder,) = mine.holders()
        assert (holder.name, holder.token) == ("other", later.token)
        assert holder.since_ms > 0


def test_waiters_get_it_in_the_order_in_which_they_came(
    session: Session, another: Sessions
) -> None:
    first = Lock(session, "door").acquire()
    order: list[str] = []
    threads = []
    for number in range(4):
        lock = Lock(another(), "door", f"waiter {number}")

        def wait(lock: Lock = lock, number: int = number) -> None:
            with lock.holding():
                order.append(f"waiter {number}")

        threads.append(threading.Thread(target=wait))
        threads[-1].start()
        eventually(
            lambda: len(Lock(session, "door").waiting()) == len(threads), "the waiter is in line"
        )
    assert [one.name for one in Lock(session, "door").waiting()] == [
        f"waiter {n}" for n in range(4)
    ]
    first.release()
    for thread in threads:
        thread.join(60)
    assert order == [f"waiter {number}" for number in range(4)]


def test_readers_share_and_a_waiting_writer_is_not_starved(
    session: Session, another: Sessions
) -> None:
    readers = SharedLock(session, "book", "reader")
    one, two = readers.read(), readers.read(timeout_s=30)
    assert [held.name for held in readers.holders()] == ["reader", "reader"]
    writer = SharedLock(another(), "book", "writer")
    with ThreadPoolExecutor() as pool:
        writing = pool.submit(writer.write)
        eventually(readers.waiting, "the writer waits")
        with pytest.raises(TimedOut):
            readers.read(timeout_s=0)
        one.release()
        two.release()
        written = writing.result(60)
        assert [held.name for held in readers.holders()] == ["writer"]
        reading = [pool.submit(readers.read) for _ in range(2)]
        eventually(lambda: len(readers.waiting()) == 2, "two readers wait")
        written.release()
        assert all(future.result(60).token > written.token for future in reading)


def test_an_exclusive_lock_and_a_shared_one_of_the_same_name_are_one_lock(
    session: Session, another: Sessions
) -> None:
    with Lock(session, "door").holding(), pytest.raises(TimedOut):
        SharedLock(another(), "door").read(timeout_s=0)


def test_a_semaphore_has_as_many_holders_as_it_counts_and_the_next_comes_when_any_leaves(
    session: Session, another: Sessions
) -> None:
    first = Semaphore(session, "band", 2, "first").acquire()
    second = Semaphore(another(), "band", 2, "second").acquire(timeout_s=30)
    third = Semaphore(another(), "band", 2, "third")
    with pytest.raises(TimedOut) as refused:
        third.acquire(timeout_s=0)
    assert "'second' is before us" in str(refused.value)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(third.acquire)
        eventually(third.waiting, "the third waits")
        assert [one.name for one in third.holders()] == ["first", "second"]
        first.release()  # not the one just before it: any place will do
        assert waiting.result(60).token > second.token
        assert [one.name for one in third.holders()] == ["second", "third"]


def test_a_semaphore_that_is_in_use_for_another_number_is_refused(
    session: Session, another: Sessions
) -> None:
    held = Semaphore(session, "band", 2).acquire()
    other = Semaphore(another(), "band", 3)
    with pytest.raises(Conflict) as refused:
        other.acquire(timeout_s=30)
    assert "it is used with 2" in str(refused.value)
    held.release()
    with other.acquire(timeout_s=30):
        assert len(other.holders()) == 1


def test_whoever_comes_to_a_closed_lock_does_not_wait(session: Session, another: Sessions) -> None:
    with Lock(another(), "door").holding():
        lock = Lock(session, "door")
        lock.close()
        with pytest.raises(Cancelled):
            lock.acquire()
        assert lock.waiting() == []


def test_a_name_that_is_no_name_is_refused(session: Session) -> None:
    for name in ("", "a/b", "..", "x" * 1_000):
        with pytest.raises(Usage):
            Lock(session, name)


def test_a_killed_holder_is_followed_and_the_token_grows(session: Session, actor: Actors) -> None:
    first, second = actor(), actor()
    token = first.do("acquire", "door")
    second.send("acquire", "door")
    eventually(lambda: Lock(session, "door").waiting(), "the second waits")
    first.kill()
    assert second.answer() > token


def test_a_paused_holder_knows_when_it_wakes_that_it_holds_nothing(
    session: Session, actor: Actors
) -> None:
    sleeper = actor()
    token = sleeper.do("acquire", "door")
    sleeper.pause()
    with Lock(session, "door").holding(timeout_s=60) as held:
        assert held.token > token
        sleeper.resume()
        with pytest.raises(Failed) as failed:
            sleeper.do("check_lock")
        assert failed.value.kind in ("SessionLost", "Unavailable")


def test_no_two_processes_are_inside_while_the_plane_and_holders_are_disturbed(
    plane: Plane, session: Session, actor: Actors, tmp_path: Path
) -> None:
    print(f"seed {SEED}")
    log = tmp_path / "room.log"
    log.touch()
    workers = [actor(8) for _ in range(4)]
    for worker in workers:
        worker.send("work", "room", str(log), 25)
    eventually(lambda: log.read_text().count("enter") > 5, "they work")
    victim = workers.pop(random.Random(SEED).randrange(len(workers)))
    victim.kill()
    for how in plane.disturbances:
        plane.disturb(how)
    assert [worker.answer() for worker in workers] == [25] * len(workers)
    assert Lock(session, "room").holders() == []
    _assert_one_inside(log.read_text().splitlines(), str(victim.pid))


def _assert_one_inside(lines: list[str], killed: str) -> None:
    inside: list[str] | None = None
    tokens: list[int] = []
    for line in lines:
        what, token, who = line.split()
        if what == "enter":
            assert inside is None or inside[1] == killed, f"{who} came in beside {inside}"
            inside = [token, who]
            tokens.append(int(token))
        else:
            assert inside == [token, who], f"{line}: inside was {inside}"
            inside = None
    assert tokens == sorted(set(tokens)), "tokens grow"
    assert len(tokens) >= 75
