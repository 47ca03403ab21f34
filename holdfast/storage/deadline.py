"""How long a call may take, and how it is tried again within that time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from holdfast.system import backoff, logs
from holdfast.system.clock import Clock, SystemClock
from holdfast.wire.errors import TimedOut, Unavailable
from holdfast.wire.limits import BLOB_BYTES_PER_S_MIN, BLOB_CALL_S

# A store that restarts is back within these: 0.1, 0.2, 0.4, 0.8, 1.6, 3.2 and 5 s apart.
BLOB_TRIES_MAX: Final = 8
BLOB_BACKOFF_S: Final = 0.1
BLOB_BACKOFF_S_MAX: Final = 5.0

T = TypeVar("T")
log: Final = logs.get(__name__)


class TransferDeadline:
    """The end of a call. It moves away with the bytes that have passed, at the slowest rate."""

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self._clock = clock
        self._started_s = clock.now_s()
        self.timeout_s = timeout_s
        self._extra_s = 0.0

    def allow_for(self, size_bytes: int) -> None:
        """A call that has moved so many bytes may take longer by their time."""
        self._extra_s = max(self._extra_s, size_bytes / BLOB_BYTES_PER_S_MIN)

    def left_s(self) -> float:
        end_s = self._started_s + self.timeout_s + self._extra_s
        return end_s - self._clock.now_s()

    def check(self, what: str) -> None:
        """`TimedOut` when the time is over."""
        if self.left_s() <= 0:
            raise TimedOut(
                f"{what}: not done after {self.timeout_s + self._extra_s:.0f} s",
                why="the store answers too slowly",
                fix="check the store and the network, then try again",
            )


class Retrying:
    """Tries a call again while the store is `Unavailable`: so many times, within one deadline.

    The pauses double and are shortened by chance, so that many clients do not come back at once.
    With a `chance` of its own the pauses are the same in every run.
    """

    def __init__(
        self,
        *,
        tries_max: int = BLOB_TRIES_MAX,
        timeout_s: float = BLOB_CALL_S,
        chance: random.Random | None = None,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._tries_max = tries_max
        self._timeout_s = timeout_s
        # Seeded by the system: a clock would give the workers of one start the same pauses.
        self._chance = chance or random.SystemRandom()
        self._sleep = sleep
        self.clock = clock or SystemClock()

    def deadline(self) -> TransferDeadline:
        return TransferDeadline(self.clock, self._timeout_s)

    def pause_s(self, failures: int) -> float:
        longest_s = backoff.pause_s(failures, BLOB_BACKOFF_S, BLOB_BACKOFF_S_MAX)
        return backoff.spread(longest_s, self._chance.random())

    def call(self, what: str, action: Callable[[TransferDeadline], T], *, again: bool = True) -> T:
        """What `action` returns; its last `Unavailable` when tries or time are used up."""
        deadline = self.deadline()
        story: list[str] = []
        while True:
            try:
                return action(deadline)
            except Unavailable as error:
                story.append(f"try {len(story) + 1}: {error.why or error.what}")
                pause_s = self.pause_s(len(story))
                if not again or len(story) >= self._tries_max or pause_s >= deadline.left_s():
                    raise Unavailable(
                        error.what, why=error.why, fix=error.fix, story=story
                    ) from error
                log.debug("a store did not answer; trying again", what=what, pause_s=pause_s)
                self._sleep(pause_s)
