"""The agent of a machine: the real shell, in a process that a seed treats badly.

What runs is `holdfast.agent`: `Agent` with its journal and supervisor, `Presence` and `Uplink`.
Around it is what a machine and a network are: a disk that may be torn, decay or be full, processes
that outlive the agent (`host`, `births`), a session in the coordination plane (`agent_session`), a
stream to the leader (`agent_stream`).
"""

from __future__ import annotations

from asyncio import Task, events
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.agent import agent as shell
from holdfast.agent import presence, supervisor, uplink
from holdfast.agent.events import (
    BeginProbes,
    Connected,
    Key,
    OrderAnswer,
    PartsReport,
    WorkerReport,
)
from holdfast.agent.journal import Journal
from holdfast.agent.ports import Equipment
from holdfast.agent.slots import Machine
from holdfast.system.tasks import until_one_ends
from holdfast.wire.errors import BugError, Corrupt
from holdfast.wire.orders import GiveSettings, GiveView, Order, StopWorker, TakeShare
from simulation.agent_session import Session
from simulation.agent_stream import Stream, Transport, sent_batch
from simulation.aio import Killed, VirtualLoop, loop_of
from simulation.births import LOCAL_S, Launcher, ProcessTable
from simulation.kernel import SimulatedProcess
from simulation.plane import Client
from simulation.worker import Worker

if TYPE_CHECKING:
    from simulation.coordinator import Coordinator
    from simulation.host import Host
    from simulation.world import World

RESTART_S: Final = (0.2, 3.0)
REPAIR_S: Final = (0.5, 4.0)
# How long the disk takes to sync.
SYNC_S: Final = (0.0002, 0.01)
SLOW_SYNC_S: Final = (0.05, 1.5)
# The journal is made anew when it has grown by this: a dozen batches.
GROWTH_BYTES: Final = 4_000


class TracedLog:
    """What a shell logs goes into the trace of the world that it runs in, if it runs in one."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, method: str) -> Any:
        def write(what: str, **details: Any) -> None:
            loop = events._get_running_loop()
            if isinstance(loop, VirtualLoop):
                loop.process.tell(what, *details.values())
            else:
                getattr(self._real, method)(what, **details)

        setattr(self, method, write)
        return write


for module in (shell, supervisor, uplink, presence):
    module.log = TracedLog(module.log)  # type: ignore[attr-defined]


class DiskThread:
    """What the journal is written by."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def takes_s(self) -> float:
        # A machine on which shims are late is busy, and so is its disk.
        if any(not shim.has_claimed for shim in self._agent.host.shims.values()):
            return self._agent.world.faults.birth_s(*SLOW_SYNC_S)
        slow = self._agent.world.faults.strikes("slow disk")
        return self._agent.kernel.between(*(SLOW_SYNC_S if slow else SYNC_S))

    def shutdown(self) -> None:
        pass


class Connections:
    """The sockets between an agent and its workers (`ports.WorkerConnections`)."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._host = agent.host
        self._open: set[Key] = set()
        self._connected: set[Key] = set()
        self._parts: set[tuple[Key, int]] = set()  # what was said of attempts

    async def open(self, key: Key, folder: Path) -> None:
        self._agent.may_die()
        self._open.add(key)
        worker = self._host.processes.get(key)
        if worker is not None:
            worker.arrive(lambda: self._host.report_soon(worker))  # it connects, and says all again

    def tell(self, key: Key, what: GiveView | GiveSettings | TakeShare | StopWorker) -> None:
        self._agent.may_die()
        worker = self._host.processes.get(key)
        if worker is not None and key in self._connected:
            worker.kernel.after(LOCAL_S, lambda: worker.arrive(lambda: worker.receive(what)))

    def close(self, key: Key) -> None:
        self._open.discard(key)
        self._connected.discard(key)

    def close_all(self) -> None:
        self._open.clear()

    def take_report(self, worker: Worker, agent: shell.Agent) -> None:
        """A worker says, over its socket, what is true of it."""
        key = worker.key
        if key not in self._open:
            return
        if key not in self._connected:
            self._connected.add(key)
            agent.tell(Connected(key))
        agent.tell(
            WorkerReport(
                key,
                ready=worker.ready,
                view=worker.view.number if worker.view else 0,
                step=worker.held.step if worker.held else None,
                unreadable=frozenset(worker.unreadable),
                ending=worker.ending,
                suspects=worker.suspects,
            )
        )
        for attempt, parts in worker.said_parts.items():
            if parts and (key, attempt) not in self._parts:
                self._parts.add((key, attempt))
                agent.tell(PartsReport(key, attempt, parts))
        for attempt in sorted(worker.missed):
            if (key, attempt) not in self._parts:
                self._parts.add((key, attempt))
                agent.tell(PartsReport(key, attempt, missed=True))


class Watchers:
    """No worker here has probes, a bounded disk, or anything to share (`ports.Watchers`)."""

    def begin_probes(self, action: BeginProbes) -> None:
        raise BugError(f"job {action.order.job} was given probes, which no simulated job has")

    def watch_disk(self, key: Key, bytes_max: int) -> None:
        raise BugError(f"the disk of {key} was bounded, which that of no simulated job is")

    def share(self, key: Key, queue: str, body: Any) -> None:
        raise BugError(f"{key} asked to share {queue}, which no simulated worker does")

    def end(self, key: Key) -> None:
        pass

    async def close(self) -> None:
        pass


class Answered:
    """The agent as its uplink has it: what it answers to orders is judged (`uplink.Reporter`)."""

    def __init__(self, process: Agent, agent: shell.Agent) -> None:
        self._process = process
        self._agent = agent
        self.snapshot = agent.snapshot
        self.changed = agent.changed

    @property
    def version(self) -> int:
        return self._agent.version

    async def deliver(self, term: int, order: Order) -> OrderAnswer:
        answer = await self._agent.deliver(term, order)
        process = self._process
        process.loop.check(process.world.checks.answered, process.host, term, order, answer)
        return answer


class Agent(SimulatedProcess):
    """The process of an agent. Its steady clock is its machine's (`system.clock.Clock`)."""

    def __init__(self, world: World, host: Host) -> None:
        super().__init__(world.kernel, host.name)
        self.world = world
        self.host = host
        self.loop = loop_of(self)
        self.client = Client(self, host.name, self._session_lost, self._plane_changed)
        self.stream: Stream | None = None
        self._shell: shell.Agent | None = None
        self._connections: Connections | None = None
        self._session: Session | None = None

    # --- its life -------------------------------------------------------------------------------

    def start(self) -> None:
        """Recover from the journal, find the living and the dead, join the plane, and follow the
        leader."""
        self.begin()
        self.tell("starts")
        self.stream = self._shell = self._session = None
        self.loop = loop_of(self)
        self.loop.run(self._live(), self._ended)

    async def _live(self) -> None:
        """As `holdfast.agent.main` does it."""
        host = self.host
        journal, recovery = Journal.recover(host.disk, GROWTH_BYTES)
        if host.disk.forgot:
            self.world.checks.forgot(host)
        state = shell.recovered(host.name, Machine(host.capacity), recovery.entries, self)
        agent = shell.Agent(state, journal, self, DiskThread(self), self._equip)  # type: ignore[arg-type]
        self._shell = agent
        await agent.recover()
        place = presence.Presence(self._connect, host.name, {})
        link = uplink.Uplink(Answered(self, agent), host.name, Transport(self), place.session_id)
        works = (place.run(link.point_to), link.run(), agent.failed())
        await until_one_ends(*works, name="agent")

    def _equip(self, agent: shell.Agent) -> Equipment:
        self._connections = connections = Connections(self)
        parts = (self.host.folders, ProcessTable(self), Launcher(self))
        return Equipment(*parts, connections, Watchers())

    async def _connect(self) -> Session:
        session = self._session = Session(self)
        await session.open()
        return session

    def _ended(self, task: Task[None]) -> None:
        """The shell has ended by itself: its journal is damaged, or it is broken."""
        error = task.exception()
        if isinstance(error, Corrupt):
            self._refuse(error)
        elif isinstance(error, OSError):
            self.crash()  # no room for a journal: whoever keeps it alive starts it again
        elif error is not None:
            raise error

    def _refuse(self, error: Corrupt) -> None:
        """The journal is damaged: the agent does not start, until somebody has mended it."""
        self.tell("does not start:", error.what)
        self.world.happened["damaged journal"] += 1
        self.die()
        self.kernel.after(self.kernel.between(*REPAIR_S), self.host.repair)

    def now_s(self) -> float:
        return self.kernel.now_s + self.host.clock_ahead_s

    def wall_ms(self) -> int:
        return int(self.kernel.now_s * 1000)

    def die(self) -> None:
        super().die()
        self.loop.end()

    def crash(self, restart_s: tuple[float, float] = RESTART_S) -> None:
        """It dies, and is started again after a while."""
        if not self.up:
            return
        self.tell("dies")
        self.die()
        self.world.plane.expect_silence(self.host.name)
        self.kernel.after(self.kernel.between(*restart_s), self.start)

    def kill(self) -> None:
        """It dies while it is doing something: nothing after this happens."""
        self.crash()
        self.unwind()

    def unwind(self) -> None:
        raise Killed

    def may_die(self) -> None:
        """Between two things that it does to the world."""
        if self.up and self.world.faults.strikes("step crash"):
            self.kill()

    def broken(self, error: BaseException) -> None:
        """A task of the simulated session has died."""
        raise error

    # --- what comes from outside ----------------------------------------------------------------

    def _session_lost(self) -> None:
        self.tell("has lost its session")
        if self._session is not None:
            self.loop.enter(self._session.lost)

    def _plane_changed(self) -> None:
        if self._session is not None:
            self.loop.enter(self._session.wake)

    def take_report(self, worker: Worker) -> None:
        """A worker says, over its socket, what is true of it."""
        if worker.up and self._shell is not None and self._connections is not None:
            self.loop.enter(self._connections.take_report, worker, self._shell)

    def order(self, term: int, session: int, order: Order, leader: Coordinator) -> None:
        """An order has come from a leader; without a stream it is lost."""
        if self.stream is not None:
            self.loop.enter(self.stream.put, sent_batch(term, session, order, leader))
