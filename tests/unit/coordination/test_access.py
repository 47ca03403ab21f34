"""The secret of a plane: made once, kept for its owner, and lists that are made from it."""

from __future__ import annotations

import socket
import stat
import threading
from pathlib import Path

import pytest
from kazoo.security import make_digest_acl_credential

from holdfast.coordination import access, kazoo_client
from holdfast.coordination.address import ZooKeeperAddress, parse, with_secret_file
from holdfast.wire.errors import Corrupt, Refused, Usage


def test_it_is_made_once_whoever_comes_first_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / access.NAME
    start, found = threading.Barrier(8), []

    def take() -> None:
        start.wait()
        found.append(access.kept(path))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == [access.NAME], "no draft is left"


def test_it_is_never_shown(tmp_path: Path) -> None:
    made = access.kept(tmp_path / access.NAME)
    assert made.secret not in repr(made)
    path = tmp_path / "damaged"
    path.write_text(f'{{"secret": "{made.secret}"')
    with pytest.raises(Corrupt) as corrupt:
        access.read(path)
    assert made.secret not in str(corrupt.value)
    assert corrupt.value.__cause__ is None


def test_a_file_that_is_not_there_says_how_it_comes_there(tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        access.read(tmp_path / "nothing")
    assert "holdfast join" in refused.value.fix


def test_the_identities_are_those_that_zookeeper_makes() -> None:
    made = access.of("me", "phrase")
    assert made.owner == make_digest_acl_credential("me", "phrase")
    shown = made.for_workers()
    assert made.worker == make_digest_acl_credential(shown.user, shown.secret)


def test_a_worker_has_a_secret_of_its_own_for_what_workers_need(tmp_path: Path) -> None:
    owner = access.kept(tmp_path / "owner")
    access.keep(tmp_path / "worker", owner.for_workers())
    worker = access.read(tmp_path / "worker")
    assert worker == owner.for_workers()
    assert owner.secret not in (tmp_path / "worker").read_text()
    for path in ("/", "/holdfast", "/holdfast/jobs/j", "/holdfast/modelsX", "/holdfast/nodes"):
        assert [entry.id for entry in owner.acl(path)] == [owner.owner]
    for path in ("/holdfast/services", "/holdfast/services/s", "/holdfast/services/s/replicas/1"):
        assert owner.worker not in [entry.id for entry in owner.acl(path)]
    for path in ("/holdfast/models", "/holdfast/models/m/versions"):
        assert worker.acl(path) == owner.acl(path)
        assert [entry.id for entry in owner.acl(path)] == [owner.owner, owner.worker]
        assert owner.acl(path)[1].perms == 15, "everything but changing the list itself"


def test_a_replica_reads_its_own_service_and_writes_only_what_it_says_of_itself(
    tmp_path: Path,
) -> None:
    owner = access.kept(tmp_path / "owner")
    access.keep(tmp_path / "replica", owner.for_replicas("s"))
    replica = access.read(tmp_path / "replica")
    assert replica == owner.for_replicas("s")
    assert replica.service_secret not in repr(replica)
    assert owner.secret not in (tmp_path / "replica").read_text()
    assert replica.credential == owner.for_workers().credential
    mine = make_digest_acl_credential(access.SERVICE, replica.service_secret)
    top = "/holdfast/services/s"
    perms = {
        f"{top}": access.READ,
        f"{top}/plan": access.READ,
        f"{top}/replicas": 15,
        f"{top}/replicas/1": 15,
        f"{top}/replicas-turns/1": 15,
        f"{top}/audit": 0,
        f"{top}/history/1": 0,
        "/holdfast/services": 0,
        "/holdfast/services/other": 0,
        "/holdfast/services/other/replicas/1": 0,
    }
    for path, allowed in perms.items():
        found = {entry.id: entry.perms for entry in owner.acl(path)}
        assert found.pop(owner.owner) == access.ALL
        assert found.get(mine, 0) == allowed, path
        if "other" not in path:
            assert replica.acl(path) == owner.acl(path)
    assert [entry.id for entry in replica.acl("/holdfast/services/other")] == [owner.owner]


def test_another_secret_takes_the_place_of_the_first_only_when_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / access.NAME
    first, second = access.kept(path), access.of(access.OWNER, "other")
    access.keep(path, second)
    assert access.read(path) == first
    access.keep(path, second, anew=True)
    assert access.read(path) == second


def test_an_address_for_workers_has_their_file_and_no_other_credential() -> None:
    text = "zk://h1:2181,[::1]:2182/root?timeout_s=6&user=me&password_env=SECRET&secret_file=/x"
    shown = with_secret_file(text, Path("/a b/access"))
    assert "user" not in shown
    found = parse(shown)
    assert isinstance(found, ZooKeeperAddress)
    assert (found.secret_file, found.timeout_s) == (Path("/a b/access"), 6.0)
    assert (found.hosts[1], found.chroot) == (("::1", 2182), "/root")


def test_an_address_says_once_who_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHRASE", "x")
    with pytest.raises(Usage, match="not both"):
        parse("zk://h1?user=me&password_env=PHRASE&secret_file=/x")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0", "::"])
def test_the_system_says_whose_program_listens(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    asked = "::1" if ":" in host else "127.0.0.1"
    with socket.create_server((host, 0), family=family) as listener:
        port = listener.getsockname()[1]
        assert kazoo_client.owner_of((asked, port)) == Path("/proc/self").stat().st_uid
    assert kazoo_client.owner_of((asked, port)) is None
