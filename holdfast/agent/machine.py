"""The agent's state machine: events in, actions out. No I/O, no clock, no chance.

What it promises, whatever is lost, late, doubled or out of order, and however often the agent is
killed between two actions:

- An order of a term older than the highest seen is refused. The highest is journalled before
  anything of it is obeyed.
- A worker's number is used once. It is journalled before its process can exist; after its end is
  journalled, and after it is forgotten, no order starts it again. (Within a term the numbers are
  remembered. In a later term nobody orders them: a number is forgotten only after the leader has
  taken it out of the plan, and orders of the old term are refused.)
- What a snapshot says is durable: it is taken when the journal actions before it are.
- A worker that is to stop is asked once, and killed when its notice is over, by this agent or by
  the next one.
- No more is promised than the machine has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from holdfast.agent.events import (
    Accepted,
    Action,
    Answer,
    Bury,
    Connected,
    Entry,
    Event,
    Exited,
    Force,
    Forgotten,
    Held,
    Journal,
    Key,
    NeverStarted,
    OrderReceived,
    ProcessAdopted,
    ProcessExited,
    ProcessStarted,
    Recovered,
    Report,
    Said,
    SaidParts,
    SignalProcess,
    Slots,
    Started,
    StartProcess,
    Stopping,
    Tell,
    TermSeen,
    Timer,
    key_of,
)
from holdfast.agent.exits import classify
from holdfast.agent.record import Worker
from holdfast.agent.slots import Machine, Room
from holdfast.wire.errors import BugError
from holdfast.wire.limits import (
    AGENT_WORKERS_MAX,
    FORGOTTEN_KEPT_MAX,
    NAME_CHARACTERS_MAX,
    NOTICE_S_MAX,
    TIMER_LATE_S,
)
from holdfast.wire.orders import (
    Forget,
    GiveSettings,
    GiveView,
    Order,
    StartWorker,
    StopWorker,
    TakeShare,
)
from holdfast.wire.reports import Exit, ExitKind, NodeFacts
from holdfast.wire.room import Resources

# A job's name becomes the name of a folder.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_BEFORE: Final = Exit(ExitKind.STOPPED, "it was stopped before it was started")


class AgentMachine:
    """The state of one agent."""

    def __init__(self, node: str, machine: Machine) -> None:
        self.node = node
        self.term = 0
        self._room = Room(machine)
        self._workers: dict[Key, Worker] = {}
        self._forgotten: dict[Key, None] = {}  # in the order of forgetting

    # --- what others may ask -----------------------------------------------------------------

    def snapshot(self) -> NodeFacts:
        """What is true of this machine, once the actions given out so far are done."""
        workers = tuple(worker.facts() for worker in self._workers.values())
        return NodeFacts(self.node, self._room.machine.capacity, workers)

    def living(self) -> list[Key]:
        """Workers whose end is not known."""
        return [key for key, worker in self._workers.items() if not worker.gone]

    def known(self) -> frozenset[Key]:
        return frozenset(self._workers)

    @property
    def wake_s(self) -> float | None:
        """When the next `Timer` is wanted."""
        due = [at for worker in self._workers.values() if (at := worker.due_s) is not None]
        return min(due, default=None)

    def entries(self) -> Iterator[Entry]:
        """The shortest journal that gives this state."""
        if self.term:
            yield TermSeen(self.term)
        for key in self._forgotten:
            yield Forgotten(key)
        for worker in self._workers.values():
            yield from worker.entries()

    # --- events --------------------------------------------------------------------------------

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """What follows from `event`. Journal actions come first in what is returned."""
        match event:
            case Said() | SaidParts() | Connected():
                worker = self._workers.get(event.key)
                if worker is None or worker.gone:
                    return []  # a late word of one whose end is known
                actions = self._heard(worker, event, now_s)
                worker.validate()
                return actions
            case OrderReceived():
                actions = self._ordered(event.term, event.order, now_s)
            case Recovered():
                # Not validated one by one: the next event, or the caller, sees the whole.
                return self._recovered(event.entry, now_s)
            case Timer():
                actions = self._timer(now_s)
            case _:
                actions = self._process(event, now_s)
        self.validate()
        return actions

    # --- orders --------------------------------------------------------------------------------

    def _ordered(self, term: int, order: Order, now_s: float) -> list[Action]:
        if term < self.term:
            reason = f"term {term} is over: this agent has seen term {self.term}"
            return [Answer(False, reason, fenced=True)]
        actions: list[Action] = []
        if term > self.term:
            actions.append(self._keep(TermSeen(term), now_s))
        if order.node != self.node:
            return [*actions, Answer(False, f"this is {self.node}, not {order.node}")]
        match order:
            case StartWorker():
                return actions + self._start(order, now_s)
            case StopWorker():
                return actions + self._stop(order, now_s)
            case Forget():
                return actions + self._forget(key_of(order), now_s)
            case _:
                return actions + self._give(order, now_s)

    def _start(self, order: StartWorker, now_s: float) -> list[Action]:
        key = key_of(order)
        if key in self._forgotten:
            return [Answer(True, "it was started, has ended and is forgotten")]
        if key in self._workers:
            return [Answer(True, "it was accepted before")]
        refusal = self._refusal(order)
        slots = None if refusal else self._room.slots_for(order, self._living_slots())
        if slots is None:
            return [Answer(False, refusal or "its devices or ports are still in use")]
        return [
            self._keep(Accepted(order, slots), now_s),
            Answer(True, "it is being started"),
            StartProcess(order, slots),
            Report(),
        ]

    def _refusal(self, order: StartWorker) -> str | None:
        if not _NAME.fullmatch(order.job) or len(order.job) > NAME_CHARACTERS_MAX:
            return f"{order.job!r} is not a job's name"
        if order.worker < 1 or not order.command:
            return "a worker has a number from 1 and a command"
        if len(self._workers) >= AGENT_WORKERS_MAX:
            return f"this agent knows {AGENT_WORKERS_MAX} workers already"
        return self._room.refusal(order.resources, self._living_resources())

    def _stop(self, order: StopWorker, now_s: float) -> list[Action]:
        key = key_of(order)
        worker = self._workers.get(key)
        if key in self._forgotten or (worker is not None and worker.gone):
            return [Answer(True, "it has ended")]
        if worker is None:
            if len(self._workers) >= AGENT_WORKERS_MAX or not _NAME.fullmatch(order.job):
                return [Answer(False, "it is not known here")]
            # It may have overtaken the order that starts it: that one must not start it any more.
            return [self._keep(Exited(key, _BEFORE), now_s), Answer(True, _BEFORE.detail), Report()]
        kill_at_s = now_s + min(max(order.notice_s, 0.0), NOTICE_S_MAX)
        if worker.kill_at_s is not None and worker.kill_at_s <= kill_at_s:
            return [Answer(True, "it is stopping already")]
        first = worker.kill_at_s is None
        actions: list[Action] = [self._keep(Stopping(key, kill_at_s, worker.hung), now_s)]
        actions.append(Answer(True, "it is asked to stop"))
        if first:
            actions += [Tell(key, order), SignalProcess(key, Force.ASK)]
        return actions

    def _forget(self, key: Key, now_s: float) -> list[Action]:
        worker = self._workers.get(key)
        if worker is None:
            return [Answer(True, "it is not known here")]
        if not worker.gone:
            return [Answer(False, "it has not ended")]
        return [self._keep(Forgotten(key), now_s), Answer(True, "it is forgotten"), Report()]

    def _give(self, order: GiveView | GiveSettings | TakeShare, now_s: float) -> list[Action]:
        """Pass on what a worker should know. Not journalled: it is said again until it is seen."""
        key = key_of(order)
        worker = self._workers.get(key)
        if worker is None or worker.gone:
            return [Answer(False, "it has ended" if worker else "it is not known here")]
        match order:
            case GiveView():
                known = worker.view_given.view.number if worker.view_given else 0
                if order.view.number <= max(known, worker.view):
                    return [Answer(True, "it was told")]
                worker.view_given = order
                worker.progress_s = now_s
            case GiveSettings():
                # Settings are only added to, so a shorter list is an older one.
                known = len(worker.settings_given.settings) if worker.settings_given else -1
                if len(order.settings) <= known:
                    return [Answer(True, "it was told")]
                worker.settings_given = order
                return [Answer(True, "it is told"), Tell(key, order), Report()]
            case TakeShare():
                number = order.attempt.number
                given = worker.share_given.attempt.number if worker.share_given else 0
                if number <= given or number in worker.parts or number in worker.missed:
                    return [Answer(True, "it was told")]
                worker.share_given = order
        return [Answer(True, "it is told"), Tell(key, order)]

    # --- workers -------------------------------------------------------------------------------

    def _heard(
        self, worker: Worker, event: Said | SaidParts | Connected, now_s: float
    ) -> list[Action]:
        if isinstance(event, Connected):
            return [Tell(worker.key, what) for what in worker.to_tell()]
        if isinstance(event, SaidParts):
            worker.progress_s = now_s
            worker.note_attempt(event.attempt, event.parts, event.missed)
            return [Report()]
        if event.view < worker.view:
            return []  # what it said before it adopted the view that is in the journal
        before = (worker.ready, worker.view)
        has = (event.ready or worker.ready, event.view, event.step is None)
        actions: list[Action] = []
        if has[0] and has != (worker.ready, worker.view, worker.step is None):
            actions.append(self._keep(Held(worker.key, event.view, event.step), now_s))
        if worker.hear(event) or (worker.ready, worker.view) != before:
            worker.progress_s = now_s
            actions.append(Report())
        return actions

    def _process(
        self, event: ProcessStarted | ProcessAdopted | ProcessExited | NeverStarted, now_s: float
    ) -> list[Action]:
        key = event.key
        worker = self._workers.get(key)
        if worker is None or worker.gone or worker.order is None:
            return []  # its end is in the journal: nothing about it can be news
        match event:
            case ProcessStarted() | ProcessAdopted():
                actions: list[Action] = []
                if worker.identity != event.identity:
                    actions.append(self._keep(Started(key, event.identity), now_s))
                worker.progress_s = now_s
                if worker.kill_at_s is not None:
                    # Asked or not when the agent died; whoever passes it on asks only once.
                    actions.append(SignalProcess(key, Force.ASK))
                return actions
            case NeverStarted() if worker.kill_at_s is None:
                worker.progress_s = now_s
                return [StartProcess(worker.order, worker.slots)]
            case NeverStarted():
                end = _BEFORE
            case ProcessExited():
                end = classify(
                    event.ending,
                    stopping=worker.kill_at_s is not None,
                    hung=worker.hung,
                    introduced=worker.ready,
                )
        return [self._keep(Exited(key, end), now_s), Bury(key), Report()]

    def _timer(self, now_s: float) -> list[Action]:
        actions: list[Action] = []
        for worker in self._workers.values():
            due_s = worker.due_s
            if due_s is None or due_s > now_s:
                continue
            if worker.kill_at_s is None:
                if now_s - due_s > TIMER_LATE_S:
                    worker.progress_s = now_s
                    continue
                actions.append(self._keep(Stopping(worker.key, now_s, hung=True), now_s))
            worker.killed_s = now_s
            actions.append(SignalProcess(worker.key, Force.KILL))
        return sorted(actions, key=lambda action: not isinstance(action, Journal))

    # --- the journal -----------------------------------------------------------------------------

    def _recovered(self, entry: Entry, now_s: float) -> list[Action]:
        self._apply(entry, now_s)
        if isinstance(entry, Accepted):
            self._workers[key_of(entry.order)].inherited = True
        return []

    def _keep(self, entry: Entry, now_s: float) -> Journal:
        """Change the state as the entry says. A restart applies the same entries, in order."""
        self._apply(entry, now_s)
        return Journal(entry)

    def _apply(self, entry: Entry, now_s: float) -> None:
        match entry:
            case TermSeen(term):
                self.term = term
                self._forgotten.clear()
            case Accepted(order, slots):
                key = key_of(order)
                host = self._room.machine.host
                self._workers[key] = Worker(key, order, slots, progress_s=now_s, host=host)
                self._room.took(slots)
            case Exited(key, end):
                worker = self._workers.setdefault(key, Worker(key, None))
                worker.exit = end
            case Forgotten(key):
                self._workers.pop(key, None)
                self._forgotten[key] = None
                while len(self._forgotten) > FORGOTTEN_KEPT_MAX:
                    del self._forgotten[next(iter(self._forgotten))]
            case Started() | Held() | Stopping():
                self._apply_to(self._known(entry.key), entry)

    def _apply_to(self, worker: Worker, entry: Started | Held | Stopping) -> None:
        match entry:
            case Started(_, identity):
                worker.identity = identity
            case Held(_, view, step):
                worker.ready, worker.view, worker.step = True, view, step
            case Stopping(_, kill_at_s, hung):
                worker.kill_at_s, worker.hung = kill_at_s, hung

    def _known(self, key: Key) -> Worker:
        worker = self._workers.get(key)
        if worker is None:
            raise BugError(f"the journal speaks of worker {key}, which it never accepted")
        return worker

    # --- invariants ----------------------------------------------------------------------------

    def validate(self) -> None:
        """What must be true at any time. Always on."""
        for key, worker in self._workers.items():
            if key in self._forgotten:
                raise BugError(f"worker {key} is known and forgotten")
            worker.validate()
        if len(self._workers) > AGENT_WORKERS_MAX or len(self._forgotten) > FORGOTTEN_KEPT_MAX:
            raise BugError("the agent holds more workers than it may")
        self._room.validate(self._living_slots())
        # A machine may have become smaller while its workers went on without an agent.
        living = [worker for worker in self._workers.values() if not worker.gone]
        if not all(worker.inherited for worker in living):
            self._room.validate_promises(self._living_resources())

    def _living_slots(self) -> list[Slots]:
        return [worker.slots for worker in self._workers.values() if not worker.gone]

    def _living_resources(self) -> list[Resources]:
        found = [worker.order for worker in self._workers.values() if not worker.gone]
        return [order.resources for order in found if order is not None]
