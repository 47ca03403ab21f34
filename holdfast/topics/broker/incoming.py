"""The memory of requests that have not come whole, or wait for their turn: bounded over all
connections.

A frame may have 100 MiB, and whoever sends half of one costs as much. Before a connection has
logged in, its frames are small, and what all such connections hold is small, too: beyond it the one
that holds most is ended. Of the others nobody is ended at first: beyond the limit they are not read
from, except the one whose frame lacks least, so that one after the other comes through. Where that
does not help within a few seconds, or much more arrives, the one that holds most is ended.
"""

from __future__ import annotations

from typing import Final, Protocol

from holdfast.system import logs

# What half frames and requests that wait may have in memory, of all connections.
INCOMING_BYTES_MAX: Final = 256 * 1024 * 1024
# Beyond that: the one frame that comes through, and what had been read when reading stopped.
OVER_BYTES_MAX: Final = 128 * 1024 * 1024
# Of connections that have not logged in. A login is a few hundred bytes.
STRANGERS_BYTES_MAX: Final = 16 * 1024 * 1024
# Who keeps the others waiting for longer is ended.
STUCK_S: Final = 10.0

log = logs.get(__name__)


class Incoming(Protocol):
    """What is needed of a connection."""

    principal: str

    @property
    def missing_bytes(self) -> int:
        """What its frame lacks; 0: it has no half frame."""

    @property
    def peer(self) -> str: ...

    def hold_reading(self, hold: bool) -> None: ...

    def abort(self) -> None: ...


class IncomingMemory:
    """How much each connection holds."""

    def __init__(
        self,
        bytes_max: int = INCOMING_BYTES_MAX,
        over_bytes_max: int = OVER_BYTES_MAX,
        strangers_bytes_max: int = STRANGERS_BYTES_MAX,
    ) -> None:
        self._bytes_max = bytes_max
        self._over_bytes_max = over_bytes_max
        self._strangers_bytes_max = strangers_bytes_max
        self._held: dict[Incoming, int] = {}
        self._strangers: dict[Incoming, int] = {}
        self._waiting: set[Incoming] = set()
        self._first: Incoming | None = None  # who is read from though there is too much
        self._stuck_since_s = 0.0
        self.total = 0
        self.strangers_total = 0

    def note(self, link: Incoming, size: int) -> None:
        """A connection holds so much now."""
        if link.principal:
            self._count_stranger(link, 0)
            self._count(link, size)
        else:
            self._count_stranger(link, size)
            while self.strangers_total > self._strangers_bytes_max:
                self._end_largest(self._strangers, "it has not logged in and holds most")

    def drop(self, link: Incoming) -> None:
        """It has ended."""
        self._count_stranger(link, 0)
        self._waiting.discard(link)
        self._count(link, 0)

    def sweep(self, now_s: float) -> None:
        """End who keeps the others waiting."""
        if not self._waiting:
            self._stuck_since_s = 0.0
        elif not self._stuck_since_s:
            self._stuck_since_s = now_s
        elif now_s - self._stuck_since_s > STUCK_S:
            self._stuck_since_s = now_s
            self._end_largest(self._held, "others wait for the memory of its half frame")

    def _count_stranger(self, link: Incoming, size: int) -> None:
        self.strangers_total += size - self._strangers.pop(link, 0)
        if size:
            self._strangers[link] = size

    def _count(self, link: Incoming, size: int) -> None:
        self.total += size - self._held.pop(link, 0)
        if size:
            self._held[link] = size
        if link is self._first and (not size or not link.missing_bytes):
            self._first = None
        if self.total > self._bytes_max:
            if size and link is not self._first:
                self._waiting.add(link)
                link.hold_reading(True)
            while self.total > self._bytes_max + self._over_bytes_max:
                self._end_largest(self._held, "half frames have filled the memory for them")
            if self._first is None:
                self._choose()
        elif self._waiting:
            waiting, self._waiting, self._first = self._waiting, set(), None
            for one in waiting:
                one.hold_reading(False)

    def _choose(self) -> None:
        """Read on from the one that lacks least."""
        halves = [one for one in self._waiting if one.missing_bytes]
        if halves:
            self._first = min(halves, key=lambda one: one.missing_bytes)
            self._waiting.discard(self._first)
            self._first.hold_reading(False)

    def _end_largest(self, held: dict[Incoming, int], why: str) -> None:
        link = max(held, key=lambda one: held[one], default=None)
        if link is not None:
            log.warning("connection closed", why=why, peer=link.peer, bytes=held[link])
            link.abort()
            self.drop(link)
