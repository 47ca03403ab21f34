"""Every test here runs over each store. The S3 servers are started once."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.storage import Blobs, memory, open_store
from holdfast.storage.deadline import Retrying
from holdfast.storage.sources import MeteredSource
from tests.conftest import require_part, require_service
from tests.contract.storage.stores import StoreUnderTest
from tests.servers.minio import MinioServer, minio_missing
from tests.servers.s3 import (
    MotoServer,
    RcloneServer,
    S3Server,
    credentials,
    moto_missing,
    rclone_missing,
)


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    require_service(moto_missing())
    with MotoServer(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture(scope="session")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    require_service(rclone_missing())
    with RcloneServer(tmp_path_factory.mktemp("rclone")) as server:
        yield server


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    require_part(minio_missing())
    with MinioServer(tmp_path_factory.mktemp("minio")) as server:
        yield server


@pytest.fixture(params=["folder", "memory", "moto", "rclone", "minio"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StoreUnderTest]:
    """An empty store."""
    name = secrets.token_hex(8)
    if request.param == "folder":
        address = f"file:{tmp_path / 'store'}"
    elif request.param == "memory":
        address = f"memory:{name}"
    else:
        server: S3Server = request.getfixturevalue(request.param)
        address = server.address(f"tests/{name}")
        for variable, value in credentials().items():
            monkeypatch.setenv(variable, value)
    blobs = open_store(address)
    try:
        yield StoreUnderTest(request.param, blobs, lambda: open_store(address), _overwriting(blobs))
    finally:
        memory.forget(name)


def _overwriting(blobs: Blobs) -> Callable[[str, bytes], None]:
    def overwrite(key: str, data: bytes) -> None:
        deadline = Retrying().deadline()
        blobs._backend.put(key, MeteredSource(iter([data]), deadline, what="damage"), deadline)

    return overwrite
