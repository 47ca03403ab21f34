"""Watches: every waiter is woken by a change after it asked, and one that gave up is forgotten."""

from __future__ import annotations

from holdfast.coordination.waits import Deadline, WatchRegistry


def test_all_who_wait_for_one_thing_share_one_watcher_and_are_all_woken() -> None:
    watches, woken = WatchRegistry(), []
    first = watches.add(("data", "/a"), lambda: woken.append(1))
    second = watches.add(("data", "/a"), lambda: woken.append(2))
    other = watches.add(("children", "/a"), lambda: woken.append(3))
    assert first == second
    assert first != other
    assert first is not None
    first(None)
    assert sorted(woken) == [1, 2]
    assert len(watches) == 1


def test_a_waiter_that_gave_up_is_not_kept_and_not_woken() -> None:
    watches, woken = WatchRegistry(), []
    wake = lambda: woken.append(1)  # noqa: E731
    fire = watches.add(("data", "/a"), wake)
    watches.add(("children", "/a"), wake)
    watches.forget(wake)
    assert len(watches) == 0
    assert fire is not None
    fire(None)
    assert woken == []


def test_a_waiter_that_asked_before_an_old_watch_fired_is_woken_by_it_and_by_the_next() -> None:
    watches, woken = WatchRegistry(), []
    old = watches.add(("data", "/a"), lambda: woken.append("first"))
    again = watches.add(("data", "/a"), lambda: woken.append("second"))
    assert old is not None
    assert old == again
    old(None)
    assert sorted(woken) == ["first", "second"]
    later = watches.add(("data", "/a"), lambda: woken.append("third"))
    assert later is not None
    assert later != old
    old(None)  # the answer of the second's own question had registered the old watcher again
    assert len(watches) == 1
    later(None)
    assert woken[-1] == "third"


def test_without_a_wake_there_is_no_watcher() -> None:
    assert WatchRegistry().add(("data", "/a"), None) is None


def test_a_deadline_is_the_earlier_of_two() -> None:
    assert Deadline(None).left_s() is None
    assert not Deadline(None).passed
    assert Deadline(0).passed
    assert Deadline(-5).left_s() == 0
    assert (Deadline(None).within(5).left_s() or 0) > 4
    assert (Deadline(1).within(5).left_s() or 9) <= 1
    assert (Deadline(50).within(5).left_s() or 9) <= 5


def test_a_watch_that_will_never_fire_is_removed_again() -> None:
    watches = WatchRegistry()
    mine, other = (lambda: None), (lambda: None)
    for path in ("/a", "/b"):
        watch = watches.add(("data", path), mine)
        watches.settle(watch, mine, placed=False)
    assert len(watches) == 0
    assert not watches._watches
    # One that somebody else's watch rings stays, with all who wait behind it.
    watches.settle(watches.add(("data", "/a"), other), other, placed=True)
    watches.settle(watches.add(("data", "/a"), mine), mine, placed=False)
    assert len(watches) == 2
