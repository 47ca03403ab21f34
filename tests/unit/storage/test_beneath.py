"""What whoever may write to a store can put there: links, pipes, sockets, devices."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.storage import Blobs, open_store
from holdfast.system.disk import tighten
from holdfast.wire.errors import Corrupt, Missing

SECRET = b"root:x:0:0"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with one blob; beside it what nobody may get at through it."""
    folder = tmp_path / "store"
    open_store(folder).put("models/a/one", b"one")
    outside = tmp_path / "outside"
    (outside / "a").mkdir(parents=True)
    (outside / "secret").write_bytes(SECRET)
    (outside / "a" / "secret").write_bytes(SECRET)
    return folder


@pytest.fixture
def blobs(store: Path) -> Blobs:
    return open_store(store)


def _link(path: Path) -> None:
    path.symlink_to(path.parents[3] / "outside" / "secret")


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def _device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root makes devices")


KINDS: dict[str, tuple[Callable[[Path], None], str]] = {
    "link": (_link, "a symbolic link"),
    "pipe": (os.mkfifo, "a pipe"),
    "socket": (_socket, "a socket"),
    "device": (_device, "a device"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_a_plain_file_is_not_read_but_named(
    blobs: Blobs, store: Path, kind: str
) -> None:
    make, said = KINDS[kind]
    planted = store / "models" / "a" / "planted"
    make(planted)
    for use in (
        blobs.get,
        blobs.exists,
        lambda key: b"".join(blobs.stream(key)),
        lambda key: blobs.put_if_absent(key, b"mine"),
    ):
        with pytest.raises(Corrupt, match=f"{planted} is {said}") as told:
            use("models/a/planted")
        assert f"rm {planted}" in told.value.fix
    assert [row.key for row in blobs.list()] == ["models/a/one"]
    blobs.delete("models/a/planted")
    assert not planted.is_symlink() and not planted.exists()
    assert (store.parent / "outside" / "secret").read_bytes() == SECRET


def test_a_link_in_the_place_of_a_folder_leads_nowhere(blobs: Blobs, store: Path) -> None:
    outside = store.parent / "outside"
    (store / "models" / "b").symlink_to(outside / "a")
    (store / "parts").symlink_to(outside)
    for key, link in (("models/b/secret", "models/b"), ("parts/a/secret", "parts")):
        for use in (blobs.get, blobs.delete, lambda key: blobs.put(key, b"mine")):
            with pytest.raises(Corrupt, match=f"{store / link} is a symbolic link"):
                use(key)
    with pytest.raises(Corrupt, match="is a symbolic link"):
        list(blobs.list("parts/a"))
    assert [row.key for row in blobs.list()] == ["models/a/one"]
    assert (outside / "a" / "secret").read_bytes() == SECRET
    assert sorted(path.name for path in outside.rglob("*")) == ["a", "secret", "secret"]


def test_a_link_in_the_place_of_what_the_store_keeps_for_itself_is_not_followed(
    store: Path,
) -> None:
    outside = store.parent / "outside"
    (store / ".holdfast" / "lock").unlink()
    (store / ".holdfast" / "lock").symlink_to(outside / "made")
    with pytest.raises(Corrupt, match="lock is a symbolic link"):
        open_store(store).put("models/a/two", b"two")
    assert not (outside / "made").exists()
    (store / ".holdfast" / "lock").unlink()
    (store / ".holdfast" / "tmp").rmdir()
    (store / ".holdfast" / "tmp").symlink_to(outside)
    with pytest.raises(Corrupt, match="tmp is a symbolic link"):
        open_store(store).put("models/a/two", b"two")
    assert {path.name for path in outside.iterdir()} == {"a", "secret"}


def test_a_link_is_replaced_by_the_blob_that_is_put_there(blobs: Blobs, store: Path) -> None:
    _link(store / "models" / "a" / "planted")
    blobs.put("models/a/planted", b"mine")
    assert blobs.get("models/a/planted") == b"mine"
    assert (store.parent / "outside" / "secret").read_bytes() == SECRET


def test_a_blob_below_a_blob_is_missing(blobs: Blobs) -> None:
    with pytest.raises(Missing):
        blobs.get("models/a/one/more")
    assert not blobs.exists("models/a")


def test_what_a_link_leads_to_is_not_tightened(store: Path) -> None:
    outside = store.parent / "outside"
    (outside / "secret").chmod(0o644)
    outside.chmod(0o755)
    (store / "models" / "file").symlink_to(outside / "secret")
    (store / "models" / "folder").symlink_to(outside)
    (store / "models" / "a" / "one").chmod(0o644)
    assert tighten(store) == 1
    assert stat.S_IMODE((outside / "secret").stat().st_mode) == 0o644
    assert stat.S_IMODE(outside.stat().st_mode) == 0o755


def test_a_store_that_was_away_is_written_to_again_when_it_is_back(
    store: Path, blobs: Blobs, tmp_path: Path
) -> None:
    blobs.put("models/a/two", b"two")
    away, other = tmp_path / "away", tmp_path / "other"
    store.rename(away)
    store.mkdir()
    blobs.put("models/b/three", b"in a folder that only the other one has")
    store.rename(other)
    away.rename(store)
    blobs.put("models/b/three", b"three")
    assert blobs.get("models/b/three") == b"three"
