"""What a cluster's broker and its workers are given: passwords by a secret, and nobody's secret."""

from __future__ import annotations

from pathlib import Path

from holdfast.supervise import records, supervisor, wanted
from holdfast.supervise.records import Process
from holdfast.topics import TopicsAddress, hosting

SECRET = "ab" * 32
ADDRESS = hosting.address_at("127.0.0.1:9092", encrypts=False)


def test_owner_and_workers_have_passwords_of_their_own_and_neither_is_the_secret() -> None:
    passwords = {hosting.owner_password(SECRET), hosting.worker_password(SECRET), SECRET}
    assert len(passwords) == 3
    assert hosting.owner_password(SECRET) != hosting.owner_password("cd" * 32)


def test_a_worker_finds_its_password_in_its_own_folder_and_not_in_its_address(
    tmp_path: Path,
) -> None:
    told = hosting.equip_worker(ADDRESS, tmp_path, SECRET).format()
    assert hosting.worker_password(SECRET) not in told
    settings = TopicsAddress.parse(told).client_settings()
    assert settings["sasl.username"] == hosting.WORKER
    assert settings["sasl.password"] == hosting.worker_password(SECRET)
    assert (tmp_path / hosting.PASSWORD_NAME).stat().st_mode & 0o077 == 0


def test_a_worker_of_a_cluster_with_a_real_kafka_gets_what_its_address_names(
    tmp_path: Path,
) -> None:
    (tmp_path / "password").write_text("open sesame\n")
    worker = tmp_path / "worker"
    worker.mkdir()
    text = f"kafka://h?security=sasl_plain&user=ml&password-file={tmp_path / 'password'}&prefix=ml."
    told = hosting.equip_worker(TopicsAddress.parse(text), worker, None)
    assert told.password_file == worker / hosting.PASSWORD_NAME
    assert told.client_settings()["sasl.password"] == "open sesame"
    assert told.prefix == "ml."
    plain = TopicsAddress.parse("kafka://h")
    assert hosting.equip_worker(plain, worker, None) == plain


def test_a_broker_is_kept_only_where_a_supervisor_keeps_something_and_is_asked_for_once(
    tmp_path: Path,
) -> None:
    (tmp_path / "cluster.json").touch()
    (tmp_path / "run").mkdir()
    asked = (tmp_path, "127.0.0.1:9092", SECRET)
    assert not hosting.keep(*asked, encrypts=False), "nothing is wanted here"
    # Its lock is ours: no supervisor is started.
    lock = records.taken(tmp_path, supervisor.KIND, supervisor.NAME)
    assert lock is not None
    wanted.want(tmp_path, [(Process("agent", "node-1", 0, 0, ""), ("true",))])
    assert hosting.keep(*asked, encrypts=False)
    first = wanted.read(tmp_path)[f"{hosting.KIND} {hosting.NAME}"]
    assert "--sasl-users" in first.command
    assert SECRET not in " ".join(first.command)
    assert hosting.keep(*asked, encrypts=False)
    assert wanted.read(tmp_path)[first.key] == first, "it is not begun anew"
    users = tmp_path / "topics-access" / "users"
    assert users.stat().st_mode & 0o077 == 0
    assert hosting.owner_password(SECRET) in users.read_text()
