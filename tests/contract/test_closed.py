"""A plane is closed to whoever does not show its secret; on both planes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kazoo import exceptions as kz
from kazoo.client import KazooClient
from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id

from holdfast.coordination import (
    Barrier,
    Config,
    DoubleBarrier,
    Election,
    Facts,
    Lock,
    Membership,
    Queue,
    Session,
    SharedLock,
    access,
    connect,
    protection,
)
from holdfast.coordination.address import with_secret_file
from holdfast.wire.errors import Refused
from tests.contract.planes import Plane
from tests.waiting import eventually


@pytest.fixture
def stranger(plane: Plane, session: Session) -> Iterator[KazooClient]:
    """A client that knows the port, and nothing else."""
    client = KazooClient(f"127.0.0.1:{plane.a_port()}")
    client.start(timeout=30)
    yield client
    client.stop()
    client.close()


def below(client: KazooClient, top: str) -> list[str]:
    found = [top]
    for path in found:
        found += [f"{path.rstrip('/')}/{name}" for name in client.get_children(path)]
    return found


def everything(session: Session) -> tuple[KazooClient, list[str]]:
    """Every node below the session's root, and a client that may look at them."""
    client = vars(session)["_client"]
    return client, below(client, session.chroot or "/")


def use_all(session: Session, closing: ExitStack) -> None:
    """Whatever makes nodes, makes some."""
    Config(session, "/holdfast/settings").put({"n": 1})
    closing.callback(Lock(session, "door").acquire().release)
    closing.callback(SharedLock(session, "shared").read().release)
    closing.callback(Election(session, "/holdfast/leader").campaign().resign)
    closing.callback(Membership(session, "/holdfast/nodes").join("n1", {}).leave)
    Queue(session, "/holdfast/queue", 10).put(b"work")
    Barrier(session, "/holdfast/barrier").close()
    DoubleBarrier(session, "/holdfast/both", 1).enter()
    Facts(session).transaction(lambda: True).create("/holdfast/jobs/j/state", b"x").commit()
    protection.ready_for_workers(session)


def test_no_node_that_anything_of_ours_makes_is_open_to_everybody(
    session: Session, closing: ExitStack
) -> None:
    use_all(session, closing)
    client, paths = everything(session)
    assert len(paths) > 15
    for path in paths:
        entries, _ = client.get_acls(path)
        assert entries, path
        for entry in entries:
            assert entry.id.scheme == "digest", f"{path} is open to {entry.id}"


ATTACKS: dict[str, Callable[[KazooClient, str], Any]] = {
    "read": lambda client, path: client.get(path),
    "list": lambda client, path: client.get_children(path),
    "write": lambda client, path: client.set(path, b"evil"),
    "create": lambda client, path: client.create(f"{path}/evil"),
    "create with own list": lambda client, path: client.create(f"{path}/evil", acl=OPEN_ACL_UNSAFE),
    "take over": lambda client, path: client.set_acls(path, OPEN_ACL_UNSAFE),
    "see who may": lambda client, path: client.get_acls(path),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_stranger_reads_and_writes_nothing(
    attack: str, session: Session, stranger: KazooClient, closing: ExitStack
) -> None:
    use_all(session, closing)
    _, paths = everything(session)
    for path in paths:
        with pytest.raises(kz.NoAuthError):
            ATTACKS[attack](stranger, path)
        assert stranger.exists(path), "that much ZooKeeper tells everybody"


def test_a_stranger_removes_nothing_and_his_transactions_are_refused_whole(
    session: Session, stranger: KazooClient
) -> None:
    Config(session, "/holdfast/settings").put({"n": 1})
    path = f"{session.chroot}/holdfast/settings"
    with pytest.raises(kz.NoAuthError):
        stranger.delete(path)
    request = stranger.transaction()
    request.create(f"{session.chroot}/holdfast/evil", b"", OPEN_ACL_UNSAFE)
    request.set_data(path, b"evil")
    request.delete(path)
    outcomes = request.commit()
    assert any(isinstance(one, kz.NoAuthError) for one in outcomes)
    assert Config(session, "/holdfast/settings").get().value == {"n": 1}
    assert session.nodes.children("/holdfast") == ["settings"]


def test_a_wrong_secret_is_a_stranger(plane: Plane, session: Session, tmp_path: Path) -> None:
    Config(session, "/holdfast/settings").put({"n": 1})
    access.kept(tmp_path / "guess")
    with connect(with_secret_file(plane.by_port(plane.a_port()), tmp_path / "guess")) as guessed:
        with pytest.raises(Refused) as refused:
            Config(guessed, "/holdfast/settings").get()
        assert "secret_file" in refused.value.fix
        with pytest.raises(Refused):
            Config(guessed, "/holdfast/other").put({})


def test_the_secret_is_shown_again_on_each_new_connection(plane: Plane, session: Session) -> None:
    Config(session, "/holdfast/settings").put({"n": 1})
    before = session.link
    plane.disturb(plane.disturbances[0])
    # The first request of a new connection is one that needs it.
    eventually(lambda: session.link > before and session.connected, "it is connected again")
    assert Config(session, "/holdfast/settings").get().value == {"n": 1}
    Config(session, "/holdfast/settings").put({"n": 2})


def serving(session: Session, service: str) -> None:
    """A service as its user makes it, its controller goes on, and a replica is there."""
    top = f"/holdfast/services/{service}"
    made = Facts(session).transaction(lambda: True)
    made.create(top, b"its secret").create(f"{top}/asked", b"x").create(f"{top}/plan", b"plan")
    made.create(f"{top}/replicas", b"").create(f"{top}/replicas-turns", b"").commit()


def test_a_replica_reads_and_joins_its_own_service_and_gets_nothing_of_another(
    plane: Plane, session: Session, tmp_path: Path, closing: ExitStack
) -> None:
    protection.ready_for_workers(session)
    for service in ("mine", "other"):
        serving(session, service)
    assert session.access is not None
    access.keep(tmp_path / "replica", session.access.for_replicas("mine"))
    access.keep(tmp_path / "worker", session.access.for_workers())
    replica, worker = (
        closing.enter_context(connect(with_secret_file(plane.address(), tmp_path / name)))
        for name in ("replica", "worker")
    )
    mine, other = "/holdfast/services/mine", "/holdfast/services/other"
    for path, data in ((mine, b"its secret"), (f"{mine}/plan", b"plan")):
        found = Facts(replica).read(path, fresh=True)
        assert found is not None and found.data == data
    member = Membership(replica, f"{mine}/replicas").join("1", {"n": 1})
    assert Membership(session, f"{mine}/replicas").members()["1"].data == {"n": 1}
    member.update({"n": 2})
    plane.disturb(plane.disturbances[0])  # both secrets are shown again
    member.update({"n": 3})
    assert Membership(session, f"{mine}/replicas").members()["1"].data == {"n": 3}
    Config(replica, "/holdfast/models/m").put({"n": 1})

    def written(by: Session, path: str) -> None:
        Facts(by).transaction(lambda: False).replace(path, b"evil").commit()

    refused: list[Callable[[], object]] = [
        lambda: written(replica, mine),
        lambda: written(replica, f"{mine}/plan"),
        lambda: Facts(replica).read(f"{mine}/asked", fresh=True),
        lambda: Config(replica, f"{mine}/evil").put(1),
        lambda: Facts(replica).names("/holdfast/services", fresh=True),
        lambda: Config(replica, "/holdfast/services/evil").put(1),
    ]
    for thief, service in ((replica, other), (worker, other), (worker, mine)):
        refused += [
            lambda thief=thief, path=service: Facts(thief).read(path, fresh=True),  # type: ignore[misc]
            lambda thief=thief, path=service: written(thief, path),  # type: ignore[misc]
            lambda thief=thief, path=service: written(thief, f"{path}/plan"),  # type: ignore[misc]
            lambda thief=thief, path=service: Membership(thief, f"{path}/replicas").join("9", {}),  # type: ignore[misc]
        ]
    for forbidden in refused:
        with pytest.raises(Refused):
            forbidden()
    member.leave()


def test_services_that_an_older_version_gave_to_all_workers_are_taken_from_them(
    plane: Plane, session: Session, tmp_path: Path, closing: ExitStack
) -> None:
    """But for one that has replicas now: those of that version have nothing else to show."""
    protection.ready_for_workers(session)
    assert session.access is not None
    for service in ("idle", "busy"):
        serving(session, service)
    client, paths = everything(session)
    owner, workers = (Id("digest", who) for who in (session.access.owner, session.access.worker))
    older = [ACL(31, owner), ACL(15, workers)]
    for path in paths:
        if "/services" in path:
            client.set_acls(path, older)
    access.keep(tmp_path / "worker", session.access.for_workers())
    address = with_secret_file(plane.address(), tmp_path / "worker")
    worker = closing.enter_context(connect(address))
    there = f"{session.chroot}/holdfast/services/busy/replicas/1"
    vars(worker)["_client"].create(there, b"{}", older, ephemeral=True)
    assert protection.ready_for_workers(session) == ["busy"]
    with pytest.raises(Refused):
        Facts(worker).read("/holdfast/services/idle", fresh=True)
    with pytest.raises(Refused):
        Facts(worker).read("/holdfast/services/idle/plan", fresh=True)
    assert Facts(worker).read("/holdfast/services/busy", fresh=True) is not None
    vars(worker)["_client"].delete(there)
    assert protection.ready_for_workers(session) == []
    with pytest.raises(Refused):
        Facts(worker).read("/holdfast/services/busy", fresh=True)
    assert protection.ready_for_workers(session) == []


def test_a_worker_publishes_and_can_do_nothing_else(
    plane: Plane, session: Session, tmp_path: Path
) -> None:
    protection.ready_for_workers(session)
    Config(session, "/holdfast/jobs/j").put({"n": 1})
    assert session.access is not None
    access.keep(tmp_path / "worker", session.access.for_workers())
    with connect(with_secret_file(plane.address(), tmp_path / "worker")) as worker:
        path = "/holdfast/models/m/versions/1"
        Config(worker, path).put({"n": 1})
        assert Config(session, path).get().value == {"n": 1}
        Config(session, path).put({"n": 2})
        assert Config(worker, path).get().value == {"n": 2}
        for forbidden in (
            lambda: Config(worker, "/holdfast/jobs/j").get(),
            lambda: Config(worker, "/holdfast/jobs/evil").put({}),
            lambda: Config(worker, "/holdfast/services/evil").put({}),
            lambda: Config(worker, "/evil").put({}),
            lambda: Membership(worker, "/holdfast/nodes").join("evil", {}),
            lambda: Election(worker, "/holdfast/leader").campaign(),
        ):
            with pytest.raises(Refused):
                forbidden()


# The embedded server closes its own tree when it starts: there, nothing is below a root.
@pytest.mark.parametrize(
    "plane", ["zookeeper", pytest.param("ensemble", marks=pytest.mark.engines)], indirect=True
)
def test_what_an_older_version_made_open_is_closed_and_only_below_the_root(
    plane: Plane, session: Session, closing: ExitStack
) -> None:
    root = session.chroot
    assert root
    client = vars(session)["_client"]
    client.set_acls(root, OPEN_ACL_UNSAFE)
    beside = f"{root}-beside"
    for path in (f"{root}/holdfast/jobs/j/state", f"{root}/holdfast/nodes/n1", beside):
        client.ensure_path(path, acl=OPEN_ACL_UNSAFE)
    assert protection.close(session) == 7
    for path in everything(session)[1]:
        assert [entry.id.scheme for entry in client.get_acls(path)[0]] == ["digest"], path
    assert client.get_acls(beside)[0] == OPEN_ACL_UNSAFE
    assert protection.close(session) == 0
    # A machine of an older version makes something open below what is closed.
    client.create(f"{root}/holdfast/nodes/n1/late", b"", OPEN_ACL_UNSAFE)
    assert protection.close(session) == 1
    assert protection.close(session) == 0
