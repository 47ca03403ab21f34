"""What a cluster's Valkey and its workers are given: passwords by a secret, and nobody's secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.features import hosting
from holdfast.features.address import FeaturesAddress
from holdfast.supervise import records, supervisor, wanted
from holdfast.supervise.records import Process
from tests.conftest import require_service
from tests.servers.valkey import valkey_missing

SECRET = "ab" * 32


@pytest.fixture(autouse=True)
def _valkey() -> None:
    require_service(valkey_missing())


def test_owner_and_workers_have_passwords_of_their_own_and_neither_is_the_secret() -> None:
    passwords = {hosting.owner_password(SECRET), hosting.worker_password(SECRET), SECRET}
    assert len(passwords) == 3
    assert hosting.owner_password(SECRET) != hosting.owner_password("cd" * 32)


def test_a_worker_finds_its_password_in_its_own_folder_and_not_in_its_address(
    tmp_path: Path,
) -> None:
    told = hosting.equip_worker(hosting.address_in(tmp_path), tmp_path, SECRET).format()
    assert hosting.worker_password(SECRET) not in told
    address = FeaturesAddress.parse(told)
    assert address.user == hosting.WORKER
    assert address.read_password() == hosting.worker_password(SECRET)
    assert (tmp_path / hosting.PASSWORD_NAME).stat().st_mode & 0o077 == 0


def test_a_worker_of_a_cluster_with_an_engine_of_others_gets_what_its_address_names(
    tmp_path: Path,
) -> None:
    (tmp_path / "password").write_text("open sesame\n")
    worker = tmp_path / "worker"
    worker.mkdir()
    text = f"cassandra://h?user=ml&password-file={tmp_path / 'password'}&keyspace=ml"
    told = hosting.equip_worker(FeaturesAddress.parse(text), worker, None)
    assert told.password_file == worker / hosting.PASSWORD_NAME
    assert (told.read_password(), told.keyspace) == ("open sesame", "ml")
    plain = FeaturesAddress.parse("redis://h")
    assert hosting.equip_worker(plain, worker, None) == plain


def test_a_valkey_is_kept_only_where_a_supervisor_keeps_something_and_is_asked_for_once(
    tmp_path: Path,
) -> None:
    (tmp_path / "cluster.json").touch()
    (tmp_path / "run").mkdir()
    assert not hosting.keep(tmp_path, SECRET), "nothing is wanted here"
    # Its lock is ours: no supervisor is started.
    lock = records.taken(tmp_path, supervisor.KIND, supervisor.NAME)
    assert lock is not None
    wanted.want(tmp_path, [(Process("agent", "node-1", 0, 0, ""), ("true",))])
    assert hosting.keep(tmp_path, SECRET)
    first = wanted.read(tmp_path)[f"{hosting.KIND} {hosting.NAME}"]
    assert SECRET not in " ".join(first.command)
    assert hosting.keep(tmp_path, SECRET)
    assert wanted.read(tmp_path)[first.key] == first, "it is not begun anew"
    assert not hosting.lives(tmp_path)


def test_the_file_of_users_has_no_password_and_is_its_owners_alone(tmp_path: Path) -> None:
    hosting.command(tmp_path, SECRET)
    users = tmp_path / hosting.ACCESS / hosting.USERS
    assert users.stat().st_mode & 0o077 == 0
    assert users.parent.stat().st_mode & 0o077 == 0
    text = users.read_text()
    assert "user default off" in text
    for password in (hosting.owner_password(SECRET), hosting.worker_password(SECRET), SECRET):
        assert password not in text
