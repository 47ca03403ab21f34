"""The two halves of a leader's fence, and of taking a term: each alone must hold."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from holdfast.coordination import Election, Leadership, Session
from holdfast.coordination.nodes import Op
from holdfast.wire.errors import Fenced
from tests.contract.interleaving import after_first

Sessions = Callable[..., Session]


def put(session: Session, path: str, data: bytes) -> None:
    session.nodes.transact([Op("put", path, data)], session.nodes.deadline(None))


def refused(leadership: Leadership, session: Session) -> None:
    with pytest.raises(Fenced):
        leadership.transaction().create("/fact", b"too late").commit()
    assert session.nodes.read("/fact", fresh=True) is None
    assert leadership.lost


def own_path(election: Election) -> str:
    (candidate,) = election.candidates()
    return f"/lead/candidates/{candidate.node}"


def test_a_leader_commits_after_another_term_began_since_its_own_node_is_still_there(
    session: Session, another: Sessions
) -> None:
    election = Election(session, "/lead", "old")
    leadership = election.campaign()
    taken = json.dumps({"candidate": "another", "name": "new"}).encode()
    put(another(), "/lead/term", taken)
    assert session.nodes.read(own_path(election)) is not None
    refused(leadership, session)


def test_a_leader_commits_after_its_own_node_was_removed_in_its_own_term(
    session: Session, another: Sessions
) -> None:
    election = Election(session, "/lead", "old")
    leadership = election.campaign()
    # At the moment of the commit, so that nobody has told the leader yet.
    other, path = another(), own_path(election)
    with after_first(leadership._session.nodes, "deadline", lambda: other.nodes.delete(path)):
        refused(leadership, session)


def test_a_leader_commits_though_its_own_node_is_not_in_the_version_that_it_left(
    session: Session, another: Sessions
) -> None:
    """Its version counts the commits. Where it is another, a commit whose reply was lost has come
    after all, or somebody else leads by the same node: the count tells nothing any more."""
    election = Election(session, "/lead", "leader")
    leadership = election.campaign()
    leadership.transaction().create("/before", b"").commit()
    put(another(), own_path(election), leadership._place.data)
    refused(leadership, session)


def test_two_take_the_same_term_when_one_has_read_it_before_the_other_took_it(
    session: Session, another: Sessions
) -> None:
    session.nodes.create("/lead/term", b"")
    other = another()
    election = Election(session, "/lead", "late")
    taken = json.dumps({"candidate": "another", "name": "first"}).encode()
    line = election._contenders
    place = line.enter("c", "late", lambda kind: True, 30)
    with after_first(session.nodes, "read", lambda: put(other, "/lead/term", taken)):
        term = election._take_term(place, session.nodes.deadline(None))
    found = session.nodes.read("/lead/term", fresh=True)
    assert found is not None
    assert (term, found.version) == (2, 2)
    assert json.loads(found.data)["name"] == "late"


def test_a_candidate_takes_a_term_though_its_place_in_line_is_gone(
    session: Session, another: Sessions
) -> None:
    session.nodes.create("/lead/term", b"")
    other = another()
    election = Election(session, "/lead", "gone")
    place = election._contenders.enter("c", "gone", lambda kind: True, 30)
    with (
        after_first(session.nodes, "read", lambda: other.nodes.delete(place.path)),
        pytest.raises(Fenced),
    ):
        election._take_term(place, session.nodes.deadline(None))
    found = session.nodes.read("/lead/term", fresh=True)
    assert found is not None
    assert found.version == 0
