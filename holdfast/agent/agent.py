"""The agent: state machine, journal and supervisor behind two calls.

    agent = await start_agent(folder, node, machine, bundle_folder)   # `assembly`
    answer = await agent.deliver(term, order)
    facts = agent.snapshot()

One loop takes all events, in the order in which they come. Those that wait while the disk is busy
are handled as one batch: the machine decides, all its journal entries become durable with one
fsync, and only then anything is done, answered or reported. Whatever touches the world is passed in
(`ports`): the simulator runs this very shell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final, NamedTuple

from holdfast.agent.events import (
    Action,
    BeginProbes,
    CleanUp,
    Entry,
    Event,
    Examine,
    Key,
    OrderAnswer,
    OrderReceived,
    Recovered,
    Report,
    SignalProcess,
    StartProcess,
    Tell,
    Timer,
    WatchDisk,
    WriteEntry,
    key_of,
)
from holdfast.agent.journal import Journal
from holdfast.agent.machine import AgentMachine
from holdfast.agent.ports import Equipment
from holdfast.agent.slots import Machine
from holdfast.agent.supervisor import WorkerSupervisor
from holdfast.system import logs
from holdfast.system.clock import Clock
from holdfast.system.tasks import WAITED, end, start_task, unexpected
from holdfast.wire.errors import BugError, Cancelled, Full
from holdfast.wire.limits import JOURNAL_RETRY_S
from holdfast.wire.orders import Order, StopWorker
from holdfast.wire.reports import NodeFacts

# Events that wait for the disk; an order beyond it is refused for now.
AGENT_EVENTS_MAX: Final = 10_000

log = logs.get(__name__)


class _Waiting(NamedTuple):
    """An event, and who waits until it has been dealt with."""

    event: Event
    dealt_with: asyncio.Future[OrderAnswer | None] | None = None


class Agent:
    """A running agent, once `recover` has returned; used from one loop. `disk` runs what writes,
    one thing at a time and in order. `equip` gives it what it works with, and is given the agent
    itself: for events (`tell`, `take`), for what workers share, and for tasks that died."""

    def __init__(
        self,
        machine: AgentMachine,
        journal: Journal,
        clock: Clock,
        disk: Executor,
        equip: Callable[[Agent], Equipment],
    ) -> None:
        self._machine = machine
        self._journal = journal
        self._clock = clock
        self._disk = disk
        self._waiting: list[_Waiting] = []
        self._wake = asyncio.Event()
        self._facts = machine.snapshot()
        self._version = 0
        self._changed = asyncio.Condition()
        self._failure: BugError | None = None
        self._loop: asyncio.Task[None] | None = None
        equipment = equip(self)
        self._folders = equipment.folders
        self._launcher = equipment.launcher
        self._connections = equipment.connections
        self._watchers = equipment.watchers
        self._supervisor = WorkerSupervisor(
            self._folders, equipment.processes, self._launcher, self.tell, self.died
        )

    async def recover(self) -> None:
        """Find the living workers, and go on. When it returns, `snapshot` is complete."""
        self._machine.validate()
        self._launcher.begin()
        living = self._machine.living()
        await self._supervisor.end_strangers(frozenset(living))
        self._loop = start_task(self._run(), "agent", WAITED)
        for key in living:
            if self._folders.is_there(key):  # and if not, none is made: that it is gone says what
                await self._connections.open(key, self._folders.worker(key))  # has become of it
        for key in living:
            if self._machine.is_stopping(key):
                await self._supervisor.call_off(key)
            await self._submit(await self._supervisor.find(key))

    # --- the port --------------------------------------------------------------------------------

    async def deliver(self, term: int, order: Order) -> OrderAnswer:
        """Give it an order. The answer is durable, where the order is one that must be.

        `Full`: too much waits for the disk; send it again. Safe to repeat in any case.
        """
        if len(self._waiting) >= AGENT_EVENTS_MAX:
            raise Full(
                f"{len(self._waiting)} events wait for the disk of {self._machine.node}",
                fix="look at the disk of its folder",
            )
        answer = await self._submit(OrderReceived(term, order))
        assert answer is not None, "every order is answered"
        return answer

    def snapshot(self) -> NodeFacts:
        """What is durably true of this machine now."""
        return self._facts

    @property
    def version(self) -> int:
        """Grows with every change of the snapshot."""
        return self._version

    async def changed(self, version: int) -> int:
        """Wait until the snapshot is newer than `version`; its version."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._version > version)
        return self._version

    async def stop_workers(self, notice_s: float) -> None:
        """Ask every worker to leave, as the present leader might; return when all have gone."""
        node = self._machine.node
        for job, worker in self._machine.living():
            await self.deliver(self._machine.term, StopWorker(node, job, worker, notice_s))
        while True:
            version = self._version
            if not self._machine.living():
                return
            await self.changed(version)

    async def failed(self) -> None:
        """Wait until the agent cannot go on; raises why. Its workers go on."""
        assert self._loop is not None
        await asyncio.shield(self._loop)

    async def close(self) -> None:
        """Stop acting. Workers go on, and the next agent finds them."""
        if self._loop is not None:
            await end(self._loop)
        self._connections.close_all()
        await self._watchers.close()
        await self._supervisor.close()
        self._disk.shutdown()
        self._journal.close()

    # --- events ----------------------------------------------------------------------------------

    def died(self, error: BaseException) -> None:
        """A task of ours is gone, and with it perhaps the news of a worker's end: only a new agent
        finds out."""
        log.error("a task of the agent has died", exc_info=error)
        self._failure = self._failure or unexpected("a task of the agent", error)
        self._wake.set()

    def tell(self, event: Event) -> None:
        """Something has happened."""
        self._waiting.append(_Waiting(event))
        self._wake.set()

    async def take(self, event: Event) -> None:
        """The same; returns when it has been dealt with."""
        await self._submit(event)

    def share(self, key: Key, body: Any) -> None:
        """A worker wants to share something: it is done for its queue."""
        queue = self._machine.queue_of(key)
        if queue is not None:
            self._watchers.share(key, queue, body)

    async def _submit(self, event: Event) -> OrderAnswer | None:
        if self._loop is None or self._loop.done():
            raise _ended(self._machine.node)
        future: asyncio.Future[OrderAnswer | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(event, future))
        self._wake.set()
        return await future

    async def _run(self) -> None:
        batch: list[_Waiting] = []
        try:
            while True:
                await self._sleep()
                if self._failure is not None:
                    raise self._failure
                batch, self._waiting = self._waiting, []
                if self._is_due():
                    batch.append(_Waiting(Timer()))
                await self._deal_with(batch)
        finally:
            for waiting in (*batch, *self._waiting):
                if waiting.dealt_with is not None and not waiting.dealt_with.done():
                    waiting.dealt_with.set_exception(_ended(self._machine.node))

    def _is_due(self) -> bool:
        wake_s = self._machine.wake_s
        return wake_s is not None and wake_s <= self._clock.now_s()

    async def _sleep(self) -> None:
        """Until there is an event, or the machine wants to look at the clock."""
        if self._wake.is_set():
            self._wake.clear()
            return
        wake_s = self._machine.wake_s
        timeout_s = None if wake_s is None else max(0.0, wake_s - self._clock.now_s())
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return
        finally:
            self._wake.clear()

    async def _deal_with(self, batch: list[_Waiting]) -> None:
        now_s = self._clock.now_s()
        decided = [(waiting, self._machine.handle(waiting.event, now_s)) for waiting in batch]
        actions = [action for _, each in decided for action in each]
        await self._write_down(actions)
        if any(isinstance(action, Report) for action in actions):
            self._facts = self._machine.snapshot()
            self._version += 1
        for action in actions:
            await self._do(action)
        for waiting, each in decided:
            if waiting.dealt_with is not None and not waiting.dealt_with.done():
                waiting.dealt_with.set_result(_answer(each))
        async with self._changed:
            self._changed.notify_all()
        if self._journal.wants_compaction:
            await self._compact()

    async def _write_down(self, actions: list[Action]) -> None:
        """Make the entries durable, and first the folders of those who are to be started: whoever
        is in the journal and has no folder has ended. Without room the agent waits: it decides
        nothing meanwhile."""
        entries = [action.entry for action in actions if isinstance(action, WriteEntry)]
        begun = [key_of(action.order) for action in actions if isinstance(action, StartProcess)]
        if begun:
            await self._on_disk(lambda: self._folders.promise(begun))
        if entries:
            await self._on_disk(lambda: self._journal.append(entries))

    async def _on_disk(self, work: Callable[[], None]) -> None:
        while True:
            try:
                await asyncio.get_running_loop().run_in_executor(self._disk, work)
            except Full as error:
                log.warning("the journal waits for room", reason=str(error))
                await asyncio.sleep(JOURNAL_RETRY_S)
            else:
                return

    async def _compact(self) -> None:
        """Without room for both the journal goes on as it is: it is longer than it need be."""
        work = partial(self._journal.compact, list(self._machine.entries()))
        try:
            await asyncio.get_running_loop().run_in_executor(self._disk, work)
        except Full as error:
            log.warning("the journal is not written anew for want of room", reason=str(error))

    async def _do(self, action: Action) -> None:
        match action:
            case StartProcess(order, _):
                key = key_of(order)
                await self._connections.open(key, self._folders.worker(key))
                self._supervisor.start(action)
            case SignalProcess(key, force):
                self._supervisor.signal(key, force)
            case Tell(key, what):
                self._connections.tell(key, what)
            case Examine(key):
                self._supervisor.examine(key)
            case BeginProbes():
                self._watchers.begin_probes(action)
            case WatchDisk(key, bytes_max):
                self._watchers.watch_disk(key, bytes_max)
            case CleanUp(key):
                self._watchers.end(key)
                self._connections.close(key)
                self._supervisor.clean_up(key, frozenset(self._machine.living()))


def recovered(node: str, machine: Machine, entries: Iterable[Entry], clock: Clock) -> AgentMachine:
    """The state of an agent whose journal holds these."""
    state = AgentMachine(node, machine)
    for entry in entries:
        state.handle(Recovered(entry), clock.now_s())
    return state


def _answer(actions: list[Action]) -> OrderAnswer | None:
    return next((action for action in actions if isinstance(action, OrderAnswer)), None)


def _ended(node: str) -> Cancelled:
    return Cancelled(f"the agent of {node} has ended", fix="start it again; its workers go on")
