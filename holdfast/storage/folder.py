"""A store in a folder: a file for each blob, durable before it is seen.

A blob is written under a temporary name, flushed, renamed, and its directory flushed. So a reader
sees the whole blob or none, also after a crash of the process or of the machine.

    DIR/.holdfast/tmp/…   what is being written; a lock on each file shows that its writer lives
    DIR/.holdfast/lock    taken for the moment of a rename or of a guarded removal
    DIR/KEY               a blob

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
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from holdfast.storage.backend import Listed
from holdfast.storage.deadline import Deadline
from holdfast.storage.sources import Watched
from holdfast.wire.disk import NO_ROOM, make_folder, private_folder, sync_folder
from holdfast.wire.errors import (
    DiskFailed,
    Full,
    HoldfastError,
    Missing,
    Refused,
    Unavailable,
)
from holdfast.wire.limits import (
    BLOB_CHUNK_BYTES,
    FOLDER_LOCK_POLL_S,
    FOLDERS_KNOWN_MAX,
    TEMPORARY_AGE_S,
)

OWN: Final = ".holdfast"
_NOT_ALLOWED: Final = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ELOOP,
)


class FolderBackend:
    """Blobs as files below a folder, which is made when it is first written to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._temporary = drafts_in(folder)
        self._lock_file = folder / OWN / "lock"
        self._known: set[Path] = set()
        self._known_lock = threading.Lock()

    def describe(self) -> str:
        return f"file:{self._folder}"

    def put(self, key: str, chunks: Watched, deadline: Deadline) -> None:
        with self._translating(f"writing {key!r}"):
            self._publish(key, chunks, deadline, replace=True)

    def put_if_absent(self, key: str, chunks: Watched, deadline: Deadline) -> bool:
        with self._translating(f"writing {key!r}"):
            written = not self._path(key).exists()
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
                handle = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                raise self._missing(key) from None
            status = os.fstat(handle)
            if stat.S_ISDIR(status.st_mode):
                os.close(handle)
                raise self._missing(key)
            # Opened here, so that it is closed also when nobody reads a piece.
            file = os.fdopen(handle, "rb", buffering=0)
        return status.st_size, self._pieces(key, file, piece_bytes)

    def look(self, key: str) -> Listed | None:
        with self._translating(f"looking at {key!r}"):
            try:
                found = self._path(key).stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        if stat.S_ISDIR(found.st_mode):
            return None
        return Listed(key, found.st_size, found.st_mtime)

    def confirm(self, key: str) -> None:
        # A writer gives the name first and flushes it then. Between the two we can see it, and the
        # writer may have been killed there.
        with self._translating(f"flushing {key!r}"):
            directory = self._path(key).parent
            self._make_durable(directory)
            sync_folder(directory)

    def list(self, prefix: str, after: str) -> Iterator[Listed]:
        with self._translating(f"listing {prefix!r}"):
            yield from self._below(self._folder / prefix if prefix else self._folder, prefix, after)

    def delete(self, key: str) -> None:
        with self._translating(f"deleting {key!r}"):
            self._unlink(key)

    def delete_unless_newer(self, key: str, than_s: float, deadline: Deadline) -> bool:
        # Under the lock, so that no writer renames a new one between the look and the removal.
        with (
            self._translating(f"deleting {key!r}"),
            self._locked(fcntl.LOCK_EX, deadline),
        ):
            found = self.look(key)
            if found is not None and found.modified_s > than_s:
                return False
            self._unlink(key)
            return True

    def tidy(self) -> int:
        removed = 0
        with self._translating("removing what killed writers left"):
            try:
                found = list(self._temporary.iterdir())
            except FileNotFoundError:
                return 0
            for path in found:
                removed += self._remove_if_left(path)
        return removed

    # --- writing ----------------------------------------------------------------------------

    def _publish(self, key: str, chunks: Watched, deadline: Deadline, *, replace: bool) -> bool:
        target = self._path(key)
        self._make_durable(target.parent)
        self._make_durable(self._temporary)
        path = self._temporary / secrets.token_hex(16)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            for chunk in chunks:
                _write_all(handle, memoryview(chunk))
            os.fsync(handle)
            with self._locked(fcntl.LOCK_SH, deadline):
                # The blob's age counts from the moment it can be seen.
                os.utime(handle)
                if replace:
                    path.replace(target)
                else:
                    try:
                        os.link(path, target)
                    except FileExistsError:
                        return False
            sync_folder(target.parent)
            return True
        finally:
            path.unlink(missing_ok=True)
            os.close(handle)

    def _make_durable(self, directory: Path) -> None:
        """The directory exists, and so do all above it, also after the machine has crashed.

        One that another process has just made may not be flushed yet, so what we have not flushed
        ourselves is flushed.
        """
        with self._known_lock:
            if directory in self._known:
                return
        make_folder(self._folder, 0o700)
        private_folder(directory)
        above = directory
        while above != self._folder:
            above = above.parent
            sync_folder(above)
        with self._known_lock:
            if len(self._known) >= FOLDERS_KNOWN_MAX:
                self._known.clear()
            self._known.add(directory)

    @contextmanager
    def _locked(self, how: int, deadline: Deadline) -> Iterator[None]:
        """Hold the folder's lock: shared by those who publish, alone for a guarded removal."""
        private_folder(self._lock_file.parent)
        handle = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(handle, how | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    deadline.check(f"waiting for {self._lock_file}")
                    time.sleep(FOLDER_LOCK_POLL_S)
            yield
        finally:
            os.close(handle)

    def _remove_if_left(self, path: Path) -> bool:
        """Remove a temporary file that is old and whose writer no longer holds its lock."""
        try:
            if time.time() - path.stat().st_mtime < TEMPORARY_AGE_S:
                return False
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            path.unlink(missing_ok=True)
            return True
        finally:
            os.close(handle)

    # --- reading ----------------------------------------------------------------------------

    def _pieces(self, key: str, file: io.FileIO, piece_bytes: int) -> Iterator[bytes]:
        with self._translating(f"reading {key!r}"), file:
            while piece := file.read(piece_bytes):
                yield piece

    def _below(self, directory: Path, prefix: str, after: str) -> Iterator[Listed]:
        try:
            with os.scandir(directory) as entries:
                # A directory sorts as the keys below it do.
                found = sorted((_name(entry), entry) for entry in entries)
        except (FileNotFoundError, NotADirectoryError):
            return
        for name, entry in found:
            if name.startswith("."):
                continue
            key = f"{prefix}/{name}" if prefix else name
            if name.endswith("/"):
                # All keys below are greater than `after`, or one of them may be.
                if f"{key}\U0010ffff" > after:
                    yield from self._below(Path(entry.path), key[:-1], after)
            elif key > after:
                try:
                    status = entry.stat()
                except FileNotFoundError:
                    continue
                yield Listed(key, status.st_size, status.st_mtime)

    def _unlink(self, key: str) -> None:
        # A folder of other blobs has this name: there is no blob of it.
        if self.look(key) is not None:
            self._path(key).unlink(missing_ok=True)

    def _missing(self, key: str) -> Missing:
        return Missing(f"there is no blob {key!r} in {self.describe()}")

    def _path(self, key: str) -> Path:
        return self._folder / key

    def _translating(self, what: str) -> AbstractContextManager[None]:
        return translated(f"{what} in {self.describe()}")


def drafts_in(folder: Path) -> Path:
    """Where the blobs of a store in `folder` are while they are written."""
    return folder / OWN / "tmp"


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


def _name(entry: os.DirEntry[str]) -> str:
    return f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name


def _write_all(handle: int, view: memoryview) -> None:
    while view:
        view = view[os.write(handle, view) :]
