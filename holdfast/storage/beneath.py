"""A folder that others may write to, opened name by name: nothing below it is followed elsewhere.

Workers of a queue with a user of its own write to the store, and processes of root's read it. A
symbolic link there would lead these wherever the one who made it likes, a pipe would stop them, a
device would be worse. So every name is opened in the open folder above it, without following it,
and what is neither a plain file nor a folder is refused by its name. The path of the folder itself
is its owner's, and may have links.

A hard link is a plain file. It cannot lead out of the store: for whoever has the store in mounts of
his own, it is another mount than everything else.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from holdfast.wire.errors import Corrupt

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe that nobody writes to is opened at once, and then refused.
_FILE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# What the system says of a link, and of a socket or a device, instead of opening it.
_NOT_OPENED: Final = (errno.ELOOP, errno.ENXIO, errno.ENODEV)
_KINDS: Final = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


class Beneath:
    """What is below `top`. Places are relative paths with `/` between their names, "" is `top`."""

    def __init__(self, top: Path) -> None:
        self._top = top

    @contextmanager
    def folders(self, place: str, *, make: bool = False) -> Iterator[list[int]]:
        """All folders on the way to this one, which is the last, open. `make`: those that are
        missing, for their owner only. `FileNotFoundError`, `NotADirectoryError`; `Corrupt` names
        what is a link."""
        opened = [os.open(self._top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
        try:
            for name in place.split("/") if place else ():
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(name, 0o700, dir_fd=opened[-1])
                try:
                    opened.append(os.open(name, _FOLDER, dir_fd=opened[-1]))
                except NotADirectoryError:
                    self._check(opened[-1], name, place)
                    raise
            yield opened
        finally:
            for handle in opened:
                os.close(handle)

    @contextmanager
    def folder(self, place: str) -> Iterator[int]:
        """This folder, open."""
        with self.folders(place) as opened:
            yield opened[-1]

    def open_file(self, place: str, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
        """The file, open. `FileNotFoundError`: there is none, or a folder has this name; `Corrupt`:
        what is there is not a plain file."""
        above, _, name = place.rpartition("/")
        with self.folder(above) as folder:
            try:
                handle = os.open(name, flags | _FILE, mode, dir_fd=folder)
            except OSError as error:
                if error.errno in _NOT_OPENED:
                    self._check(folder, name, place)
                raise
        found = os.fstat(handle).st_mode
        if stat.S_ISREG(found):
            return handle
        os.close(handle)
        if stat.S_ISDIR(found):
            raise FileNotFoundError(errno.ENOENT, "it is a folder", place)
        raise self.planted(place, found)

    def look(self, place: str) -> os.stat_result | None:
        """What is known of a file; None: there is none, or a folder has this name. `Corrupt`: what
        is there is not a plain file."""
        above, _, name = place.rpartition("/")
        try:
            with self.folder(above) as folder:
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if stat.S_ISDIR(found.st_mode):
            return None
        if not stat.S_ISREG(found.st_mode):
            raise self.planted(place, found.st_mode)
        return found

    def remove(self, place: str) -> None:
        """Take the name away, whatever it is of; that of a folder stays."""
        above, _, name = place.rpartition("/")
        with suppress(FileNotFoundError, NotADirectoryError), self.folder(above) as folder:
            if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=folder)

    def planted(self, place: str, mode: int) -> Corrupt:
        """What to say of something that is neither a file nor a folder."""
        path = self._top / place
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        return Corrupt(
            f"{path} is {kind}",
            why="a store has plain files and folders: somebody else who may write to it made this,"
            " and it is not followed",
            fix=f"see whose it is, then remove it: ls -ld {path}; rm {path}",
        )

    def _check(self, folder: int, name: str, place: str) -> None:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if not stat.S_ISREG(found) and not stat.S_ISDIR(found):
            names = place.split("/")
            raise self.planted("/".join(names[: names.index(name) + 1]), found)
