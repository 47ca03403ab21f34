"""The checker of topics finds what is wrong with a history, and nothing where all is well."""

from __future__ import annotations

import pytest

from simulation.topics.checker import check
from simulation.topics.history import Fate, History, Owned, Place, SeenRecord, Sent

IN, OUT = Place("in", 0), Place("out", 0)
OTHER = Place("in", 1)


def sound() -> History:
    """Two plain records, a committed and an aborted transaction, copies, a group."""
    history = History()
    history.sent = [
        Sent("a", "w", IN),
        Sent("b", "w", IN),
        Sent("t.0", "w", IN, "t"),
        Sent("t.1", "w", OTHER, "t"),
        Sent("x.0", "w", IN, "x"),
        *(Sent(f"{one}|c", "c", OUT, "c", one) for one in ("a", "b", "t.0")),
        Sent("t.1|d", "d", Place("out", 1), "d", "t.1"),
    ]
    history.acknowledged = {"a": 0, "b": 1, "t.0": 2, "t.1": 0, "x.0": 3}
    history.fates = {
        "t": Fate.COMMITTED,
        "x": Fate.ABORTED,
        "c": Fate.COMMITTED,
        "d": Fate.UNKNOWN,
    }
    history.seen = [SeenRecord("r", IN, 0, "a"), SeenRecord("r", IN, 2, "t.0")]
    history.owned = [Owned("g", 1, "m", (IN, OTHER)), Owned("g", 2, "n", (IN,))]
    history.kept = {("g", IN): 2}
    history.kept_at_last = {("g", IN): 3}
    history.final = {
        IN: [(0, "a"), (1, "b"), (2, "t.0")],
        OTHER: [(0, "t.1")],
        OUT: [(0, "a|c"), (1, "b|c"), (2, "t.0|c")],
        Place("out", 1): [(0, "t.1|d")],
    }
    history.copied = {"in": "out"}
    return history


def rules(history: History) -> set[str]:
    return {one.rule for one in check(history)}


def test_a_sound_history_is_accused() -> None:
    assert check(sound()) == []


def test_a_lost_record_is_not_noticed() -> None:
    history = sound()
    history.final[IN].remove((1, "b"))
    assert "lost" in rules(history)


def test_a_lost_copy_is_not_noticed() -> None:
    history = sound()
    history.fates["c"] = Fate.UNKNOWN
    history.final[OUT].clear()
    assert rules(history) == {"lost"}


def test_a_lost_offset_of_a_group_is_not_noticed() -> None:
    history = sound()
    history.kept_at_last.clear()
    assert rules(history) == {"lost"}


def test_a_doubled_record_is_not_noticed() -> None:
    history = sound()
    history.final[IN].append((4, "b"))
    assert "doubled" in rules(history)


def test_an_offset_that_two_records_were_told_is_not_noticed() -> None:
    history = sound()
    history.acknowledged["b"] = 0
    assert "doubled" in rules(history)


def test_a_record_that_was_copied_twice_is_not_noticed() -> None:
    history = sound()
    history.sent.append(Sent("a|e", "e", OUT, "e", "a"))
    history.final[OUT].append((3, "a|e"))
    assert rules(history) == {"doubled"}


def test_records_in_another_order_are_not_noticed() -> None:
    history = sound()
    history.acknowledged.clear()
    history.seen.clear()
    history.final[IN] = [(0, "b"), (1, "a"), (2, "t.0")]
    assert rules(history) == {"reordered"}


def test_an_offset_that_differs_from_the_acknowledged_one_is_not_noticed() -> None:
    history = sound()
    history.acknowledged["b"] = 7
    assert rules(history) == {"reordered"}


@pytest.mark.parametrize("how", ["at the end", "on the way"])
def test_an_aborted_record_that_is_seen_is_not_noticed(how: str) -> None:
    history = sound()
    if how == "at the end":
        history.final[IN].append((3, "x.0"))
    else:
        history.seen.append(SeenRecord("r", IN, 3, "x.0"))
    assert "aborted" in rules(history)


def test_half_of_a_transaction_is_not_noticed() -> None:
    history = sound()
    history.fates["t"] = Fate.UNKNOWN
    history.final[OTHER].clear()
    assert "torn" in rules(history)


def test_a_record_that_nobody_sent_is_not_noticed() -> None:
    history = sound()
    history.final[OTHER].append((1, "ghost"))
    assert "invented" in rules(history)


def test_a_reader_that_was_given_something_else_is_not_noticed() -> None:
    history = sound()
    history.seen.append(SeenRecord("r", IN, 1, "t.0"))
    assert rules(history) == {"changed"}


def test_two_owners_of_a_partition_in_a_generation_are_not_noticed() -> None:
    history = sound()
    history.owned.append(Owned("g", 2, "m", (IN,)))
    assert rules(history) == {"two owners"}
