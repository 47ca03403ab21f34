"""SHA-256 beside the work on the same bytes: large pieces are hashed by a second thread."""

from __future__ import annotations

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from holdfast.storage.keys import BytesLike

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
