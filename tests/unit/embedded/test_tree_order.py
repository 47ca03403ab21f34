"""The order in which Java's hash tables give what they hold, as a JVM gave it."""

from __future__ import annotations

from holdfast.coordination.embedded import java_order
from holdfast.coordination.embedded import protocol as p
from holdfast.coordination.embedded.transactions import Delete, Multi
from holdfast.coordination.embedded.tree import Tree
from tests.unit.embedded.tree_driver import Driver, create


def test_string_hashes_are_javas() -> None:
    assert java_order.string_hash("") == 0
    assert java_order.string_hash("hello") == 99162322
    assert java_order.string_hash("polygenelubricants") == 1 << 31
    assert java_order.string_hash("\U0001f600") == 31 * 0xD83D + 0xDE00


def test_slots_double_above_three_quarters_and_never_shrink() -> None:
    assert [java_order.grown(16, count) for count in (0, 12, 13, 24, 25)] == [16, 16, 32, 32, 64]
    assert java_order.grown(64, 1) == 64


def test_a_copy_is_ordered_by_slot_then_as_in_the_original() -> None:
    # One character each, so that the hash is the character itself.
    texts = ["\x31", "\x21", "\x11", "\x02", "\x01"]
    # Five need eight slots: 0x31, 0x21, 0x11 and 0x01 share one, in the original's order.
    assert java_order.copy_order(texts, 16) == ["\x31", "\x21", "\x11", "\x01", "\x02"]
    assert java_order.copy_order(texts, 64) == ["\x01", "\x11", "\x21", "\x31", "\x02"]


def test_ephemerals_go_in_zookeepers_order_when_their_session_ends() -> None:
    driver = Driver()
    names = [f"/e{number}" for number in range(20)]
    for name in names:
        driver.make(name, p.FLAG_EPHEMERAL)
    gone = [event.path for event in driver.close().events if event.type == p.EVENT_DELETED]
    assert gone == java_order.copy_order(names, 32)
    assert gone != names


def test_the_order_survives_a_failed_multi_and_a_snapshot() -> None:
    driver = Driver()
    # Names whose hashes share all the low bits, so that only their age decides.
    names = ["/Aa", "/BB", "/C#"]
    assert len({java_order.string_hash(name) for name in names}) == 1
    for name in names:
        driver.make(name, p.FLAG_EPHEMERAL)
    driver.outcome(Multi((Delete("/Aa", -1), create("/x"), Delete("/missing", -1))))
    assert driver.tree.ephemerals_of(driver.session) == names
    copy = Tree.from_rows(driver.tree.rows(), driver.tree.last_zxid)
    assert copy.ephemerals_of(driver.session) == names


def test_a_failed_multi_leaves_the_slots_as_they_were() -> None:
    driver = Driver()
    driver.make("/first", p.FLAG_EPHEMERAL)
    rows = list(driver.tree.rows())
    more = tuple(create(f"/e{number}", p.FLAG_EPHEMERAL) for number in range(20))
    driver.outcome(Multi((*more, Delete("/missing", -1))))
    assert list(driver.tree.rows()) == rows
    driver.outcome(Multi(more))
    assert driver.tree.sessions[driver.session].slots == 32
