"""The lease of a session: from the moment a server made it until it is known to be over.

kazoo makes a new session by itself when the old one has expired. What was held in the old one is
gone, so everything held refers to the lease it was got in, and dies with it. A new lease never
revives it.
"""

from __future__ import annotations

import threading
from typing import Final

from holdfast.coordination.waits import Wake
from holdfast.system.clock import Clock
from holdfast.wire.errors import SessionLost

# A leader acts only this part of a session's time after the last answer it had: the rest covers
# the difference between its clock and the ensemble's.
LEASE_FRACTION: Final = 2 / 3


class Lease:
    """A session at the servers, and how sure we are that it still is one.

    A contact is the moment at which a question was sent that was answered later: the servers knew
    the session then. They forget it no sooner than `timeout_s` after they heard of it last. So
    until `LEASE_FRACTION * timeout_s` after a contact the session, with all that it holds, is
    alive, whatever happened since; this process may have been paused, the machine may have slept.
    After that nothing is known until the next contact.
    """

    def __init__(self, session_id: int, timeout_s: float, clock: Clock) -> None:
        self.session_id = session_id
        self.timeout_s = timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._contact_s: float | None = None
        self._end: str | None = None
        self._wakes: set[Wake] = set()

    @property
    def lost(self) -> bool:
        """Whether it is known to be over."""
        return self._end is not None

    @property
    def held(self) -> bool:
        """Whether somebody holds something in it, or waits for that."""
        return bool(self._wakes)

    @property
    def sure(self) -> bool:
        """Whether it cannot be over yet. Read from the clock, so it needs no news to turn false."""
        return self._end is None and self._clock.now_s() < self.sure_until_s

    @property
    def sure_until_s(self) -> float:
        """Until when it is sure, of its clock, if it is not known to be over before."""
        contact_s = self._contact_s
        return 0.0 if contact_s is None else contact_s + LEASE_FRACTION * self.timeout_s

    @property
    def over_at_s(self) -> float:
        """When the servers may have forgotten it, if no contact comes after the last one."""
        contact_s = self._contact_s
        return 0.0 if contact_s is None else contact_s + self.timeout_s

    def confirmed(self, sent_s: float) -> None:
        """A question sent at `sent_s` was answered in this lease."""
        with self._lock:
            if self._contact_s is None or sent_s > self._contact_s:
                self._contact_s = sent_s

    def end(self, reason: str) -> None:
        """It is over. Wakes everyone who holds something; never blocks."""
        with self._lock:
            if self._end is not None:
                return
            self._end = reason
            wakes, self._wakes = self._wakes, set()
        for wake in wakes:
            wake()

    def on_end(self, wake: Wake) -> None:
        """Call `wake` when it is over: at once, if it already is."""
        with self._lock:
            if self._end is None:
                self._wakes.add(wake)
                return
        wake()

    def forget(self, wake: Wake) -> None:
        with self._lock:
            self._wakes.discard(wake)

    def check(self) -> None:
        """Raise `SessionLost` if it is over."""
        if self._end is not None:
            raise SessionLost(
                f"session 0x{self.session_id:x} is over, and with it everything it held",
                why=self._end,
                fix="acquire again: a new session is made by itself unless this one was closed",
            )
