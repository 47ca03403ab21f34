"""Real faults of a store in a folder: no room, kills, flipped bytes, a folder that is read-only."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.storage import Retrying, open_store, put_part, read_part
from holdfast.storage.bundles import push, unpack
from holdfast.storage.folder import OWN, TEMPORARY_AGE_S
from holdfast.storage.keys import digest_of
from holdfast.wire.errors import Corrupt, Full, Refused, TimedOut
from tests.faults.file_limit import files_no_larger_than
from tests.faults.storage_process import writes
from tests.faults.test_disk import CAN_MOUNT, SmallDisk, small_disk
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
MEBIBYTE = 1024 * 1024


def temporary(store: Path) -> list[Path]:
    return list((store / OWN / "tmp").iterdir())


def test_a_blob_that_does_not_fit_is_refused_whole_and_the_old_one_stays(tmp_path: Path) -> None:
    blobs = open_store(tmp_path)
    blobs.put("kept", b"old")
    with files_no_larger_than(MEBIBYTE):
        for put in (blobs.put, blobs.put_if_absent):
            with pytest.raises(Full, match="no room"):
                put("new", bytes(2 * MEBIBYTE))
        with pytest.raises(Full):
            blobs.put("kept", bytes(2 * MEBIBYTE))
        blobs.put("small", b"fits")
    assert blobs.get("kept") == b"old"
    assert [found.key for found in blobs.list()] == ["kept", "small"]
    assert temporary(tmp_path) == []
    blobs.put("new", bytes(2 * MEBIBYTE))


if CAN_MOUNT:

    def test_a_full_file_system_refuses_a_blob_and_takes_it_when_there_is_room(
        tmp_path: Path,
    ) -> None:
        with small_disk(tmp_path) as disk:
            blobs = open_store(disk.folder / "store")
            part = put_part(blobs, b"x" * 1000)
            disk.fill(100_000)
            with pytest.raises(Full, match="no room"):
                put_part(blobs, bytes(500_000))
            assert read_part(blobs, part) == b"x" * 1000
            assert temporary(disk.folder / "store") == []
            disk.free()
            assert read_part(blobs, put_part(blobs, bytes(500_000))) == bytes(500_000)

    def test_a_full_disk_leaves_no_half_bundle_in_the_cache(tmp_path: Path) -> None:
        project = tmp_path / "project"
        project.mkdir()
        (project / "a.py").write_bytes(b"#" * 800_000)
        blobs = open_store(tmp_path / "store")
        bundle = push(blobs, project)
        with small_disk(tmp_path) as disk:
            cache = disk.folder / "cache"
            disk.fill(1_200_000)
            with pytest.raises(Full):
                unpack(blobs, bundle.digest, cache)
            assert [path.name for path in cache.iterdir()] == [".locks"]
            disk.free()
            assert (unpack(blobs, bundle.digest, cache) / "a.py").stat().st_size == 800_000


def test_a_folder_that_cannot_be_written_is_refused_with_what_to_check(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(Refused, match="check that the folder is one"):
        open_store(tmp_path / "file").put("a", b"x")
    if CAN_MOUNT:
        with small_disk(tmp_path) as disk:
            blobs = open_store(disk.folder / "store")
            blobs.put("a", b"x")
            disk.make_read_only()
            _is_read_only(disk, str(disk.folder / "store"))
    else:
        blobs = open_store(tmp_path / "store")
        blobs.put("a", b"x")
        (tmp_path / "store" / OWN / "tmp").chmod(0o500)
        with pytest.raises(Refused, match="not allowed"):
            blobs.put("a", b"y")
    blobs = open_store(tmp_path / "another")
    blobs.put("a", b"x")
    with pytest.raises(Refused):
        blobs.put("a/b", b"a blob is no folder")


def _is_read_only(disk: SmallDisk, store: str) -> None:
    blobs = open_store(store)
    assert blobs.get("a") == b"x"
    assert [found.key for found in blobs.list()] == ["a"]
    with pytest.raises(Refused, match="Read-only"):
        blobs.put("a", b"y")
    with pytest.raises(Refused, match="Read-only"):
        blobs.delete("a")
    with pytest.raises(Refused):
        open_store(disk.folder / "new").put("a", b"y")


def test_one_flipped_byte_of_a_stored_part_is_found(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    blobs = open_store(tmp_path)
    data = chance.randbytes(6 * MEBIBYTE)
    part = put_part(blobs, data)
    file = tmp_path / part.key
    for _ in range(5):
        at, bit = chance.randrange(len(data)), 1 << chance.randrange(8)
        with file.open("r+b") as handle:
            handle.seek(at)
            handle.write(bytes([data[at] ^ bit]))
        with pytest.raises(Corrupt, match=part.key):
            read_part(blobs, part)
        with file.open("r+b") as handle:
            handle.seek(at)
            handle.write(data[at : at + 1])
        assert read_part(blobs, part) == data
    os.truncate(file, len(data) - 1)
    with pytest.raises(Corrupt):
        read_part(blobs, part)
    # The size is wrong, so putting it again heals it.
    put_part(blobs, data)
    assert read_part(blobs, part) == data


@contextmanager
def writer(store: Path, seed: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.faults.storage_process", str(store), str(seed)]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "open\n"
        yield child
    finally:
        child.kill()
        child.stdout.close()
        child.wait()


def test_a_writer_killed_at_any_moment_leaves_whole_blobs_and_loses_none_that_it_told_of(
    tmp_path: Path,
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    store = tmp_path / "store"
    blobs = open_store(store)
    left_by_kills = 0
    for round_number in range(12):
        told: list[str] = []
        with writer(store, seed + round_number) as child:
            assert child.stdout is not None
            for _ in range(chance.randrange(1, 6)):
                told.append(child.stdout.readline())
            # Most of the time a writer only makes up what to write; wait until it writes.
            eventually(lambda: temporary(store) != [], "it writes", pause_s=0.0)
            time.sleep(chance.random() * 0.01)  # pause: the kill comes at any moment
            child.send_signal(signal.SIGKILL)
            child.wait()
            # The last line of a killed process may be half a digest.
            told += [line for line in child.stdout if line.endswith("\n")]
        written = list(itertools.islice(writes(seed + round_number), len(told) + 1))
        lines = [f"{key} {digest_of(data)}\n" for key, data in written]
        assert lines[:-1] == told
        for key, data in written[:-1]:
            assert key == "changing" or blobs.get(key) == data
        # It is the last one that was told of, or the one that could not be told of any more.
        versions = [data for key, data in written[:-1] if key == "changing"][-1:]
        if versions:
            versions += [data for key, data in written[-1:] if key == "changing"]
            assert blobs.get("changing") in versions
        for found in blobs.list("things"):
            # The key names the digest, so reading it verifies it.
            assert len(blobs.get(found.key)) == found.size_bytes
        left_by_kills += len(temporary(store))
        _tidy_takes_only_what_is_left(store)
        for path in store.rglob("*"):
            if path.is_file() and "things" in path.parts:
                path.unlink()
    assert left_by_kills, "no kill hit a write; the test has shown nothing"


def _tidy_takes_only_what_is_left(store: Path) -> None:
    left = temporary(store)
    assert open_store(store).tidy() == 0, "it may be a writer that has just begun"
    for path in left:
        os.utime(path, (0, time.time() - TEMPORARY_AGE_S - 1))
    assert open_store(store).tidy() == len(left)
    assert temporary(store) == []


def test_what_a_living_writer_has_not_finished_is_not_tidied_away(tmp_path: Path) -> None:
    blobs = open_store(tmp_path)

    def slow() -> Iterator[bytes]:
        yield b"first"
        for path in temporary(tmp_path):
            os.utime(path, (0, time.time() - TEMPORARY_AGE_S - 1))
        assert open_store(tmp_path).tidy() == 0
        yield b" and last"

    blobs.put("a", slow())
    assert blobs.get("a") == b"first and last"


def test_a_stopped_process_that_holds_the_lock_delays_others_only_for_a_bounded_time(
    tmp_path: Path,
) -> None:
    blobs = open_store(tmp_path, Retrying(timeout_s=0.3))
    blobs.put("a", b"x")
    program = (
        "import fcntl,sys,time; f=open(sys.argv[1],'w'); fcntl.flock(f,fcntl.LOCK_EX);"
        "print('held',flush=True); time.sleep(60)"
    )
    lock = tmp_path / OWN / "lock"
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(lock)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "held\n"
        child.send_signal(signal.SIGSTOP)
        with pytest.raises(TimedOut, match="lock"):
            blobs.put("a", b"y")
        assert blobs.get("a") == b"x"
        assert temporary(tmp_path) == []
    finally:
        child.kill()
        child.stdout.close()
        child.wait()
    blobs.put("a", b"y")
    assert blobs.get("a") == b"y"
