"""The states of a session, and telling users of their changes."""

from __future__ import annotations

import enum
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from holdfast.system.tasks import OwnedThread, start_thread
from holdfast.wire.limits import THREAD_END_S

# Changes of a session's state that a slow listener has not seen yet.
STATE_CHANGES_MAX: Final = 1_000

_log = logging.getLogger("holdfast.coordination")


class SessionState(enum.Enum):
    """What is known of a session.

    CONNECTED: a server answers. SUSPENDED: nothing is known. The session and its ephemeral nodes
    may still be there; do not act as a leader or a holder beyond the lease. LOST: the servers have
    ended the session. Its ephemeral nodes are gone, everything that it held is over, and holders
    raise `SessionLost` or `Fenced`. A new session follows by itself (CONNECTED again); it revives
    nothing, except that a `Member` joins again. CLOSED: `close` was called, or the servers refused
    the credentials; nothing follows.
    """

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"
    CLOSED = "closed"


Listener = Callable[[SessionState], None]


class Listeners:
    """Calls the users' listeners on a thread of its own, which starts with the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._listeners: list[Listener] = []
        self._states: deque[SessionState] = deque(maxlen=STATE_CHANGES_MAX)
        self._thread: OwnedThread | None = None
        self._closed = False

    def add(self, listener: Listener) -> None:
        with self._lock:
            self._listeners.append(listener)
            if self._thread is None:
                self._thread = start_thread(self._run, "holdfast-listeners")

    def tell(self, state: SessionState) -> None:
        with self._lock:
            if self._thread is not None:
                self._states.append(state)
                self._lock.notify_all()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(THREAD_END_S)

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._states and not self._closed:
                    self._lock.wait()
                if not self._states:
                    return
                state = self._states.popleft()
                listeners = tuple(self._listeners)
            for listener in listeners:
                try:
                    listener(state)
                except Exception:  # somebody's own code: the others are told all the same
                    _log.exception("a listener of the session's state failed")
