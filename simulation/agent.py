"""The agent of a machine: it decides by the real `AgentMachine`.

Around it is the rim: a journal on a disk that may be torn, decay or be full, processes that outlive
the agent, a session in the coordination plane, and messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.agent.events import (
    NOBODY,
    Action,
    Answer,
    Bury,
    Connected,
    Ending,
    Event,
    Journal,
    Key,
    NeverStarted,
    OrderReceived,
    ProcessAdopted,
    ProcessExited,
    Recovered,
    Report,
    Said,
    SaidParts,
    SignalProcess,
    StartProcess,
    Tell,
    Timer,
    key_of,
)
from holdfast.agent.machine import AgentMachine
from holdfast.agent.slots import Machine
from holdfast.coordination.embedded import protocol as p
from holdfast.coordination.embedded.acl import OPEN
from holdfast.coordination.embedded.transactions import Create, Delete, Multi, Part, SetData
from holdfast.coordination.embedded.tree import Tree
from holdfast.wire.errors import Corrupt
from holdfast.wire.orders import Order
from simulation.flow import Flow, Steps
from simulation.kernel import Being
from simulation.plane import Client
from simulation.worker import Worker

if TYPE_CHECKING:
    from simulation.coordinator import Coordinator
    from simulation.host import Host
    from simulation.world import World

# Within a machine a message takes so long.
LOCAL_S: Final = 0.0005
RESTART_S: Final = (0.2, 3.0)
REPAIR_S: Final = (0.5, 4.0)
FULL_S: Final = (0.2, 2.0)
# So many batches are made one: a compaction.
BATCHES_MAX: Final = 12
REPORT_S: Final = (0.005, 0.05)
REPORT_AGAIN_S: Final = 0.5
BURY_S: Final = (0.01, 3.0)
# How late the last request of an agent that died may be: its session is still alive then, and the
# next life of the agent may have joined.
LATE_S: Final = (0.2, 1.1)
QUICK_RESTART_S: Final = (0.05, 0.6)
NODES: Final = "/holdfast/nodes"
NODE_TURNS: Final = "/holdfast/nodes-turns"


class Agent(Being):
    """The agent of a host."""

    def __init__(self, world: World, host: Host) -> None:
        super().__init__(world.kernel, host.name)
        self.world = world
        self.host = host
        self.machine = AgentMachine(host.name, Machine(host.capacity))
        self.client = Client(self, host.name, self._session_lost)
        self.listener: tuple[int, Coordinator] | None = None
        self.reports = 0
        self._joining: Flow | None = None
        self._reporting = False
        self._wake_s: float | None = None
        self._parts_told: set[tuple[Key, int]] = set()
        self._kept_back: list[Event] | None = None  # what waits for room on the disk

    # --- its life -------------------------------------------------------------------------------

    def start(self) -> None:
        """Recover from the journal, find the living and the dead, and join the plane."""
        self.begin()
        self.tell("starts")
        host = self.host
        self.machine = AgentMachine(host.name, Machine(host.capacity))
        self.listener = None
        self._reporting = False
        self._wake_s = None
        self._parts_told.clear()
        self._kept_back = None
        try:
            entries = host.disk.recovered()
        except Corrupt as error:
            self._refuse(error)
            return
        if host.disk.forgot:
            self.world.checks.forgot(host)
        for entry in entries:
            self.machine.handle(Recovered(entry), self.now_s())
        host.end_strangers(self.machine.living())
        for key in self.machine.living():
            if not self.up:
                return  # it crashed again while it recovered
            if self.machine.is_stopping(key):
                host.void(key)
            self.handle(self.found(key))
        for worker in list(host.processes.values()):
            worker.arrive(lambda worker=worker: host.heard(worker))  # type: ignore[misc]
        self._joining = Flow(self._join())

    def _refuse(self, error: Corrupt) -> None:
        """The journal is damaged: the agent does not start, until somebody has mended it."""
        self.tell("does not start:", error.what)
        self.world.happened["damaged journal"] += 1
        self.die()
        self.kernel.after(self.kernel.between(*REPAIR_S), self.host.repair)

    def now_s(self) -> float:
        """What its steady clock says."""
        return self.kernel.now_s + self.host.clock_ahead_s

    def found(self, key: Key) -> Event:
        """What has become of a worker that an agent has accepted."""
        host = self.host
        if key in host.processes:
            return ProcessAdopted(key, host.started[key])
        if host.started.get(key) == NOBODY:
            return NeverStarted(key, called_off=True)
        if key in host.started:
            return ProcessExited(key, host.endings.get(key, Ending()))
        return NeverStarted(key, prepared=key in host.folders)

    def crash(self, restart_s: tuple[float, float] = RESTART_S) -> None:
        """It dies, and is started again after a while."""
        if not self.up:
            return
        self.tell("dies")
        self.die()
        self.world.plane.expect_silence(self.host.name)
        self.kernel.after(self.kernel.between(*restart_s), self.start)

    def _session_lost(self) -> None:
        self.tell("has lost its session")
        if self._joining is not None:
            self._joining.cancel()
        self._joining = Flow(self._join())

    def _join(self) -> Steps:
        """Have our node in the plane, in a session of this life: as `Member` does it."""
        plane, opened = self.world.plane, False
        path, turns = f"{NODES}/{self.host.name}", f"{NODE_TURNS}/{self.host.name}"
        while not opened:
            opened = yield plane.open(self.client)
        session = self.client.session
        data = plane.keep((self.host.name, session))
        create = Create(path, data, OPEN, p.FLAG_EPHEMERAL, -1, False)
        while True:
            found = yield plane.read(self.client, lambda tree: _seat(tree, path, turns))
            if found is None:
                continue
            if found == p.SESSION_EXPIRED:
                return  # we are told, and join again
            turn, owner, version = found
            if owner == session:
                break
            # The node of our own life before this one goes.
            old = () if owner is None else (Delete(path, version),)
            if self.world.faults.strikes("join crash"):
                self.client.awaits = self.kernel.now_s + self.kernel.between(*LATE_S)
                self.after(LOCAL_S, lambda: self.crash(QUICK_RESTART_S))
            yield plane.ask(
                self.client, Multi((self._take_turn(turns, turn), *old, create)), session
            )
        self.tell("has joined in session", session)

    def _take_turn(self, path: str, turn: int) -> Part:
        """What comes late, when another life has joined since, is refused."""
        return SetData(path, b"", turn)

    # --- events and actions -----------------------------------------------------------------------

    def soon(self, event: Event) -> None:
        """Something happened on the machine: the agent sees it, if it is alive."""
        if self.up:
            self.after(LOCAL_S, lambda: self._handled(event))

    def hear(self, worker: Worker) -> None:
        """A worker says, over its socket, what is true of it."""
        if not worker.up:
            return
        key = worker.key
        view = worker.view.number if worker.view else 0
        step = worker.held.step if worker.held else None
        self.handle(
            Said(
                key,
                ready=worker.ready,
                view=view,
                step=step,
                unreadable=frozenset(worker.unreadable),
                ending=worker.ending,
                suspects=worker.suspects,
            )
        )
        for attempt, parts in worker.said_parts.items():
            if parts and (key, attempt) not in self._parts_told and self.up:
                self._parts_told.add((key, attempt))
                self.handle(SaidParts(key, attempt, parts))
        for attempt in sorted(worker.missed):
            if (key, attempt) not in self._parts_told and self.up:
                self._parts_told.add((key, attempt))
                self.handle(SaidParts(key, attempt, missed=True))
        if self.up and (key, 0) not in self._parts_told:
            self._parts_told.add((key, 0))
            self.handle(Connected(key))

    def order(self, term: int, order: Order, leader: Coordinator) -> None:
        """An order has come from a leader."""
        if self.listener is None or term > self.listener[0]:
            self.listener = (term, leader)
        before = self.machine.term
        for action in self.handle(OrderReceived(term, order)):
            if isinstance(action, Answer):
                self.world.checks.answered(self.host, term, order, action)
                if action.fenced:
                    leader.hear_refusal(self.host.name, before)

    def ask(self, term: int, leader: Coordinator) -> None:
        """A leader wants to know what is true here, now and after each change."""
        if self.listener is None or term >= self.listener[0]:
            self.listener = (term, leader)
        self._report()

    def handle(self, event: Event) -> list[Action]:
        """Ask the machine, write the journal, and only then act; what was done of it."""
        if self._kept_back is not None:
            self._kept_back.append(event)
            return []
        actions = self.machine.handle(event, self.now_s())
        if isinstance(actions[0] if actions else None, Journal) and self._has_no_room(actions):
            return []
        if not self._carry_out(actions):
            return []
        # What a worker says puts off what is due, or is about something that is due much later.
        if self._wake_s is None or not isinstance(event, Said | SaidParts):
            self._set_timer()
        return actions

    def _has_no_room(self, actions: list[Action]) -> bool:
        """Whether the disk is full: then nothing is decided, done or reported for a while."""
        if not self.world.faults.strikes("full disk"):
            return False
        self.tell("has no room for its journal")
        self._kept_back = []
        self.after(self.kernel.between(*FULL_S), lambda: self._has_room(actions))
        return True

    def _has_room(self, actions: list[Action]) -> None:
        waiting, self._kept_back = self._kept_back or [], None
        if self._carry_out(actions):
            self._set_timer()
            self._report()
            for event in waiting:
                if self.up:
                    self.handle(event)

    def _handled(self, event: Event) -> None:
        self.handle(event)

    def _carry_out(self, actions: list[Action]) -> bool:
        """False if it died on the way: while it wrote, or between two deeds."""
        for action in actions:
            if isinstance(action, StartProcess):
                self.host.folders.setdefault(key_of(action.order), object())
        return self._write(actions) and self._act(actions)

    def _write(self, actions: list[Action]) -> bool:
        batch = [action.entry for action in actions if isinstance(action, Journal)]
        if not batch:
            return True
        faults, disk = self.world.faults, self.host.disk
        if faults.strikes("torn write"):
            disk.tear(batch, faults.random.choice((1.0, faults.random.random())))
            self.crash()
            return False
        if faults.strikes("lost write"):
            self.host.crash()
            return False
        disk.append(batch)
        if len(disk.batches) > BATCHES_MAX:
            disk.compact(self.machine.entries())
        return True

    def _act(self, actions: list[Action]) -> bool:
        for action in actions:
            if self.world.faults.strikes("step crash"):
                self.crash()
                return False
            self._do(action)
        return True

    def _do(self, action: Action) -> None:
        host = self.host
        if isinstance(action, StartProcess):
            self.world.checks.starts(host, action)
            host.births.start(action)
        elif isinstance(action, SignalProcess):
            worker = host.processes.get(action.key)
            if host.births.starting(action.key):
                host.births.signal(action.key)
            elif worker is not None:
                worker.signal(action.force)
        elif isinstance(action, Tell):
            worker = host.processes.get(action.key)
            if worker is not None:
                told, what = worker, action.what
                self.kernel.after(LOCAL_S, lambda: told.arrive(lambda: told.hear(what)))
        elif isinstance(action, Bury) and host.births.awaits(action.key):
            # In the background, on a slow disk: the end is reported before.
            self.after(self.world.faults.birth_s(*BURY_S), lambda: host.bury(action.key))
        elif isinstance(action, Bury):
            host.bury(action.key)
        elif isinstance(action, Report) and not self._reporting:
            self._reporting = True
            self.after(self.kernel.between(*REPORT_S), self._report)

    def _report(self) -> None:
        self._reporting = False
        if self.listener is None or self._kept_back is not None:
            return
        facts = self.machine.snapshot()
        self.world.checks.reported(self.host, facts)
        self.reports += 1
        (term, leader), mark = self.listener, (self.life, self.reports)
        self.world.network.send(
            self.host.name,
            leader,
            leader.name,
            lambda: leader.hear_report(term, facts, mark),
            self._report_again,
        )

    def _report_again(self) -> None:
        """The stream broke with a report on it: on the next one all is said again."""
        if self.up and not self._reporting:
            self._reporting = True
            self.after(REPORT_AGAIN_S, self._report)

    def _set_timer(self) -> None:
        wake_s = self.machine.wake_s
        if wake_s is not None and (self._wake_s is None or wake_s < self._wake_s):
            self._wake_s = wake_s
            self.after(max(0.0, wake_s - self.now_s()), lambda: self._timer(wake_s))

    def _timer(self, wake_s: float) -> None:
        if self._wake_s == wake_s:
            self._wake_s = None
            due_s = self.machine.wake_s
            if due_s is not None and due_s <= self.now_s():
                self.handle(Timer())
            else:
                self._set_timer()


def _seat(tree: Tree, path: str, turns: str) -> tuple[int, int | None, int]:
    """Whose turn it is, who owns the node (if there is one), and its version."""
    node = tree.find(path)
    owner, version = (None, 0) if node is None else (node.owner, node.version)
    return tree.nodes[turns].version, owner, version
