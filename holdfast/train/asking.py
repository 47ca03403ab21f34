"""A worker's end of what it shares with others: it asks its agent, which has the session.

All of it is a level (`wire.sharing`): what the worker wants is said whole whenever it changes and
on each new connection, so a line that breaks loses nothing, and an agent that was started anew
hears what the worker believes to hold. A worker believes it only for as long as its agent has
confirmed it: times are of the clock that both have in common.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, NoReturn

from holdfast.train.link import Link
from holdfast.wire import sharing
from holdfast.wire.clock import Clock, SystemClock
from holdfast.wire.errors import (
    BugError,
    Cancelled,
    Full,
    HoldfastError,
    SessionLost,
    TimedOut,
    Unavailable,
    Usage,
)
from holdfast.wire.limits import SHARED_CONFIGS_MAX, SHARED_HELD_MAX, SHARED_WAITS_MAX
from holdfast.wire.sharing import HELD, WAITING, Standing, Value, Want

# After its time is over a worker still waits so long for its agent's answer, which may say whom it
# waited for. An agent gives a request that is under way `OPERATION_GRACE_S`; this is more.
SHARED_ANSWER_S: Final = 7.0

_ACQUIRE_AGAIN: Final = "acquire it again; let what it protects refuse smaller tokens"


class Request:
    """Something that this worker wants to hold, or holds: see `Grip`."""

    def __init__(self, asking: Asking, want: Want) -> None:
        self._asking = asking
        self.want = want
        self.standing = Standing(WAITING)
        self.thread = threading.get_ident()
        self.lost: HoldfastError | None = None  # once it is, it stays so

    @property
    def what(self) -> str:
        return f"the {self.want.kind} {self.want.name!r}"

    @property
    def token(self) -> int:
        return self.standing.token

    def trouble(self) -> HoldfastError | None:
        """Why it is not held any more; None: it is."""
        return self._asking.trouble(self)

    def doubt(self) -> HoldfastError | None:
        """Why it is not known to be held at this moment; None: it is held."""
        trouble = self.trouble()
        if trouble is not None or self._asking.clock.now_s() < self.standing.sure_s:
            return trouble
        return Unavailable(
            f"it is not known whether {self.what} is still held",
            why="the agent has not confirmed it for a while: it is away, or the plane is",
            fix="stop what it protects; check again when the agent is back",
        )

    def release(self) -> None:
        self._asking.drop(self)


class Asking:
    """What one worker wants. Its methods may be called from any thread of the process."""

    kinds = frozenset((sharing.SHARED, sharing.CONFIG))

    def __init__(
        self, link: Link, leave: Callable[[], NoReturn], clock: Clock | None = None
    ) -> None:
        """`leave`: the worker was asked to leave while its main thread waited here."""
        self._link = link
        self._leave = leave
        self.clock = clock or SystemClock()
        self._numbers = itertools.count(1)
        self._requests: dict[int, Request] = {}
        self._values: dict[str, Value | None] = {}  # of those that are followed
        self._serial = 0
        self._changed = False
        self.on_value: Callable[[], None] = lambda: None
        link.extend(self)

    # --- holding ---------------------------------------------------------------------------------

    def acquire(self, kind: str, name: str, count: int, timeout_s: float | None) -> Request:
        """Wait until it is held. `TimedOut`, and whatever the agent refuses it with."""
        until_s = None if timeout_s is None else self.clock.now_s() + max(0.0, timeout_s)
        with self._link.changing:
            self._check_room(kind, name)
            number = next(self._numbers)
            request = Request(self, Want(number, kind, name, count, until_s))
            self._requests[number] = request
            self._say()
        try:
            with self._waiting(f"{kind} {number}"):
                patience_s = None if timeout_s is None else max(0.0, timeout_s) + SHARED_ANSWER_S
                self._link.wait(lambda: request.standing.state != WAITING, patience_s)
            if request.standing.state != HELD:
                self._refused(request)
        except BaseException:
            self.drop(request)
            raise
        return request

    def _refused(self, request: Request) -> NoReturn:
        if request.standing.error is not None:
            raise request.standing.error
        self._check_leaving(request.what)
        raise TimedOut(
            f"{request.what} was not free in time",
            why="the agent has not answered either: it is away, or the plane is",
            fix="wait longer; see who has it: holdfast locks",
        )

    def trouble(self, request: Request) -> HoldfastError | None:
        with self._link.changing:
            standing = request.standing
            if request.lost is None and standing.state != HELD:
                request.lost = standing.error or BugError(f"{request.what} was never held")
            elif request.lost is None and self.clock.now_s() >= standing.over_s:
                request.lost = SessionLost(
                    f"{request.what} is lost",
                    why="the agent has not confirmed it for as long as its session lives",
                    fix=_ACQUIRE_AGAIN,
                )
            if request.lost is not None:
                self.drop(request)
            return request.lost

    def drop(self, request: Request) -> None:
        """It is not wanted any more."""
        with self._link.changing:
            if self._requests.pop(request.want.id, None) is not None:
                self._say()

    def _check_room(self, kind: str, name: str) -> None:
        others = self._requests.values()
        waiting = sum(1 for one in others if one.standing.state == WAITING)
        if waiting >= SHARED_WAITS_MAX or len(others) - waiting >= SHARED_HELD_MAX:
            raise Full(
                "this worker holds or waits for too much at once",
                why=f"at most {SHARED_HELD_MAX} are held, and {SHARED_WAITS_MAX} waited for",
                fix="release what is not needed any more; one lock may stand for several things",
            )
        me, lock = threading.get_ident(), (sharing.LOCK, name)
        if (kind, name) == lock and any(
            one.thread == me and (one.want.kind, one.want.name) == lock for one in others
        ):
            raise held_already(name)

    # --- values ----------------------------------------------------------------------------------

    def follow(self, name: str) -> Value:
        """The value as it is now; from now on it is followed."""
        with self._link.changing:
            if name not in self._values and len(self._values) >= SHARED_CONFIGS_MAX:
                raise Full(
                    f"this worker follows {len(self._values)} values already",
                    why=f"at most {SHARED_CONFIGS_MAX} are followed by one worker",
                    fix="put several numbers into one value: it may be a JSON object",
                )
            self._values.setdefault(name, None)
            self._say()
        with self._waiting(f"value {name}"):
            self._link.wait(lambda: self._values[name] is not None, None)
        value = self._values[name]
        if value is None:
            self._check_leaving(f"the value {name!r}")
            raise BugError(f"the wait for the value {name!r} has ended, and it is not there")
        if value.error is not None:
            with self._link.changing:
                self._values.pop(name, None)
                self._say()
            raise value.error
        return value

    def value(self, name: str) -> Value | None:
        return self._values.get(name)

    # --- the line (talk.Extension) ---------------------------------------------------------------

    def unsent(self, *, anew: bool) -> bytes:
        if not self._changed and not (anew and self._serial):
            return b""
        self._changed = False
        self._serial += 1
        wants = [request.want for request in self._requests.values()]
        return sharing.wants_line(self._serial, wants, self._values)

    def hear(self, kind: str, body: Any) -> None:
        if kind == sharing.CONFIG:
            value = sharing.value_from(body)
            if value.name in self._values:
                self._values[value.name] = value
                self.on_value()
            return
        for number, standing in sharing.standings_from(body).items():
            request = self._requests.get(number)
            if request is None or request.lost is not None:
                continue
            request.standing = standing
            if standing.state == HELD:
                request.want = replace(request.want, token=standing.token)

    def _say(self) -> None:
        self._changed = True
        self._link.nudge()

    @contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        """That nothing goes on meanwhile is not this worker's fault."""
        self._link.waits(True, what)
        try:
            yield
        finally:
            self._link.waits(False, what)

    def _check_leaving(self, what: str) -> None:
        """Leave, if that is why the wait has ended. Another thread than the main one is only told:
        it is the main one that leaves."""
        if not self._link.leaving:
            return
        if threading.current_thread() is threading.main_thread():
            self._leave()
        raise Cancelled(f"the wait for {what} was called off", why="this worker is to leave")


def held_already(name: str) -> HoldfastError:
    return Usage(
        f"the lock {name!r} is held by this thread already",
        why="it would wait for itself, for ever",
        fix="acquire it once, around everything that needs it",
    )
