"""What a session promises: its states, its lease, and that nothing lost is revived."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pytest
from kazoo.security import OPEN_ACL_UNSAFE

from holdfast.coordination import Config, Lock, Membership, Session, SessionState, connect
from holdfast.wire.errors import Refused, RetryError, SessionLost
from tests.contract.cutting import CuttingProxy
from tests.contract.expiring import expire
from tests.contract.planes import STEADY_S, Plane
from tests.waiting import eventually

Sessions = Callable[..., Session]
SECRET = "correct horse battery"


def test_a_session_and_what_it_holds_survive_every_disturbance(
    plane: Plane, another: Sessions
) -> None:
    session, observer = another(STEADY_S), another(STEADY_S)
    number = session.session_id
    held = Lock(session, "door", "me").acquire()
    Membership(session, "/here").join("me", {"n": 1})

    def seen(wanted: dict[str, str]) -> bool:
        return bool(Config(observer, "/settings").get().value == wanted)

    for how in plane.disturbances:
        plane.disturb(how)
        wanted = {"after": how}
        Config(session, "/settings").put(wanted)
        # A leader that was paused and replaced answers from its own memory until it knows.
        eventually(partial(seen, wanted), "it is seen")
        eventually(lambda: session.state is SessionState.CONNECTED, f"connected again after: {how}")
        assert session.session_id == number, f"after: {how}"
        assert list(Membership(observer, "/here").members()) == ["me"]
        assert [one.token for one in Lock(observer, "door").holders()] == [held.token]
        assert not held.lost


def test_an_expired_session_is_lost_and_a_new_one_revives_nothing(
    session: Session, another: Sessions
) -> None:
    states: list[SessionState] = []
    threads: set[str] = set()

    def listener(state: SessionState) -> None:
        states.append(state)
        threads.add(threading.current_thread().name)
        raise ValueError("a listener of a user may fail")

    session.add_listener(listener)
    held = Lock(session, "door").acquire()
    old = session.session_id
    expire(session)
    assert session.session_id != old
    assert held.lost
    assert held.wait_lost(0)
    with pytest.raises(SessionLost):
        held.check()
    assert Lock(another(), "door").holders() == []
    held.release()
    eventually(lambda: states[-1:] == [SessionState.CONNECTED], "the listener is told to the end")
    # It may have been connected for a moment in between: its session was taken, then ended.
    assert states[0] is SessionState.SUSPENDED
    assert states[-2:] == [SessionState.LOST, SessionState.CONNECTED]
    assert states.count(SessionState.LOST) == 1
    assert threads == {"holdfast-listeners"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_answer_that_breaks_kazoos_thread_costs_the_session_and_no_more(
    plane: Plane, session: Session, closing: ExitStack
) -> None:
    proxy = closing.enter_context(CuttingProxy(plane.a_port()))
    confused = closing.enter_context(connect(plane.by_port(proxy.port)))
    held = Lock(confused, "door").acquire()
    old = confused.session_id
    proxy.confuse()
    eventually(lambda: confused.session_id not in (0, old), "a new session")
    assert held.lost
    with Lock(confused, "door").holding(timeout_s=60) as again:
        assert again.token > held.token


def test_a_waiter_whose_session_is_lost_is_told(session: Session, another: Sessions) -> None:
    other = another()
    Lock(other, "door").acquire()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(Lock(session, "door").acquire)
        eventually(Lock(other, "door").waiting, "it stands in line")
        expire(session)
        with pytest.raises(SessionLost):
            waiting.result(60)


def test_closing_gives_up_everything_at_once(session: Session, another: Sessions) -> None:
    observer = another()
    held = Lock(session, "door").acquire()
    Membership(session, "/here").join("me")
    session.close()
    session.close()
    assert session.state is SessionState.CLOSED
    assert session.session_id == 0
    assert held.lost
    assert Lock(observer, "door").holders() == []
    assert Membership(observer, "/here").members() == {}
    with pytest.raises(SessionLost):
        Config(session, "/settings").get()


def test_a_waiter_that_gave_up_in_an_outage_is_removed_when_the_plane_answers_again(
    plane: Plane, session: Session, closing: ExitStack
) -> None:
    proxy = closing.enter_context(CuttingProxy(plane.a_port()))
    waiter = closing.enter_context(connect(plane.by_port(proxy.port, timeout_s=10)))
    Lock(session, "door", "holder").acquire()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(Lock(waiter, "door", "waiter").acquire, 0.5)
        eventually(lambda: Lock(session, "door").waiting(), "it stands in line")
        proxy.go_dark()
        with pytest.raises(RetryError):
            waiting.result(60)
    assert waiter.state is not SessionState.CONNECTED
    proxy.light_up()
    eventually(lambda: not Lock(session, "door").waiting(), "nothing is left in the line")


def test_what_a_user_writes_is_closed_to_others_and_the_password_is_never_shown(
    plane: Plane,
    session: Session,
    closing: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("A_PASSWORD", SECRET)
    caplog.set_level(logging.DEBUG)
    # Alice has no part in the plane's secret, but for a node that is open to everybody.
    client, root = vars(session)["_client"], vars(session)["_target"].chroot
    client.create(f"{root}/shared", acl=OPEN_ACL_UNSAFE)
    address = f"zk://127.0.0.1:{plane.a_port()}{root}?user=alice&password_env=A_PASSWORD"
    alice = closing.enter_context(connect(address))
    with pytest.raises(Refused):
        Config(alice, "/private").put({"n": 1})
    Config(alice, "/shared/private").put({"n": 1})
    with pytest.raises(Refused) as refused:
        Config(session, "/shared/private").get()
    assert Config(alice, "/shared/private").get().value == {"n": 1}
    shown = [caplog.text, repr(alice), str(refused.value), repr(vars(alice)["_target"])]
    assert not any(SECRET in text for text in shown)
    assert "alice" in shown[-1]


def test_watches_of_waiters_that_gave_up_are_forgotten(session: Session, another: Sessions) -> None:
    Lock(another(), "door").acquire()
    before = session.nodes.waiting
    lock = Lock(session, "door")
    for _ in range(5):
        with pytest.raises(Exception, match="not free in time"):
            lock.acquire(timeout_s=0.02)
    assert session.nodes.waiting == before
