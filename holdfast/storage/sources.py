"""What a blob is made from: bytes, a file, or an iterator; and how its bytes are watched."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from holdfast.storage.deadline import Deadline
from holdfast.storage.hashing import Hasher
from holdfast.storage.keys import BytesLike
from holdfast.wire.errors import Conflict, Full, Refused, Usage
from holdfast.wire.limits import BLOB_CHUNK_BYTES

# Requests of one upload at a time; each holds a piece in memory.
BLOB_BYTES_MAX: Final = 128 * 1024**3

Data = BytesLike | Path | BinaryIO | io.BufferedIOBase | Iterable[bytes]


@dataclass(frozen=True)
class Source:
    """Bytes to be written. `again`: they can be read once more, so a failed write is repeated."""

    chunks: Callable[[], Iterator[BytesLike]]
    again: bool


def source_of(data: Data) -> Source:
    """A `Source` of anything that `put` takes."""
    if isinstance(data, bytes | bytearray | memoryview):
        view = memoryview(data).cast("B")
        return Source(lambda: _pieces(view), again=True)
    if isinstance(data, Path):
        return Source(lambda: _of_path(data), again=True)
    if isinstance(data, io.IOBase):
        return _of_file(data)
    if isinstance(data, Iterable) and not isinstance(data, str):
        return _of_iterable(data)
    raise Usage(
        f"a blob cannot be made from {type(data).__name__}",
        fix="give bytes, a Path, a file opened for reading bytes, or an iterator of bytes",
    )


def _of_file(file: io.IOBase) -> Source:
    if isinstance(file, io.TextIOBase):
        raise Usage("the file is opened as text", fix="open it with mode 'rb'")
    if not file.seekable():
        return Source(lambda: _of_reader(file), again=False)
    start = file.tell()

    def chunks() -> Iterator[BytesLike]:
        file.seek(start)
        return _of_reader(file)

    return Source(chunks, again=True)


def _of_iterable(pieces: Iterable[bytes]) -> Source:
    """A list can be gone through twice; a generator cannot."""
    if iter(pieces) is pieces:
        return Source(lambda: iter(pieces), again=False)
    return Source(lambda: iter(pieces), again=True)


def _pieces(view: memoryview) -> Iterator[BytesLike]:
    for start in range(0, view.nbytes, BLOB_CHUNK_BYTES):
        yield view[start : start + BLOB_CHUNK_BYTES]


def _of_path(path: Path) -> Iterator[BytesLike]:
    with path.open("rb", buffering=0) as file:
        yield from _of_reader(file)


def _of_reader(file: io.IOBase) -> Iterator[BytesLike]:
    while piece := file.read(BLOB_CHUNK_BYTES):
        yield piece


class Watched:
    """Passes bytes on while it counts and hashes them, within a time and a size.

    Going through it ends with `Conflict` instead of its end when the bytes are not those that were
    expected: whoever writes them then publishes nothing. `known`: their digest, of bytes that
    nobody changes: they are not hashed again.
    """

    def __init__(
        self,
        chunks: Iterator[BytesLike],
        deadline: Deadline,
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
