"""Following a fact: a user's callback gets the present state, again and again, on its own thread.

Levels, not edges: the callback is given the whole present state, immutable, and only when it
differs from the last one it was given. What lay between two of its calls it never sees.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, Self, TypeVar

from holdfast.coordination.waits import Wake
from holdfast.system.tasks import start_thread
from holdfast.wire.errors import HoldfastError, RetryError, SessionLost
from holdfast.wire.limits import RECONNECT_DELAY_S_MAX, THREAD_END_S

_log = logging.getLogger("holdfast.coordination")

T = TypeVar("T")


class Followed(Protocol):
    """What following needs of a session."""

    @property
    def over(self) -> bool: ...

    def on_change(self, wake: Wake) -> None: ...

    def forget(self, wake: Wake) -> None: ...


class Follow(Generic[T]):
    """Runs until `close`, through SUSPENDED and LOST. A read that fails, for whatever reason, is
    done again. A callback that the plane failed is called again soon, with what is there then: it
    may be the last state for long. One that failed by itself is logged, and gets the next state.
    `pause_s`: how long it waits before it reads what has changed, drawn
    anew each time; many that follow the same thing need not all read it in the same moment.
    `end` is called when it ends: for what `read` has kept."""

    def __init__(
        self,
        session: Followed,
        what: str,
        read: Callable[[Wake], T],
        callback: Callable[[T], None],
        pause_s: Callable[[], float] | None = None,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self._session = session
        self._what = what
        self._read = read
        self._callback = callback
        self._pause_s = pause_s
        self._end = end
        self._wake = threading.Event()
        self._closed = False
        session.on_change(self._wake.set)
        self._thread = start_thread(self._run, f"follow {what}")

    def close(self) -> None:
        """No call of the callback begins after this, unless one is stuck for seconds."""
        self._closed = True
        self._wake.set()
        self._thread.join(THREAD_END_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            self._follow()
        finally:
            self._session.forget(self._wake.set)
            self._end()

    def _follow(self) -> None:
        last_sent: list[T] = []
        while True:
            self._wake.clear()  # before the look at `_closed`: a close after it wakes us again
            if self._closed or self._session.over:
                return
            try:
                present = self._read(self._wake.set)
            except HoldfastError as error:
                level = logging.DEBUG if isinstance(error, RetryError) else logging.WARNING
                _log.log(level, "following %s goes on after: %s", self._what, error)
                self._wake.wait(RECONNECT_DELAY_S_MAX)
                continue
            except Exception:  # a bug, of ours or of who wrote what is read: it is not the end
                _log.exception("following %s goes on after a bug", self._what)
                self._wake.wait(RECONNECT_DELAY_S_MAX)
                continue
            if last_sent != [present] and not self._closed:
                last_sent = [present] if self._tell(present) else []
            self._wake.wait(None if last_sent else RECONNECT_DELAY_S_MAX)
            if self._pause_s is not None and not self._closed:
                time.sleep(self._pause_s())

    def _tell(self, present: T) -> bool:
        """False: the plane was away, or the session went, before the callback was through."""
        try:
            self._callback(present)
        except (RetryError, SessionLost) as error:
            _log.warning("a callback that follows %s is called again: %s", self._what, error)
            return False
        except Exception:  # somebody's own code: we go on following, and the log has it
            _log.exception("a callback that follows %s failed", self._what)
        return True
