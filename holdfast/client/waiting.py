"""Waiting, for callers of every kind: one thing that is looked at again and again, driven by the
caller's own thread, by his loop, or by the thread of a client's futures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Poll(Generic[T]):
    """`check` gives what is waited for, or None: not yet. It asks the cluster, so it may take some
    milliseconds; it raises when that does not come any more, or not in time."""

    check: Callable[[], T | None]
    every_s: float

    def here(self) -> T:
        """Wait on this thread. Ctrl-C ends it at once."""
        while (found := self.check()) is None:
            time.sleep(self.every_s)
        return found

    async def awaited(self, run: Callable[[Callable[[], T | None]], Awaitable[T | None]]) -> T:
        """Wait in a loop: `run` calls `check` where it may block."""
        # Another process does what is waited for: there is no event of ours.
        while (found := await run(self.check)) is None:  # noqa: ASYNC110
            await asyncio.sleep(self.every_s)
        return found


def deadline_of(timeout_s: float | None) -> float:
    """When a wait of so many seconds ends (monotonic); None: never."""
    return float("inf") if timeout_s is None else time.monotonic() + timeout_s
