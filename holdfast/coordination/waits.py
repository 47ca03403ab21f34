"""Waiting: deadlines, wakes and the bells that watches ring. Nothing here knows a server.

A wake is a callable that never blocks (usually `threading.Event.set`): it may be called on kazoo's
own threads. A wake carries no news. Whoever is woken reads the present state and decides again, so
a wake too many does no harm, and one wake stands for any number of changes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Final

Wake = Callable[[], None]


class Deadline:
    """A moment after which a wait is over; never, if made with None."""

    __slots__ = ("at_s",)

    def __init__(self, timeout_s: float | None) -> None:
        self.at_s: Final = None if timeout_s is None else time.monotonic() + max(timeout_s, 0.0)

    def left_s(self) -> float | None:
        """Seconds that are left, not below zero; None if there is no end."""
        return None if self.at_s is None else max(self.at_s - time.monotonic(), 0.0)

    @property
    def passed(self) -> bool:
        return self.at_s is not None and time.monotonic() >= self.at_s

    def within(self, timeout_s: float) -> Deadline:
        """The earlier of this deadline and `timeout_s` from now."""
        left_s = self.left_s()
        return Deadline(timeout_s if left_s is None else min(left_s, timeout_s))


class Bell:
    """One watch at the server, shared by all who wait for the same thing; kazoo is given it, and
    calls it. `placed`: the server has that watch, so it will ring."""

    __slots__ = ("_bells", "key", "placed", "wakes")

    def __init__(self, bells: Bells, key: Hashable) -> None:
        self._bells = bells
        self.key = key
        self.placed = False
        self.wakes: set[Wake] = set()

    def __call__(self, _event: object) -> None:
        """Called by kazoo, once: the watch fired, or the connection that held it is gone."""
        self._bells.rung(self)


class Bells:
    """Who is woken by which watch.

    kazoo keeps a watcher until it fires, so a waiter that gave up would be kept too. Here all
    waiters of a path share one watcher, and one that gives up is forgotten at once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bells: dict[Hashable, Bell] = {}

    @contextmanager
    def hung(self, key: Hashable, wake: Wake | None) -> Iterator[Bell | None]:
        """`hang`, around the request that places the watch. One that fails places none."""
        bell = self.hang(key, wake)
        placed = False
        try:
            yield bell
            placed = True
        finally:
            self.tell(bell, wake, placed=placed)

    def hang(self, key: Hashable, wake: Wake | None) -> Bell | None:
        """The watcher to give to kazoo so that `wake` is called; None for no wake. Then `tell`."""
        if wake is None:
            return None
        with self._lock:
            bell = self._bells.get(key)
            if bell is None:
                bell = self._bells[key] = Bell(self, key)
            bell.wakes.add(wake)
            return bell

    def tell(self, bell: Bell | None, wake: Wake | None, *, placed: bool) -> None:
        """What came of a bell that was hung. One that nothing will ever ring is taken off again:
        it would be kept for as long as the session lasts."""
        if bell is None or wake is None:
            return
        with self._lock:
            bell.placed = bell.placed or placed
            if not bell.placed:
                bell.wakes.discard(wake)
                if not bell.wakes and self._bells.get(bell.key) is bell:
                    del self._bells[bell.key]

    def forget(self, *wakes: Wake) -> None:
        """Nobody waits behind these any more."""
        with self._lock:
            for bell in self._bells.values():
                bell.wakes.difference_update(wakes)

    def rung(self, bell: Bell) -> None:
        with self._lock:
            if self._bells.get(bell.key) is bell:
                del self._bells[bell.key]
            wakes, bell.wakes = bell.wakes, set()
        for wake in wakes:
            wake()

    def __len__(self) -> int:
        with self._lock:
            return sum(len(bell.wakes) for bell in self._bells.values())
