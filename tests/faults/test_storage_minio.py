"""MinIO killed in the middle of commits: what was acknowledged stays, nothing half is read.

And what it does not do: it ignores the condition of a delete. Nothing here may rest on one.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import boto3
import pytest

from holdfast.storage import Blobs, Retrying, open_store, put_part
from holdfast.storage.garbage import References, Sweeper
from holdfast.storage.manifests import MANIFESTS, Manifest, read_manifest, verify, write_manifest
from holdfast.wire.errors import HoldfastError, Missing
from tests.conftest import require_part
from tests.servers.minio import MinioServer, minio_missing
from tests.servers.s3 import ACCESS_KEY, BUCKET, SECRET_KEY, credentials
from tests.waiting import eventually

KILLS = 4
COMMITS_BETWEEN = 6


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MinioServer]:
    require_part(minio_missing())
    for variable, value in credentials().items():
        monkeypatch.setenv(variable, value)
    started = MinioServer(tmp_path / "server")
    try:
        yield started.start()
    finally:
        started.kill()


class Committing:
    """Commits checkpoint after checkpoint, through errors, until it is told to end."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._chance = random.Random(5)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: list[str] = []
        self.refused = 0
        self.broken: BaseException | None = None

    def __enter__(self) -> Committing:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            for step in itertools.count(1):
                if self._over.is_set():
                    return
                self._commit(step)
        except BaseException as error:
            self.broken = error

    def _commit(self, step: int) -> None:
        try:
            parts = tuple(put_part(self._blobs, self._chance.randbytes(200_000)) for _ in range(3))
            key = write_manifest(self._blobs, Manifest("job", step, 1, {0: parts}))
        except HoldfastError:
            self.refused += 1
        else:
            self.acknowledged.append(key)


def test_an_acknowledged_commit_is_lost_by_a_kill_of_its_store(server: MinioServer) -> None:
    # Few tries: that the store is away shall reach the one who commits, too.
    blobs = open_store(server.address("kills"), Retrying(tries_max=2))
    with Committing(blobs) as committing:

        def committed(wanted: int) -> bool:
            return bool(committing.broken) or len(committing.acknowledged) >= wanted

        def one_more_is_refused(refused: int) -> bool:
            return committing.refused > refused

        for _ in range(KILLS):
            wanted = len(committing.acknowledged) + COMMITS_BETWEEN
            eventually(partial(committed, wanted), "commits are acknowledged", 600)
            assert committing.broken is None, committing.broken
            refused = committing.refused
            server.kill()
            eventually(partial(one_more_is_refused, refused), "one is refused", 600)
            server.start()
    again = open_store(server.address("kills"))
    there = [row.key for row in again.list(MANIFESTS)]
    assert set(committing.acknowledged) <= set(there)
    for key in there:
        # Also those that were not acknowledged: their manifest is the last that is written.
        verify(again, read_manifest(again, key))
    assert len(committing.acknowledged) >= KILLS * COMMITS_BETWEEN


def test_garbage_is_removed_and_a_commit_is_kept_over_a_kill(server: MinioServer) -> None:
    blobs = open_store(server.address("garbage"))
    parts = (put_part(blobs, b"needed"),)
    key = write_manifest(blobs, Manifest("job", 1, 1, {0: parts}))
    left = put_part(blobs, b"needed by nobody")
    needed = References(manifests=frozenset({key}))

    def sweeper() -> Sweeper:
        return Sweeper(open_store(server.address("garbage")), lambda: needed, grace_s=0, wait_s=0)

    assert sweeper().step().marked == 1
    server.kill()
    server.start()
    assert sweeper().step().removed == 1
    with pytest.raises(Missing):
        blobs.get(left.key)
    verify(blobs, read_manifest(blobs, key))


def test_a_delete_under_a_condition_is_obeyed_and_the_notes_say_that_it_is_not(
    server: MinioServer,
) -> None:
    """Should this fail, MinIO has learned it, and docs/decisions/0005 can say so."""
    blobs = open_store(server.address("deletes"))
    blobs.put("key", b"1")
    client = boto3.client(
        "s3",
        endpoint_url=f"http://{server.hosts}",
        region_name="us-east-1",
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
    )
    client.delete_object(Bucket=BUCKET, Key="deletes/key", IfMatch='"another"')
    assert not blobs.exists("key")
