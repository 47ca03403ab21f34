"""A file that is there whole or not at all, also after the machine has crashed: the one way to it.

Within an open folder, so that it works however the folder is called by now. With paths, and errors
that people understand: `holdfast.system.disk`. The shim imports this, so it imports almost nothing.
"""

from __future__ import annotations

import os
from _thread import get_ident
from contextlib import suppress

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def write_file(folder: int, name: str, data: bytes, *, once: bool = False) -> None:
    """Give the file `name` in the open `folder` these bytes, for its owner alone. When this
    returns, a crash does not take them; before, it leaves what was there. `once`:
    `FileExistsError` if there is one. After any error what was there is there."""
    unfinished = f"{name}.{os.getpid()}.{get_ident()}.tmp"  # no two threads write into one
    with suppress(FileNotFoundError):
        # Left by one that was killed: perhaps another name of the file that it had made.
        os.unlink(unfinished, dir_fd=folder)
    handle = os.open(unfinished, _NEW, 0o600, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as file:  # which writes all of it, or raises
            file.write(data)
            file.flush()
            os.fsync(handle)
        if once:
            os.link(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            os.rename(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(unfinished, dir_fd=folder)
    os.fsync(folder)


def write_all(handle: int, data: bytes, offset: int) -> None:
    """Write all of `data` at `offset`, however many calls the system needs for it."""
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, offset)
        view = view[written:]
        offset += written
