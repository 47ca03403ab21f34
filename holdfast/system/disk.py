"""What the system says of a disk, and making files and folders durable, in one place."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from holdfast.system.durable import write_file
from holdfast.wire.errors import Full

# An `OSError` with one of these: the disk is full, or this user's part of it, or a file may not
# grow. Nothing is broken, and the same write succeeds when there is room.
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def room_for(path: Path) -> Iterator[None]:
    """Within it an `OSError` that says that there is no room is `Full`, about this file."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise Full(
            f"no room on the disk for {path}", why=str(error), fix=f"make room: df {path.parent}"
        ) from error


def private(path: Path, mode: str) -> IO[bytes]:
    """`open`, of a file that only its owner may read if it is made now."""
    return open(path, mode, opener=_for_the_owner)


def private_folder(folder: Path) -> None:
    """Make the folder, and those above it that are missing, for their owner only."""
    missing = [folder]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)


def tighten(top: Path) -> int:
    """Take from everybody but its owner what lies in this folder, itself last: whoever was killed
    in the middle is followed by another one. How much was open. What belongs to another user stays
    as it is; a link is not followed, also if somebody puts it there this moment."""
    loose = 0
    with suppress(FileNotFoundError, PermissionError):
        for _, _, names, folder in os.fwalk(top, topdown=False):
            for name in (*names, "."):
                with suppress(FileNotFoundError, PermissionError):
                    loose += _tightened(name, folder)
    return loose


def _tightened(name: str, folder: int) -> bool:
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISLNK(mode) or not mode & 0o077:
            return False
        # What is only pointed to has no other way to be changed; whatever its name is by now.
        Path(f"/proc/self/fd/{handle}").chmod(stat.S_IMODE(mode) & 0o700)
        return True
    finally:
        os.close(handle)


def draft(path: Path, data: bytes) -> None:
    """Write these bytes to `path`, whence a move brings them to their place. All of them, or
    nothing is left there; `Full`: there is no room for them. A crash may take them."""
    with room_for(path):
        try:
            with private(path, "wb") as file:
                file.write(data)
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def replace_durably(path: Path, data: bytes) -> None:
    """Give `path` these bytes, for its owner alone: after a crash it has them all, or those of
    before. `Full`: there is no room, and it has those of before."""
    with room_for(path), _opened(path.parent) as folder:
        write_file(folder, path.name, data)


def create_durably(path: Path, data: bytes) -> None:
    """As `replace_durably`; `FileExistsError` if it is there already."""
    with room_for(path), _opened(path.parent) as folder:
        write_file(folder, path.name, data, once=True)


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    with _opened(folder) as handle:
        os.fsync(handle)


def make_folder(folder: Path, mode: int = 0o700) -> None:
    """Make the folder, with this mode, and those above it that are missing: they are there after
    a crash too.

    Each is durable before the next is made, and the one that was there is made so: whoever made it
    may have been killed before. So a process that finds a folder need look no further up.
    """
    missing = [folder]
    while not missing[-1].is_dir():
        missing.append(missing[-1].parent)
    there = missing.pop()
    # Nobody but its owner can have made a folder where we may not look.
    with suppress(PermissionError):
        sync_folder(there.parent)
    for path in reversed(missing):
        path.mkdir(mode if path is folder else 0o777, exist_ok=True)
        sync_folder(path.parent)


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
