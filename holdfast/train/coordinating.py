"""What a training script shares with the other jobs of its queue: `run.lock` and its kin.

Under an agent everything goes through it (`asking`): a worker has no credentials for the plane.
Under a plain `python train.py` the same calls work within the process. docs/coordination.md is for
users.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol, Self

from holdfast.train.asking import Asking, held_already
from holdfast.train.link import Link
from holdfast.wire import logs
from holdfast.wire.errors import Conflict, HoldfastError, SessionLost, TimedOut, Usage
from holdfast.wire.limits import THREAD_END_S
from holdfast.wire.sharing import LOCK, SEMAPHORE, check_count, check_name
from holdfast.wire.tasks import OwnedThread, start_thread

CONFIG_VARIABLE: Final = "HOLDFAST_CONFIG"  # without a cluster: a JSON file with values by name
_ABSENT: Final = -1

log = logs.get(__name__)
OnChange = Callable[["Config"], object]


class Grip(Protocol):
    """Something that is held, wherever."""

    @property
    def what(self) -> str: ...

    @property
    def token(self) -> int: ...

    def trouble(self) -> HoldfastError | None: ...

    def doubt(self) -> HoldfastError | None: ...

    def release(self) -> None: ...


class Held:
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
        doubt = self._grip.doubt()
        if doubt is not None:
            raise doubt

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


class Config:
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

    def config(self, name: str, default: Any, on_change: OnChange | None) -> Config: ...

    def close(self) -> None: ...


def lock(shared: Sharing, name: str, timeout_s: float | None) -> Held:
    return Held(shared.hold(LOCK, check_name(LOCK, name), 1, timeout_s))


def semaphore(shared: Sharing, name: str, count: int, timeout_s: float | None) -> Held:
    check_name(SEMAPHORE, name)
    return Held(shared.hold(SEMAPHORE, name, check_count(name, count), timeout_s))


class InCluster:
    """Through the agent of this worker."""

    def __init__(self, link: Link, leave: Callable[[], NoReturn]) -> None:
        self._link = link
        self._asking = Asking(link, leave)
        self._news = threading.Event()
        self._calls: list[tuple[Config, OnChange, list[Any]]] = []
        self._thread: OwnedThread | None = None
        self._closed = False
        self._asking.on_value = self._news.set

    def hold(self, kind: str, name: str, count: int, timeout_s: float | None) -> Grip:
        return self._asking.acquire(kind, name, count, timeout_s)

    def config(self, name: str, default: Any, on_change: OnChange | None) -> Config:
        self._asking.follow(check_name("value", name))

        def read() -> tuple[Any, int]:
            found = self._asking.value(name)
            return (None, _ABSENT) if found is None else (found.value, found.version)

        config = Config(name, default, read)
        if on_change is not None:
            self._calls.append((config, on_change, [(config.value, config.version)]))
            if self._thread is None:
                self._thread = start_thread(self._run, "holdfast-config", self._link.fail)
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
            for config, on_change, told in list(self._calls):
                present = (config.value, config.version)
                if told != [present] and not self._closed:
                    told[:] = [present]
                    _call(config, on_change)
            self._news.wait()


def _call(config: Config, on_change: OnChange) -> None:
    try:
        on_change(config)
    except Exception as error:  # the script's own: it is told, and called for the next change
        log.exception("a callback of a watched value failed", name=config.name, reason=repr(error))


class Alone:
    """Within this process: a plain `python train.py`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tokens = itertools.count(1)
        self._lines: dict[tuple[str, str], list[_Local]] = {}

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
            mine = _Local(self, line, f"the {kind} {name!r}", next(self._tokens), count)
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

    def leave(self, line: list[_Local], one: _Local) -> None:
        with self._changed:
            if one in line:
                line.remove(one)
                self._changed.notify_all()

    def config(self, name: str, default: Any, on_change: OnChange | None) -> Config:
        """From the file that HOLDFAST_CONFIG names, as it is now; it is not followed."""
        check_name("value", name)
        values = _file_values()
        found = (values[name], 0) if name in values else (None, _ABSENT)
        return Config(name, default, lambda: found)

    def close(self) -> None:
        """There is nothing to close."""


class _Local:
    """A place in a line of this process."""

    def __init__(self, home: Alone, line: list[_Local], what: str, token: int, count: int) -> None:
        self._home, self._line = home, line
        self.what, self.token, self.count = what, token, count
        self.thread = threading.get_ident()

    def trouble(self) -> HoldfastError | None:
        return None

    def doubt(self) -> HoldfastError | None:
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
