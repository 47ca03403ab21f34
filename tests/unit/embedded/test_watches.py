"""Who is told what, as a real ZooKeeper 3.8.0 was seen to tell."""

from __future__ import annotations

import gc
import random
import weakref

import pytest

from holdfast.coordination.embedded import protocol as p
from holdfast.coordination.embedded.protocol import OperationError
from holdfast.coordination.embedded.transactions import TreeEvent
from holdfast.coordination.embedded.watches import CHILD, DATA, WatchTable

CREATED = TreeEvent(p.EVENT_CREATED, "/a/b", ())
CHANGED = TreeEvent(p.EVENT_DATA_CHANGED, "/a/b", ())
DELETED = TreeEvent(p.EVENT_DELETED, "/a/b", ())
CHILDREN = TreeEvent(p.EVENT_CHILDREN_CHANGED, "/a", ())


def told(table: WatchTable[str], event: TreeEvent) -> list[str]:
    fired = table.fire(event)
    assert all(entry[1:] == (event.type, event.path) for entry in fired)
    return sorted(watcher for watcher, _, _ in fired)


@pytest.mark.parametrize("event", [CREATED, CHANGED, DELETED])
def test_a_data_watch_fires_once_for_what_happens_to_its_node(event: TreeEvent) -> None:
    table: WatchTable[str] = WatchTable()
    table.add("one", DATA, "/a/b")
    assert told(table, CHILDREN) == []
    assert told(table, event) == ["one"]
    assert told(table, event) == []
    assert table.count == 0


def test_a_child_watch_fires_for_children_and_for_the_end_of_its_node() -> None:
    table: WatchTable[str] = WatchTable()
    table.add("one", CHILD, "/a")
    table.add("two", CHILD, "/a/b")
    assert told(table, CHANGED) == []
    assert told(table, DELETED) == ["two"]
    assert told(table, CHILDREN) == ["one"]
    assert table.count == 0


def test_a_delete_is_told_once_to_one_who_watches_data_and_children() -> None:
    table: WatchTable[str] = WatchTable()
    for _ in range(2):
        table.add("one", DATA, "/a/b")
        table.add("one", CHILD, "/a/b")
    assert table.count == 2
    assert told(table, DELETED) == ["one"]
    assert table.count == 0


def test_a_persistent_watch_goes_on_firing_for_its_own_path_only() -> None:
    table: WatchTable[str] = WatchTable()
    table.add_persistent("one", "/a", recursive=False)
    for _ in range(2):
        assert told(table, CHILDREN) == ["one"]
        assert told(table, CREATED) == []


def test_a_recursive_watch_fires_for_all_below_and_never_for_children() -> None:
    table: WatchTable[str] = WatchTable()
    table.add_persistent("root", "/", recursive=True)
    table.add_persistent("near", "/a", recursive=True)
    table.add_persistent("same", "/a/b", recursive=True)
    table.add_persistent("prefix", "/a/bb", recursive=True)
    for event in (CREATED, CHANGED, DELETED):
        assert told(table, event) == ["near", "root", "same"]
    assert told(table, CHILDREN) == []


def test_one_who_watches_twice_over_is_told_once() -> None:
    table: WatchTable[str] = WatchTable()
    table.add_persistent("one", "/", recursive=True)
    table.add("one", DATA, "/a/b")
    assert told(table, CHANGED) == ["one"]
    assert table.count == 2


def test_a_one_shot_watch_takes_the_place_of_a_persistent_one_as_in_3_8() -> None:
    table: WatchTable[str] = WatchTable()
    table.add_persistent("one", "/a/b", recursive=True)
    table.add("one", DATA, "/a/b")
    assert told(table, CHANGED) == ["one"]
    assert told(table, CHANGED) == []
    assert told(table, DELETED) == ["one"]
    assert told(table, DELETED) == ["one"]


def test_watches_are_removed_by_kind_and_only_ones_own() -> None:
    table: WatchTable[str] = WatchTable()
    table.add("one", DATA, "/a")
    table.add_persistent("two", "/a", recursive=False)
    assert not table.remove("one", "/a", p.WATCHER_CHILDREN)
    assert table.remove("one", "/a", p.WATCHER_DATA)
    assert not table.remove("one", "/a", p.WATCHER_ANY)
    assert table.remove("two", "/a", p.WATCHER_CHILDREN)
    assert table.remove("two", "/a", p.WATCHER_ANY)
    assert (table.count, table.path_count, table.watcher_count) == (0, 0, 0)


def test_a_check_sees_watches_of_others_and_stumbles_over_bad_paths_as_in_3_8() -> None:
    table: WatchTable[str] = WatchTable()
    table.add("one", DATA, "/a")
    assert table.has("two", "/a", p.WATCHER_DATA)
    assert table.has("two", "/a", p.WATCHER_ANY)
    assert not table.has("one", "/a", p.WATCHER_CHILDREN)
    assert not table.has("one", "a/b", p.WATCHER_ANY)
    assert not table.has("one", "", p.WATCHER_ANY)
    table.add_persistent("one", "/x", recursive=True)
    for path, kind in (("a/b", p.WATCHER_ANY), ("a", p.WATCHER_DATA), ("/a", 0), ("/a", 7)):
        with pytest.raises(OperationError) as refusal:
            table.has("one", path, kind)
        assert refusal.value.code == p.MARSHALLING_ERROR


def test_limits_are_kept_for_one_watcher_and_for_all() -> None:
    table: WatchTable[str] = WatchTable(watches_max=4, per_watcher_max=3)
    table.add("one", DATA, "/a")
    table.add_persistent("one", "/b", recursive=False)
    with pytest.raises(OperationError) as refusal:
        table.add("one", CHILD, "/c")
    assert refusal.value.code == p.QUOTA_EXCEEDED
    with pytest.raises(OperationError):
        table.add_persistent("two", "/b", recursive=False)
    table.add("two", DATA, "/a")
    table.drop("one")
    table.add_persistent("two", "/b", recursive=True)
    assert table.count == 3


def test_watching_the_same_again_needs_no_room() -> None:
    table: WatchTable[str] = WatchTable(watches_max=3, per_watcher_max=3)
    table.add("one", DATA, "/a")
    table.add_persistent("one", "/b", recursive=False)
    for _ in range(3):
        table.add("one", DATA, "/a")
        table.add_persistent("one", "/b", recursive=True)
    assert table.count == 3


def test_after_a_drop_nothing_refers_to_the_watcher() -> None:
    class Connection:
        pass

    table: WatchTable[Connection] = WatchTable()
    connection = Connection()
    table.add(connection, DATA, "/a/b")
    table.add(connection, CHILD, "/a")
    table.add_persistent(connection, "/a/b", recursive=True)
    table.fire(CHILDREN)
    table.drop(connection)
    gone = weakref.ref(connection)
    del connection
    gc.collect()
    assert gone() is None
    assert (table.count, table.path_count, table.watcher_count) == (0, 0, 0)


def test_counts_are_right_under_random_use() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    table: WatchTable[int] = WatchTable()
    names = ["/", "/a", "/a/b", "/a/b/c", "/d"]
    for _ in range(5_000):
        who, path = chance.randrange(6), chance.choice(names)
        action = chance.randrange(6)
        if action == 0:
            table.add(who, chance.choice([DATA, CHILD]), path)
        elif action == 1:
            table.add_persistent(who, path, recursive=chance.random() < 0.5)
        elif action == 2:
            table.remove(who, path, chance.choice([1, 2, 3]))
        elif action == 3:
            table.drop(who)
            assert table.count_of(who) == 0
        else:
            fired = [one for one, _, _ in table.fire(TreeEvent(chance.randint(1, 4), path, ()))]
            assert len(fired) == len(set(fired))
        assert table.count == sum(table.count_of(one) for one in range(6))
        assert table.watcher_count == sum(table.count_of(one) > 0 for one in range(6))
    for who in range(6):
        table.drop(who)
    table.add_persistent(9, "/a", recursive=False)
    assert table.fire(TreeEvent(p.EVENT_CREATED, "/a/b", ())) == []
    table.drop(9)
    assert (table.count, table.path_count, table.watcher_count) == (0, 0, 0)
