"""A store in a folder: a file for each blob, durable before it is seen.

A blob is written under a temporary name, flushed, renamed, and its directory flushed. So a reader
sees the whole blob or none, also after a crash of the process or of the machine.

    DIR/.holdfast/tmp/…   what is being written; a lock on each file shows that its writer lives
    DIR/.holdfast/lock    taken for the moment of a rename or of a guarded removal
    DIR/KEY               a blob

Whoever may write to the folder may put links and pipes there: they are not followed (`beneath`),
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
from holdfast.storage.beneath import Beneath
from holdfast.storage.deadline import Deadline
from holdfast.storage.sources import Watched
from holdfast.wire import logs
from holdfast.wire.disk import NO_ROOM, make_folder
from holdfast.wire.errors import (
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

    def put(self, key: str, chunks: Watched, deadline: Deadline) -> None:
        with self._translating(f"writing {key!r}"):
            self._publish(key, chunks, deadline, replace=True)

    def put_if_absent(self, key: str, chunks: Watched, deadline: Deadline) -> bool:
        with self._translating(f"writing {key!r}"):
            written = self._below.look(key) is None
            if written:
                written = self._publish(key, chunks, deadline, replace=False)
        if not written:
            self.confirm(key)
        return written

    def open(
        self, key: str, deadline: Deadline, piece_bytes: int = BLOB_CHUNK_BYTES
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

    def look(self, key: str) -> Listed | None:
        with self._translating(f"looking at {key!r}"):
            found = self._below.look(key)
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

    def delete_unless_newer(self, key: str, than_s: float, deadline: Deadline) -> bool:
        # Under the lock, so that no writer renames a new one between the look and the removal.
        with (
            self._translating(f"deleting {key!r}"),
            self._locked(fcntl.LOCK_EX, deadline),
        ):
            found = self.look(key)
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

    def _publish(self, key: str, chunks: Watched, deadline: Deadline, *, replace: bool) -> bool:
        try:
            return self._written(key, chunks, deadline, replace=replace)
        except FileNotFoundError:
            # A folder that we know is gone: the whole store was away, and another was in its place.
            with self._known_lock:
                self._known.clear()
            raise

    def _written(self, key: str, chunks: Watched, deadline: Deadline, *, replace: bool) -> bool:
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
    def _locked(self, how: int, deadline: Deadline) -> Iterator[None]:
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
