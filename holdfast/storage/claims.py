"""Who has a blob: the one that removes it, or those that are about to need it. One process's.

A store of objects has no conditional delete that every server obeys: a removal is a look and then
a delete. A blob that is written again between the two would be gone though it was just written.
The leader removes, and the leader commits. So here it keeps the two apart, for each blob.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from holdfast.wire.errors import Unavailable
from holdfast.wire.limits import BLOB_CALL_S


class Claims:
    """Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._removed: set[str] = set()
        self._needed: Counter[str] = Counter()

    @contextmanager
    def needing(self, keys: Collection[str], timeout_s: float = BLOB_CALL_S) -> Iterator[None]:
        """Within it nobody removes any of these; a removal that is under way has ended before, so
        that whoever looks sees what is left of them. `Unavailable` if one takes too long."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._removed.isdisjoint(keys), timeout_s):
                raise Unavailable(
                    f"{sorted(self._removed.intersection(keys))[0]!r} is being removed",
                    why="nothing needed it for hours, and the store has not answered yet",
                    fix="try again",
                )
            self._needed.update(keys)
        try:
            yield
        finally:
            with self._changed:
                self._needed.subtract(keys)
                self._needed += Counter()

    @contextmanager
    def removing(self, key: str) -> Iterator[bool]:
        """Whether it may be removed within: nobody is about to need it."""
        with self._changed:
            free = not self._needed[key]
            if free:
                self._removed.add(key)
        try:
            yield free
        finally:
            if free:
                with self._changed:
                    self._removed.discard(key)
                    self._changed.notify_all()
