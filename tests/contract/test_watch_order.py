"""A watch is set by the read itself: what changes right after the answer is told."""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.coordination import Config, Session, Versioned
from tests.contract.interleaving import after_first
from tests.waiting import eventually

Sessions = Callable[..., Session]


def test_a_change_between_a_read_and_its_watch_is_never_told(
    session: Session, another: Sessions
) -> None:
    other = Config(another(), "/settings")
    other.put(1)
    seen: list[Versioned] = []
    with (
        after_first(session._client, "get_async", lambda: other.put(2)),
        Config(session, "/settings").watch(seen.append),
    ):
        eventually(lambda: seen[-1:] == [Versioned(2, 1)], "the change is told")


def test_a_node_made_between_the_look_for_it_and_the_watch_is_never_told(
    session: Session, another: Sessions
) -> None:
    other = another()
    woken = threading.Event()
    with after_first(session._client, "get_async", lambda: other.nodes.create("/new", b"1")):
        found = session.nodes.read("/new", woken.set)
    if found is not None:  # a server of an ensemble that is behind may not have it yet
        other.nodes.delete("/new")
    eventually(woken.is_set, "its removal wakes, or that it was made")


def test_a_node_made_after_a_look_that_found_none_is_never_told(
    session: Session, another: Sessions
) -> None:
    woken = threading.Event()
    assert session.nodes.read("/new", woken.set) is None
    another().nodes.create("/new", b"1")
    eventually(woken.is_set, "that it was made wakes")


def test_a_child_made_between_a_listing_and_its_watch_is_never_told(
    session: Session, another: Sessions
) -> None:
    other = another()
    other.nodes.create("/all", b"")
    woken = threading.Event()
    make = lambda: other.nodes.create("/all/one", b"")  # noqa: E731 - what is done, by its name
    with after_first(session._client, "get_children_async", make):
        assert session.nodes.children("/all", woken.set) == []
    eventually(woken.is_set, "the new child wakes")


def test_one_of_several_that_changes_between_the_read_and_its_watch_is_never_told(
    session: Session, another: Sessions
) -> None:
    other = Config(another(), "/b")
    session.nodes.create("/a", b"")
    other.put(1)
    woken = threading.Event()
    with after_first(session._client, "get_async", lambda: other.put(2)):
        session.nodes.read_all([("/b", woken.set), ("/a", None)])
    eventually(woken.is_set, "the change wakes")


def test_the_end_of_a_node_between_the_look_and_its_watch_is_never_told(
    session: Session, another: Sessions
) -> None:
    other = another()
    other.nodes.create("/mine", b"")
    woken = threading.Event()
    remove = lambda: other.nodes.delete("/mine")  # noqa: E731 - what is done, by its name
    with after_first(session._client, "get_children_async", remove):
        assert session.nodes.watch_end("/mine", woken.set)
    eventually(woken.is_set, "its end wakes")
