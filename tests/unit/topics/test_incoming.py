"""Memory of half frames: who is read from, who waits, who is ended."""

from __future__ import annotations

from holdfast.topics.broker.incoming import STUCK_S, IncomingMemory


class Link:
    def __init__(self, memory: IncomingMemory, principal: str = "User:a") -> None:
        self.memory = memory
        self.principal = principal
        self.missing_bytes = 0
        self.peer = "somebody"
        self.is_held = False
        self.is_ended = False

    def hold_reading(self, hold: bool) -> None:
        self.is_held = hold

    def abort(self) -> None:
        self.is_ended = True

    def gets(self, size: int, missing: int) -> None:
        """So much is held now, and so much lacks."""
        self.missing_bytes = missing
        self.memory.note(self, size)


def test_within_the_limit_everybody_is_read_from() -> None:
    memory = IncomingMemory(100, 50, 10)
    links = [Link(memory) for _ in range(10)]
    for link in links:
        link.gets(10, 90)
    assert memory.total == 100
    assert not any(link.is_held for link in links)


def test_beyond_it_one_after_the_other_comes_through_the_shortest_first() -> None:
    memory = IncomingMemory(100, 100, 10)
    large, middle, small = Link(memory), Link(memory), Link(memory)
    large.gets(60, 90)
    middle.gets(40, 20)
    small.gets(5, 1)
    assert (large.is_held, middle.is_held, small.is_held) == (False, False, False)
    middle.gets(45, 15)
    large.gets(65, 85)
    assert (large.is_held, middle.is_held, small.is_held) == (True, True, False)
    small.gets(0, 0)
    assert (large.is_held, middle.is_held) == (True, False), "the one that lacks less goes on"
    middle.gets(0, 0)
    assert not large.is_held
    assert memory.total == 65


def test_who_keeps_the_others_waiting_is_ended() -> None:
    memory = IncomingMemory(100, 100, 10)
    stuck, waits = Link(memory), Link(memory)
    stuck.gets(90, 10)
    waits.gets(20, 50)
    waits.gets(21, 49)
    stuck.gets(91, 9)
    memory.sweep(1_000.0)
    assert not stuck.is_ended
    memory.sweep(1_000.0 + STUCK_S + 1)
    assert stuck.is_ended
    assert not waits.is_ended
    assert not waits.is_held
    assert memory.total == 21


def test_much_beyond_it_the_largest_is_ended() -> None:
    memory = IncomingMemory(100, 50, 10)
    links = [Link(memory) for _ in range(8)]
    for at, link in enumerate(links):
        link.gets(20 + at, 50)
    assert [link.is_ended for link in links].count(True) == 2
    assert memory.total <= 150


def test_who_has_not_logged_in_has_little_and_takes_nothing_from_others() -> None:
    memory = IncomingMemory(100, 50, 10)
    known = Link(memory)
    known.gets(90, 10)
    strangers = [Link(memory, "") for _ in range(4)]
    for at, link in enumerate(strangers):
        link.gets(3 + at, 5)
    assert memory.strangers_total <= 10
    assert any(link.is_ended for link in strangers)
    assert not known.is_ended
    assert not known.is_held


def test_who_logs_in_is_counted_among_the_others_and_who_ends_nowhere() -> None:
    memory = IncomingMemory(100, 50, 10)
    link = Link(memory, "")
    link.gets(5, 1)
    link.principal = "User:a"
    link.gets(7, 1)
    assert (memory.strangers_total, memory.total) == (0, 7)
    memory.drop(link)
    assert (memory.strangers_total, memory.total) == (0, 0)
