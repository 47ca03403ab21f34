"""What the system says of a disk, and writing a file whole, in one place."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

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


def draft(path: Path, data: bytes, *, durably: bool = False) -> None:
    """Write these bytes to `path`, whence a move brings them to their place. All of them, or
    nothing is left there; `Full`: there is no room for them."""
    with room_for(path):
        try:
            with path.open("wb") as file:
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


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
