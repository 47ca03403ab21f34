"""What a blob is made from: bytes, a file, or an iterator; and how its bytes are counted and hashed
on their way. Large pieces are hashed by a second thread, beside the work on the same bytes."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from holdfast.storage.deadline import TransferDeadline
from holdfast.storage.keys import BytesLike
from holdfast.wire.errors import Conflict, Full, Refused, Usage
from holdfast.wire.limits import BLOB_CHUNK_BYTES

# Requests of one upload at a time; each holds a piece in memory.
BLOB_BYTES_MAX: Final = 128 * 1024**3

Data = BytesLike | Path | BinaryIO | io.BufferedIOBase | Iterable[bytes]
# A smaller piece is hashed sooner than another thread is woken.
HASH_ASIDE_BYTES: Final = 1024 * 1024


class Hasher:
    """A digest of the pieces that it was given, in their order.

    A large piece may still be read after `update` has returned. Until `settle` it must not change.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._thread: ThreadPoolExecutor | None = None
        self._pending: Future[None] | None = None

    def update(self, piece: BytesLike) -> None:
        self.settle()
        if memoryview(piece).nbytes < HASH_ASIDE_BYTES:
            self._hash.update(piece)
            return
        # Python's own lock is free while a large piece is hashed.
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-hash")
        self._pending = self._thread.submit(self._hash.update, piece)

    def settle(self) -> None:
        """Wait until nothing is read any more."""
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    @property
    def digest(self) -> str:
        self.settle()
        return f"sha256:{self._hash.hexdigest()}"

    def close(self) -> None:
        """End the thread; the digest stays."""
        self.settle()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None


@dataclass(frozen=True)
class BlobSource:
    """Bytes to be written. `again`: they can be read once more, so a failed write is repeated."""

    chunks: Callable[[], Iterator[BytesLike]]
    again: bool


def source_of(data: Data) -> BlobSource:
    """A `BlobSource` of anything that `put` takes."""
    if isinstance(data, bytes | bytearray | memoryview):
        view = memoryview(data).cast("B")
        return BlobSource(lambda: _pieces(view), again=True)
    if isinstance(data, Path):
        return BlobSource(lambda: _of_path(data), again=True)
    if isinstance(data, io.IOBase):
        return _of_file(data)
    if isinstance(data, Iterable) and not isinstance(data, str):
        return _of_iterable(data)
    raise Usage(
        f"a blob cannot be made from {type(data).__name__}",
        fix="give bytes, a Path, a file opened for reading bytes, or an iterator of bytes",
    )


def _of_file(file: io.IOBase) -> BlobSource:
    if isinstance(file, io.TextIOBase):
        raise Usage("the file is opened as text", fix="open it with mode 'rb'")
    if not file.seekable():
        return BlobSource(lambda: _of_reader(file), again=False)
    start = file.tell()

    def chunks() -> Iterator[BytesLike]:
        file.seek(start)
        return _of_reader(file)

    return BlobSource(chunks, again=True)


def _of_iterable(pieces: Iterable[bytes]) -> BlobSource:
    """A list can be gone through twice; a generator cannot."""
    if iter(pieces) is pieces:
        return BlobSource(lambda: iter(pieces), again=False)
    return BlobSource(lambda: iter(pieces), again=True)


def _pieces(view: memoryview) -> Iterator[BytesLike]:
    for start in range(0, view.nbytes, BLOB_CHUNK_BYTES):
        yield view[start : start + BLOB_CHUNK_BYTES]


def _of_path(path: Path) -> Iterator[BytesLike]:
    with path.open("rb", buffering=0) as file:
        yield from _of_reader(file)


def _of_reader(file: io.IOBase) -> Iterator[BytesLike]:
    while piece := file.read(BLOB_CHUNK_BYTES):
        yield piece


class MeteredSource:
    """Passes bytes on while it counts and hashes them, within a time and a size.

    Going through it ends with `Conflict` instead of its end when the bytes are not those that were
    expected: whoever writes them then publishes nothing. `known`: their digest, of bytes that
    nobody changes: they are not hashed again.
    """

    def __init__(
        self,
        chunks: Iterator[BytesLike],
        deadline: TransferDeadline,
        *,
        what: str,
        expect_digest: str | None = None,
        known: str | None = None,
    ) -> None:
        self._chunks = chunks
        self._deadline = deadline
        self._what = what
        self._expect = expect_digest
        self._known = known
        self._hasher = Hasher()
        self.size_bytes = 0

    @property
    def digest(self) -> str:
        return self._known or self._hasher.digest

    def __iter__(self) -> Iterator[BytesLike]:
        try:
            yield from self._pass_on()
        finally:
            self._hasher.close()
        if self._expect is not None and self.digest != self._expect:
            raise Conflict(
                f"{self._what}: the bytes changed while they were written",
                why=f"expected {self._expect}, got {self.digest}",
                fix="write a copy that nobody changes",
            )

    def _pass_on(self) -> Iterator[BytesLike]:
        while (chunk := self._next()) is not None:
            self._deadline.check(self._what)
            self.size_bytes += memoryview(chunk).nbytes
            if self.size_bytes > BLOB_BYTES_MAX:
                raise Full(
                    f"{self._what}: more than {BLOB_BYTES_MAX} bytes",
                    why="a blob is bounded",
                    fix="split it into several blobs",
                )
            self._deadline.allow_for(self.size_bytes)
            if self._known is None:
                self._hasher.update(chunk)
            yield chunk
            if not isinstance(chunk, bytes):
                # Whoever gave us a buffer may fill it anew for the next piece.
                self._hasher.settle()

    def _next(self) -> BytesLike | None:
        # An error of the source must not be taken for one of the store, nor be tried again.
        try:
            return next(self._chunks, None)
        except OSError as error:
            raise Refused(
                f"{self._what}: its source cannot be read",
                why=str(error),
                fix="check the file that is to be written",
            ) from error
