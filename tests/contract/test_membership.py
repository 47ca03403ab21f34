"""Members: seen while their sessions live, back by themselves, and one for each name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from holdfast.coordination import Membership, Session
from holdfast.coordination.embedded import protocol
from holdfast.coordination.membership import Members
from holdfast.coordination.nodes import Op
from holdfast.wire.errors import Fenced, Usage
from tests.contract.actors import Actor
from tests.contract.cutting import CuttingProxy
from tests.contract.expiring import expire
from tests.contract.planes import Plane
from tests.waiting import eventually

Sessions = Callable[..., Session]
Actors = Callable[..., Actor]


def test_members_come_change_and_go(session: Session, another: Sessions) -> None:
    here = Membership(session, "/here")
    assert here.members() == {}
    one = here.join("one", {"port": 1})
    with Membership(another(), "/here").join("two", [2]):
        found = here.members()
        assert {name: info.data for name, info in found.items()} == {"one": {"port": 1}, "two": [2]}
        one.update({"port": 3})
        assert here.members()["one"].data == {"port": 3}
        with pytest.raises(TypeError):
            found["three"] = found["one"]  # type: ignore[index]
    assert list(here.members()) == ["one"]
    one.leave()
    one.leave()
    assert here.members() == {}
    with pytest.raises(Fenced):
        one.update(None)


def test_showing_other_data_is_one_request_and_the_same_data_none(
    session: Session, another: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    attempt = session.nodes.attempt

    def counted(*given: Any, **more: Any) -> Any:
        sent.append(threading.current_thread().name)
        return attempt(*given, **more)

    monkeypatch.setattr(session.nodes, "attempt", counted)
    member = Membership(session, "/here").join("me", 0)
    eventually(lambda: sent.count("member me") == 2, "it watches its node, and has looked at it")
    sent.clear()
    for number in range(1, 6):
        member.update(number)
        member.update(number)
        assert Membership(another(), "/here").members()["me"].data == number
    here = threading.current_thread().name
    assert [name for name in sent if name in (here, "member me")] == [here] * 5


def test_an_update_after_a_lost_session_joins_again(session: Session, another: Sessions) -> None:
    member = Membership(session, "/here").join("me", 1)
    member.update(2)
    expire(session)
    member.update(2)
    member.update(3)
    eventually(lambda: member.joined, "it knows that it is back")
    assert Membership(another(), "/here").members()["me"].data == 3


def test_an_update_finds_out_that_its_node_is_gone_or_was_changed(
    session: Session, another: Sessions
) -> None:
    member = Membership(session, "/here").join("me", 1)
    there = another().nodes
    there.delete("/here/me")
    member.update(2)
    before = there.read("/here/me", fresh=True)
    assert before is not None
    there.transact([Op("put", "/here/me", before.data)], there.deadline(None))
    member.update(3)
    assert Membership(another(), "/here").members()["me"].data == 3


def test_a_name_or_data_that_cannot_be_shown_is_refused(session: Session) -> None:
    here = Membership(session, "/here")
    for name in ("", "a/b", ".", "x" * 1_000):
        with pytest.raises(Usage):
            here.join(name)
    for data in ({1, 2}, "x" * 1_000_000):
        with pytest.raises(Usage):
            here.join("me", data)


def test_watchers_get_whole_snapshots_and_survive_disturbances(
    plane: Plane, session: Session, another: Sessions, actor: Actors
) -> None:
    seen: list[Members] = []

    def names() -> list[str] | None:
        return list(seen[-1]) if seen else None

    with Membership(session, "/here").watch(seen.append):
        eventually(lambda: names() == [], "nobody is here")
        member = Membership(another(10), "/here").join("one")
        eventually(lambda: names() == ["one"], "one is seen")
        for how in plane.disturbances:
            plane.disturb(how)
        other = actor()
        other.do("join", "/here", "two", {})
        eventually(lambda: names() == ["one", "two"], "two are seen")
        other.kill()
        eventually(lambda: names() == ["one"], "the killed one is gone")
        member.leave()
        eventually(lambda: names() == [], "nobody is here again")
    told = len(seen)
    Membership(session, "/here").join("three")
    assert len(seen) == told


def test_a_follower_reads_those_who_are_new_or_have_changed_and_nobody_else(
    session: Session, another: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    seen: list[Members] = []
    read_all = session.nodes.read_all

    def counted(wanted: Sequence[tuple[str, Any]], **more: Any) -> Any:
        asked.extend(path.rpartition("/")[2] for path, _ in wanted)
        return read_all(wanted, **more)

    def data() -> dict[str, Any]:
        return {name: info.data for name, info in seen[-1].items()} if seen else {}

    there = Membership(another(), "/here")
    first = [there.join(f"m{number}", 0) for number in range(5)]
    monkeypatch.setattr(session.nodes, "read_all", counted)
    with Membership(session, "/here").watch(seen.append):
        eventually(lambda: len(data()) == 5, "five are seen")
        assert sorted(asked) == [f"m{number}" for number in range(5)]
        asked.clear()
        there.join("late", 0)
        eventually(lambda: len(data()) == 6, "six are seen")
        first[3].update(7)
        eventually(lambda: data().get("m3") == 7, "the change is seen")
        first[0].leave()
        eventually(lambda: "m0" not in data(), "five are left")
        # A change may be read twice when it comes while others are read, and one that has left be
        # looked for before the list says so; those that stay, never.
        assert {"late", "m3"} <= set(asked) <= {"late", "m3", "m0"}
        asked.clear()
        Membership(another(), "/here").join("m1", "of another process")
        eventually(lambda: data().get("m1") == "of another process", "the successor is seen")
        assert set(asked) == {"m1"}
    assert list(data()) == ["late", "m1", "m2", "m3", "m4"]
    assert session.nodes.waiting == 0, "nobody waits for members whom nobody follows"


def test_a_member_whose_session_is_lost_joins_again_unless_it_left(
    session: Session, another: Sessions
) -> None:
    observer = Membership(another(), "/here")
    stays = Membership(session, "/here").join("stays", {"n": 1})
    left = Membership(session, "/here").join("left")
    left.leave()
    stays.update({"n": 2})
    expire(session)
    eventually(lambda: list(observer.members()) == ["stays"], "it is back")
    assert observer.members()["stays"].data == {"n": 2}
    eventually(lambda: stays.joined, "it knows that it is back")
    assert not left.joined


def test_a_restarted_process_takes_its_name_over_from_its_former_self(
    session: Session, actor: Actors
) -> None:
    here = Membership(session, "/here")
    former, latter = actor(10), actor(10)
    former.do("join", "/here", "me", {"run": 1})
    former.kill()
    latter.do("join", "/here", "me", {"run": 2})
    # Well before the session of the killed one is over.
    assert here.members()["me"].data == {"run": 2}


@pytest.mark.parametrize("late", ["join", "show", "go"])
def test_what_a_dead_process_still_had_on_the_way_does_not_touch_its_successor(
    plane: Plane, session: Session, another: Sessions, closing: ExitStack, late: str
) -> None:
    """Its request arrives when the next process has joined with its name; versions are the same."""
    here = Membership(another(10), "/here")
    here.join("me", {"run": 1})  # the turn of the name exists, and somebody is to be replaced
    proxy = closing.enter_context(CuttingProxy(plane.a_port()))
    former = closing.enter_context(Actor(plane.by_port(proxy.port, 20)))
    if late != "join":
        former.do("join", "/here", "me", {"run": 2})
    proxy.hold_the_next(protocol.MULTI)
    words: dict[str, list[object]] = {"join": ["/here", "me", {"run": 2}], "show": [{"run": 2.5}]}
    former.send(late, *words.get(late, []))
    assert proxy.held.wait(60)
    former.kill()
    successor = Membership(session, "/here").join("me", {"run": 3})
    before = session.nodes.read("/here/me", fresh=True)
    proxy.release()
    assert proxy.answered.wait(60)
    assert session.nodes.read("/here/me", fresh=True) == before
    assert successor.joined
    successor.update({"run": 4})
    assert here.members()["me"].data == {"run": 4}


def test_a_member_displaced_by_a_newer_one_does_not_fight_for_the_name(
    session: Session, another: Sessions
) -> None:
    here = Membership(session, "/here")
    older = here.join("me", "older")
    Membership(another(), "/here").join("me", "newer")
    assert older.wait_displaced(60)
    assert not older.joined
    with pytest.raises(Fenced):
        older.update("older again")
    older.leave()
    expire(session)
    assert here.members()["me"].data == "newer"


def test_a_removed_member_comes_back(session: Session, another: Sessions) -> None:
    member = Membership(session, "/here").join("me")
    other = another()
    before = other.nodes.read("/here/me")
    assert before is not None
    other.nodes.delete("/here/me")
    eventually(
        lambda: (now := other.nodes.read("/here/me")) is not None and now.czxid > before.czxid,
        "it is back",
    )
    assert not member.displaced


def test_turns_of_names_that_nobody_has_are_forgotten_and_members_stay(session: Session) -> None:
    here = Membership(session, "/here")
    stays = here.join("0", "stays")
    for number in range(1, 8):
        here.join(str(number)).leave()
    eventually(lambda: list(here.members()) == ["0"], "the others have left")
    here.tidy(kept=3)
    turns = session.nodes.children("/here-turns")
    assert "0" in turns
    assert len(turns) in (3, 4)
    stays.update("still")
    assert here.members()["0"].data == "still"
    here.tidy(kept=3)
    assert len(session.nodes.children("/here-turns")) in (3, 4)


def test_a_member_that_has_ended_is_dismissed_before_its_session_ends(
    session: Session, another: Sessions
) -> None:
    here = Membership(session, "/here")
    members = Membership(another(), "/here")
    lives = members.join("lives", 1)
    members.join("stays")
    assert not here.dismiss("nobody", lambda: True)
    assert not here.dismiss("stays", lambda: False)
    assert here.dismiss("lives", lambda: True)
    # We were wrong: it is back by itself, and may go on as before.
    eventually(lambda: set(here.members()) == {"lives", "stays"}, "who lives joins again")
    lives.update(2)
    assert here.members()["lives"].data == 2


def test_dismissing_does_not_touch_who_took_the_name_meanwhile(
    session: Session, another: Sessions
) -> None:
    here = Membership(session, "/here")
    Membership(another(), "/here").join("one", "old")

    def is_gone() -> bool:
        Membership(another(), "/here").join("one", "new")
        return True

    assert not here.dismiss("one", is_gone)
    assert here.members()["one"].data == "new"
