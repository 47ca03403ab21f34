"""Named locks, exclusive, shared and counted, with fencing tokens. First come, first served."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from holdfast.coordination.contenders import (
    Blocks,
    Contender,
    ContenderQueue,
    QueuePosition,
    own_name,
)
from holdfast.coordination.waits import Wake
from holdfast.wire.errors import Conflict, SessionLost, Unavailable, Usage
from holdfast.wire.limits import NAME_CHARACTERS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.coordination.session import Session

LOCKS = "/holdfast/locks"
_EXCLUSIVE = "x"
_SHARED = "s"
_COUNTED = "n"  # and how many may hold it


class AcquiredLock:
    """A lock that is held.

    `token` grows with each holder. Give it to whatever the lock protects, and let that refuse a
    smaller one than it has seen: then a holder that slept through its session does no harm.
    """

    def __init__(self, place: QueuePosition, what: str, holder: str) -> None:
        self._place = place
        self._what = what
        self._over = threading.Event()
        self._released = False
        self._wakes: list[Wake] = []
        self.holder = holder
        self.token = place.token
        place.lease.on_end(self._over.set)

    @property
    def lost(self) -> bool:
        """Whether it is known not to be held any more."""
        return self._released or self._place.lease.lost

    @property
    def sure_until_s(self) -> float:
        """Until when it is certainly held, by the session's clock, unless it is lost before."""
        return self._place.lease.sure_until_s

    @property
    def over_at_s(self) -> float:
        """From when on somebody else may hold it, if no server is reached any more."""
        return self._place.lease.over_at_s

    def on_lost(self, wake: Wake) -> None:
        """Call `wake` when its session is over before it is released: at once, if it is."""
        self._wakes.append(wake)
        self._place.lease.on_end(wake)

    def check(self) -> None:
        """Raise unless the lock is certainly held now.

        `SessionLost` if it is over, `Unavailable` if no server confirmed the session in time.
        """
        if self._released:
            raise SessionLost(f"{self._what} was released", fix="acquire it again")
        self._place.lease.check()
        if not self._place.lease.sure:
            raise Unavailable(
                f"it is not known whether {self._what} is still held",
                why="no server confirmed the session in time",
                fix="stop what the lock protects; check again when the plane answers",
            )

    def wait_lost(self, timeout_s: float | None = None) -> bool:
        """Wait until it is released or its session is over; whether it is."""
        return self._over.wait(timeout_s)

    def release(self) -> None:
        """Let go, once; the node goes now, or as soon as a server answers."""
        if not self._released:
            self._released = True
            for wake in (self._over.set, *self._wakes):
                self._place.lease.forget(wake)
            self._over.set()
            self._place.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


class _NamedLock:
    """What both kinds of lock share. They share the queue too: one name is one lock."""

    _noun = "lock"

    def __init__(
        self, session: Session, name: str, holder: str | None = None, under: str = LOCKS
    ) -> None:
        """`under`: the node under which its name lies; each has names of its own."""
        if not name or "/" in name or name in (".", "..") or len(name) > NAME_CHARACTERS_MAX:
            raise Usage(
                f"{name!r} cannot be the name of a {self._noun}",
                why=f"a name has 1 to {NAME_CHARACTERS_MAX} characters and no slash",
                fix="choose another name",
            )
        self.name = name
        self.path = f"{under}/{name}"
        self._what = f"the {self._noun} {name!r}"
        self._holder = holder or own_name()
        self._contenders = ContenderQueue(session, self.path, self._what)

    def holders(self) -> list[Contender]:
        """Who holds it now: one, or several that share it."""
        return split(self._contenders.contenders())[0]

    def waiting(self) -> list[Contender]:
        """Who waits for it, in the order in which they will get it."""
        return split(self._contenders.contenders())[1]

    def cancel(self) -> None:
        """All that wait for it through this object raise `Cancelled`."""
        self._contenders.cancel()

    def close(self) -> None:
        """As `cancel`, and for all who would wait through this object later, too."""
        self._contenders.close()

    def _acquire(
        self, kind: str, timeout_s: float | None, blocks: Blocks | None = None, share: int = 1
    ) -> AcquiredLock:
        blocks = blocks or _blockers(kind)
        place = self._contenders.enter(kind, self._holder, blocks, timeout_s, share)
        return AcquiredLock(place, self._what, self._holder)


class Lock(_NamedLock):
    """One holder at a time."""

    def acquire(self, timeout_s: float | None = None) -> AcquiredLock:
        """Wait for it; `TimedOut` after `timeout_s` (0: do not wait), leaving nothing behind."""
        return self._acquire(_EXCLUSIVE, timeout_s)

    @contextmanager
    def holding(self, timeout_s: float | None = None) -> Iterator[AcquiredLock]:
        with self.acquire(timeout_s) as held:
            yield held


class SharedLock(_NamedLock):
    """Any number of readers, or one writer. Nobody starves: readers wait for earlier writers."""

    def read(self, timeout_s: float | None = None) -> AcquiredLock:
        """Wait until no earlier writer has it or waits for it."""
        return self._acquire(_SHARED, timeout_s)

    def write(self, timeout_s: float | None = None) -> AcquiredLock:
        """Wait until nobody earlier has it or waits for it."""
        return self._acquire(_EXCLUSIVE, timeout_s)


class Semaphore(_NamedLock):
    """At most `count` holders at a time. Whoever is in the queue says for how many it is: another
    count is a `Conflict` until the queue is empty."""

    _noun = "semaphore"

    def __init__(
        self,
        session: Session,
        name: str,
        count: int,
        holder: str | None = None,
        under: str = LOCKS,
    ) -> None:
        super().__init__(session, name, holder, under)
        if count < 1:
            raise Usage(f"{self._what} for {count} holders", fix="give a count of 1 or more")
        self._count = count

    def acquire(self, timeout_s: float | None = None) -> AcquiredLock:
        """Wait until fewer than `count` before us have it or wait for it; `TimedOut` otherwise."""
        kind = f"{_COUNTED}{self._count}"
        return self._acquire(kind, timeout_s, self._counts, self._count)

    def _counts(self, other: str) -> bool:
        if other != f"{_COUNTED}{self._count}":
            raise Conflict(
                f"{self._what} is not for {self._count} holders now",
                why=f"it is used with {other.removeprefix(_COUNTED)}",
                fix="use the same number everywhere, or another name",
            )
        return True


def count_of(kind: str) -> int | None:
    """For how many holders a contender of this kind takes it to be; None: it is not counted."""
    count = kind.removeprefix(_COUNTED)
    return int(count) if kind.startswith(_COUNTED) and count.isdecimal() else None


def split(queue: list[Contender]) -> tuple[list[Contender], list[Contender]]:
    """Holders and waiters of a queue, of whichever kind."""
    count = count_of(queue[0].kind) if queue else None
    return _split(queue) if count is None else (queue[:count], queue[count:])


def _blockers(kind: str) -> Blocks:
    if kind == _SHARED:
        return lambda other: other == _EXCLUSIVE
    return lambda other: True


def _split(queue: list[Contender]) -> tuple[list[Contender], list[Contender]]:
    """Holders and waiters of a queue."""
    if not queue or queue[0].kind == _EXCLUSIVE:
        return queue[:1], queue[1:]
    shared = next((i for i, one in enumerate(queue) if one.kind == _EXCLUSIVE), len(queue))
    return queue[:shared], queue[shared:]
