"""Named locks, exclusive and shared, with fencing tokens. Fair: first come, first served."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from holdfast.coordination.line import Blocks, Contender, Line, Place, own_name
from holdfast.wire.errors import SessionLost, Unavailable, Usage
from holdfast.wire.limits import NAME_CHARACTERS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.coordination.session import Session

LOCKS = "/holdfast/locks"
_EXCLUSIVE = "x"
_SHARED = "s"


class Held:
    """A lock that is held.

    `token` grows with each holder. Give it to whatever the lock protects, and let that refuse a
    smaller one than it has seen: then a holder that slept through its session does no harm.
    """

    def __init__(self, place: Place, what: str, holder: str) -> None:
        self._place = place
        self._what = what
        self._over = threading.Event()
        self._released = False
        self.holder = holder
        self.token = place.token
        place.life.on_end(self._over.set)

    @property
    def lost(self) -> bool:
        """Whether it is known not to be held any more."""
        return self._released or self._place.life.lost

    def check(self) -> None:
        """Raise unless the lock is certainly held now.

        `SessionLost` if it is over, `Unavailable` if no server confirmed the session in time.
        """
        if self._released:
            raise SessionLost(f"{self._what} was released", fix="acquire it again")
        self._place.life.check()
        if not self._place.life.sure:
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
            self._place.life.forget(self._over.set)
            self._over.set()
            self._place.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


class _Named:
    """What both kinds of lock share. They share the line too: one name is one lock."""

    def __init__(self, session: Session, name: str, holder: str | None = None) -> None:
        if not name or "/" in name or name in (".", "..") or len(name) > NAME_CHARACTERS_MAX:
            raise Usage(
                f"{name!r} cannot be the name of a lock",
                why=f"a name has 1 to {NAME_CHARACTERS_MAX} characters and no slash",
                fix="choose another name",
            )
        self.name = name
        self._what = f"the lock {name!r}"
        self._holder = holder or own_name()
        self._line = Line(session, f"{LOCKS}/{name}", self._what)

    def holders(self) -> list[Contender]:
        """Who holds it now: one, or several that share it."""
        return _split(self._line.contenders())[0]

    def waiting(self) -> list[Contender]:
        """Who waits for it, in the order in which they will get it."""
        return _split(self._line.contenders())[1]

    def cancel(self) -> None:
        """All that wait for it through this object raise `Cancelled`."""
        self._line.cancel()

    def _acquire(self, kind: str, timeout_s: float | None) -> Held:
        place = self._line.enter(kind, self._holder, _blockers(kind), timeout_s)
        return Held(place, self._what, self._holder)


class Lock(_Named):
    """One holder at a time."""

    def acquire(self, timeout_s: float | None = None) -> Held:
        """Wait for it; `TimedOut` after `timeout_s` (0: do not wait), leaving nothing behind."""
        return self._acquire(_EXCLUSIVE, timeout_s)

    @contextmanager
    def holding(self, timeout_s: float | None = None) -> Iterator[Held]:
        with self.acquire(timeout_s) as held:
            yield held


class SharedLock(_Named):
    """Any number of readers, or one writer. Nobody starves: readers wait for earlier writers."""

    def read(self, timeout_s: float | None = None) -> Held:
        """Wait until no earlier writer has it or waits for it."""
        return self._acquire(_SHARED, timeout_s)

    def write(self, timeout_s: float | None = None) -> Held:
        """Wait until nobody earlier has it or waits for it."""
        return self._acquire(_EXCLUSIVE, timeout_s)


def _blockers(kind: str) -> Blocks:
    if kind == _SHARED:
        return lambda other: other == _EXCLUSIVE
    return lambda other: True


def _split(line: list[Contender]) -> tuple[list[Contender], list[Contender]]:
    """Holders and waiters of a line."""
    if not line or line[0].kind == _EXCLUSIVE:
        return line[:1], line[1:]
    shared = next((i for i, one in enumerate(line) if one.kind == _EXCLUSIVE), len(line))
    return line[:shared], line[shared:]
