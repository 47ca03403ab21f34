"""The data folder: the names in it, and how a name becomes durable.

    lock                  held by the one server that uses the folder; its process number is in it
    compacting            held by the process that makes a snapshot, also when its server has died
    trimming              held by whoever removes old files, or needs that nobody does
    secret                32 random bytes and their crc32: session passwords are made from it
    access                what clients show to be let in (`holdfast.coordination.access`)
    durable               how much of the log is known to be on disk (`log`)
    log-<zxid>            a segment of the log that begins with this zxid
    snapshot-<zxid>       the whole tree as it was after this zxid
    *.tmp                 unfinished; the next start removes it

Numbers in names are 16 hexadecimal digits, so names sort as zxids do.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from holdfast.system.disk import NO_ROOM, sync_folder
from holdfast.system.durable import write_all
from holdfast.wire.errors import Corrupt, Full, HoldfastError, Occupied, Refused, TerminalError

LOCK: Final = "lock"
COMPACTING: Final = "compacting"
TRIMMING: Final = "trimming"
SECRET: Final = "secret"  # noqa: S105 - a file's name
DURABLE: Final = "durable"
SECRET_BYTES: Final = 32
# EEXIST: something that is no folder has the folder's name.
_REFUSALS: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST})
_NAMED: Final = re.compile(r"(log|snapshot)-([0-9a-f]{16})")


class Listing(NamedTuple):
    """What is in a data folder; each list is sorted by zxid."""

    segments: list[tuple[int, Path]]
    snapshots: list[tuple[int, Path]]
    unfinished: list[Path]


def segment_path(folder: Path, first_zxid: int) -> Path:
    return folder / f"log-{first_zxid:016x}"


def snapshot_path(folder: Path, zxid: int) -> Path:
    return folder / f"snapshot-{zxid:016x}"


def list_folder(folder: Path) -> Listing:
    """The segments, snapshots and unfinished files of a folder. Other names are left alone."""
    listing = Listing([], [], [])
    for path in sorted(folder.iterdir()):
        name = path.name
        if match := _NAMED.fullmatch(name):
            found = listing.segments if match[1] == "log" else listing.snapshots
            found.append((int(match[2], 16), path))
        elif name.endswith(".tmp") and name.startswith(("log-", "snapshot-", SECRET, DURABLE)):
            listing.unfinished.append(path)
    return listing


def prepare(path: Path, data: bytes) -> Path:
    """Write these bytes durably beside `path`; a rename makes them `path`."""
    unfinished = path.with_name(path.name + ".tmp")
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        write_all(handle, data, 0)
        os.fsync(handle)
    finally:
        os.close(handle)
    return unfinished


def create_durably(path: Path, data: bytes) -> None:
    """Make `path` with these bytes: after a crash it is there whole, or it is not there."""
    prepare(path, data).rename(path)
    sync_folder(path.parent)


def take_lock(path: Path) -> int:
    """Hold `path` for this process; `Occupied` if another one does. Closing the handle frees it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(handle, 32, 0).split(b"\n")[0].decode("ascii", "replace").strip()
        os.close(handle)
        raise Occupied(
            f"{path.parent} is in use by process {holder or 'unknown'}",
            why=f"it holds {path.name}, and one folder has one server",
            fix=f"end process {holder or 'that holds it'}, or give this server another folder",
        ) from None
    # Padded instead of cut and rewritten: it needs no new room on a full disk.
    os.pwrite(handle, f"{os.getpid():<20}\n".encode(), 0)
    return handle


@contextlib.contextmanager
def exclusively(path: Path, patience_s: float) -> Iterator[None]:
    """Hold `path` inside the block; `Occupied` if another process holds it for too long."""
    deadline_s = time.monotonic() + patience_s
    while is_locked(path) and time.monotonic() < deadline_s:
        time.sleep(0.005)
    handle = take_lock(path)
    try:
        yield
    finally:
        os.close(handle)


def is_locked(path: Path) -> bool:
    """Whether some process holds `path`. Changes nothing on disk."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(handle)


def write_secret(folder: Path, secret: bytes) -> bytes:
    """Make `secret` the folder's; it."""
    create_durably(folder / SECRET, secret + crc32(secret).to_bytes(4, "big"))
    return secret


def read_secret(folder: Path) -> bytes:
    """The secret; `FileNotFoundError` if there is none, `Corrupt` if it is not the one written."""
    path = folder / SECRET
    raw = path.read_bytes()
    secret, crc = raw[:SECRET_BYTES], raw[SECRET_BYTES:]
    if len(secret) < SECRET_BYTES or crc != crc32(secret).to_bytes(4, "big"):
        raise corrupt(path, 0, "its checksum is wrong; session passwords come from it")
    return secret


def remove(path: Path) -> None:
    """Remove a file that may have gone already."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def corrupt(path: Path, offset: int, why: str, fix: str = "") -> Corrupt:
    """The refusal of a damaged file: which, where, why, and what to do."""
    folder = path.parent
    return Corrupt(
        f"{path} is damaged at byte {offset}",
        why=why,
        fix=fix
        or (
            f"`holdfast coord check {folder}` lists every damaged file; then restore the folder"
            f" from a backup, or run `holdfast coord salvage {folder} NEWDIR`, which writes what"
            " is provably good to a new folder and says what is lost"
        ),
    )


def explain(error: OSError, folder: Path) -> HoldfastError:
    """An operating system's error while a folder is opened, as one of ours."""
    where = error.filename or folder
    if error.errno in NO_ROOM:
        return Full(
            f"no room on the disk for {where}", why=str(error), fix=f"free space for {folder}"
        )
    if error.errno in _REFUSALS:
        return Refused(
            f"{where} cannot be used as a data folder",
            why=str(error),
            fix=f"make {folder} writable for this user, or give another folder",
        )
    return TerminalError(
        f"{where} cannot be read or written",
        why=str(error),
        fix="look at the disk's health (`dmesg`), and restore the folder on a good disk",
    )
