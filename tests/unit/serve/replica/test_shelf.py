"""What replicas of one machine keep on its disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from holdfast.models.records import Kind, Signature, Version
from holdfast.serve.replica.shelf import Shelf
from holdfast.storage import Blobs, open_store, put_part
from holdfast.wire.limits import SHELF_VERSIONS_KEPT


def version(blobs: Blobs, number: int) -> Version:
    part = put_part(blobs, f"weights of {number}".encode())
    return Version("m", number, Kind.ONNX, Signature((), ()), {"f": part}, f"sha256:{number}", 0.0)


def places(shelf: Shelf) -> set[str]:
    return {path.name.split("-")[1] for path in (shelf.folder / "versions").iterdir()}


def test_only_the_last_versions_that_nobody_holds_stay_on_the_disk(tmp_path: Path) -> None:
    blobs = open_store(f"file:{tmp_path / 'store'}")
    mine, other = Shelf(tmp_path / "shelf", 1), Shelf(tmp_path / "shelf", 2)
    versions = [version(blobs, number) for number in range(1, 7)]
    for each in versions:
        folder = mine.fetch(each, blobs)
        assert (folder / "f").read_text() == f"weights of {each.number}"
    other.fetch(versions[0], blobs)
    for each in versions:
        mine.release(each)
    held = {"1"}  # by the other replica
    kept = {str(each.number) for each in versions[-SHELF_VERSIONS_KEPT:]}
    assert places(mine) == held | kept
    other.release(versions[0])
    assert len(places(mine)) <= SHELF_VERSIONS_KEPT + 1
    assert (mine.fetch(versions[1], blobs) / "f").read_text() == "weights of 2"


def test_a_death_while_loading_is_counted_once_and_forgotten_when_it_loads(tmp_path: Path) -> None:
    blobs = open_store(f"file:{tmp_path / 'store'}")
    one = version(blobs, 1)
    shelf = Shelf(tmp_path / "shelf", 1)
    assert shelf.deaths(one) == 0
    with shelf.loading(one):
        assert Shelf(tmp_path / "shelf", 9).deaths(one) == 0, "it is alive"
    for worker in (2, 3):
        _dies_while_loading(tmp_path / "shelf", worker)
        assert shelf.deaths(one) == worker - 1
        assert shelf.deaths(one) == worker - 1
    assert not shelf.proven(one)
    shelf.prove(one)
    assert shelf.proven(one)
    assert shelf.deaths(one) == 0
    _dies_while_loading(tmp_path / "shelf", 4)
    assert shelf.deaths(one) == 1
    shelf.forgive(one)
    assert shelf.deaths(one) == 0


def _dies_while_loading(folder: Path, worker: int) -> None:
    code = f"""
import os
from pathlib import Path
from holdfast.models.records import Kind, Signature, Version
from holdfast.serve.replica.shelf import Shelf
one = Version("m", 1, Kind.ONNX, Signature((), ()), {{}}, "sha256:1", 0.0)
with Shelf(Path({str(folder)!r}), {worker}).loading(one):
    os._exit(7)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 7
