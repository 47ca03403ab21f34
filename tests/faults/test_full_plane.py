"""A coordination server whose disk is full: its clients are told to try again, and go on."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.coordination import Election, Membership, Session, connect
from holdfast.wire.errors import RetryError
from tests.servers import EmbeddedServer
from tests.waiting import eventually

PATH = "/members"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path / "plane") as made:
        yield made


@pytest.fixture
def session(server: EmbeddedServer) -> Iterator[Session]:
    with connect(f"zk://{server.hosts}/full?timeout_s=60") as made:
        yield made


@contextmanager
def no_room(server: EmbeddedServer) -> Iterator[None]:
    """No file of the server's may grow: what a full disk looks like without being root."""
    _, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (hard, hard))


def done(write: Callable[[], object]) -> bool:
    """Whether it was done; nobody is told anything but to try again."""
    try:
        write()
    except RetryError:
        return False
    return True


def test_a_member_says_what_is_new_as_soon_as_there_is_room(
    server: EmbeddedServer, session: Session
) -> None:
    members = Membership(session, PATH)
    member = members.join("a", {"is": "old"})
    with no_room(server):
        assert not done(lambda: member.update({"is": "new"}))
        assert members.members()["a"].data == {"is": "old"}, "reads go on"
    eventually(lambda: done(lambda: member.update({"is": "new"})), "there is room")
    assert members.members()["a"].data == {"is": "new"}


def test_a_leader_stays_one_and_its_writes_are_tried_again(
    server: EmbeddedServer, session: Session
) -> None:
    leadership = Election(session, "/leader", "a").campaign(timeout_s=60)

    def write() -> None:
        leadership.transaction().create("/kept", b"").commit()

    with no_room(server):
        assert not done(write)
        assert leadership.acting
    eventually(lambda: done(write), "there is room")
