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
from typing import Final

from holdfast.agent.events import (
    Accepted,
    Action,
    Asked,
    BeginProbes,
    CleanUp,
    Connected,
    Disconnected,
    DiskUsed,
    Ending,
    Event,
    Examine,
    Examined,
    Exited,
    Force,
    Forgotten,
    Held,
    Key,
    Moved,
    NeverStarted,
    OrderAnswer,
    OrderReceived,
    PartsReport,
    PortsTaken,
    Preparing,
    Probed,
    ProcessAdopted,
    ProcessExited,
    ProcessStarted,
    Recovered,
    Report,
    SignalProcess,
    Started,
    StartProcess,
    Stopping,
    Tell,
    TermSeen,
    Timer,
    WatchDisk,
    WorkerReport,
    WriteEntry,
    key_of,
    named_ports,
    serves,
)
from holdfast.agent.exits import classify
from holdfast.agent.record import WorkerRecord
from holdfast.agent.state import AgentState
from holdfast.wire.limits import AGENT_WORKERS_MAX, NAME_CHARACTERS_MAX
from holdfast.wire.orders import (
    Forget,
    GiveSettings,
    GiveView,
    Order,
    StartWorker,
    StopWorker,
    TakeShare,
)
from holdfast.wire.reports import Exit, ExitKind

# The longest notice before SIGKILL: spot machines give two minutes, a large checkpoint takes some.
NOTICE_S_MAX: Final = 600.0
# A timer that comes later than this was not late: the agent or the machine was asleep, and so may
# the workers have been. Nobody is held to have hung in that time.
TIMER_LATE_S: Final = 10.0
# Ports that strangers hold are passed over so often before a worker is given up: a machine where
# so many in a row are taken has another trouble.
PORT_MOVES_MAX: Final = 20
# From SIGTERM to SIGKILL for a worker whose `live` probe says no.
LIVE_NOTICE_S: Final = 10.0

# A job's name becomes the name of a folder.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_BEFORE: Final = Exit(ExitKind.STOPPED, "it was stopped before it was started")


class AgentMachine(AgentState):
    """What follows from each event."""

    # --- events --------------------------------------------------------------------------------

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """What follows from `event`. Entries of the journal come first in what is returned."""
        match event:
            case WorkerReport() | PartsReport() | Connected() | Disconnected():
                worker = self._workers.get(event.key)
                if worker is None or worker.gone:
                    return []  # a late word of one whose end is known
                actions = self._on_worker_event(worker, event, now_s)
                worker.validate()
                return actions
            case Probed() | DiskUsed():
                worker = self._workers.get(event.key)
                if worker is None or worker.gone or worker.kill_at_s is not None:
                    return []  # it ends anyway
                if isinstance(event, Probed):
                    actions = self._probed(worker, event, now_s)
                else:
                    actions = self._over_disk(worker, event, now_s)
                worker.validate()
                return actions
            case Preparing(key, doing, since_s):
                worker = self._workers.get(key)
                if worker is None or worker.gone:
                    return []
                worker.preparing, worker.preparing_since_s = doing, since_s
                worker.progress_s = now_s
                return [Report()]
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
            return [OrderAnswer(False, reason, fenced=True)]
        actions: list[Action] = []
        if term > self.term:
            actions.append(self._keep(TermSeen(term), now_s))
        if order.node != self.node:
            return [*actions, OrderAnswer(False, f"this is {self.node}, not {order.node}")]
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
            return [OrderAnswer(True, "it was started, has ended and is forgotten")]
        if key in self._workers:
            return [OrderAnswer(True, "it was accepted before")]
        refusal = self._refusal(order)
        living = self._living_slots()
        slots = None if refusal else self._allocator.slots_for(order, living, self._drained())
        if slots is None:
            return [OrderAnswer(False, refusal or "its devices or ports are still in use")]
        return [
            self._keep(Accepted(order, slots), now_s),
            OrderAnswer(True, "it is being started"),
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
        capacity = self._allocator.capacity(self._living_slots(), self._drained())
        return self._allocator.refusal(order.resources, self._living_resources(), capacity)

    def _stop(self, order: StopWorker, now_s: float) -> list[Action]:
        key = key_of(order)
        worker = self._workers.get(key)
        if key in self._forgotten or (worker is not None and worker.gone):
            return [OrderAnswer(True, "it has ended")]
        if worker is None:
            if len(self._workers) >= AGENT_WORKERS_MAX or not _NAME.fullmatch(order.job):
                return [OrderAnswer(False, "it is not known here")]
            # It may have overtaken the order that starts it: that one must not start it any more.
            return [
                self._keep(Exited(key, _BEFORE), now_s),
                OrderAnswer(True, _BEFORE.detail),
                Report(),
            ]
        kill_at_s = now_s + min(max(order.notice_s, 0.0), NOTICE_S_MAX)
        if worker.kill_at_s is not None and worker.kill_at_s <= kill_at_s:
            return [OrderAnswer(True, "it is stopping already")]
        first = worker.kill_at_s is None
        stopping = Stopping(key, kill_at_s, *worker.ended_for)
        actions: list[Action] = [self._keep(stopping, now_s)]
        actions.append(OrderAnswer(True, "it is asked to stop"))
        if first:
            actions += [Tell(key, order), SignalProcess(key, Force.ASK)]
        return actions

    def _forget(self, key: Key, now_s: float) -> list[Action]:
        worker = self._workers.get(key)
        if worker is None:
            return [OrderAnswer(True, "it is not known here")]
        if not worker.gone:
            return [OrderAnswer(False, "it has not ended")]
        return [self._keep(Forgotten(key), now_s), OrderAnswer(True, "it is forgotten"), Report()]

    def _give(self, order: GiveView | GiveSettings | TakeShare, now_s: float) -> list[Action]:
        """Pass on what a worker should know. Not journalled: it is said again until it is seen."""
        key = key_of(order)
        worker = self._workers.get(key)
        if worker is None or worker.gone:
            return [OrderAnswer(False, "it has ended" if worker else "it is not known here")]
        match order:
            case GiveView():
                known = worker.view_given.view.number if worker.view_given else 0
                if order.view.number <= max(known, worker.view):
                    return [OrderAnswer(True, "it was told")]
                worker.view_given = order
                worker.progress_s = now_s
            case GiveSettings():
                # Settings are only added to, so a shorter list is an older one.
                known = len(worker.settings_given.settings) if worker.settings_given else -1
                if len(order.settings) <= known:
                    return [OrderAnswer(True, "it was told")]
                worker.settings_given = order
                return [OrderAnswer(True, "it is told"), Tell(key, order), Report()]
            case TakeShare():
                number = order.attempt.number
                given = worker.share_given.attempt.number if worker.share_given else 0
                if number <= given or number in worker.parts or number in worker.missed:
                    return [OrderAnswer(True, "it was told")]
                worker.share_given = order
        return [OrderAnswer(True, "it is told"), Tell(key, order)]

    # --- workers -------------------------------------------------------------------------------

    def _on_worker_event(
        self,
        worker: WorkerRecord,
        event: WorkerReport | PartsReport | Connected | Disconnected,
        now_s: float,
    ) -> list[Action]:
        match event:
            case Connected():
                told = [Tell(worker.key, what) for what in worker.to_tell()]
                return [*self._linked(worker, now_s), *told]
            case Disconnected():
                worker.lives(now_s, beats=False)
                return []
            case PartsReport():
                worker.progress_s = now_s
                worker.note_attempt(event.attempt, event.parts, event.missed)
                return [Report()]
            case WorkerReport():
                worker.linked = True
                worker.lives(now_s, event.beats)
                return self._on_report(worker, event, now_s)

    def _on_report(self, worker: WorkerRecord, event: WorkerReport, now_s: float) -> list[Action]:
        if event.view < worker.view:
            return []  # what it said before it adopted the view that is in the journal
        before = (worker.ready, worker.view)
        says = event.ready and worker.says_ready
        has = (says or worker.ready, event.view, event.step is None)
        actions: list[Action] = []
        if has[0] and has != (worker.ready, worker.view, worker.step is None):
            actions.append(self._keep(Held(worker.key, event.view, event.step), now_s))
        if worker.take_report(event, now_s) or (worker.ready, worker.view) != before:
            worker.progress_s = now_s
            actions.append(Report())
        return actions

    def _linked(self, worker: WorkerRecord, now_s: float) -> list[Action]:
        """It has spoken, so it says itself when it is ready; that it had run for a moment was taken
        for it too early."""
        before, worker.linked = worker.linked, True
        if before or not worker.ready or not worker.says_ready:
            return []
        unready = Held(worker.key, worker.view, worker.step, ready=False)
        worker.progress_s = now_s
        return [self._keep(unready, now_s), Report()]

    def _probed(self, worker: WorkerRecord, event: Probed, now_s: float) -> list[Action]:
        """Count what its probes say, and act when one has changed its mind."""
        asked, before = event.asked, dict(worker.troubles)
        probe = worker.probe(asked)
        if probe is None:
            return []
        actions: list[Action] = []
        decides = worker.readiness is asked
        if event.passed:
            worker.failed[asked] = 0
            worker.troubles.pop(asked, None)
            worker.well_once = True
            if decides and not worker.ready:
                actions.append(self._is_ready(worker, ready=True, now_s=now_s))
        else:
            worker.failed[asked] = worker.failed.get(asked, 0) + 1
            worker.troubles[asked] = event.said
            if worker.failed[asked] >= probe.failures:
                if asked is Asked.LIVE and worker.well_once:
                    return self._unwell(worker, event, now_s)
                if decides and worker.ready:
                    actions.append(self._is_ready(worker, ready=False, now_s=now_s))
        return [*actions, Report()] if actions or worker.troubles != before else []

    def _is_ready(self, worker: WorkerRecord, *, ready: bool, now_s: float) -> Action:
        how = (worker.view, worker.step, ready, worker.linked)
        return self._keep(Held(worker.key, *how), now_s)

    def _unwell(self, worker: WorkerRecord, event: Probed, now_s: float) -> list[Action]:
        times = worker.failed[event.asked]
        often = "once" if times == 1 else f"{times} times in a row"
        why = f"its `live` probe failed {often}: {event.said}"
        stopping = self._keep(Stopping(worker.key, now_s + LIVE_NOTICE_S, unwell=why), now_s)
        return [stopping, SignalProcess(worker.key, Force.ASK), Report()]

    def _over_disk(self, worker: WorkerRecord, event: DiskUsed, now_s: float) -> list[Action]:
        """End it at once, as at its memory limit: who fills a disk takes everybody along."""
        if not 0 < worker.disk_bytes_max < event.held_bytes:
            return []
        stopping = Stopping(worker.key, now_s, disk_bytes=event.held_bytes)
        return [self._keep(stopping, now_s), self._kill(worker, now_s), Report()]

    def _process(
        self,
        event: ProcessStarted
        | ProcessAdopted
        | ProcessExited
        | NeverStarted
        | PortsTaken
        | Examined,
        now_s: float,
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
                if isinstance(event, ProcessAdopted):
                    # It knew the agent before this one: it should be back on its line soon.
                    worker.lives(now_s, beats=worker.ready and worker.linked)
                if worker.order.ready is not None or worker.order.live is not None:
                    actions.append(
                        BeginProbes(worker.order, named_ports(worker.order, worker.slots))
                    )
                if worker.disk_bytes_max:
                    actions.append(WatchDisk(key, worker.disk_bytes_max))
                if worker.kill_at_s is not None:
                    # Asked or not when the agent died; whoever passes it on asks only once.
                    actions.append(SignalProcess(key, Force.ASK))
                return actions
            case NeverStarted(prepared=False):
                end = _end(worker, Ending())
            case NeverStarted() if worker.kill_at_s is None and not event.called_off:
                worker.progress_s = now_s
                return [StartProcess(worker.order, worker.slots)]
            case NeverStarted():
                end = _BEFORE
            case Examined():
                if not (event.paused and worker.suspected) or worker.kill_at_s is not None:
                    return []  # it is merely busy, has spoken since, or ends anyway
                stopping = self._keep(Stopping(key, now_s, frozen=True), now_s)
                return [stopping, self._kill(worker, now_s)]
            case PortsTaken():
                moved = None if worker.kill_at_s is not None else self._move(worker, event, now_s)
                if moved is not None:
                    return moved
                end = _end(worker, Ending(fault=_taken(worker.order, event.ports)))
            case ProcessExited():
                end = _end(worker, event.ending)
        return [self._keep(Exited(key, end), now_s), CleanUp(key), Report()]

    def _move(self, worker: WorkerRecord, taken: PortsTaken, now_s: float) -> list[Action] | None:
        """Try it with other ports; None: that was done often enough, or there are none."""
        worker.moves += 1
        if worker.order is None:
            return None
        slots = self._allocator.moved(worker.order, worker.slots, taken.ports, self._living_slots())
        if worker.moves > PORT_MOVES_MAX or slots is None:
            return None
        moved = self._keep(Moved(worker.key, slots), now_s)
        return [moved, StartProcess(worker.order, slots), Report()]

    def _kill(self, worker: WorkerRecord, now_s: float) -> Action:
        worker.killed_s = now_s
        return SignalProcess(worker.key, Force.KILL)

    def _timer(self, now_s: float) -> list[Action]:
        actions = [each for one in self._workers.values() for each in self._overdue(one, now_s)]
        return sorted(actions, key=lambda action: not isinstance(action, WriteEntry))

    def _overdue(self, worker: WorkerRecord, now_s: float) -> list[Action]:
        if worker.due_s is None or worker.due_s > now_s:
            return []
        if worker.kill_at_s is not None:
            return [self._kill(worker, now_s)]
        if worker.settled_s is not None and worker.settled_s <= now_s:
            return [self._is_ready(worker, ready=True, now_s=now_s), Report()]
        if worker.hung_s is not None and worker.hung_s <= now_s:
            if now_s - worker.hung_s <= TIMER_LATE_S:
                hung = self._keep(Stopping(worker.key, now_s, hung=True), now_s)
                return [hung, self._kill(worker, now_s)]
            worker.progress_s = now_s
        if worker.silent_s is not None and worker.silent_s <= now_s:
            worker.heard_s, worker.suspected = now_s, True
            return [Examine(worker.key)]
        return []


def _end(worker: WorkerRecord, ending: Ending) -> Exit:
    return classify(
        ending,
        stopping=worker.kill_at_s is not None,
        hung=worker.hung,
        introduced=worker.ready and worker.linked,
        frozen=worker.frozen,
        unwell=worker.unwell,
        disk_bytes=(worker.disk_bytes, worker.disk_bytes_max),
        serves=worker.order is not None and serves(worker.order),
        stepped=bool(worker.step),
    )


def _taken(order: StartWorker, ports: tuple[int, ...]) -> str:
    """Why it cannot be started: others listen where it should."""
    fixed = sorted(name for name, number in order.ports.items() if number in ports)
    if not fixed:
        return f"strangers hold its ports: {', '.join(map(str, ports))}"
    held = ", ".join(f"{order.ports[name]} ({name})" for name in fixed)
    return (
        f"another program listens on port {held}, which its job file fixes:"
        f" `ports: [{', '.join(sorted(order.ports))}]` there lets each machine choose a free one"
    )
