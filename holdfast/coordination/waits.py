"""Waiting: deadlines, wakes, and watches that several share. Nothing here knows a server.

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


class SharedWatch:
    """One watch at the server, shared by all who wait for the same thing; kazoo is given it, and
    calls it. `placed`: the server has that watch, so it will fire."""

    __slots__ = ("_watches", "key", "placed", "wakes")

    def __init__(self, watches: WatchRegistry, key: Hashable) -> None:
        self._watches = watches
        self.key = key
        self.placed = False
        self.wakes: set[Wake] = set()

    def __call__(self, _event: object) -> None:
        """Called by kazoo, once: the watch fired, or the connection that held it is gone."""
        self._watches.fired(self)


class WatchRegistry:
    """Who is woken by which watch.

    kazoo keeps a watcher until it fires, so a waiter that gave up would be kept too. Here all
    waiters of a path share one watcher, and one that gives up is forgotten at once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: dict[Hashable, SharedWatch] = {}

    @contextmanager
    def placing(self, key: Hashable, wake: Wake | None) -> Iterator[SharedWatch | None]:
        """`add`, around the request that places the watch. One that fails places none."""
        watch = self.add(key, wake)
        placed = False
        try:
            yield watch
            placed = True
        finally:
            self.settle(watch, wake, placed=placed)

    def add(self, key: Hashable, wake: Wake | None) -> SharedWatch | None:
        """The watcher to give to kazoo so that `wake` is called; None: no wake. Then `settle`."""
        if wake is None:
            return None
        with self._lock:
            watch = self._watches.get(key)
            if watch is None:
                watch = self._watches[key] = SharedWatch(self, key)
            watch.wakes.add(wake)
            return watch

    def settle(self, watch: SharedWatch | None, wake: Wake | None, *, placed: bool) -> None:
        """What came of a watch that was added. One that will never fire is removed again:
        it would be kept for as long as the session lasts."""
        if watch is None or wake is None:
            return
        with self._lock:
            watch.placed = watch.placed or placed
            if not watch.placed:
                watch.wakes.discard(wake)
                if not watch.wakes and self._watches.get(watch.key) is watch:
                    del self._watches[watch.key]

    def forget(self, *wakes: Wake) -> None:
        """Nobody waits behind these any more."""
        with self._lock:
            for watch in self._watches.values():
                watch.wakes.difference_update(wakes)

    def fired(self, watch: SharedWatch) -> None:
        with self._lock:
            if self._watches.get(watch.key) is watch:
                del self._watches[watch.key]
            wakes, watch.wakes = watch.wakes, set()
        for wake in wakes:
            wake()

    def __len__(self) -> int:
        with self._lock:
            return sum(len(watch.wakes) for watch in self._watches.values())
