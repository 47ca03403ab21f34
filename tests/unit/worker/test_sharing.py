"""What a script shares, without a cluster; and what is refused before anybody is asked."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.wire import sharing, worker_messages
from holdfast.wire.errors import Conflict, Refused, SessionLost, TimedOut, Unavailable, Usage
from holdfast.wire.sharing import HELD, LOST, SHARED_SEMAPHORE_MAX, SharedValue, Want, WantState
from holdfast.worker.sharing import SharedHold, SharingAlone, lock, semaphore


def test_alone_a_lock_has_one_holder_at_a_time_and_its_token_grows() -> None:
    shared = SharingAlone()
    with lock(shared, "licence", None) as held:
        held.check()
        assert not held.lost
        with ThreadPoolExecutor() as pool:
            other = pool.submit(lock, shared, "licence", 0.0)
            with pytest.raises(TimedOut, match="was not free in time"):
                other.result()
            waiting = pool.submit(lock, shared, "licence", None)
            held.release()
            later = waiting.result()
    assert held.lost
    assert later.token > held.token
    with pytest.raises(SessionLost):
        held.check()


def test_a_lock_that_this_thread_holds_is_not_waited_for() -> None:
    shared = SharingAlone()
    with (
        lock(shared, "licence", None),
        pytest.raises(Usage, match="held by this thread already"),
    ):
        lock(shared, "licence", None)


def test_alone_a_semaphore_has_as_many_holders_as_it_counts() -> None:
    shared, inside, most = SharingAlone(), [], []
    room = threading.Barrier(2)

    def work() -> None:
        with semaphore(shared, "band", 2, None):
            inside.append(1)
            most.append(len(inside))
            room.wait(30)  # two are in at the same time
            inside.pop()

    with ThreadPoolExecutor() as pool:
        for future in [pool.submit(work) for _ in range(6)]:
            future.result()
    assert max(most) == 2
    with semaphore(shared, "band", 2, None), pytest.raises(Conflict, match="with 2"):
        semaphore(shared, "band", 3, None)


def test_alone_a_value_comes_from_a_file_or_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = SharingAlone()
    assert shared.config("thresholds", [0], None).value == [0]
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"thresholds": [0.1, 0.9]}))
    monkeypatch.setenv("HOLDFAST_CONFIG", str(path))
    found = shared.config("thresholds", [0], None)
    assert (found.value, found.version) == ([0.1, 0.9], 0)
    path.write_text("[")
    with pytest.raises(Usage, match="cannot be read"):
        shared.config("thresholds", [0], None)


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 300, "ä", 7])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(Usage, match="cannot be the name of a lock"):
        lock(SharingAlone(), name, None)


@pytest.mark.parametrize("count", [0, -1, SHARED_SEMAPHORE_MAX + 1, 1.5])
def test_a_semaphore_for_a_number_that_is_none_is_refused(count: int) -> None:
    with pytest.raises(Usage, match="holders"):
        semaphore(SharingAlone(), "band", count, None)


class Lost:
    """Something that was held, and is lost."""

    what, token = "the lock 'licence'", 3

    def trouble(self) -> SessionLost:
        return SessionLost("the lock 'licence' is lost", why="a test says so")

    unsure = trouble

    def release(self) -> None:
        pass


def test_the_end_of_a_with_says_that_the_lock_was_lost_unless_something_worse_happened() -> None:
    with pytest.raises(SessionLost, match="is lost"), SharedHold(Lost()):
        pass
    with pytest.raises(ValueError, match="worse"), SharedHold(Lost()):
        raise ValueError("worse")


def test_what_travels_arrives_as_it_was() -> None:
    wants = [Want(1, "lock", "a"), Want(2, "semaphore", "b", 3, 17.5, 42)]
    kind, body = worker_messages.parse(sharing.wants_line(9, wants, {"x"}))
    assert kind == sharing.SHARED
    assert sharing.wants_from(body) == (9, wants, ["x"])
    lost = WantState(LOST, error=SessionLost("gone", why="a", fix="b"))
    _, body = worker_messages.parse(
        sharing.want_states_line({1: WantState(HELD, 5, 1.0, 2.0), 2: lost})
    )
    found = sharing.want_states_from(body)
    assert found[1] == WantState(HELD, 5, 1.0, 2.0)
    error = found[2].error
    assert isinstance(error, SessionLost)
    assert (error.what, error.why, error.fix) == ("gone", "a", "b")
    _, body = worker_messages.parse(sharing.value_line(SharedValue("x", {"a": [1]}, 4)))
    assert sharing.value_from(body) == SharedValue("x", {"a": [1]}, 4)


def test_an_error_that_is_not_known_here_may_be_tried_again() -> None:
    for kind in ("Newer", "Sequence", "annotations"):
        _, body = worker_messages.parse(
            worker_messages.line(
                sharing.SHARED,
                {
                    "1": {
                        **{"state": "refused", "token": 0, "sure_s": 0, "over_s": 0},
                        "error": {"kind": kind, "what": "w", "why": "", "fix": ""},
                    }
                },
            )
        )
        assert isinstance(sharing.want_states_from(body)[1].error, Unavailable)


@pytest.mark.parametrize(
    "want",
    [
        {"id": 1, "kind": "lock", "name": "../../jobs/x"},
        {"id": 1, "kind": "other", "name": "x"},
        {"id": "1", "kind": "lock", "name": "x"},
        {"id": 1, "kind": "semaphore", "name": "x", "count": 10**9},
        {"id": 1, "kind": "lock", "name": "x", "until_s": "soon"},
        {"id": 1},
        7,
    ],
)
def test_a_want_that_is_none_is_not_taken(want: object) -> None:
    body = {"serial": 1, "wants": [want], "follows": []}
    with pytest.raises((KeyError, TypeError, ValueError, Usage, Refused)):
        sharing.wants_from(body)
