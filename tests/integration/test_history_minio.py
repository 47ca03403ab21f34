"""A history in a bucket: commits by conditional puts, and each record once."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.features.history import HistoryWriter, Lake, history, upkeep
from holdfast.wire.errors import Fenced, Missing, Refused, Unavailable
from tests.conftest import require_part, require_service
from tests.servers.minio import MinioServer, minio_missing
from tests.servers.s3 import (
    MotoServer,
    RcloneServer,
    S3Server,
    credentials,
    moto_missing,
    rclone_missing,
)
from tests.unit.features.history_made import NOON_US, drivers, rows, sequences
from tests.unit.features.history_writer import SOURCE, records
from tests.waiting import PATIENCE_S

WRITERS = 4
COMMITS = 10


@pytest.fixture(scope="module")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    require_part(minio_missing())
    with MinioServer(tmp_path_factory.mktemp("minio")) as server:
        yield server


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    require_service(moto_missing())
    with MotoServer(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture(autouse=True)
def our_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in credentials().items():
        monkeypatch.setenv(variable, value)


@pytest.fixture(params=["moto", "minio"])
def address(request: pytest.FixtureRequest) -> str:
    server: S3Server = request.getfixturevalue(request.param)
    return server.address(f"tests/{secrets.token_hex(8)}")


def test_a_history_in_a_bucket_does_what_one_in_a_folder_does(address: str) -> None:
    lake = Lake(address, drivers())
    with pytest.raises(Missing, match="no history"):
        lake.log()
    assert (lake.create(), lake.create()) == (True, False)
    writer = HistoryWriter(lake, SOURCE)
    for number in range(10):
        writer.commit(records(lake, 3 * number, 3))
    entities = {"driver_id": [0, 1, 9], "at": [NOON_US] * 3}
    before = history(lake, entities, ["trips", "city"])
    version = before.versions["drivers"]
    lake.keep(version)
    assert upkeep.tend(lake).merged == 10
    assert upkeep.vacuum(lake) == 0
    after = history(lake, entities, ["trips", "city"])
    again = history(lake, entities, ["trips", "city"], as_of=version)
    assert before.digest == after.digest == again.digest
    assert before.frame["trips"].to_list() == [25, 26, None]
    assert lake.erase([1]).rows == 6
    assert history(lake, entities, ["trips"]).frame["trips"].to_list() == [25, None, None]
    assert HistoryWriter(lake, SOURCE).position(0) == 30
    lake.release(version)


def test_writers_race_and_no_row_is_lost_or_doubled(minio: S3Server) -> None:
    lake = Lake(minio.address(f"race/{secrets.token_hex(8)}"), drivers())
    lake.create()

    def write(partition: int) -> None:
        writer = HistoryWriter(lake, SOURCE)
        for number in range(COMMITS):
            writer.commit(records(lake, 1_000 * partition + number, 1, partition))

    def contend(_: int) -> None:
        writer = HistoryWriter(lake, "topic:one")
        while (begin := writer.position(0)) < COMMITS:
            try:
                writer.commit(records(lake, begin, 1))
            except Fenced:
                writer.reread()

    with ThreadPoolExecutor(WRITERS + 2) as pool:
        done = [pool.submit(write, number) for number in range(1, WRITERS + 1)]
        done += [pool.submit(contend, number) for number in range(2)]
        for future in done:
            future.result()
    expected = [
        1_000 * each + number for each in range(1, WRITERS + 1) for number in range(COMMITS)
    ]
    assert sequences(lake) == [*range(COMMITS), *expected]


def test_a_server_that_is_killed_amid_commits_has_each_record_once(tmp_path: Path) -> None:
    require_part(minio_missing())
    total, kills = 60, 3
    half = threading.Semaphore(0)

    def write(lake: Lake) -> None:
        writer = HistoryWriter(lake, SOURCE)
        begin = 0
        while begin < total:
            try:
                writer.commit(records(lake, begin, 2))
            except Unavailable:
                continue  # it may be in: the same again
            begin += 2
            half.release()

    with MinioServer(tmp_path / "minio") as server, ThreadPoolExecutor(1) as pool:
        lake = Lake(server.address("killed"), drivers())
        lake.create()
        written = pool.submit(write, lake)
        for _ in range(kills):
            assert all(half.acquire(timeout=PATIENCE_S) for _ in range(4))
            server.kill()
            server.start()
        written.result()
        assert sequences(lake) == list(range(total))


def test_a_store_that_cannot_tell_the_first_of_two_writes_is_refused(tmp_path: Path) -> None:
    require_service(rclone_missing())
    with RcloneServer(tmp_path / "rclone") as server, pytest.raises(Refused, match="absent"):
        Lake(server.address("t"), drivers()).create()


def test_a_wrong_password_is_refused_and_nothing_of_it_is_shown(
    minio: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(minio.address(f"wrong/{secrets.token_hex(8)}"), drivers())
    lake.create()
    lake.append(rows(lake.table, [1]))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret-91c2")
    again = Lake(minio.address(f"wrong/{lake.place.root}"), drivers())
    with pytest.raises(Refused) as refused:
        again.create()
    with pytest.raises(Refused) as read:
        history(lake, {"driver_id": [1], "at": [NOON_US]}, ["trips"])
    for error in (refused.value, read.value):
        assert "not-the-secret" not in str(error)
