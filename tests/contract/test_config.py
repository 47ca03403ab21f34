"""Configuration: versions, compare-and-set, and watchers that see the present value."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from holdfast.coordination import ABSENT, Config, Election, Session, Versioned
from holdfast.wire.errors import Conflict, Corrupt, Usage
from tests.contract.actors import Actor
from tests.contract.expiring import expire
from tests.contract.planes import STEADY_S, Plane
from tests.waiting import eventually

Sessions = Callable[..., Session]
Actors = Callable[..., Actor]


def test_a_value_is_written_upon_the_version_that_was_read_or_not_at_all(
    session: Session, another: Sessions
) -> None:
    mine, other = Config(session, "/a/b/settings"), Config(another(), "/a/b/settings")
    assert mine.get() == Versioned(None, ABSENT)
    assert mine.put({"rate": 0.1}, expect=ABSENT) == 0
    assert other.get() == Versioned({"rate": 0.1}, 0)
    with pytest.raises(Conflict):
        other.put({"rate": 0.2}, expect=ABSENT)
    assert other.put({"rate": 0.2}, expect=0) == 1
    with pytest.raises(Conflict) as conflict:
        mine.put({"rate": 0.3}, expect=0)
    assert "has version 1, not 0" in str(conflict.value)
    assert mine.put(["anything", None, 1.5]) == 2
    assert other.get() == Versioned(["anything", None, 1.5], 2)


def test_what_is_not_json_or_too_large_is_refused(session: Session) -> None:
    config = Config(session, "/settings")
    for value in ({1, 2}, object(), "x" * 1_000_000):
        with pytest.raises(Usage):
            config.put(value)
    assert config.get().version == ABSENT
    session.nodes.create("/foreign", b"not ours")
    with pytest.raises(Corrupt):
        Config(session, "/foreign").get()


def test_concurrent_updates_by_processes_are_all_counted_while_the_plane_is_disturbed(
    plane: Plane, session: Session, actor: Actors
) -> None:
    counters = [actor(8) for _ in range(3)]
    for counter in counters:
        counter.send("count_up", "/count", 30)
    eventually(lambda: (Config(session, "/count").get().value or {"n": 0})["n"] > 5, "they count")
    for how in plane.disturbances:
        plane.disturb(how)
    for counter in counters:
        counter.answer()
    assert Config(session, "/count").get() == Versioned({"n": 90}, 89)


def test_watchers_see_missing_made_removed_and_made_again_through_a_lost_session(
    plane: Plane, session: Session, another: Sessions
) -> None:
    watching = another(STEADY_S)
    seen: list[Versioned] = []
    config = Config(session, "/settings")
    with Config(watching, "/settings").watch(seen.append):
        eventually(lambda: seen == [Versioned(None, ABSENT)], "nothing is there")
        config.put(1)
        eventually(lambda: seen[-1] == Versioned(1, 0), "it is made")
        plane.disturb(plane.disturbances[0])
        config.put(2)
        eventually(lambda: seen[-1] == Versioned(2, 1), "it is changed")
        expire(watching)
        session.nodes.delete("/settings")
        eventually(lambda: seen[-1] == Versioned(None, ABSENT), "it is removed")
        config.put(3)
        eventually(lambda: seen[-1] == Versioned(3, 0), "it is made again")
    assert all(one != other for one, other in itertools.pairwise(seen))


def test_a_leader_writes_configuration_in_its_transaction(session: Session) -> None:
    leadership = Election(session, "/lead").campaign()
    one, two = Config(session, "/one"), Config(session, "/two")
    transaction = leadership.transaction()
    one.put_in(transaction, 1, expect=ABSENT)
    two.put_in(transaction, 2, expect=ABSENT)
    transaction.commit()
    assert (one.get(), two.get()) == ((1, 0), (2, 0))
    with pytest.raises(Conflict):
        one.put_in(leadership.transaction(), 9, expect=7)
    late = leadership.transaction()
    one.put_in(late, 3, expect=0)
    one.put(4)
    with pytest.raises(Conflict):
        late.commit()
    assert one.get() == (4, 1)
