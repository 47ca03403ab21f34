"""A machine: its processes, its disk, and its agent.

The agent decides by the real `AgentMachine`. Around it is the rim: a journal on a disk that may be
torn, processes that outlive the agent, a session in the coordination plane, and messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.agent.events import (
    Action,
    Answer,
    Connected,
    Ending,
    Event,
    Identity,
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
    StartProcess,
    Tell,
    Timer,
)
from holdfast.agent.machine import AgentMachine
from holdfast.agent.slots import Machine
from holdfast.coordination.embedded import protocol as p
from holdfast.coordination.embedded.acl import OPEN
from holdfast.coordination.embedded.transactions import Create, Delete, Multi, Part, SetData
from holdfast.coordination.embedded.tree import Tree
from holdfast.wire.orders import Order
from holdfast.wire.room import Resources
from simulation.disk import Disk
from simulation.flow import Flow, Steps
from simulation.kernel import Being
from simulation.plane import Client
from simulation.worker import Worker

if TYPE_CHECKING:
    from simulation.coordinator import Coordinator
    from simulation.world import World

# Within a machine a message takes so long.
LOCAL_S: Final = 0.0005
RESTART_S: Final = (0.2, 3.0)
REPORT_S: Final = (0.005, 0.05)
# How late the last request of an agent that died may be: its session is still alive then.
LATE_S: Final = (0.2, 2.0)
NODES: Final = "/holdfast/nodes"
NODE_TURNS: Final = "/holdfast/nodes-turns"


class Host:
    """What survives the agent: the machine's processes and how they ended, and its disk."""

    def __init__(self, world: World, name: str, capacity: Resources) -> None:
        self.world = world
        self.name = name
        self.capacity = capacity
        self.disk = Disk()
        self.boot = 1
        self.processes: dict[Key, Worker] = {}  # those that are alive
        self.endings: dict[Key, Ending] = {}  # as their parents have noted them
        self.started: dict[Key, Identity] = {}
        self.agent = Agent(world, self)
        self._saying: set[Key] = set()

    def start(self, order: StartProcess) -> None:
        """Start a worker's process, once: its folder shows whether it ever was."""
        key = Key(order.order.job, order.order.worker)
        if key not in self.started:
            self.started[key] = Identity(len(self.world.workers) + 1, 0, str(self.boot))
            training = self.world.settings.trainings[key.job]
            worker = Worker(self.world, self, key, training)
            self.processes[key] = worker
            self.world.workers[key] = worker
            self.world.checks.started(self, key)
        self.agent.soon(ProcessStarted(key, self.started[key]))

    def reap(self, worker: Worker, ending: Ending) -> None:
        """A process has ended."""
        del self.processes[worker.key]
        self.endings[worker.key] = ending
        self.agent.soon(ProcessExited(worker.key, ending))

    def heard(self, worker: Worker) -> None:
        """A worker has something to say; what it says in one moment is said once."""
        if worker.key not in self._saying:
            self._saying.add(worker.key)
            self.world.kernel.after(LOCAL_S, lambda: self._hear(worker))

    def _hear(self, worker: Worker) -> None:
        self._saying.discard(worker.key)
        if worker.up:
            self.agent.arrive(lambda: self.agent.hear(worker))

    def crash(self) -> None:
        """The power fails: everything dies, and nobody sees how."""
        for worker in list(self.processes.values()):
            worker.tell("dies with its machine")
            worker.die()
        self.processes.clear()
        self.boot += 1
        self.agent.crash()


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
        for entry in host.disk.recovered():
            self.machine.handle(Recovered(entry), self.kernel.now_s)
        for key in self.machine.living():
            if not self.up:
                return  # it crashed again while it recovered
            self.handle(self._found(key))
        for worker in list(host.processes.values()):
            worker.arrive(lambda worker=worker: host.heard(worker))  # type: ignore[misc]
        self._joining = Flow(self._join())

    def _found(self, key: Key) -> Event:
        host = self.host
        if key in host.processes:
            return ProcessAdopted(key, host.started[key])
        if key in host.started:
            return ProcessExited(key, host.endings.get(key, Ending()))
        return NeverStarted(key)

    def crash(self) -> None:
        """It dies, and is started again after a while."""
        if not self.up:
            return
        self.tell("dies")
        self.die()
        self.world.plane.expect_silence(self.host.name)
        self.kernel.after(self.kernel.between(*RESTART_S), self.start)

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
                self.after(LOCAL_S, self.crash)
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
        actions = self.machine.handle(event, self.kernel.now_s)
        if not self._carry_out(actions):
            return []
        self._set_timer()
        return actions

    def _handled(self, event: Event) -> None:
        self.handle(event)

    def _carry_out(self, actions: list[Action]) -> bool:
        """False if it died on the way: while it wrote, or between two deeds."""
        return self._write(actions) and self._act(actions)

    def _write(self, actions: list[Action]) -> bool:
        batch = [action.entry for action in actions if isinstance(action, Journal)]
        if not batch:
            return True
        faults = self.world.faults
        if faults.strikes("torn write"):
            self.host.disk.tear(batch, faults.random)
            self.crash()
            return False
        self.host.disk.append(batch)
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
            host.start(action)
        elif isinstance(action, SignalProcess):
            worker = host.processes.get(action.key)
            if worker is not None:
                worker.signal(action.force)
        elif isinstance(action, Tell):
            worker = host.processes.get(action.key)
            if worker is not None:
                told, what = worker, action.what
                self.kernel.after(LOCAL_S, lambda: told.arrive(lambda: told.hear(what)))
        elif isinstance(action, Report) and not self._reporting:
            self._reporting = True
            self.after(self.kernel.between(*REPORT_S), self._report)

    def _report(self) -> None:
        self._reporting = False
        if self.listener is None:
            return
        facts = self.machine.snapshot()
        self.world.checks.reported(self.host, facts)
        self.reports += 1
        leader, mark = self.listener[1], (self.life, self.reports)
        self.world.network.send(
            self.host.name, leader, leader.name, lambda: leader.hear_report(facts, mark)
        )

    def _set_timer(self) -> None:
        wake_s = self.machine.wake_s
        if wake_s is not None and (self._wake_s is None or wake_s < self._wake_s):
            self._wake_s = wake_s
            self.after(max(0.0, wake_s - self.kernel.now_s), lambda: self._timer(wake_s))

    def _timer(self, wake_s: float) -> None:
        if self._wake_s == wake_s:
            self._wake_s = None
            due_s = self.machine.wake_s
            if due_s is not None and due_s <= self.kernel.now_s:
                self.handle(Timer())
            else:
                self._set_timer()


def _seat(tree: Tree, path: str, turns: str) -> tuple[int, int | None, int]:
    """Whose turn it is, who owns the node (if there is one), and its version."""
    node = tree.find(path)
    owner, version = (None, 0) if node is None else (node.owner, node.version)
    return tree.nodes[turns].version, owner, version
