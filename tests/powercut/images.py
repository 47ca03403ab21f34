"""What a disk may hold after a cut.

Names and contents are independent of one another: a folder's names are those that were synced, or
those of now, or some of the changes between; a file's bytes are those that were synced, or later
ones, or zeros where the length was kept and the data was not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.powercut.disk import Disk, File, Folder, Moment, Node

Names = Callable[[Folder], dict[str, Node]]
Content = Callable[[File], bytes]
Image = dict[str, bytes | None]  # relative path -> bytes, None: a folder


def images(moment: Moment) -> Iterator[tuple[str, Image]]:
    """Each thing that the disk may hold, with words for it; none twice."""
    seen = set()
    for said, names in _NAMES.items():
        for what, content in _contents(moment.root):
            image: Image = {}
            _fill(image, "", moment.root, names, content)
            mark = tuple(sorted(image.items()))
            if mark not in seen:
                seen.add(mark)
                yield f"{moment.what}; {said}, {what}", image


def _synced(node: File) -> bytes:
    return node.synced or b""


def _live(node: File) -> bytes:
    return node.live


def _zeros(node: File) -> bytes:
    """The length is durable, and the data that made it longer is not."""
    return _synced(node).ljust(len(node.live), b"\0")


_NAMES: dict[str, Names] = {
    "names as synced": lambda folder: folder.synced,
    "names as they were": lambda folder: folder.live,
    "removals kept, new names lost": lambda folder: {
        name: node for name, node in folder.synced.items() if name in folder.live
    },
    "new names kept, removals lost": lambda folder: {**folder.synced, **folder.live},
}


def _contents(root: Folder) -> Iterator[tuple[str, Content]]:
    yield "bytes as synced", _synced
    yield "bytes as they were", _live
    yield "lengths as they were", _zeros
    for name, file in sorted(_files(root).items()):
        if file.live != _synced(file):
            yield f"only {name} as it was", _with(file, file.live, _synced)
            yield f"only {name} as synced", _with(file, _synced(file), _live)
        for number, content in enumerate(file.between):
            yield f"{name} as it was before, {number}", _with(file, content, _synced)


def _with(one: File, content: bytes, others: Content) -> Content:
    return lambda file: content if file is one else others(file)


def _files(folder: Folder, at: str = "") -> dict[str, File]:
    found: dict[str, File] = {}
    for name, node in {**folder.synced, **folder.live}.items():
        if isinstance(node, File):
            found[f"{at}{name}"] = node
        else:
            found |= _files(node, f"{at}{name}/")
    return found


def _fill(image: Image, at: str, folder: Folder, names: Names, content: Content) -> None:
    for name, node in names(folder).items():
        if isinstance(node, File):
            image[f"{at}{name}"] = content(node)
        else:
            image[f"{at}{name}"] = None
            _fill(image, f"{at}{name}/", node, names, content)


def write(image: Image, folder: Path) -> None:
    """Make `folder`, and in it what the image says."""
    folder.mkdir()
    for name in sorted(image):
        content = image[name]
        if content is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(content)


def survives(disk: Disk, scratch: Path, check: Callable[[Path, tuple[Any, ...]], None]) -> int:
    """`check(folder, promised)` for each thing that the disk may hold after each cut; how many.

    What it raises is raised with words for the cut.
    """
    done: set[Any] = set()
    for moment in disk.moments:
        for words, image in images(moment):
            mark = (tuple(sorted(image.items())), repr(moment.promised))
            if mark in done:
                continue
            done.add(mark)
            folder = scratch / f"cut-{len(done)}"
            write(image, folder)
            try:
                with _without_real_syncs():
                    check(folder, moment.promised)
            except Exception as error:
                there = ", ".join(
                    name if content is None else f"{name}: {len(content)} bytes"
                    for name, content in sorted(image.items())
                )
                raise AssertionError(
                    f"after a power cut ({words}) with {moment.promised!r} acknowledged:"
                    f" {error}\nthe disk held {there or 'nothing'}"
                ) from error
            _remove(folder)
    return len(done)


@contextmanager
def _without_real_syncs() -> Iterator[None]:
    """What is looked at is thrown away: it need not come to a real disk, and costs no time."""
    kept = {name: getattr(os, name) for name in ("fsync", "fdatasync")}
    try:
        for name in kept:
            setattr(os, name, os.fstat)
        yield
    finally:
        for name, plain in kept.items():
            setattr(os, name, plain)


def _remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
    folder.rmdir()
