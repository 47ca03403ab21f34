"""A store in a folder: a file for each blob, durable before it is seen.

A blob is written under a temporary name, flushed, renamed, and its directory flushed. So a reader
sees the whole blob or none, also after a crash of the process or of the machine.

    DIR/.holdfast/tmp/…   what is being written; a lock on each file shows that its writer lives
    DIR/.holdfast/lock    taken for the moment of a rename or of a guarded removal
    DIR/KEY               a blob

Whoever may write to the folder may put links and pipes there: they are not followed (`Beneath`),
but named in an error. In a listing they are left out, and named in the log.

We do not use obstore here: its local store does not flush, and a plain install must have a store.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import secrets
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final

from holdfast.storage.backend import Listed
from holdfast.storage.deadline import TransferDeadline
from holdfast.storage.sources import MeteredSource
from holdfast.system import logs
from holdfast.system.disk import NO_ROOM, make_folder
from holdfast.wire.errors import (
    Corrupt,
    DiskFailed,
    Full,
    HoldfastError,
    Missing,
    Refused,
    Unavailable,
)
from holdfast.wire.limits import BLOB_CHUNK_BYTES, BLOB_KEY_BYTES_MAX, FOLDER_LOCK_POLL_S

# A temporary file of a writer that is gone; younger ones may not have been locked yet.
TEMPORARY_AGE_S: Final = 3_600.0
# Directories known to be durable, so that they are not synced again; then we learn anew.
FOLDERS_KNOWN_MAX: Final = 10_000

OWN: Final = ".holdfast"
_DRAFTS: Final = f"{OWN}/tmp"  # noqa: S108 - of the store
_LOCK: Final = f"{OWN}/lock"
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_OLD: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NOT_ALLOWED: Final = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ELOOP,
)

log = logs.get(__name__)


class FolderBackend:
    """Blobs as files below a folder, which is made when it is first written to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._below = Beneath(folder)
        self._known: set[str] = set()
        self._known_lock = threading.Lock()

    def describe(self) -> str:
        return f"file:{self._folder}"

    def put(self, key: str, chunks: MeteredSource, deadline: TransferDeadline) -> None:
        with self._translating(f"writing {key!r}"):
            self._publish(key, chunks, deadline, replace=True)

    def put_if_absent(self, key: str, chunks: MeteredSource, deadline: TransferDeadline) -> bool:
        with self._translating(f"writing {key!r}"):
            written = self._below.stat(key) is None
            if written:
                written = self._publish(key, chunks, deadline, replace=False)
        if not written:
            self.confirm(key)
        return written

    def open(
        self, key: str, deadline: TransferDeadline, piece_bytes: int = BLOB_CHUNK_BYTES
    ) -> tuple[int, Iterator[bytes]]:
        with self._translating(f"reading {key!r}"):
            try:
                handle = self._below.open_file(key)
            except (FileNotFoundError, NotADirectoryError):
                raise self._missing(key) from None
            # Opened here, so that it is closed also when nobody reads a piece.
            file = os.fdopen(handle, "rb", buffering=0)
            size_bytes = os.fstat(handle).st_size
        return size_bytes, self._pieces(key, file, piece_bytes)

    def stat(self, key: str) -> Listed | None:
        with self._translating(f"looking at {key!r}"):
            found = self._below.stat(key)
        return None if found is None else Listed(key, found.st_size, found.st_mtime)

    def confirm(self, key: str) -> None:
        # A writer gives the name first and flushes it then. Between the two we can see it, and the
        # writer may have been killed there.
        with self._translating(f"flushing {key!r}"):
            directory = key.rpartition("/")[0]
            self._make_durable(directory)
            with self._below.folder(directory) as names:
                os.fsync(names)

    def list(self, prefix: str, after: str) -> Iterator[Listed]:
        with self._translating(f"listing {prefix!r}"):
            yield from self._listed(prefix, after)

    def delete(self, key: str) -> None:
        with self._translating(f"deleting {key!r}"):
            self._below.remove(key)

    def delete_unless_newer(self, key: str, than_s: float, deadline: TransferDeadline) -> bool:
        # Under the lock, so that no writer renames a new one between the look and the removal.
        with (
            self._translating(f"deleting {key!r}"),
            self._locked(fcntl.LOCK_EX, deadline),
        ):
            found = self.stat(key)
            if found is not None and found.modified_s > than_s:
                return False
            self._below.remove(key)
            return True

    def tidy(self) -> int:
        removed = 0
        with self._translating("removing what killed writers left"):
            try:
                with self._below.folder(_DRAFTS) as drafts:
                    for name in os.listdir(drafts):  # noqa: PTH208 - it is open
                        removed += _remove_if_left(drafts, name)
            except FileNotFoundError:
                return 0
        return removed

    # --- writing ----------------------------------------------------------------------------

    def _publish(
        self, key: str, chunks: MeteredSource, deadline: TransferDeadline, *, replace: bool
    ) -> bool:
        try:
            return self._written(key, chunks, deadline, replace=replace)
        except FileNotFoundError:
            # A folder that we know is gone: the whole store was away, and another was in its place.
            with self._known_lock:
                self._known.clear()
            raise

    def _written(
        self, key: str, chunks: MeteredSource, deadline: TransferDeadline, *, replace: bool
    ) -> bool:
        above, _, target = key.rpartition("/")
        self._make_durable(above)
        self._make_durable(_DRAFTS)
        with self._below.folder(above) as names, self._below.folder(_DRAFTS) as drafts:
            draft = secrets.token_hex(16)
            handle = os.open(draft, _NEW, 0o600, dir_fd=drafts)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                for chunk in chunks:
                    _write_all(handle, memoryview(chunk))
                os.fsync(handle)
                with self._locked(fcntl.LOCK_SH, deadline):
                    # The blob's age counts from the moment it can be seen.
                    os.utime(handle)
                    if replace:
                        os.replace(draft, target, src_dir_fd=drafts, dst_dir_fd=names)
                    else:
                        try:
                            os.link(draft, target, src_dir_fd=drafts, dst_dir_fd=names)
                        except FileExistsError:
                            return False
                os.fsync(names)
                return True
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(draft, dir_fd=drafts)
                os.close(handle)

    def _make_durable(self, directory: str) -> None:
        """The directory exists, and so do all above it, also after the machine has crashed.

        One that another process has just made may not be flushed yet, so what we have not flushed
        ourselves is flushed.
        """
        with self._known_lock:
            if directory in self._known:
                return
        make_folder(self._folder, 0o700)
        with self._below.folders(directory, make=True) as opened:
            for above in reversed(opened[:-1]):
                os.fsync(above)
        with self._known_lock:
            if len(self._known) >= FOLDERS_KNOWN_MAX:
                self._known.clear()
            self._known.add(directory)

    @contextmanager
    def _locked(self, how: int, deadline: TransferDeadline) -> Iterator[None]:
        """Hold the folder's lock: shared by those who publish, alone for a guarded removal."""
        with self._below.folders(OWN, make=True):
            handle = self._below.open_file(_LOCK, os.O_RDWR | os.O_CREAT)
        try:
            while True:
                try:
                    fcntl.flock(handle, how | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    deadline.check(f"waiting for {self._folder / _LOCK}")
                    time.sleep(FOLDER_LOCK_POLL_S)
            yield
        finally:
            os.close(handle)

    # --- reading ----------------------------------------------------------------------------

    def _pieces(self, key: str, file: io.FileIO, piece_bytes: int) -> Iterator[bytes]:
        with self._translating(f"reading {key!r}"), file:
            while piece := file.read(piece_bytes):
                yield piece

    def _listed(self, place: str, after: str) -> Iterator[Listed]:
        try:
            with self._below.folder(place) as folder:
                found = list(self._entries(folder, place, after))
        except (FileNotFoundError, NotADirectoryError):
            return
        # A directory sorts as the keys below it do.
        for key, status in sorted(found, key=lambda each: each[0]):
            if status is None:
                yield from self._listed(key[:-1], after)
            else:
                yield Listed(key, status.st_size, status.st_mtime)

    def _entries(
        self, folder: int, place: str, after: str
    ) -> Iterator[tuple[str, os.stat_result | None]]:
        """Keys with what is known of them; of a directory nothing, and its key ends with a
        slash."""
        with os.scandir(folder) as entries:
            for entry in entries:
                key = f"{place}/{entry.name}" if place else entry.name
                if entry.name.startswith(".") or len(key) > BLOB_KEY_BYTES_MAX:
                    continue  # no blob has such a key
                if entry.is_dir(follow_symlinks=False):
                    # All keys below are greater than `after`, or one of them may be.
                    if f"{key}/\U0010ffff" > after:
                        yield f"{key}/", None
                elif key > after:
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            yield key, status
                        else:
                            log.error(
                                "left out", reason=str(self._below.planted(key, status.st_mode))
                            )

    def _missing(self, key: str) -> Missing:
        return Missing(f"there is no blob {key!r} in {self.describe()}")

    def _translating(self, what: str) -> AbstractContextManager[None]:
        return translated(f"{what} in {self.describe()}")


def drafts_in(folder: Path) -> Path:
    """Where the blobs of a store in `folder` are while they are written."""
    return folder / _DRAFTS


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Errors of the system within become ours: no room, not allowed, a failing disk."""
    try:
        yield
    except OSError as error:
        raise _ours(error, what) from error


def _ours(error: OSError, what: str) -> HoldfastError:
    why = error.strerror or str(error)
    if error.errno in NO_ROOM:
        return Full(f"{what}: no room", why=why, fix="free some room on that disk, or use another")
    if error.errno in _NOT_ALLOWED:
        return Refused(
            f"{what}: not allowed",
            why=why,
            fix="check that the folder is one, is writable by this user, and is not mounted"
            " read-only",
        )
    if error.errno == errno.EIO:
        return DiskFailed(f"{what}: the disk failed", why=why, fix="replace the disk")
    return Unavailable(f"{what}: failed", why=why, fix="check the folder, then try again")


def _remove_if_left(drafts: int, name: str) -> bool:
    """Remove what is old there, but for a file whose writer still holds its lock."""
    try:
        found = os.stat(name, dir_fd=drafts, follow_symlinks=False)
        if time.time() - found.st_mtime < TEMPORARY_AGE_S or stat.S_ISDIR(found.st_mode):
            return False
        if not stat.S_ISREG(found.st_mode):
            os.unlink(name, dir_fd=drafts)
            return True
        handle = os.open(name, _OLD, dir_fd=drafts)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=drafts)
        return True
    finally:
        os.close(handle)


def _write_all(handle: int, view: memoryview) -> None:
    while view:
        view = view[os.write(handle, view) :]


# --- beneath --------------------------------------------------------------------------------------
# A folder that others may write to, opened name by name: nothing below it is followed elsewhere.
#
# Workers of a queue with a user of its own write to the store, and processes of root's read it. A
# symbolic link there would lead these wherever the one who made it likes, a pipe would stop them, a
# device would be worse. So every name is opened in the open folder above it, without following it,
# and what is neither a plain file nor a folder is refused by its name. The path of the folder
# itself is its owner's, and may have links.
#
# A hard link is a plain file. It cannot lead out of the store: for whoever has the store in mounts
# of his own, it is another mount than everything else.


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

    def stat(self, place: str) -> os.stat_result | None:
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
