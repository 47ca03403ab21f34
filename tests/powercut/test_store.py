"""A store in a folder, and a script's own checkpoints, on a disk that forgets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.storage import Blobs, Part, bundles, open_store, put_part, read_part
from holdfast.storage.manifests import Manifest, read_manifest, verify, write_manifest
from holdfast.train.members.solo import Solo
from holdfast.wire.errors import HoldfastError
from tests.powercut.disk import Disk
from tests.powercut.images import survives
from tests.powercut.scenes import new_disk, restarts
from tests.unit.train.test_solo import Word


def in_deep(disk: Disk) -> Blobs:
    return open_store(disk.folder / "deep" / "store")


def write_blobs(disk: Disk) -> None:
    """Blobs that are new, that take another's place, that are written once; then a checkpoint."""
    blobs = in_deep(disk)
    for key, data in [("a/b/c", b"one"), ("a/b/d", b"two"), ("a/b/c", b"three")]:
        blobs.put(key, data)
        disk.acknowledge((key, data))
    assert blobs.put_if_absent("once", b"first")
    disk.acknowledge(("once", b"first"))
    parts = tuple(put_part(blobs, data) for data in (b"part one", b"part two"))
    for part in parts:
        disk.acknowledge(part)
    disk.acknowledge(write_manifest(blobs, Manifest("job", 1, 1, {0: parts})))


def holds(folder: Path, promised: tuple[Any, ...]) -> None:
    """What was acknowledged last for each key is there, or what was on its way; never half."""
    blobs = open_store(folder / "deep" / "store")
    contents = {"a/b/c": [b"one", b"three"], "a/b/d": [b"two"], "once": [b"first"]}
    for key, known in contents.items():
        pairs = [fact for fact in promised if isinstance(fact, tuple)]
        told = [known.index(data) for name, data in pairs if name == key]
        if told or blobs.exists(key):
            assert known.index(blobs.get(key)) >= max(told, default=0)
    for fact in promised:
        if isinstance(fact, str):
            verify(blobs, read_manifest(blobs, fact))
        elif isinstance(fact, Part):
            read_part(blobs, fact)
    for row in list(blobs.list("parts")):
        blobs.get(row.key)  # its name says what is in it


def test_an_acknowledged_blob_is_lost_or_half_there_after_a_power_cut(tmp_path: Path) -> None:
    disk = new_disk(tmp_path / "disk")
    with disk:
        write_blobs(disk)
    assert survives(disk, tmp_path, holds) > 50


def _push(blobs: Blobs, code: Path) -> None:
    bundles.push(blobs, code)


def _renew(blobs: Blobs, code: Path) -> None:
    digest = bundles.pack(code).digest
    if not bundles.renew(blobs, digest):
        bundles.push(blobs, code)


@pytest.mark.parametrize(
    "write",
    [
        lambda blobs, code: blobs.put_if_absent("a/b/c", b"bytes"),
        lambda blobs, code: put_part(blobs, b"bytes"),
        _push,
        _renew,
    ],
    ids=["put_if_absent", "put_part", "push", "renew"],
)
def test_a_blob_that_a_killed_writer_left_is_taken_for_durable(
    tmp_path: Path, write: Callable[[Blobs, Path], Any]
) -> None:
    """Whoever comes second finds it there, does not write it, and says that it is there."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("pass\n")
    seen = 0
    for disk in restarts(tmp_path, lambda disk: write(in_deep(disk), code)):
        with disk:
            write(in_deep(disk), code)
            disk.moments.clear()
            disk.acknowledge("there")
        seen += 1

        def has_one(folder: Path, promised: tuple[Any, ...]) -> None:
            blobs = open_store(folder / "deep" / "store")
            (row,) = blobs.list()
            assert blobs.get(row.key)

        survives(disk, tmp_path, has_one)
    assert seen > 5


def test_a_saved_step_of_a_script_is_lost_by_a_power_cut(tmp_path: Path) -> None:
    disk = new_disk(tmp_path / "disk")
    with disk:
        for word in (b"one", b"two"):
            holder = Word()
            solo = Solo(holder, 2, folder=disk.folder / "deep" / "run")
            solo.join()
            holder.word = word
            solo.boundary()
            solo.finish()
            disk.acknowledge((solo.step, word))

    def goes_on(folder: Path, promised: tuple[Any, ...]) -> None:
        holder = Word()
        solo = Solo(holder, 2, folder=folder / "deep" / "run")
        solo.join()
        solo.close()
        steps = {0: b"new", 1: b"one", 2: b"two"}
        assert solo.step in (len(promised), len(promised) + 1)
        assert holder.word == steps[solo.step]

    assert survives(disk, tmp_path, goes_on) > 20


def test_a_store_that_cannot_be_flushed_says_so(tmp_path: Path) -> None:
    disk = new_disk(tmp_path / "disk")
    with disk:
        blobs = in_deep(disk)
        put_part(blobs, b"bytes")

        def fail(number: int) -> None:
            raise OSError(5, "Input/output error")

        disk.at_sync = fail
        with pytest.raises(HoldfastError):
            put_part(blobs, b"bytes")
