"""Facts: several read at once with their versions, several written together, lost replies found."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from holdfast.coordination import Facts, Session
from holdfast.coordination.embedded import protocol
from holdfast.wire.errors import Conflict
from holdfast.wire.limits import READS_IN_FLIGHT
from tests.contract.cutting import CuttingProxy
from tests.contract.planes import Plane
from tests.waiting import eventually

Sessions = Callable[..., Session]


def never() -> bool:
    raise AssertionError("no reply was lost")


def test_many_are_read_with_their_versions_and_the_missing_are_left_out(session: Session) -> None:
    facts = Facts(session)
    paths = [f"/all/{number}" for number in range(READS_IN_FLIGHT + 5)]
    transaction = facts.transaction(never)
    for path in paths[1:]:
        transaction.create(path, path.encode())
    transaction.commit()
    facts.transaction(never).replace(paths[3], b"new", 0).commit()
    found = facts.read_all(paths)
    assert set(found) == set(paths[1:])
    assert found[paths[3]][:2] == (b"new", 1)
    assert found[paths[-1]][:2] == (paths[-1].encode(), 0)
    assert facts.read(paths[0]) is None
    assert facts.names("/all") == sorted(path.rpartition("/")[2] for path in paths[1:])
    assert facts.names("/none") == []


def test_one_conflict_undoes_all(session: Session) -> None:
    facts = Facts(session)
    facts.transaction(never).create("/a/one", b"1").create("/a/two", b"2").commit()
    for second in (
        facts.transaction(never).replace("/a/one", b"x", 0).create("/a/two", b"x"),
        facts.transaction(never).replace("/a/one", b"x", 0).remove("/a/two", 5),
        facts.transaction(never).remove("/a/one").check("/a/three"),
    ):
        with pytest.raises(Conflict):
            second.commit()
    found = facts.read_all(["/a/one", "/a/two"])
    assert {path: fact[:2] for path, fact in found.items()} == {
        "/a/one": (b"1", 0),
        "/a/two": (b"2", 0),
    }


def test_whoever_read_several_is_woken_by_a_change_of_one(
    plane: Plane, session: Session, another: Sessions
) -> None:
    facts, others = Facts(session), Facts(another(8))
    facts.transaction(never).create("/w/one", b"1").create("/w/two", b"2").commit()
    woken = {path: threading.Event() for path in ("/w/one", "/w/two")}
    wakes = {path: event.set for path, event in woken.items()}
    facts.read_all(list(woken), wakes)
    others.transaction(never).replace("/w/two", b"3").commit()
    eventually(woken["/w/two"].is_set, "the change wakes")
    assert not woken["/w/one"].is_set()
    assert facts.read_all(["/w/two"])["/w/two"][:2] == (b"3", 1)
    plane.disturb("kill the server" if plane.kind == "embedded" else "pause the leader")
    others.transaction(lambda: True).replace("/w/one", b"4").commit()
    eventually(woken["/w/one"].is_set, "the change, or the broken connection, wakes")
    for wake in wakes.values():
        facts.forget(wake)
    assert session.nodes.waiting == 0


def test_a_transaction_whose_reply_is_lost_is_done_once(
    proxy: CuttingProxy, through: Session, session: Session
) -> None:
    facts = Facts(through)
    facts.transaction(never).create("/x/other", b"").commit()
    proxy.cut_the_next(protocol.MULTI)
    asked: list[bool] = []

    def happened() -> bool:
        asked.append("/x/mine" in facts.read_all(["/x/mine"]))
        return asked[-1]

    facts.transaction(happened).create("/x/mine", b"me").commit()
    assert (proxy.cuts, asked) == (1, [True])
    Facts(session).transaction(never).create("/x/theirs", b"you").commit()
    proxy.cut_the_next(protocol.MULTI)
    with pytest.raises(Conflict):
        facts.transaction(lambda: False).create("/x/theirs", b"me").commit()
