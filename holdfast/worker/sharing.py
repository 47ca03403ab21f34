"""What a worker shares with the other jobs of its queue: `run.lock` and its kin.

A worker has no credentials for the plane: it asks its agent, which has the session. All of it is a
level (`wire.sharing`): what the worker wants is said whole whenever it changes and on each new
connection, so a line that breaks loses nothing, and an agent that was started anew hears what the
worker believes to hold. A worker believes it only for as long as its agent has confirmed it: times
are of the clock that both have in common.

Under a plain `python train.py` the same calls work within the process. docs/coordination.md is for
users.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol, Self

from holdfast.system import logs
from holdfast.system.clock import Clock, SystemClock
from holdfast.system.tasks import OwnedThread, start_thread
from holdfast.wire import sharing
from holdfast.wire.errors import (
    BugError,
    Cancelled,
    Conflict,
    Full,
    HoldfastError,
    SessionLost,
    TimedOut,
    Unavailable,
    Usage,
)
from holdfast.wire.limits import (
    SHARED_CONFIGS_MAX,
    SHARED_HELD_MAX,
    SHARED_WAITS_MAX,
    THREAD_END_S,
)
from holdfast.wire.sharing import (
    HELD,
    LOCK,
    SEMAPHORE,
    WAITING,
    SharedValue,
    Want,
    WantState,
    check_count,
    check_name,
)
from holdfast.worker.agent_client import AgentClient

# After its time is over a worker still waits so long for its agent's answer, which may say whom it
# waited for. An agent gives a request that is under way `OPERATION_GRACE_S`; this is more.
SHARED_ANSWER_S: Final = 7.0

_ACQUIRE_AGAIN: Final = "acquire it again; let what it protects refuse smaller tokens"
CONFIG_VARIABLE: Final = "HOLDFAST_CONFIG"  # without a cluster: a JSON file with values by name
_ABSENT: Final = -1

log = logs.get(__name__)
OnChange = Callable[["WatchedValue"], object]


class Grip(Protocol):
    """Something that is held, wherever."""

    @property
    def what(self) -> str: ...

    @property
    def token(self) -> int: ...

    def trouble(self) -> HoldfastError | None: ...

    def unsure(self) -> HoldfastError | None: ...

    def release(self) -> None: ...


class SharedHold:
    """A lock, or a place in a semaphore, that this worker holds.

    `token` grows with each holder. Give it to whatever the lock protects, and let that refuse a
    smaller one than it has seen: then a holder that slept through its end does no harm.
    """

    def __init__(self, grip: Grip) -> None:
        self._grip = grip
        self._released = False
        self.token = grip.token

    @property
    def lost(self) -> bool:
        """Whether it is not held any more: released, or lost with the agent's session."""
        return self._released or self._grip.trouble() is not None

    def check(self) -> None:
        """Raise unless it is certainly held now. `SessionLost`: it is over. `Unavailable`: nobody
        has confirmed it lately, so somebody else may have it soon."""
        if self._released:
            raise SessionLost(f"{self._grip.what} was released", fix="acquire it again")
        unsure = self._grip.unsure()
        if unsure is not None:
            raise unsure

    def release(self) -> None:
        """Let go, once."""
        if not self._released:
            self._released = True
            self._grip.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        """`SessionLost` if it was lost before: somebody else may have been inside too."""
        trouble = None if self._released else self._grip.trouble()
        self.release()
        if trouble is None:
            return
        log.warning("it was lost while it was held", what=self._grip.what, reason=str(trouble))
        if kind is None:
            raise trouble


class WatchedValue:
    """A watched value: `value` is what it is now (as JSON has it), `version` counts its changes.
    Without one `value` is the default and `version` is -1."""

    def __init__(self, name: str, default: Any, read: Callable[[], tuple[Any, int]]) -> None:
        self.name = name
        self._default = default
        self._read = read

    @property
    def value(self) -> Any:
        value, version = self._read()
        return self._default if version == _ABSENT else value

    @property
    def version(self) -> int:
        return self._read()[1]


class Sharing(Protocol):
    """What a run needs to share things, in a cluster or alone."""

    def hold(self, kind: str, name: str, count: int, timeout_s: float | None) -> Grip: ...

    def config(self, name: str, default: Any, on_change: OnChange | None) -> WatchedValue: ...

    def close(self) -> None: ...


def lock(shared: Sharing, name: str, timeout_s: float | None) -> SharedHold:
    return SharedHold(shared.hold(LOCK, check_name(LOCK, name), 1, timeout_s))


def semaphore(shared: Sharing, name: str, count: int, timeout_s: float | None) -> SharedHold:
    check_name(SEMAPHORE, name)
    return SharedHold(shared.hold(SEMAPHORE, name, check_count(name, count), timeout_s))


# --- through the agent ----------------------------------------------------------------------------


class HoldRequest:
    """Something that this worker wants to hold, or holds: see `Grip`."""

    def __init__(self, client: SharingClient, want: Want) -> None:
        self._client = client
        self.want = want
        self.status = WantState(WAITING)
        self.thread = threading.get_ident()
        self.lost: HoldfastError | None = None  # once it is, it stays so

    @property
    def what(self) -> str:
        return f"the {self.want.kind} {self.want.name!r}"

    @property
    def token(self) -> int:
        return self.status.token

    def trouble(self) -> HoldfastError | None:
        """Why it is not held any more; None: it is."""
        return self._client.trouble(self)

    def unsure(self) -> HoldfastError | None:
        """Why it is not known to be held at this moment; None: it is held."""
        trouble = self.trouble()
        if trouble is not None or self._client.clock.now_s() < self.status.sure_s:
            return trouble
        return Unavailable(
            f"it is not known whether {self.what} is still held",
            why="the agent has not confirmed it for a while: it is away, or the plane is",
            fix="stop what it protects; check again when the agent is back",
        )

    def release(self) -> None:
        self._client.drop(self)


class SharingClient:
    """What one worker wants. Its methods may be called from any thread of the process."""

    kinds = frozenset((sharing.SHARED, sharing.CONFIG))

    def __init__(
        self, agent: AgentClient, leave: Callable[[], NoReturn], clock: Clock | None = None
    ) -> None:
        """`leave`: the worker was asked to leave while its main thread waited here."""
        self._agent = agent
        self._leave = leave
        self.clock = clock or SystemClock()
        self._numbers = itertools.count(1)
        self._requests: dict[int, HoldRequest] = {}
        self._values: dict[str, SharedValue | None] = {}  # of those that are followed
        self._serial = 0
        self._changed = False
        self.on_value: Callable[[], None] = lambda: None
        agent.extend(self)

    # --- holding ---------------------------------------------------------------------------------

    def acquire(self, kind: str, name: str, count: int, timeout_s: float | None) -> HoldRequest:
        """Wait until it is held. `TimedOut`, and whatever the agent refuses it with."""
        until_s = None if timeout_s is None else self.clock.now_s() + max(0.0, timeout_s)
        with self._agent.changing:
            self._check_limit(kind, name)
            number = next(self._numbers)
            request = HoldRequest(self, Want(number, kind, name, count, until_s))
            self._requests[number] = request
            self._say()
        try:
            with self._waiting(f"{kind} {number}"):
                patience_s = None if timeout_s is None else max(0.0, timeout_s) + SHARED_ANSWER_S
                self._agent.wait(lambda: request.status.state != WAITING, patience_s)
            if request.status.state != HELD:
                self._refused(request)
        except BaseException:
            self.drop(request)
            raise
        return request

    def _refused(self, request: HoldRequest) -> NoReturn:
        if request.status.error is not None:
            raise request.status.error
        self._check_leaving(request.what)
        raise TimedOut(
            f"{request.what} was not free in time",
            why="the agent has not answered either: it is away, or the plane is",
            fix="wait longer; see who has it: holdfast locks",
        )

    def trouble(self, request: HoldRequest) -> HoldfastError | None:
        with self._agent.changing:
            status = request.status
            if request.lost is None and status.state != HELD:
                request.lost = status.error or BugError(f"{request.what} was never held")
            elif request.lost is None and self.clock.now_s() >= status.over_s:
                request.lost = SessionLost(
                    f"{request.what} is lost",
                    why="the agent has not confirmed it for as long as its session lives",
                    fix=_ACQUIRE_AGAIN,
                )
            if request.lost is not None:
                self.drop(request)
            return request.lost

    def drop(self, request: HoldRequest) -> None:
        """It is not wanted any more."""
        with self._agent.changing:
            if self._requests.pop(request.want.id, None) is not None:
                self._say()

    def _check_limit(self, kind: str, name: str) -> None:
        others = self._requests.values()
        waiting = sum(1 for one in others if one.status.state == WAITING)
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

    def follow(self, name: str) -> SharedValue:
        """The value as it is now; from now on it is followed."""
        with self._agent.changing:
            if name not in self._values and len(self._values) >= SHARED_CONFIGS_MAX:
                raise Full(
                    f"this worker follows {len(self._values)} values already",
                    why=f"at most {SHARED_CONFIGS_MAX} are followed by one worker",
                    fix="put several numbers into one value: it may be a JSON object",
                )
            self._values.setdefault(name, None)
            self._say()
        with self._waiting(f"value {name}"):
            self._agent.wait(lambda: self._values[name] is not None, None)
        value = self._values[name]
        if value is None:
            self._check_leaving(f"the value {name!r}")
            raise BugError(f"the wait for the value {name!r} has ended, and it is not there")
        if value.error is not None:
            with self._agent.changing:
                self._values.pop(name, None)
                self._say()
            raise value.error
        return value

    def value(self, name: str) -> SharedValue | None:
        return self._values.get(name)

    # --- the line (talk.Extension) ---------------------------------------------------------------

    def unsent(self, *, anew: bool) -> bytes:
        if not self._changed and not (anew and self._serial):
            return b""
        self._changed = False
        self._serial += 1
        wants = [request.want for request in self._requests.values()]
        return sharing.wants_line(self._serial, wants, self._values)

    def receive(self, kind: str, body: Any) -> None:
        if kind == sharing.CONFIG:
            value = sharing.value_from(body)
            if value.name in self._values:
                self._values[value.name] = value
                self.on_value()
            return
        for number, status in sharing.want_states_from(body).items():
            request = self._requests.get(number)
            if request is None or request.lost is not None:
                continue
            request.status = status
            if status.state == HELD:
                request.want = replace(request.want, token=status.token)

    def _say(self) -> None:
        self._changed = True
        self._agent.nudge()

    @contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        """That nothing goes on meanwhile is not this worker's fault."""
        self._agent.waits(True, what)
        try:
            yield
        finally:
            self._agent.waits(False, what)

    def _check_leaving(self, what: str) -> None:
        """Leave, if that is why the wait has ended. Another thread than the main one is only told:
        it is the main one that leaves."""
        if not self._agent.leaving:
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


class SharingInCluster:
    """Through the agent of this worker."""

    def __init__(self, agent: AgentClient, leave: Callable[[], NoReturn]) -> None:
        self._agent = agent
        self._client = SharingClient(agent, leave)
        self._news = threading.Event()
        self._calls: list[tuple[WatchedValue, OnChange, list[Any]]] = []
        self._thread: OwnedThread | None = None
        self._closed = False
        self._client.on_value = self._news.set

    def hold(self, kind: str, name: str, count: int, timeout_s: float | None) -> Grip:
        return self._client.acquire(kind, name, count, timeout_s)

    def config(self, name: str, default: Any, on_change: OnChange | None) -> WatchedValue:
        self._client.follow(check_name("value", name))

        def read() -> tuple[Any, int]:
            found = self._client.value(name)
            return (None, _ABSENT) if found is None else (found.value, found.version)

        config = WatchedValue(name, default, read)
        if on_change is not None:
            self._calls.append((config, on_change, [(config.value, config.version)]))
            if self._thread is None:
                self._thread = start_thread(self._run, "holdfast-config", self._agent.fail)
            self._news.set()
        return config

    def close(self) -> None:
        """No callback begins after this, unless one is stuck for seconds."""
        self._closed = True
        self._news.set()
        if self._thread is not None:
            self._thread.join(THREAD_END_S)

    def _run(self) -> None:
        while not self._closed:
            self._news.clear()
            for config, on_change, seen in list(self._calls):
                present = (config.value, config.version)
                if seen != [present] and not self._closed:
                    seen[:] = [present]
                    _call(config, on_change)
            self._news.wait()


def _call(config: WatchedValue, on_change: OnChange) -> None:
    try:
        on_change(config)
    except Exception as error:  # the script's own: it is told, and called for the next change
        log.exception("a callback of a watched value failed", name=config.name, reason=repr(error))


class SharingAlone:
    """Within this process: a plain `python train.py`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tokens = itertools.count(1)
        self._lines: dict[tuple[str, str], list[_LocalHold]] = {}

    def hold(self, kind: str, name: str, count: int, timeout_s: float | None) -> Grip:
        line = self._lines.setdefault((kind, name), [])
        until_s = None if timeout_s is None else time.monotonic() + max(0.0, timeout_s)
        with self._changed:
            me = threading.get_ident()
            if kind == LOCK and any(one.thread == me for one in line):
                raise held_already(name)
            if line and line[0].count != count:
                raise Conflict(
                    f"the semaphore {name!r} is not for {count} holders now",
                    why=f"it is used with {line[0].count}",
                    fix="use the same number everywhere, or another name",
                )
            mine = _LocalHold(self, line, f"the {kind} {name!r}", next(self._tokens), count)
            line.append(mine)
            try:
                left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
                got = self._changed.wait_for(lambda: line.index(mine) < count, left_s)
            except BaseException:
                mine.release()
                raise
        if not got:
            mine.release()
            raise TimedOut(
                f"{mine.what} was not free in time",
                why="another thread of this process has it",
                fix="wait longer",
            )
        return mine

    def leave(self, line: list[_LocalHold], one: _LocalHold) -> None:
        with self._changed:
            if one in line:
                line.remove(one)
                self._changed.notify_all()

    def config(self, name: str, default: Any, on_change: OnChange | None) -> WatchedValue:
        """From the file that HOLDFAST_CONFIG names, as it is now; it is not followed."""
        check_name("value", name)
        values = _file_values()
        found = (values[name], 0) if name in values else (None, _ABSENT)
        return WatchedValue(name, default, lambda: found)

    def close(self) -> None:
        """There is nothing to close."""


class _LocalHold:
    """A place in a line of this process."""

    def __init__(
        self, home: SharingAlone, line: list[_LocalHold], what: str, token: int, count: int
    ) -> None:
        self._home, self._line = home, line
        self.what, self.token, self.count = what, token, count
        self.thread = threading.get_ident()

    def trouble(self) -> HoldfastError | None:
        return None

    def unsure(self) -> HoldfastError | None:
        return None

    def release(self) -> None:
        self._home.leave(self._line, self)


def _file_values() -> dict[str, Any]:
    named = os.environ.get(CONFIG_VARIABLE)
    if not named:
        return {}
    try:
        found = json.loads(Path(named).read_text())
        if not isinstance(found, dict):
            raise ValueError("it is not an object")  # noqa: TRY301, TRY004
    except (OSError, ValueError) as error:
        raise Usage(
            f"{CONFIG_VARIABLE}={named} cannot be read",
            why=str(error),
            fix="""write a JSON object of names and values: {"thresholds": [0.1, 0.9]}""",
        ) from error
    return found
