"""Whether a version computes in the event loop or in a thread. Pure.

What is short belongs into the loop, where it delays everybody for a moment; what turns out to be
long belongs into a thread. A busy machine makes short ones look long: so a version comes back when
its computations have been short for a while, after twice as many of them each time.
"""

from __future__ import annotations

from typing import Final

from holdfast.wire.limits import INLINE_LATE_S, INLINE_S

# One that was thought short and took this long: a page fault or a busy machine. So many of them
# among so many, and the version computes in a thread from then on.
INLINE_LATE_MAX: Final = 50
INLINE_WINDOW: Final = 1_000
# One that takes this long moves the version into a thread at once: everybody waited for it.
INLINE_STALL_S: Final = 0.1
# It comes back after `INLINE_WINDOW` computations with no more late ones than that, the next time
# after twice as many, up to this: a version that is slow now and then costs ever less.
INLINE_WINDOW_MAX: Final = 1_000_000


class Judge:
    """Of one version."""

    def __init__(self) -> None:
        self._late = self._computed = 0
        self._window = INLINE_WINDOW  # in the thread, before it may come back

    def too_long(self, took_s: float) -> bool:
        """After a computation in the loop: whether the next one belongs into a thread."""
        self._computed += 1
        self._late += took_s > INLINE_LATE_S
        moves = took_s >= INLINE_STALL_S or self._late >= INLINE_LATE_MAX
        if moves or self._computed >= INLINE_WINDOW:
            self._late = self._computed = 0
        return moves

    def short_again(self, own_s: float, took_s: float) -> bool:
        """After a computation in the thread: whether the next one may be done in the loop. By the
        rule for new versions: of the thread's own time, and by the clock."""
        self._computed += 1
        self._late += own_s >= INLINE_S or took_s > INLINE_LATE_S
        if self._computed < self._window:
            return False
        moves = self._late * INLINE_WINDOW < INLINE_LATE_MAX * self._computed
        self._late = self._computed = 0
        if moves:
            self._window = min(2 * self._window, INLINE_WINDOW_MAX)
        return moves
