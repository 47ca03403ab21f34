"""Bundles: the user's code as one blob, named by its content.

    bundle = push(blobs, Path("project"))
    folder = unpack(blobs, bundle.digest, Path("cache"))

A cache holds each bundle once:

    CACHE/DIGEST/files/…         the code
    CACHE/DIGEST/members.json    what belongs to it
    CACHE/.locks/DIGEST          held by whoever unpacks or checks it
    CACHE/.tmp-…                 being unpacked; left by a killed process, removed by the next
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from holdfast.storage import archive
from holdfast.storage.backend import Listed
from holdfast.storage.blobs import Blobs
from holdfast.storage.folder import translated
from holdfast.storage.keys import check_digest, content_key
from holdfast.storage.selection import selected
from holdfast.system import logs
from holdfast.system.disk import draft, private_folder
from holdfast.wire.errors import HoldfastError, TimedOut, Usage
from holdfast.wire.limits import FOLDER_LOCK_POLL_S, GARBAGE_GRACE_S, QUIET_PIECE_BYTES

# Waiting for another process that unpacks the same bundle.
BUNDLE_LOCK_S: Final = 120.0

BUNDLES: Final = "bundles"
FILES: Final = "files"
_MEMBERS: Final = "members.json"
_TEMPORARY: Final = ".tmp-"
log: Final = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Bundle:
    """A folder's code: the digest and the size of its archive, and what is in it."""

    digest: str
    size_bytes: int
    members: tuple[archive.ArchiveMember, ...]

    @property
    def key(self) -> str:
        return content_key(BUNDLES, self.digest)


def pack(folder: Path) -> Bundle:
    """What the folder's bundle would be. The same code gives the same digest on any machine."""
    with translated(f"packing {folder}"):
        members = tuple(archive.members_of(folder, selected(folder)))
        if not members:
            raise Usage(
                f"{folder} has no file that belongs into a bundle",
                why="git ignores all of them, or the folder is empty",
                fix="name the folder that holds your code",
            )
        digest, size_bytes = _hashed(folder, members)
        return Bundle(digest, size_bytes, members)


def push(blobs: Blobs, folder: Path) -> Bundle:
    """Pack a folder and write its archive, if the store does not have it yet, or has had it for so
    long that it might be removed before a job needs it.

    `Conflict` when a file changes meanwhile.
    """
    bundle = pack(folder)
    there = blobs.stat(bundle.key)
    if there is None or there.size_bytes != bundle.size_bytes or not _young(blobs, there):
        with translated(f"packing {folder}"):
            pieces = _Again(folder, bundle.members)
            blobs.put(bundle.key, pieces, expect_digest=bundle.digest)
    else:
        blobs.confirm(bundle.key)
    return bundle


def renew(blobs: Blobs, digest: str) -> bool:
    """Make sure that a bundle which is in the store stays there for a while, so that a job can be
    pinned to it; False: it is not there."""
    key = content_key(BUNDLES, digest)
    there = blobs.stat(key)
    if there is None:
        return False
    if not _young(blobs, there):
        blobs.put(key, blobs.get(key, expect_digest=digest), expect_digest=digest)
    else:
        blobs.confirm(key)
    return True


def _young(blobs: Blobs, there: Listed) -> bool:
    """Whether it is safe from removal until it is pinned. See `garbage`."""
    return blobs.now_s() - there.modified_s < GARBAGE_GRACE_S / 2


def unpack(blobs: Blobs, digest: str, cache: Path) -> Path:
    """The folder with a bundle's code, from the cache or the store.

    It is whole or not there, however many unpack it at once and whoever is killed. What is in the
    cache is checked each time: a file that was changed, cut or removed is found, and the bundle is
    unpacked anew: for a moment it is not there, then it is whole. Files that were added do not
    count, and go only with a damaged one.
    """
    name = check_digest(digest).partition(":")[2]
    entry = cache / name
    with translated(f"unpacking the bundle {digest} into {cache}"):
        private_folder(cache)
        with _locked(cache, name):
            if entry.exists():
                damage = _damage(entry, digest)
                if not damage:
                    return entry / FILES
                log.warning("unpacking a damaged bundle anew", bundle=digest, why=damage)
            _unpack_anew(blobs, digest, entry)
    return entry / FILES


def _unpack_anew(blobs: Blobs, digest: str, entry: Path) -> None:
    name = entry.name
    for left in entry.parent.glob(f"{_TEMPORARY}{name}-*"):
        # We hold the lock of this bundle, so whoever made it is gone.
        shutil.rmtree(left)
    fresh = entry.parent / f"{_TEMPORARY}{name}-{secrets.token_hex(8)}"
    private_folder(fresh / FILES)
    try:
        with tempfile.TemporaryFile(dir=fresh) as file:
            key = content_key(BUNDLES, digest)
            for piece in blobs.stream(key, expect_digest=digest, piece_bytes=QUIET_PIECE_BYTES):
                file.write(piece)
            file.seek(0)
            rows = archive.read_members(file)
            archive.extract(file, rows, fresh / FILES)
        names = [str(member.path) for member, _ in rows]
        draft(fresh / _MEMBERS, json.dumps(names).encode())
        if entry.exists():
            entry.rename(entry.parent / f"{_TEMPORARY}{name}-{secrets.token_hex(8)}")
        fresh.rename(entry)
    finally:
        for left in entry.parent.glob(f"{_TEMPORARY}{name}-*"):
            shutil.rmtree(left)


def _damage(entry: Path, digest: str) -> str:
    """Why an entry of the cache is not the bundle; "" when packing it gives its digest again."""
    try:
        names = [PurePosixPath(name) for name in json.loads((entry / _MEMBERS).read_text())]
        members = archive.members_of(entry / FILES, names)
        found, _ = _hashed(entry / FILES, tuple(members))
    except (OSError, ValueError, TypeError, HoldfastError) as error:
        return str(error)
    return "" if found == digest else f"its digest is {found}"


class _Again:
    """An archive that can be gone through as often as a store asks."""

    def __init__(self, folder: Path, members: tuple[archive.ArchiveMember, ...]) -> None:
        self._folder = folder
        self._members = members

    def __iter__(self) -> Iterator[bytes]:
        return archive.write(self._folder, self._members)


def _hashed(folder: Path, members: tuple[archive.ArchiveMember, ...]) -> tuple[str, int]:
    found = hashlib.sha256()
    size_bytes = 0
    for piece in archive.write(folder, members):
        found.update(piece)
        size_bytes += len(piece)
    return f"sha256:{found.hexdigest()}", size_bytes


@contextmanager
def _locked(cache: Path, name: str) -> Iterator[None]:
    locks = cache / ".locks"
    private_folder(locks)
    handle = os.open(locks / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline_s = time.monotonic() + BUNDLE_LOCK_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise TimedOut(
                        f"another process unpacks the same bundle since {BUNDLE_LOCK_S:.0f} s",
                        why=f"it holds {locks / name}",
                        fix=f"see who it is: fuser {locks / name}",
                    ) from None
                time.sleep(FOLDER_LOCK_POLL_S)
        yield
    finally:
        os.close(handle)
