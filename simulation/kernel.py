"""One clock, one queue of events, one trace. Nothing here knows what is simulated."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from heapq import heappop, heappush
from typing import Final

from simulation.sources import source

Action = Callable[[], None]

# How much of the end of a trace a story shows.
STORY_EVENTS: Final = 60


class Violation(Exception):
    """Something that must always be true is not. `rule` names it in a few words."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule
        self.what = what


class Kernel:
    """Runs events in the order of their time; those of one time in the order they were asked for.

    `random` decides how long things take; what goes wrong has a source of its own (`faults`), so
    that switching one fault off changes as little as possible of the rest.
    """

    __slots__ = ("_queue", "_serial", "events", "now_s", "random", "trace", "traced")

    def __init__(self, seed: int, *, traced: bool = True) -> None:
        self.traced = traced
        self.now_s = 0.0
        self.random = source(f"{seed}/times")
        self.events = 0
        self.trace: list[tuple[float, str, str, tuple[object, ...]]] = []
        self._queue: list[tuple[float, int, Action, SimulatedProcess | None, int]] = []
        self._serial = 0

    def after(self, delay_s: float, action: Action) -> None:
        """Do `action` when so much time has passed."""
        self._serial += 1
        heappush(self._queue, (self.now_s + delay_s, self._serial, action, None, 0))

    def after_for(
        self, delay_s: float, action: Action, process: SimulatedProcess, life: int
    ) -> None:
        """Do it if the process lives on until then; if it is stopped, when it goes on."""
        self._serial += 1
        heappush(self._queue, (self.now_s + delay_s, self._serial, action, process, life))

    def step(self) -> bool:
        """Run the next event; False if there is none."""
        if not self._queue:
            return False
        self.now_s, _, action, process, life = heappop(self._queue)
        self.events += 1
        if process is None:
            action()
        elif life == process.life and process.up:
            if process.stopped:
                process.waiting.append(action)
            else:
                action()
        return True

    def forget(self) -> None:
        """Nothing that was asked for happens any more."""
        self._queue.clear()

    def between(self, low_s: float, high_s: float) -> float:
        """Some time between the two."""
        return low_s + (high_s - low_s) * self.random.random()

    def tell(self, who: str, what: str, *details: object) -> None:
        """Add a line to the trace; it is made readable only when somebody reads it."""
        if self.traced:
            self.trace.append((self.now_s, who, what, details))

    def story(self, events: int = STORY_EVENTS) -> list[str]:
        """The last lines of the trace, for people."""
        return [_line(*entry) for entry in self.trace[-events:]]

    def digest(self) -> str:
        """The whole trace as one short word: two runs with the same one did the same."""
        lines = "\n".join(_line(*entry) for entry in self.trace)
        return hashlib.sha256(lines.encode()).hexdigest()[:16]


def _line(at_s: float, who: str, what: str, details: tuple[object, ...]) -> str:
    return " ".join([f"{at_s:9.4f}", f"{who:<10}", what, *map(brief, details)])


def brief(value: object) -> str:
    """A value in few words: fields that say nothing new are left out."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, float):
        return f"{value:.3f}"
    if is_dataclass(value):
        shown = [(one.name, getattr(value, one.name)) for one in fields(value)]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        shown = list(zip(value._fields, value, strict=True))
    elif isinstance(value, Mapping):
        return "{" + ", ".join(f"{brief(key)}: {brief(one)}" for key, one in value.items()) + "}"
    elif isinstance(value, tuple | list):
        return "(" + ", ".join(map(brief, value)) + ")"
    else:
        return str(value)
    parts = [f"{name}={brief(one)}" for name, one in shown if one and name not in _UNTOLD]
    return f"{type(value).__name__}({', '.join(parts)})"


_UNTOLD: Final = frozenset({"bundle", "command", "digest", "environment", "resources", "since_s"})


class SimulatedProcess:
    """A process that runs, may be stopped for a while, and may die and be started again.

    What it was about to do dies with it. What comes while it is stopped waits, as it does in the
    buffers of a process that got SIGSTOP.
    """

    def __init__(self, kernel: Kernel, name: str) -> None:
        self.kernel = kernel
        self.name = name
        self.life = 0  # how often it has begun to live
        self.up = False
        self.stopped = False
        self.waiting: list[Action] = []  # what has come since it was stopped

    def after(self, delay_s: float, action: Action) -> None:
        """Do it later, if this life goes on until then."""
        self.kernel.after_for(delay_s, action, self, self.life)

    def arrive(self, action: Action) -> None:
        """Something comes from outside now: lost on the dead, kept for the stopped."""
        if self.up:
            if self.stopped:
                self.waiting.append(action)
            else:
                action()

    def stop(self) -> None:
        """SIGSTOP."""
        self.stopped = True

    def go_on(self) -> None:
        """SIGCONT: first of all, everything that has come in the meantime."""
        if self.stopped:
            self.stopped = False
            waiting, self.waiting = self.waiting, []
            life = self.life
            for action in waiting:
                if life == self.life:
                    self.arrive(action)

    def begin(self) -> None:
        """Start to live."""
        self.life += 1
        self.up = True
        self.stopped = False

    def die(self) -> None:
        """SIGKILL."""
        self.life += 1
        self.up = False
        self.stopped = False
        self.waiting.clear()

    def tell(self, what: str, *details: object) -> None:
        kernel = self.kernel
        if kernel.traced:
            kernel.trace.append((kernel.now_s, self.name, what, details))
