"""Real faults of an S3 server: killed in an upload, stopped, silent; no bucket, no access."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from holdfast.storage import Blobs, Retrying, objects, open_store, put_part, read_part
from holdfast.storage.keys import digest_of
from holdfast.storage.objects import BLOB_MULTIPART_BYTES
from holdfast.wire.errors import Corrupt, HoldfastError, Missing, Refused, Unavailable, Usage
from tests.conftest import require_service
from tests.servers.cutting import CuttingProxy
from tests.servers.s3 import (
    ACCESS_KEY,
    BUCKET,
    SECRET_KEY,
    MotoServer,
    RcloneServer,
    S3Server,
    credentials,
    moto_missing,
    rclone_missing,
)

DATA = random.Random(7).randbytes(4 * BLOB_MULTIPART_BYTES)


@pytest.fixture(params=[MotoServer, RcloneServer])
def server(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[S3Server]:
    require_service(moto_missing() if request.param is MotoServer else rclone_missing())
    for variable, value in credentials().items():
        monkeypatch.setenv(variable, value)
    with request.param(tmp_path / "server") as started:
        yield started


@pytest.fixture
def checking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RcloneServer]:
    """A server that checks credentials, and whose objects are files."""
    require_service(rclone_missing())
    for variable, value in credentials().items():
        monkeypatch.setenv(variable, value)
    with RcloneServer(tmp_path / "server") as started:
        yield started


class KillingSource:
    """Bytes for an upload. The first time they are read, the server is killed in the middle."""

    def __init__(self, server: S3Server) -> None:
        self._server = server
        self.readings = 0
        self.restart = threading.Thread(target=self._restart)

    def _restart(self) -> None:
        time.sleep(0.5)  # pause: the store is away so long
        self._server.start()

    def _kill(self) -> None:
        self._server.kill()
        self.restart.start()
        if isinstance(self._server, MotoServer):
            # It has forgotten its bucket; the upload must not be quicker than who makes it anew.
            self.restart.join()

    def __iter__(self) -> Iterator[bytes]:
        self.readings += 1
        for at in range(0, len(DATA), BLOB_MULTIPART_BYTES):
            if self.readings == 1 and at == 2 * BLOB_MULTIPART_BYTES:
                self._kill()
            yield DATA[at : at + BLOB_MULTIPART_BYTES]


def test_an_upload_goes_on_after_its_server_was_killed_and_restarted(server: S3Server) -> None:
    blobs = open_store(server.address())
    source = KillingSource(server)
    blob = blobs.put("big", source)
    source.restart.join()
    assert source.readings >= 2
    assert blob.digest == digest_of(DATA)
    assert blobs.get("big", expect_digest=blob.digest) == DATA


def test_an_upload_that_is_given_up_shows_nothing_and_says_what_was_tried(
    server: S3Server,
) -> None:
    blobs = open_store(server.address(), Retrying(tries_max=2, sleep=lambda _: None))
    pieces = (DATA[at : at + 1_000_000] for at in range(0, len(DATA), 1_000_000))

    def killing() -> Iterator[bytes]:
        for number, piece in enumerate(pieces):
            if number == 40:
                server.kill()
            yield piece

    with pytest.raises(Unavailable) as caught:
        blobs.put("big", killing())
    assert len(caught.value.story) == 1, "an iterator cannot be read twice"
    server.start()
    with pytest.raises(Missing):
        blobs.get("big")
    assert list(blobs.list()) == []


def _through(proxy: CuttingProxy) -> Blobs:
    return open_store(f"s3://{BUCKET}?endpoint=http://127.0.0.1:{proxy.port}&region=us-east-1")


def test_an_answer_that_breaks_off_is_asked_for_again(server: S3Server) -> None:
    with CuttingProxy(server.port) as proxy:
        blobs = _through(proxy)
        blob = blobs.put("big", DATA)
        proxy.cut_next_answer(after_bytes=20_000_000)
        assert blobs.get("big", expect_digest=blob.digest) == DATA
        proxy.cut_next_answer(after_bytes=20_000_000)
        room = bytearray(len(DATA))
        assert blobs.read_into("big", memoryview(room), expect_digest=blob.digest) == len(DATA)
        assert room == DATA
        for number in range(3):
            blobs.put(f"small/{number}", b"x")
        proxy.cut_next_answer()
        assert [found.key for found in blobs.list("small")] == [f"small/{n}" for n in range(3)]
        assert proxy.cuts == 3


def test_a_write_whose_answer_is_lost_is_made_once_more(server: S3Server) -> None:
    with CuttingProxy(server.port) as proxy:
        blobs = _through(proxy)
        proxy.cut_next_answer()
        blobs.put("a", b"x")
        proxy.cut_next_answer()
        blobs.delete("a")
        assert not blobs.exists("a")
        assert proxy.cuts == 2


def test_a_first_write_whose_answer_is_lost_is_recognised_by_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_service(moto_missing())
    for variable, value in credentials().items():
        monkeypatch.setenv(variable, value)
    with MotoServer(tmp_path / "server") as started, CuttingProxy(started.port) as proxy:
        blobs = _through(proxy)
        assert blobs.put_if_absent("taken", b"somebody's")
        proxy.cut_next_answer()
        found = blobs.put_if_absent("mine", b"my own")
        assert found is not None
        assert found.digest == digest_of(b"my own")
        proxy.cut_next_answer()
        assert blobs.put_if_absent("taken", b"my own") is None
        assert blobs.get("taken") == b"somebody's"
        assert proxy.cuts == 2


def test_a_server_that_is_not_there_is_unavailable_after_a_bounded_number_of_tries(
    server: S3Server,
) -> None:
    pauses: list[float] = []
    retrying = Retrying(tries_max=4, sleep=pauses.append, chance=random.Random(1))
    blobs = open_store(server.address(), retrying)
    server.kill()
    calls = (
        lambda: blobs.get("a"),
        lambda: blobs.put("a", b"x"),
        lambda: blobs.exists("a"),
        lambda: blobs.delete("a"),
        lambda: list(blobs.list()),
    )
    for call in calls:
        pauses.clear()
        with pytest.raises(Unavailable, match="no answer") as caught:
            call()
        assert len(caught.value.story) == 4
        assert len(pauses) == 3
        assert str(server.port) in caught.value.fix


def test_a_stopped_server_delays_a_call_and_a_woken_one_answers_it(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "BLOB_REQUEST_S", 1.0)
    blobs = open_store(server.address())
    part = put_part(blobs, b"bytes")
    server.pause()
    waking = threading.Timer(2.5, lambda: os.kill(server.pid, signal.SIGCONT))
    waking.start()
    assert read_part(blobs, part) == b"bytes"
    waking.join()


def test_a_server_that_never_answers_is_given_up_in_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable, value in credentials().items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(objects, "BLOB_REQUEST_S", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"s3://bucket?endpoint=http://127.0.0.1:{silent.getsockname()[1]}"
        blobs = open_store(address, Retrying(tries_max=2, sleep=lambda _: None))
        for call in (lambda: blobs.exists("a"), lambda: blobs.put("a", b"x")):
            with pytest.raises(Unavailable):
                call()


def test_a_missing_bucket_is_named_whatever_is_asked_first(server: S3Server) -> None:
    def opened() -> Blobs:
        return open_store(server.address(bucket="no-such-bucket"))

    for call in (
        lambda: opened().put("a", b"x"),
        lambda: opened().get("a"),
        lambda: opened().exists("a"),
        lambda: list(opened().list()),
        lambda: put_part(opened(), b"x"),
    ):
        with pytest.raises(Refused, match="no bucket 'no-such-bucket'"):
            call()


def _shows_no_secret(error: HoldfastError, *secrets: str) -> None:
    chain: BaseException | None = error
    while chain is not None:
        for secret in (ACCESS_KEY, SECRET_KEY, *secrets):
            assert secret not in str(chain)
        chain = chain.__cause__


def test_wrong_credentials_are_refused_at_once_with_what_to_check_and_without_showing_them(
    checking: RcloneServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store(checking.address()).put("a", b"x")
    for variable, value in (
        ("AWS_ACCESS_KEY_ID", "AKIDSOMEBODYELSE"),
        ("AWS_SECRET_ACCESS_KEY", "guessed-wrong"),
    ):
        monkeypatch.setenv(variable, value)
        blobs = open_store(checking.address(), Retrying(sleep=_must_not_sleep))
        calls: list[Callable[[], object]] = [
            partial(blobs.put, "a", b"y"),
            partial(blobs.get, "a"),
            partial(blobs.exists, "a"),
        ]
        for call in calls:
            with pytest.raises(Refused, match="AWS_SECRET_ACCESS_KEY") as caught:
                call()
            _shows_no_secret(caught.value, "AKIDSOMEBODYELSE", "guessed-wrong")
        monkeypatch.setenv(variable, credentials()[variable])
    assert open_store(checking.address()).get("a") == b"x"


def _must_not_sleep(_: float) -> None:
    raise AssertionError("a refusal is not tried again")


def test_without_credentials_the_variables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    with pytest.raises(Refused, match="AWS_ACCESS_KEY_ID"):
        open_store("s3://bucket?endpoint=http://127.0.0.1:1").exists("a")


def test_a_flipped_byte_of_an_object_is_found(checking: RcloneServer) -> None:
    blobs = open_store(checking.address("pre"))
    part = put_part(blobs, DATA)
    file = checking.objects / "pre" / part.key
    with file.open("r+b") as handle:
        handle.seek(12_345_678)
        flipped = handle.read(1)[0] ^ 4
        handle.seek(-1, os.SEEK_CUR)
        handle.write(bytes([flipped]))
    with pytest.raises(Corrupt, match=part.digest):
        read_part(blobs, part)


def test_a_forked_child_is_told_why_it_cannot_use_the_store_instead_of_waiting_for_ever(
    server: S3Server,
) -> None:
    blobs = open_store(server.address())
    blobs.put("a", b"x")
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            blobs.get("a")
        except Usage as error:
            os.write(writable, str(error).encode())
        finally:
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as said:
        assert "spawn" in said.read()
    os.waitpid(child, 0)
    assert blobs.get("a") == b"x"
