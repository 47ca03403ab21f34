"""What the agent's state machine holds of one worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from holdfast.agent.events import (
    Accepted,
    Asked,
    Entry,
    Held,
    Identity,
    Key,
    Moved,
    Slots,
    Started,
    Stopping,
    WorkerReport,
    named_ports,
    serves,
    settles,
)
from holdfast.agent.events import Exited as ExitedEntry
from holdfast.wire.errors import BugError
from holdfast.wire.limits import ATTEMPTS_KEPT, KILL_AGAIN_S
from holdfast.wire.orders import GiveSettings, GiveView, StartWorker, StopWorker, TakeShare
from holdfast.wire.probes import Probe, ProbeKind
from holdfast.wire.reports import Exit, Part, WorkerFacts, WorkerPhase

# Without a sign of progress for so long a worker has hung. The same as the longest that a
# collective of torch waits for its peers: nothing honest takes longer.
WORKER_SILENCE_S: Final = 1_800.0
# A worker that was silent on its line for so long is looked at: if the system has paused it
# (SIGSTOP), it is killed. A few beats; one that is merely busy is not paused, so this may be short.
WORKER_FROZEN_S: Final = 4.0
# A program without a probe that never used the link is ready when it has run for so long: whoever
# cannot start (a wrong argument, a port that is taken) has ended by then.
PROGRAM_SETTLES_S: Final = 3.0

_NO_SLOTS: Final = Slots()


@dataclass(slots=True)
class WorkerRecord:
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
    unreadable_why: str = ""
    waits: bool = False
    ending: bool = False
    suspects: frozenset[int] = frozenset()
    metrics: Mapping[str, float] = field(default_factory=dict)
    host: str = ""  # where its peers reach this machine
    kill_at_s: float | None = None
    killed_s: float | None = None
    hung: bool = False
    frozen: bool = False
    unwell: str = ""  # what its `live` probe said, for which it is to end
    preparing: str = ""  # what is done before it can be started
    preparing_since_s: float = 0.0
    disk_bytes: int = 0  # what its folders held, for which it is to end
    linked: bool = False  # it has spoken to an agent: it is a program that says how it is
    well_once: bool = False  # it was ready, or its `live` probe has passed
    failed: dict[Asked, int] = field(default_factory=dict)  # how often in a row each probe has
    troubles: dict[Asked, str] = field(default_factory=dict)  # what those that fail say
    progress_s: float = 0.0
    heard_s: float | None = None  # the last sign of life; None: it is not held to give any
    suspected: bool = False  # it was silent, and is being looked at
    moves: int = 0  # how often strangers held its ports
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
        """When something must be done about it: kill it, kill it again, or look what it does."""
        if self.gone:
            return None
        if self.killed_s is not None:
            return self.killed_s + KILL_AGAIN_S
        if self.kill_at_s is not None:
            return self.kill_at_s
        looks = [at for at in (self.hung_s, self.silent_s, self.settled_s) if at is not None]
        return min(looks, default=None)

    @property
    def hung_s(self) -> float | None:
        """When it is held to have hung. Never while it waits for others: for its environment, for a
        view, for its peers, or until the job's last step is committed. A program that says nothing
        cannot be silent: it is held to nothing, unless its job file says how long a training may
        take to speak."""
        if self.phase is WorkerPhase.READY or self.waits or self.ending or self.preparing:
            return None
        if not self.linked and not self._is_awaited:
            return None
        return self.progress_s + self.silence_s

    @property
    def _is_awaited(self) -> bool:
        return self.order is not None and self.order.silence_s is not None and not self._serves

    @property
    def _serves(self) -> bool:
        return self.order is not None and serves(self.order)

    @property
    def settled_s(self) -> float | None:
        """When it is taken for ready, since nobody can say so: neither itself nor a probe."""
        if self.ready or self.linked or self.identity is None or self.order is None:
            return None
        return self.progress_s + PROGRAM_SETTLES_S if settles(self.order) else None

    def probe(self, asked: Asked) -> Probe | None:
        if self.order is None:
            return None
        return self.order.ready if asked is Asked.READY else self.order.live

    @property
    def readiness(self) -> Asked | None:
        """The probe that says whether it is ready; None: it says so itself, or time does. Without
        one of its own the one that says whether it lives does."""
        if self.order is None or not self._serves:
            return None
        if self.order.ready is not None:
            return Asked.READY
        return Asked.LIVE if self.order.live is not None else None

    @property
    def says_ready(self) -> bool:
        """Whether its own word that it is ready counts."""
        probe = None if self.readiness is None else self.probe(self.readiness)
        return probe is None or probe.kind is ProbeKind.LINK

    @property
    def ended_for(self) -> tuple[bool, bool, str, int]:
        """What its agent ends it for, as `Stopping` has it."""
        return (self.hung, self.frozen, self.unwell, self.disk_bytes)

    @property
    def disk_bytes_max(self) -> int:
        """What its folders may hold; 0: whatever there is."""
        return self.order.resources.disk_bytes if self.order else 0

    @property
    def silent_s(self) -> float | None:
        """When it is looked at, for want of a sign of life."""
        return None if self.heard_s is None else self.heard_s + WORKER_FROZEN_S

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
            unreadable_why=self.unreadable_why,
            settings=len(self.settings_given.settings) if self.settings_given else 0,
            exit=self.exit,
            address=f"{self.host}:{self.slots.ports[0]}" if self.slots.ports else "",
            ending=self.ending,
            suspects=self.suspects,
            metrics=dict(self.metrics),
            endpoints=self._endpoints(),
            trouble="; ".join(self.troubles[asked] for asked in Asked if asked in self.troubles),
            preparing=self.preparing,
            preparing_since_s=self.preparing_since_s,
        )

    def _endpoints(self) -> dict[str, str]:
        ports = named_ports(self.order, self.slots)
        return {name: f"{self.host}:{port}" for name, port in ports.items()}

    def apply(self, entry: Started | Held | Moved | Stopping) -> None:
        """Be as the entry says, now or after a restart."""
        match entry:
            case Started(_, identity):
                self.identity = identity
            case Held(_, view, step, ready, linked):
                self.ready, self.view, self.step = ready, view, step
                self.linked, self.well_once = linked, True
            case Moved(_, slots):
                self.slots = slots
            case Stopping(_, kill_at_s, hung, frozen, unwell, disk_bytes):
                self.kill_at_s, self.hung, self.frozen = kill_at_s, hung, frozen
                self.unwell, self.disk_bytes = unwell, disk_bytes

    def lives(self, now_s: float, beats: bool) -> None:
        """It gave a sign of life; `beats`: there will be another."""
        self.heard_s, self.suspected = (now_s if beats else None), False

    def take_report(self, report: WorkerReport, now_s: float) -> bool:
        """Take what it says of itself beside its view; whether that is news to others."""
        before = (self.step, self.unreadable, self.ending, self.suspects, self.metrics)
        if self.waits and not report.waits:
            self.progress_s = now_s  # what it waited for is not counted
        if self.ready:
            self.step = report.step
        self.unreadable, self.ending, self.suspects = (
            report.unreadable,
            report.ending,
            report.suspects,
        )
        self.waits, self.metrics = report.waits, report.metrics
        self.unreadable_why = report.unreadable_why
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
        if self.well_once:
            found.append(Held(self.key, self.view, self.step, self.ready, self.linked))
        if self.kill_at_s is not None:
            found.append(Stopping(self.key, self.kill_at_s, *self.ended_for))
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
        if any(self.ended_for) and self.kill_at_s is None:
            raise BugError(f"worker {self.key} is at fault, but is not being stopped")
        if max(len(self.parts), len(self.missed)) > ATTEMPTS_KEPT:
            raise BugError(f"worker {self.key} remembers more attempts than it may")
