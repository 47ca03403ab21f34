"""Following: what has changed meanwhile is read once."""

from __future__ import annotations

import threading

from holdfast.coordination.follow import Follow
from holdfast.coordination.waits import Wake
from holdfast.wire.errors import HoldfastError, SessionLost, Unavailable

WAIT_S = 120.0


class Line:
    """A session that is never over."""

    over = False

    def on_change(self, wake: Wake) -> None: ...

    def forget(self, wake: Wake) -> None: ...


def test_what_changes_again_during_the_pause_is_read_once() -> None:
    present, reads = [1], list[int]()
    wakes: list[Wake] = []
    told, paused, go_on = threading.Semaphore(0), threading.Event(), threading.Event()

    def read(wake: Wake) -> int:
        wakes.append(wake)
        reads.append(present[0])
        return present[0]

    def pause_s() -> float:
        paused.set()
        go_on.wait(WAIT_S)
        return 0.0

    with Follow(Line(), "a number", read, lambda _: told.release(), pause_s):
        assert told.acquire(timeout=WAIT_S), "the first state is told at once"
        for number in (2, 3, 4):
            present[0] = number
            wakes[0]()
            assert paused.wait(WAIT_S)
        go_on.set()
        assert told.acquire(timeout=WAIT_S)
    assert reads == [1, 4]


def test_following_goes_on_after_a_read_that_failed_by_a_bug() -> None:
    told = threading.Event()
    failures = [ValueError("what was read is not what anybody foresaw")]

    def read(_wake: Wake) -> int:
        if failures:
            raise failures.pop()
        return 1

    with Follow(Line(), "a number", read, lambda _: told.set()):
        assert told.wait(WAIT_S)


def test_a_change_right_after_the_read_is_slept_through() -> None:
    """The watch fires before the reader has come back: it was woken already, and reads again."""
    present, told, seen = [1], threading.Semaphore(0), list[int]()

    def read(wake: Wake) -> int:
        found = present[0]
        if found == 1:
            present[0] = 2
            wake()
        return found

    def tell(number: int) -> None:
        seen.append(number)
        told.release()

    with Follow(Line(), "a number", read, tell):
        for _ in range(2):
            assert told.acquire(timeout=WAIT_S), f"only {seen} was told"
    assert seen == [1, 2]


def test_a_callback_that_lost_its_session_half_way_never_hears_of_that_state_again() -> None:
    """No further change may come for hours: what it did not finish stays undone."""
    seen, through = list[int](), threading.Event()
    failures: list[HoldfastError] = [SessionLost("it expired"), Unavailable("nobody answers")]

    def tell(number: int) -> None:
        seen.append(number)
        if failures:
            raise failures.pop()
        through.set()

    with Follow(Line(), "a number", lambda _wake: 7, tell):
        assert through.wait(WAIT_S)
    assert seen == [7, 7, 7]
