"""What goes into a bundle, that its bytes depend on nothing else, and that nothing escapes."""

from __future__ import annotations

import io
import os
import random
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.storage import archive, open_store, selection
from holdfast.storage.bundles import pack, unpack
from holdfast.storage.keys import content_key, digest_of
from holdfast.storage.selection import selected
from holdfast.wire.errors import Corrupt, HoldfastError, Refused, Usage


def make(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def names(folder: Path) -> list[str]:
    return [str(path) for path in selected(folder)]


def test_the_same_code_has_the_same_digest_whoever_owns_it_and_whenever_it_was_made(
    tmp_path: Path,
) -> None:
    first = make(tmp_path / "a", b="2", a="1", c__d="3")
    second = make(tmp_path / "elsewhere" / "z", c__d="3", a="1", b="2")
    for path in second.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700 if path.is_dir() else 0o600)
    old_mask = os.umask(0o077)
    try:
        assert pack(first) == pack(second)
    finally:
        os.umask(old_mask)
    (second / "a").chmod(0o700)
    assert pack(first).digest != pack(second).digest


def test_the_archive_of_this_code_has_this_digest_on_every_machine(tmp_path: Path) -> None:
    folder = make(tmp_path / "a", train_DOT_py="print(1)\n", package__x="y" * 1_000)
    (folder / "package" / ("n" * 150)).write_text("a name that does not fit a plain header")
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o755)
    (folder / "link").symlink_to("package/x")
    (folder / "ü").write_text("ü")
    found = pack(folder)
    assert found.size_bytes == sum(len(piece) for piece in archive.write(folder, found.members))
    assert found.digest == (
        "sha256:26fcb830752db64b5ad960a191823b539005ea9d67d385fb63f6b2294c16d27d"
    )


def test_without_git_the_ignore_files_are_obeyed_and_the_usual_litter_stays_away(
    tmp_path: Path,
) -> None:
    folder = make(
        tmp_path / "a",
        _DOT_gitignore="*.log\n!keep.log\n/data/\n",
        a_DOT_py="",
        x_DOT_log="",
        keep_DOT_log="",
        data__x="",
        sub__data__y="",
        sub__z_DOT_tmp="",
        sub___DOT_gitignore="*.tmp\n!x.log\n",
        sub__x_DOT_log="",
        _DOT_venv__lib="",
        sub__node_modules__x="",
        _DOT_git__config="",
    )
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "a.pyc").write_text("")
    assert names(folder) == [
        ".gitignore",
        "a.py",
        "keep.log",
        "sub/.gitignore",
        "sub/data/y",
        "sub/x.log",
    ]


def test_in_a_checkout_git_decides_and_what_it_tracks_is_taken(tmp_path: Path) -> None:
    folder = make(
        tmp_path / "a",
        _DOT_gitignore="*.log\n",
        tracked_DOT_log="",
        other_DOT_log="",
        new_DOT_py="",
        gone_DOT_py="",
        venv__tracked="",
        venv__other="",
        sub__b_DOT_py="",
    )
    git(folder, "init", "-q")
    git(folder, "add", "-f", "tracked.log", "gone.py", "venv/tracked")
    (folder / "gone.py").unlink()
    assert names(folder) == [".gitignore", "new.py", "sub/b.py", "tracked.log", "venv/tracked"]
    assert names(folder / "sub") == ["b.py"]


def test_a_folder_that_the_checkout_around_it_ignores_is_taken_by_itself(tmp_path: Path) -> None:
    folder = make(tmp_path / "a", _DOT_gitignore="/scratch/\n", scratch__train_DOT_py="")
    git(folder, "init", "-q")
    assert names(folder / "scratch") == ["train.py"]


def test_a_submodule_is_taken_with_its_own_files(tmp_path: Path) -> None:
    inner = make(tmp_path / "inner", lib_DOT_py="")
    git(inner, "init", "-q")
    git(inner, "add", ".")
    git(inner, "commit", "-q", "-m", "x")
    outer = make(tmp_path / "outer", main_DOT_py="")
    git(outer, "init", "-q")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), "sub")
    assert names(outer) == [".gitmodules", "main.py", "sub/lib.py"]


WORDS = ("a", "b", "data", "x.log", "y.txt", "build", "é")
PATTERNS = (
    *("*.log", "!x.log", "/data", "data/", "build", "**/b", "a/*", "!a/b", "a/**/y.txt", "#x"),
    *("a/**", "**/data/**", "*", "!*.txt", "!*/", "b/*.txt", "[ab]", "x.*", "!/build", "!data"),
)


def test_our_reading_of_ignore_files_is_gits_on_random_trees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for number in range(25):
        folder = tmp_path / str(number)
        folder.mkdir()
        for _ in range(25):
            path = folder.joinpath(*chance.choices(WORDS, k=chance.randrange(1, 4)))
            if not path.exists() and not any(up.is_file() for up in path.parents):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("")
        for place in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
            if chance.random() < 0.5:
                rules = chance.choices(PATTERNS, k=chance.randrange(1, 5))
                (place / ".gitignore").write_text("\n".join(rules))
        with monkeypatch.context() as patch:
            patch.setattr(selection, "_is_checkout", lambda _: False)
            ours = names(folder)
        git(folder, "init", "-q")
        assert ours == names(folder), f"tree {number}"


def test_a_folder_that_is_too_large_names_its_largest_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(tmp_path / "a", small="1", weights="x" * 5_000, bigger="x" * 9_000)
    monkeypatch.setattr(archive, "BUNDLE_BYTES_MAX", 10_000)
    with pytest.raises(Usage, match="gitignore") as caught:
        pack(folder)
    assert [line.split()[-1] for line in caught.value.story] == ["bigger", "weights", "small"]
    monkeypatch.setattr(archive, "BUNDLE_BYTES_MAX", 10**6)
    monkeypatch.setattr(archive, "BUNDLE_FILES_MAX", 2)
    with pytest.raises(Usage, match="3 files"):
        pack(folder)


def test_what_cannot_be_packed_is_named(tmp_path: Path) -> None:
    with pytest.raises(Usage, match="not a folder"):
        pack(tmp_path / "nothing")
    folder = make(tmp_path / "a")
    with pytest.raises(Usage, match="no file"):
        pack(folder)
    make(folder, x="1")
    os.mkfifo(folder / "pipe")
    with pytest.raises(Usage, match="pipe"):
        pack(folder)
    (folder / "pipe").unlink()
    for target in ("/etc/passwd", "../outside", "x/../../y", ""):
        if target:
            (folder / "link").symlink_to(target)
            with pytest.raises(Refused, match="leads out"):
                pack(folder)
            (folder / "link").unlink()


def test_a_file_that_changes_while_it_is_packed_is_noticed(tmp_path: Path) -> None:
    folder = make(tmp_path / "a", x="12345")
    members = archive.members_of(folder, selected(folder))
    for text in ("1234", "123456"):
        (folder / "x").write_text(text)
        with pytest.raises(Refused, match="changed"):
            list(archive.write(folder, members))


def info(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0
) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, link, size
    return made


HOSTILE: dict[str, list[tarfile.TarInfo]] = {
    "up": [info("../evil")],
    "up inside": [info("a/../../evil")],
    "absolute": [info("/tmp/evil")],
    "a link out": [info("l", tarfile.SYMTYPE, "../..")],
    "an absolute link": [info("l", tarfile.SYMTYPE, "/etc")],
    "through a link": [info("l", tarfile.SYMTYPE, "d"), info("l/evil")],
    "a link through a link": [
        info("a/b/d", tarfile.SYMTYPE, "../.."),
        info("e", tarfile.SYMTYPE, "a/b/d/x"),
    ],
    "a link down and up": [info("d/x"), info("e", tarfile.SYMTYPE, "d/../../x")],
    "a hard link": [info("h", tarfile.LNKTYPE, "/etc/passwd")],
    "a device": [info("dev", tarfile.CHRTYPE)],
    "a pipe": [info("pipe", tarfile.FIFOTYPE)],
    "a folder": [info("d", tarfile.DIRTYPE)],
    "twice": [info("a"), info("a")],
    "a file as a folder": [info("a"), info("a/b")],
    "no name": [info("")],
    "a dot": [info(".")],
    "a sparse file": [info("s", tarfile.GNUTYPE_SPARSE)],
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_is_refused_before_anything_is_written(tmp_path: Path, kind: str) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for member in [info("innocent"), *HOSTILE[kind]]:
            tar.addfile(member)
    blobs = open_store(tmp_path / "store")
    digest = digest_of(file.getvalue())
    blobs.put(content_key("bundles", digest), file.getvalue())
    cache = tmp_path / "in" / "side" / "cache"
    with pytest.raises((Refused, Corrupt)):
        unpack(blobs, digest, cache)
    assert [path.name for path in cache.iterdir()] == [".locks"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "store"]


def _flip(data: bytearray, chance: random.Random) -> None:
    for _ in range(chance.randrange(1, 4)):
        data[chance.randrange(len(data))] = chance.randrange(256)


def _cut(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


@pytest.mark.parametrize("damage", [_flip, _cut])
def test_a_random_archive_is_unpacked_inside_the_folder_or_refused(
    tmp_path: Path, damage: Callable[[bytearray, random.Random], None]
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    folder = make(tmp_path / "a", x="1", y__z="2")
    (folder / "l").symlink_to("y/z")
    whole = b"".join(archive.write(folder, archive.members_of(folder, selected(folder))))
    for number in range(150):
        data = bytearray(whole)
        damage(data, chance)
        target = tmp_path / "out" / str(number)
        target.mkdir(parents=True)
        file = io.BytesIO(data)
        try:
            archive.extract(file, archive.read_members(file), target)
        except HoldfastError:
            continue
        for path in target.rglob("*"):
            assert path.resolve().is_relative_to(target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "out"]
