"""What the system says of a disk, and making files and folders durable, in one place."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

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


def draft(path: Path, data: bytes, *, durably: bool = False) -> None:
    """Write these bytes to `path`, whence a move brings them to their place. All of them, or
    nothing is left there; `Full`: there is no room for them."""
    with room_for(path):
        try:
            with private(path, "wb") as file:
                file.write(data)
                if durably:
                    file.flush()
                    os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def replace_durably(path: Path, data: bytes) -> None:
    """Give `path` these bytes: after a crash it has them all, or those of before. `Full`: there is
    no room, and it has those of before."""
    unfinished = path.with_name(f"{path.name}.tmp")
    draft(unfinished, data, durably=True)
    with room_for(path):
        unfinished.replace(path)
        sync_folder(path.parent)


def write_private(path: Path, data: bytes, *, replace: bool = True) -> None:
    """Give `path` these bytes, for its owner alone: durably, all of them or none.

    `replace` False: `FileExistsError` if it is there already.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if replace:
        unfinished.replace(path)
    else:
        try:
            os.link(unfinished, path)
        finally:
            unfinished.unlink()
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
