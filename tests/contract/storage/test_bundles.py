"""Bundles over every store: packed, pushed, unpacked, checked, raced for."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.storage import open_store
from holdfast.storage.bundles import pack, push, unpack
from holdfast.wire.errors import Corrupt, Missing
from tests.contract.storage.stores import StoreUnderTest


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "package" / "deep").mkdir(parents=True)
    (folder / "train.py").write_text("import package\n")
    (folder / "package" / "__init__.py").write_text("")
    (folder / "package" / "deep" / ("long" * 40 + ".txt")).write_text("x" * 5_000)
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o700)
    (folder / "Übung.txt").write_text("ü")
    (folder / "package" / "link").symlink_to("../train.py")
    return folder


def tree(folder: Path) -> dict[str, object]:
    """Every file and link below a folder: content, or target, and whether it is a program."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = os.fspath(path.readlink())
        elif path.is_file():
            program = bool(path.stat().st_mode & stat.S_IXUSR)
            found[str(path.relative_to(folder))] = (path.read_bytes(), program)
    return found


def test_a_bundle_comes_out_as_it_went_in_and_the_second_time_from_the_cache(
    store: StoreUnderTest, project: Path, tmp_path: Path
) -> None:
    bundle = push(store.blobs, project)
    assert push(store.blobs, project) == bundle
    assert [found.key for found in store.blobs.list("bundles")] == [bundle.key]
    cache = tmp_path / "cache"
    folder = unpack(store.another(), bundle.digest, cache)
    assert tree(folder) == tree(project)
    store.blobs.delete(bundle.key)
    assert unpack(store.another(), bundle.digest, cache) == folder
    with pytest.raises(Missing):
        unpack(store.another(), bundle.digest, tmp_path / "another")
    assert not list((tmp_path / "another").glob(".tmp*"))
    assert pack(folder).digest == bundle.digest


def test_a_damaged_bundle_in_the_store_is_refused_and_nothing_of_it_is_unpacked(
    store: StoreUnderTest, project: Path, tmp_path: Path
) -> None:
    bundle = push(store.blobs, project)
    data = bytearray(store.blobs.get(bundle.key))
    data[600] ^= 1
    store.overwrite(bundle.key, bytes(data))
    with pytest.raises(Corrupt, match=bundle.digest):
        unpack(store.blobs, bundle.digest, tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".locks"]


def _flip(folder: Path) -> None:
    file = folder / "train.py"
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(data)


def _link(folder: Path) -> None:
    (folder / "train.py").unlink()
    (folder / "train.py").symlink_to("/")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped": _flip,
    "cut": lambda folder: os.truncate(folder / "train.py", 3),
    "removed": lambda folder: (folder / "run.sh").unlink(),
    "mode": lambda folder: (folder / "run.sh").chmod(0o600),
    "link": _link,
    "list": lambda folder: (folder.parent / "members.json").write_text("[1"),
    "list of others": lambda folder: (folder.parent / "members.json").write_text('["../x"]'),
    "all": shutil.rmtree,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_bundle_in_the_cache_is_found_and_replaced(
    tmp_path: Path, project: Path, damage: str
) -> None:
    blobs = open_store(tmp_path / "store")
    bundle = push(blobs, project)
    folder = unpack(blobs, bundle.digest, tmp_path / "cache")
    DAMAGES[damage](folder)
    assert unpack(blobs, bundle.digest, tmp_path / "cache") == folder
    assert tree(folder) == tree(project)
    assert sorted(p.name for p in (tmp_path / "cache").iterdir()) == [".locks", folder.parent.name]


def test_files_that_a_program_adds_to_its_bundle_do_not_count(
    tmp_path: Path, project: Path
) -> None:
    blobs = open_store(tmp_path / "store")
    bundle = push(blobs, project)
    folder = unpack(blobs, bundle.digest, tmp_path / "cache")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_bytes(b"1")
    blobs.delete(bundle.key)
    assert unpack(blobs, bundle.digest, tmp_path / "cache") == folder
    assert (folder / "__pycache__" / "x.pyc").exists()


def _unpack_many(store: str, digest: str, cache: str, times: int) -> None:
    for number in range(times):
        folder = unpack(open_store(store), digest, Path(cache) / str(number))
        assert pack(folder).digest == digest


def test_processes_that_unpack_the_same_bundle_at_once_all_get_it_whole(
    tmp_path: Path, project: Path
) -> None:
    store = str(tmp_path / "store")
    bundle = push(open_store(store), project)
    context = multiprocessing.get_context("spawn")
    arguments = (store, bundle.digest, str(tmp_path / "cache"), 6)
    children = [context.Process(target=_unpack_many, args=arguments) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * 4
    for number in range(6):
        held = sorted(path.name for path in (tmp_path / "cache" / str(number)).iterdir())
        assert held == [".locks", bundle.digest.removeprefix("sha256:")]
