"""A store in this process, for tests and simulations."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final

from holdfast.storage.backend import Listed
from holdfast.storage.deadline import TransferDeadline
from holdfast.storage.sources import MeteredSource
from holdfast.system.clock import Clock, SystemClock
from holdfast.wire.errors import Full, Missing
from holdfast.wire.limits import BLOB_CHUNK_BYTES

# A store in memory is for tests and simulations.
MEMORY_STORE_BYTES_MAX: Final = 2 * 1024**3


class MemoryBackend:
    """Blobs in a dictionary. They last as long as the process."""

    def __init__(self, name: str, clock: Clock | None = None) -> None:
        self._name = name
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._blobs: dict[str, tuple[bytes, float]] = {}
        self._size_bytes = 0

    def describe(self) -> str:
        return f"memory:{self._name}"

    def put(self, key: str, chunks: MeteredSource, deadline: TransferDeadline) -> None:
        data = b"".join(chunks)
        with self._lock:
            self._keep(key, data)

    def put_if_absent(self, key: str, chunks: MeteredSource, deadline: TransferDeadline) -> bool:
        data = b"".join(chunks)
        with self._lock:
            if key in self._blobs:
                return False
            self._keep(key, data)
            return True

    def open(
        self, key: str, deadline: TransferDeadline, piece_bytes: int = BLOB_CHUNK_BYTES
    ) -> tuple[int, Iterator[bytes]]:
        with self._lock:
            found = self._blobs.get(key)
        if found is None:
            raise Missing(f"there is no blob {key!r} in {self.describe()}")
        data = found[0]
        starts = range(0, len(data), piece_bytes)
        return len(data), (data[start : start + piece_bytes] for start in starts)

    def stat(self, key: str) -> Listed | None:
        with self._lock:
            found = self._blobs.get(key)
        return None if found is None else Listed(key, len(found[0]), found[1])

    def confirm(self, key: str) -> None:
        """Nothing here is durable."""

    def list(self, prefix: str, after: str) -> Iterator[Listed]:
        below = f"{prefix}/" if prefix else ""
        with self._lock:
            found = [
                Listed(key, len(data), modified_s)
                for key, (data, modified_s) in self._blobs.items()
                if key.startswith(below) and key > after
            ]
        yield from sorted(found, key=lambda blob: blob.key)

    def delete(self, key: str) -> None:
        with self._lock:
            self._remove(key)

    def delete_unless_newer(self, key: str, than_s: float, deadline: TransferDeadline) -> bool:
        with self._lock:
            found = self._blobs.get(key)
            if found is not None and found[1] > than_s:
                return False
            self._remove(key)
            return True

    def tidy(self) -> int:
        return 0

    def _keep(self, key: str, data: bytes) -> None:
        before = self._blobs.get(key, (b"", 0.0))[0]
        size_bytes = self._size_bytes + len(data) - len(before)
        if size_bytes > MEMORY_STORE_BYTES_MAX:
            raise Full(
                f"no room for {key!r} in {self.describe()}",
                why=f"a store in memory holds at most {MEMORY_STORE_BYTES_MAX} bytes",
                fix="use a folder: file:DIR",
            )
        self._blobs[key] = (data, self._clock.wall_ms() / 1_000)
        self._size_bytes = size_bytes

    def _remove(self, key: str) -> None:
        data, _ = self._blobs.pop(key, (b"", 0.0))
        self._size_bytes -= len(data)


_STORES: Final[dict[str, MemoryBackend]] = {}
_STORES_LOCK: Final = threading.Lock()


def named(name: str) -> MemoryBackend:
    """The store of that name in this process; an empty one the first time."""
    with _STORES_LOCK:
        return _STORES.setdefault(name, MemoryBackend(name))


def forget(name: str) -> None:
    """Let a named store go, with all that it holds."""
    with _STORES_LOCK:
        _STORES.pop(name, None)
