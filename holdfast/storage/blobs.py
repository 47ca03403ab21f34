"""The one face of every store: checked keys, verified bytes, bounded time, bounded retries.

blobs = open_store("file:data")
blob = blobs.put("models/a", b"...")
blobs.get("models/a", expect_digest=blob.digest)
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from holdfast.storage import address as addresses
from holdfast.storage import memory
from holdfast.storage.backend import Backend, Listed
from holdfast.storage.deadline import Retrying, TransferDeadline
from holdfast.storage.folder import FolderBackend
from holdfast.storage.keys import BytesLike, check_digest, check_key, check_prefix, digest_of_key
from holdfast.storage.objects import ObjectBackend
from holdfast.storage.sources import Data, MeteredSource, source_of
from holdfast.wire.errors import Corrupt, Full, Unavailable, Usage
from holdfast.wire.limits import BLOB_CHUNK_BYTES

# What `get` holds in memory; larger blobs are streamed.
BLOB_IN_MEMORY_BYTES_MAX: Final = 4 * 1024**3


@dataclass(frozen=True, slots=True)
class Blob:
    """What was written, as it was hashed on its way: `digest` is `sha256:` and 64 digits."""

    key: str
    size_bytes: int
    digest: str


class Blobs:
    """Blobs by key. Every method may be called from any thread, ends in bounded time, and raises
    only errors of `holdfast.wire.errors`.

    A reader sees a whole blob or none. What `put` has returned is durable: it survives a crash of
    this process and of the store's machine, as far as the store keeps its own promise.
    """

    def __init__(self, backend: Backend, retrying: Retrying | None = None) -> None:
        self._backend = backend
        self._retrying = retrying or Retrying()

    def __repr__(self) -> str:
        return f"Blobs({self.address!r})"

    @property
    def address(self) -> str:
        """Where it is, without anything secret."""
        return self._backend.describe()

    def now_s(self) -> float:
        """Seconds since 1970 by this machine's clock, to be compared with `Listed.modified_s`."""
        return self._retrying.clock.wall_ms() / 1_000

    # --- writing ----------------------------------------------------------------------------

    def put(
        self, key: str, data: Data, *, expect_digest: str | None = None, still: bool = False
    ) -> Blob:
        """Write a blob whole, in place of the one that has this key.

        A write that fails because the store is away is repeated, except when `data` is an iterator
        that can be gone through only once. With `expect_digest` nothing is written (`Conflict`)
        when the bytes are others; with `still` they are not looked at: the caller has just made
        the digest of them, and nobody changes them.
        """
        check_key(key)
        expect = self._expected(key, expect_digest)
        source = source_of(data)

        def once(deadline: TransferDeadline) -> Blob:
            known = expect if still else None
            watched = self._watched(key, source.chunks(), deadline, expect, known)
            self._backend.put(key, watched, deadline)
            return Blob(key, watched.size_bytes, watched.digest)

        return self._retrying.call(f"writing {key!r}", once, again=source.again)

    def put_if_absent(self, key: str, data: Data) -> Blob | None:
        """Write a blob if there is none with this key; None when there is one.

        Of many who do this at once, one gets a `Blob`. A store that cannot promise it refuses. When
        an answer was lost and the blob that is there has the same bytes, it is taken for ours.
        """
        check_key(key)
        expect = self._expected(key, None)
        source = source_of(data)
        tries = 0

        def once(deadline: TransferDeadline) -> Blob | None:
            nonlocal tries
            tries += 1
            watched = self._watched(key, source.chunks(), deadline, expect)
            written = self._backend.put_if_absent(key, watched, deadline)
            if not written and tries > 1:
                # The whole source has to be hashed; a store may have looked only at the key.
                for _ in self._watched(key, source.chunks(), deadline, None):
                    pass
                written = self._digest_at(key, deadline) == watched.digest
            return Blob(key, watched.size_bytes, watched.digest) if written else None

        return self._retrying.call(f"writing {key!r}", once, again=source.again)

    def delete(self, key: str) -> None:
        """After this there is no blob with this key; it is no error when there was none."""
        check_key(key)
        self._retrying.call(f"deleting {key!r}", lambda _: self._backend.delete(key))

    def delete_unless_newer(self, key: str, than_s: float) -> bool:
        """Delete a blob that was last written at `than_s` or before; whether it is gone now.

        On a folder and in memory no writer can come between the look and the removal.
        """
        check_key(key)
        return self._retrying.call(
            f"deleting {key!r}",
            lambda deadline: self._backend.delete_unless_newer(key, than_s, deadline),
        )

    # --- reading ----------------------------------------------------------------------------

    def get(self, key: str, *, expect_digest: str | None = None) -> bytes:
        """The whole blob. `Missing` when there is none; `Corrupt` when its bytes are not those that
        `expect_digest`, or a key made of a digest, says."""
        expect = self._expected(check_key(key), expect_digest)

        def once(deadline: TransferDeadline) -> bytes:
            size_bytes, pieces = self._backend.open(key, deadline)
            if size_bytes > BLOB_IN_MEMORY_BYTES_MAX:
                raise Full(
                    f"{key!r} has {size_bytes} bytes, too many to be read at once",
                    fix="use stream or read_into",
                )
            # Not a join: that needs all pieces and the whole at the same time.
            whole = io.BytesIO()
            for piece in self._verified(key, size_bytes, pieces, deadline, expect):
                whole.write(piece)
            return whole.getvalue()

        return self._retrying.call(f"reading {key!r}", once)

    def read_into(self, key: str, buffer: memoryview, *, expect_digest: str | None = None) -> int:
        """Read the whole blob into the beginning of a buffer; how many bytes it has.

        After an error the buffer holds anything.
        """
        expect = self._expected(check_key(key), expect_digest)
        view = buffer.cast("B")

        def once(deadline: TransferDeadline) -> int:
            size_bytes, pieces = self._backend.open(key, deadline)
            if size_bytes > view.nbytes:
                raise Usage(
                    f"{key!r} has {size_bytes} bytes, the buffer only {view.nbytes}",
                    fix="give a buffer of the blob's size",
                )
            at = 0
            for piece in self._verified(key, size_bytes, pieces, deadline, expect):
                view[at : at + len(piece)] = piece
                at += len(piece)
            return at

        return self._retrying.call(f"reading {key!r}", once)

    def stream(
        self, key: str, *, expect_digest: str | None = None, piece_bytes: int = BLOB_CHUNK_BYTES
    ) -> Iterator[bytes]:
        """The bytes in pieces, none larger than said, for blobs that are larger than memory.

        Do not trust the pieces before the iterator has come to its end: `Corrupt` comes after the
        last one. A store that goes away in the middle is `Unavailable`; begin again.
        """
        expect = self._expected(check_key(key), expect_digest)
        size_bytes, pieces = self._retrying.call(
            f"reading {key!r}", lambda deadline: self._backend.open(key, deadline, piece_bytes)
        )
        return self._verified(key, size_bytes, pieces, self._retrying.deadline(), expect)

    def stat(self, key: str) -> Listed | None:
        """Size and age of a blob, without reading it; None when there is none."""
        check_key(key)
        return self._retrying.call(f"looking at {key!r}", lambda _: self._backend.stat(key))

    def confirm(self, key: str) -> None:
        """The blob that a look has shown is durable when this returns. Whoever was about to write
        the same bytes, and does not since they are there, may then say that they are."""
        check_key(key)
        self._retrying.call(f"looking at {key!r}", lambda _: self._backend.confirm(key))

    def exists(self, key: str) -> bool:
        return self.stat(key) is not None

    def list(self, prefix: str = "") -> Iterator[Listed]:
        """All blobs below a prefix of whole segments, in the order of their keys.

        No more than a page is in memory. What comes or goes meanwhile may be in it or not.
        """
        below = check_prefix(prefix)
        after = ""
        rows: Iterator[Listed] | None = None

        def following(_: TransferDeadline) -> Listed | None:
            nonlocal rows
            if rows is None:
                # A listing that broke off goes on behind the last key that it gave.
                rows = self._backend.list(below, after)
            try:
                return next(rows, None)
            except Unavailable:
                rows = None
                raise

        while (row := self._retrying.call(f"listing {below!r}", following)) is not None:
            yield row
            after = row.key

    def tidy(self) -> int:
        """Remove what killed writers have left half-written; how many there were."""
        return self._retrying.call("removing leftovers", lambda _: self._backend.tidy())

    # --- below ------------------------------------------------------------------------------

    def _expected(self, key: str, digest: str | None) -> str | None:
        named = digest_of_key(key)
        if digest is None:
            return named
        check_digest(digest)
        if named not in (None, digest):
            raise Usage(
                f"{key!r} cannot hold bytes with the digest {digest}",
                why="the key itself names another digest",
                fix="use the key that belongs to the digest",
            )
        return digest

    def _watched(
        self,
        key: str,
        chunks: Iterator[BytesLike],
        deadline: TransferDeadline,
        expect: str | None,
        known: str | None = None,
    ) -> MeteredSource:
        what = f"{key!r} in {self.address}"
        return MeteredSource(chunks, deadline, what=what, expect_digest=expect, known=known)

    def _verified(
        self,
        key: str,
        size_bytes: int,
        pieces: Iterator[bytes],
        deadline: TransferDeadline,
        expect: str | None,
    ) -> Iterator[bytes]:
        deadline.allow_for(size_bytes)
        watched = self._watched(key, pieces, deadline, None)
        for piece in watched:
            yield cast("bytes", piece)
        if watched.size_bytes != size_bytes:
            raise Unavailable(
                f"{key!r} in {self.address}: the answer broke off",
                why=f"{watched.size_bytes} of {size_bytes} bytes came",
                fix="try again",
            )
        if expect is not None and watched.digest != expect:
            raise Corrupt(
                f"{key!r} in {self.address} is damaged",
                why=f"its digest should be {expect} and is {watched.digest}",
                fix="use another copy; delete this one, so that it can be written again",
            )

    def _digest_at(self, key: str, deadline: TransferDeadline) -> str:
        _, pieces = self._backend.open(key, deadline)
        watched = self._watched(key, pieces, deadline, None)
        for _ in watched:
            pass
        return watched.digest


def open_store(address: str | Path, retrying: Retrying | None = None) -> Blobs:
    """The store at an address: a folder (`file:DIR` or `DIR`), `memory:NAME`, or
    `s3://BUCKET/PREFIX?endpoint=URL&region=NAME`. No I/O: a wrong address is `Usage` at once, a
    store that is not there is an error of the first call."""
    parsed = addresses.parse(address)
    backend: Backend
    if isinstance(parsed, addresses.FolderAddress):
        backend = FolderBackend(parsed.folder)
    elif isinstance(parsed, addresses.MemoryAddress):
        backend = memory.named(parsed.name)
    else:
        backend = ObjectBackend(parsed)
    return Blobs(backend, retrying)
