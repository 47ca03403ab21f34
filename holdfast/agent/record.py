"""What the agent's state machine holds of one worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from holdfast.agent.events import (
    Accepted,
    Entry,
    Held,
    Identity,
    Key,
    Said,
    Slots,
    Started,
    Stopping,
)
from holdfast.agent.events import Exited as ExitedEntry
from holdfast.wire.errors import BugError
from holdfast.wire.limits import ATTEMPTS_KEPT, KILL_AGAIN_S, WORKER_SILENCE_S
from holdfast.wire.orders import GiveSettings, GiveView, StartWorker, StopWorker, TakeShare
from holdfast.wire.reports import Exit, Part, WorkerFacts, WorkerPhase

_NO_SLOTS: Final = Slots()


@dataclass(slots=True)
class Worker:
    """A worker that was accepted, until it is forgotten. `order` None: stopped before it came."""

    key: Key
    order: StartWorker | None
    slots: Slots = _NO_SLOTS
    identity: Identity | None = None
    ready: bool = False
    view: int = 0
    step: int | None = None
    parts: dict[int, tuple[Part, ...]] = field(default_factory=dict)
    missed: set[int] = field(default_factory=set)
    unreadable: frozenset[int] = frozenset()
    waits: bool = False
    ending: bool = False
    suspects: frozenset[int] = frozenset()
    metrics: Mapping[str, float] = field(default_factory=dict)
    host: str = ""  # where its peers reach this machine
    kill_at_s: float | None = None
    killed_s: float | None = None
    hung: bool = False
    progress_s: float = 0.0
    exit: Exit | None = None
    inherited: bool = False  # accepted by the agent before this one
    # What it is told when it connects. Not in the journal: the coordinator says it again.
    view_given: GiveView | None = None
    settings_given: GiveSettings | None = None
    share_given: TakeShare | None = None

    @property
    def gone(self) -> bool:
        return self.exit is not None

    @property
    def phase(self) -> WorkerPhase:
        if self.gone:
            return WorkerPhase.GONE
        if self.view:
            return WorkerPhase.RUNNING
        return WorkerPhase.READY if self.ready else WorkerPhase.STARTING

    @property
    def due_s(self) -> float | None:
        """When something must be done about it: kill it, kill it again, or hold it to have hung.

        A worker that is ready waits for a view, so its silence says nothing.
        """
        if self.gone:
            return None
        if self.killed_s is not None:
            return self.killed_s + KILL_AGAIN_S
        if self.kill_at_s is not None:
            return self.kill_at_s
        return None if self.phase is WorkerPhase.READY else self.progress_s + self.silence_s

    @property
    def silence_s(self) -> float:
        limit = self.order.silence_s if self.order else None
        return WORKER_SILENCE_S if limit is None else limit

    def facts(self) -> WorkerFacts:
        return WorkerFacts(
            job=self.key.job,
            worker=self.key.worker,
            phase=self.phase,
            view=self.view,
            step=self.step,
            parts=dict(self.parts),
            missed=frozenset(self.missed),
            unreadable=self.unreadable,
            settings=len(self.settings_given.settings) if self.settings_given else 0,
            exit=self.exit,
            address=f"{self.host}:{self.slots.ports[0]}" if self.slots.ports else "",
            ending=self.ending,
            suspects=self.suspects,
            metrics=dict(self.metrics),
        )

    def hear(self, said: Said) -> bool:
        """Take what it says of itself beside its view; whether that is news to others."""
        before = (self.step, self.unreadable, self.ending, self.suspects, self.metrics)
        if self.ready:
            self.step = said.step
        self.unreadable, self.ending, self.suspects = said.unreadable, said.ending, said.suspects
        self.waits, self.metrics = said.waits, said.metrics
        return before != (self.step, self.unreadable, self.ending, self.suspects, self.metrics)

    def to_tell(self) -> list[GiveView | GiveSettings | TakeShare | StopWorker]:
        """All that it should know, said again when it connects."""
        known: list[GiveView | GiveSettings | TakeShare | StopWorker] = [
            given
            for given in (self.settings_given, self.view_given, self.share_given)
            if given is not None
        ]
        if self.kill_at_s is not None and self.order is not None:
            known.append(StopWorker(self.order.node, *self.key, notice_s=0.0))
        return known

    def note_attempt(self, attempt: int, parts: tuple[Part, ...], missed: bool) -> None:
        """Keep what was said of this attempt; the oldest attempts are dropped."""
        if missed:
            self.missed.add(attempt)
        else:
            self.parts[attempt] = parts
        for old in sorted(self.parts)[:-ATTEMPTS_KEPT]:
            del self.parts[old]
        for old in sorted(self.missed)[:-ATTEMPTS_KEPT]:
            self.missed.discard(old)

    def entries(self) -> list[Entry]:
        """What the journal must hold of it, when the journal is written anew."""
        found: list[Entry] = []
        if self.order is not None:
            found.append(Accepted(self.order, self.slots))
        if self.identity is not None:
            found.append(Started(self.key, self.identity))
        if self.ready:
            found.append(Held(self.key, self.view, self.step))
        if self.kill_at_s is not None:
            found.append(Stopping(self.key, self.kill_at_s, self.hung))
        if self.exit is not None:
            found.append(ExitedEntry(self.key, self.exit))
        return found

    def validate(self) -> None:
        """What must be true of one worker at any time."""
        if self.order is None and not self.gone:
            raise BugError(f"worker {self.key} is alive, but was never accepted")
        if self.order is not None and Key(self.order.job, self.order.worker) != self.key:
            raise BugError(f"worker {self.key} has the order of another")
        if self.killed_s is not None and self.kill_at_s is None:
            raise BugError(f"worker {self.key} was killed without a decision in the journal")
        if self.hung and self.kill_at_s is None:
            raise BugError(f"worker {self.key} has hung, but is not being stopped")
        if max(len(self.parts), len(self.missed)) > ATTEMPTS_KEPT:
            raise BugError(f"worker {self.key} remembers more attempts than it may")
