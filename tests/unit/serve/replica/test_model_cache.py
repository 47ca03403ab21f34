"""What replicas of one machine keep on its disk."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import cast

import pytest

from holdfast.models import loading
from holdfast.models.records import ModelKind, Signature, Version
from holdfast.serve.records import ServiceSpec
from holdfast.serve.replica import model_cache
from holdfast.serve.replica.batching import BatchPace
from holdfast.serve.replica.engine import Engine
from holdfast.serve.replica.model_cache import CACHED_VERSIONS_KEPT, VERIFIED_S, ModelCache
from holdfast.serve.replica.trial import Manner, PreforkServer
from holdfast.serve.replica.versions import Versions, VersionSource
from holdfast.storage import Blobs, open_store, put_part

MANNER = Manner(batches=True, pace=BatchPace.SHORT)


def version(blobs: Blobs, number: int) -> Version:
    part = put_part(blobs, f"weights of {number}".encode())
    return Version(
        "m", number, ModelKind.ONNX, Signature((), ()), {"f": part}, f"sha256:{number}", 0.0
    )


def places(cache: ModelCache) -> set[str]:
    return {path.name.split("-")[1] for path in (cache.folder / "versions").iterdir()}


def test_only_the_last_versions_that_nobody_holds_stay_on_the_disk(tmp_path: Path) -> None:
    blobs = open_store(f"file:{tmp_path / 'store'}")
    mine, other = ModelCache(tmp_path / "cache", 1), ModelCache(tmp_path / "cache", 2)
    versions = [version(blobs, number) for number in range(1, 7)]
    for each in versions:
        folder = mine.fetch(each, blobs)
        assert (folder / "f").read_text() == f"weights of {each.number}"
    other.fetch(versions[0], blobs)
    for each in versions:
        mine.release(each)
    held = {"1"}  # by the other replica
    kept = {str(each.number) for each in versions[-CACHED_VERSIONS_KEPT:]}
    assert places(mine) == held | kept
    other.release(versions[0])
    assert len(places(mine)) <= CACHED_VERSIONS_KEPT + 1
    assert (mine.fetch(versions[1], blobs) / "f").read_text() == "weights of 2"


def test_a_death_while_loading_is_counted_once_and_forgotten_when_it_loads(tmp_path: Path) -> None:
    blobs = open_store(f"file:{tmp_path / 'store'}")
    one = version(blobs, 1)
    cache = ModelCache(tmp_path / "cache", 1)
    assert cache.deaths(one) == 0
    with cache.loading(one):
        assert ModelCache(tmp_path / "cache", 9).deaths(one) == 0, "it is alive"
    for worker in (2, 3):
        _dies_while_loading(tmp_path / "cache", worker)
        assert cache.deaths(one) == worker - 1
        assert cache.deaths(one) == worker - 1
    assert not cache.proven(one)
    cache.tried(one, 64, MANNER)
    assert cache.deaths(one) == 2, "a trial says nothing about what killed replicas"
    cache.prove(one, 64, MANNER)
    assert cache.proven(one)
    assert cache.deaths(one) == 0
    _dies_while_loading(tmp_path / "cache", 4)
    assert cache.deaths(one) == 1
    cache.forgive(one)
    assert cache.deaths(one) == 0


def test_what_was_found_out_about_a_version_is_known_to_all_for_the_same_batches(
    tmp_path: Path,
) -> None:
    one = version(open_store(f"file:{tmp_path / 'store'}"), 1)
    mine, other = ModelCache(tmp_path / "cache", 1), ModelCache(tmp_path / "cache", 2)
    assert other.manner(one, 64) is None
    mine.tried(one, 64, MANNER)
    assert other.proven(one)
    assert other.manner(one, 64) == MANNER
    assert other.manner(one, 32) is None
    for left in (b"", b"{}", b"[1]", b'{"batches": true, "pace": "odd", "batch_max": 64}'):
        next((tmp_path / "cache" / "proven").iterdir()).write_bytes(left)
        assert other.proven(one)
        assert other.manner(one, 64) is None


def test_files_that_were_verified_just_now_and_not_touched_since_are_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = open_store(f"file:{tmp_path / 'store'}")
    one = version(blobs, 1)
    mine, other = ModelCache(tmp_path / "cache", 1), ModelCache(tmp_path / "cache", 2)
    mine.verify(one)
    assert not other.verified(one), "there are no files"
    file = mine.fetch(one, blobs) / "f"
    assert not other.verified(one), "nobody has said so"
    mine.verify(one)
    assert other.verified(one)
    was = file.stat()
    file.write_bytes(b"x" * was.st_size)
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns + 1))
    assert not other.verified(one), "it was touched"
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert other.verified(one)
    file.write_bytes(b"")
    assert not other.verified(one), "it was cut off"
    file.unlink()
    assert not other.verified(one), "it is gone"
    mine.fetch(one, blobs)
    assert not other.verified(one), "another file has taken its place"
    mine.verify(one)
    monkeypatch.setattr(model_cache, "_boot", lambda: "the next one")
    assert not other.verified(one), "the machine was started anew"
    monkeypatch.undo()
    for later_s in (-1.0, VERIFIED_S + 1.0):
        now_s = time.time() + later_s
        monkeypatch.setattr(time, "time", lambda now_s=now_s: now_s)
        assert not other.verified(one), "it was not just now"
        monkeypatch.undo()
    assert other.verified(one)


def test_a_mark_of_verified_files_that_is_torn_or_odd_means_nothing(tmp_path: Path) -> None:
    blobs = open_store(f"file:{tmp_path / 'store'}")
    one, mine = version(blobs, 1), ModelCache(tmp_path / "cache", 1)
    mine.fetch(one, blobs)
    mine.verify(one)
    mark = next((tmp_path / "cache" / "verified").iterdir())
    whole = mark.read_bytes()
    for left in (
        b"",
        b"{}",
        b"[1]",
        b"7",
        b'{"at_s": "now"}',
        whole[:-1],
        whole[: len(whole) // 2],
    ):
        mark.write_bytes(left)
        assert not mine.verified(one)
    mark.write_bytes(json.dumps({"at_s": time.time(), "looks": None}).encode())
    (mine.fetch(one, blobs) / "f").unlink()
    assert not mine.verified(one)


def test_the_second_replica_of_a_machine_does_not_read_what_the_first_has_verified(
    tmp_path: Path,
) -> None:
    blobs = open_store(f"file:{tmp_path / 'store'}")
    one = version(blobs, 1)
    fetched = []

    class Fetches:
        def __init__(self, worker: int) -> None:
            self._worker = worker

        def fetch(self, record: Version, folder: Path) -> bool:
            fetched.append(self._worker)
            loading.fetch(record, blobs, folder)
            return True

    async def each(*workers: int) -> None:
        for worker in workers:
            engine = Engine(ServiceSpec("m", "m", "1"), worker=worker, region="", logs=None)
            prefork = cast("PreforkServer", Fetches(worker))
            here = ModelCache(tmp_path / "cache", worker)
            versions = Versions(engine, here, cast("VersionSource", None), prefork, lambda: None)
            versions.hold([1], 0)
            await asyncio.to_thread(versions._fetched, one)

    asyncio.run(each(1, 2))
    assert fetched == [1]
    next((tmp_path / "cache" / "verified").iterdir()).unlink()
    asyncio.run(each(2, 1))
    assert fetched == [1, 2]


def test_a_version_is_fetched_by_one_at_a_time_and_whoever_waits_finds_it_done(
    tmp_path: Path,
) -> None:
    blobs = open_store(f"file:{tmp_path / 'store'}")
    one, cache = version(blobs, 1), ModelCache(tmp_path / "cache", 1)
    other = ModelCache(tmp_path / "cache", 2)
    order = []

    def comes_second() -> None:
        waits.set()
        with other.turn(one, lambda: other.present(one)):
            order.append(f"second, there: {other.present(one)}")

    waits = threading.Event()
    second = threading.Thread(target=comes_second)
    with cache.turn(one, lambda: cache.present(one)):
        second.start()
        assert waits.wait(30)
        order.append("first")
        cache.fetch(one, blobs)
        # All is there: whoever waits goes on, although the turn is not over.
        second.join(30)
    assert order == ["first", "second, there: True"]


def test_the_turn_of_a_process_that_dies_is_over(tmp_path: Path) -> None:
    one = version(open_store(f"file:{tmp_path / 'store'}"), 1)
    code = f"""
import os
from pathlib import Path
from holdfast.models.records import ModelKind, Signature, Version
from holdfast.serve.replica.model_cache import ModelCache
one = Version("m", 1, ModelKind.ONNX, Signature((), ()), {{}}, "sha256:1", 0.0)
with ModelCache(Path({str(tmp_path / "cache")!r}), 1).turn(one, lambda: False):
    os._exit(7)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 7
    asked: list[int] = []

    def no() -> bool:
        asked.append(1)
        return False

    with ModelCache(tmp_path / "cache", 2).turn(one, no):
        assert len(asked) == 1


def _dies_while_loading(folder: Path, worker: int) -> None:
    code = f"""
import os
from pathlib import Path
from holdfast.models.records import ModelKind, Signature, Version
from holdfast.serve.replica.model_cache import ModelCache
one = Version("m", 1, ModelKind.ONNX, Signature((), ()), {{}}, "sha256:1", 0.0)
with ModelCache(Path({str(folder)!r}), {worker}).loading(one):
    os._exit(7)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 7
