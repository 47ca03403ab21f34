"""The agent: state machine, journal, supervisor and channel behind two calls.

    agent = await Agent.start(folder, node, machine, bundle_folder)
    answer = await agent.deliver(term, order)
    facts = agent.snapshot()

One loop takes all events, in the order in which they come. Those that wait while the disk is busy
are handled as one batch: the machine decides, all its journal entries become durable with one
fsync, and only then anything is done, answered or reported.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdfast.agent import cgroups
from holdfast.agent.channel import Channel
from holdfast.agent.coordination import Coordination
from holdfast.agent.disk_use import DiskWatch
from holdfast.agent.events import (
    Action,
    Answer,
    BeginProbes,
    Bury,
    Event,
    Examine,
    Key,
    OrderReceived,
    Recovered,
    Report,
    SignalProcess,
    StartProcess,
    Tell,
    Timer,
    WatchDisk,
    key_of,
)
from holdfast.agent.events import Journal as JournalAction
from holdfast.agent.folders import Folders
from holdfast.agent.journal import Journal
from holdfast.agent.launching import Bounds, Launcher, Place, ReplicaAccess
from holdfast.agent.machine import AgentMachine
from holdfast.agent.privacy import Privacy
from holdfast.agent.probing import Prober
from holdfast.agent.slots import Machine
from holdfast.agent.supervisor import BundleFolder, Supervisor
from holdfast.wire import logs
from holdfast.wire.clock import Clock, SystemClock
from holdfast.wire.errors import BugError, Cancelled, Full
from holdfast.wire.limits import JOURNAL_RETRY_S
from holdfast.wire.orders import Order, StopWorker
from holdfast.wire.reports import NodeFacts
from holdfast.wire.tasks import WAITED, end, start_task, unexpected

# Events that wait for the disk; an order beyond it is refused for now.
AGENT_EVENTS_MAX: Final = 10_000

log = logs.get(__name__)
_NO_PRIVACY: Final = Privacy("", "it was not asked for")


class _Waiting(NamedTuple):
    """An event, and who waits until it has been dealt with."""

    event: Event
    dealt_with: asyncio.Future[Answer | None] | None = None


class Agent:
    """A running agent. Made by `start`; used from one loop."""

    def __init__(
        self,
        folders: Folders,
        machine: AgentMachine,
        journal: Journal,
        bundle_folder: BundleFolder,
        clock: Clock,
        launcher: Launcher,
    ) -> None:
        self._folders = folders
        self._machine = machine
        self._journal = journal
        self._clock = clock
        self._waiting: list[_Waiting] = []
        self._wake = asyncio.Event()
        self._facts = machine.snapshot()
        self._version = 0
        self._changed = asyncio.Condition()
        # One thread: the journal has one writer, and its order is the order of events.
        self._disk = ThreadPoolExecutor(1, "holdfast-journal")
        self._launcher = launcher
        self._supervisor = Supervisor(folders, bundle_folder, self._tell, launcher, self._died)
        self._prober = Prober(launcher.host, folders.launch, self._tell, self._died)
        self._disk_watch = DiskWatch(folders.worker, self._tell, self._died)
        self._channel = Channel(self._heard, self._tell, self._shares)
        self.coordination = Coordination(machine.node, self._channel.send)
        self._lock = -1
        self._loop: asyncio.Task[None] | None = None
        self._failure: BugError | None = None

    @classmethod
    async def start(
        cls,
        folder: Path,
        node: str,
        machine: Machine,
        bundle_folder: BundleFolder,
        *,
        store: str = "",
        coordination: str = "",
        region: str = "",
        warm: bool = False,
        clock: Clock | None = None,
        bounds: Bounds | None = None,
        privacy: Privacy = _NO_PRIVACY,
        keep: tuple[str, ...] = (),
        stores: tuple[str, ...] = (),
        replica_access: ReplicaAccess | None = None,
    ) -> Agent:
        """Take the folder, recover from its journal, find the living workers, and go on.

        `store` and `coordination` are the addresses of the blobs and of the plane, `region` is
        where this machine is: workers are told all of it. `warm`: torch is imported for them from
        now on, not only when the first wants it. `privacy`: how workers get a /tmp of their own;
        they see the folders `keep` though these lie in it, and write to those of `stores`.
        `replica_access`: what a replica of a service shows to the plane; None: as all workers.
        When it returns, `snapshot` is complete. `Occupied`: another agent has the folder.
        """
        folders = Folders(folder)
        folders.make()
        lock = folders.take()
        try:
            journal, recovery = Journal.open(folders.home)
        except BaseException:
            os.close(lock)
            raise
        if recovery.cut_bytes:
            log.warning("an unfinished batch was cut off", bytes=recovery.cut_bytes)
        if recovery.unknown:
            kinds = sorted({str(record["kind"])[:50] for record in recovery.unknown})
            log.warning("a newer version wrote to the journal; that is kept", kinds=kinds[:20])
        clock = clock or SystemClock()
        state = AgentMachine(node, machine)
        for entry in recovery.entries:
            state.handle(Recovered(entry), clock.now_s())
        state.validate()
        found = cgroups.find()
        log.info("how workers are limited", groups=bool(found.groups), reason=found.reason)
        log.info("whether workers have a /tmp of their own", **privacy._asdict())
        places = (privacy, keep, stores)
        place = Place(machine.host, store, warm, region, coordination, *places, replica_access)
        launcher = Launcher(folders, found.groups, bounds or Bounds(), place)
        agent = cls(folders, state, journal, bundle_folder, clock, launcher)
        agent._lock = lock
        await agent._recover()
        return agent

    async def _recover(self) -> None:
        self._launcher.begin()
        living = self._machine.living()
        await self._supervisor.end_strangers(frozenset(living))
        self._loop = start_task(self._run(), "agent", WAITED)
        for key in living:
            folder = self._folders.worker(key)
            if folder.is_dir():  # and if not, none is made: that it is gone says what has become
                await self._channel.open(key, folder)
        for key in living:
            if self._machine.is_stopping(key):
                await self._supervisor.call_off(key)
            await self._submit(await self._supervisor.find(key))

    # --- the port --------------------------------------------------------------------------------

    async def deliver(self, term: int, order: Order) -> Answer:
        """Give it an order. The answer is durable, where the order is one that must be.

        `Full`: too much waits for the disk; send it again. Safe to repeat in any case.
        """
        if len(self._waiting) >= AGENT_EVENTS_MAX:
            raise Full(
                f"{len(self._waiting)} events wait for the disk of {self._machine.node}",
                fix=f"look at the disk of {self._folders.home}",
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
        self._channel.close_all()
        await self._prober.close()
        await self._disk_watch.close()
        await self.coordination.close()
        await self._supervisor.close()
        self._disk.shutdown()
        self._journal.close()
        os.close(self._lock)

    # --- events ----------------------------------------------------------------------------------

    def _died(self, error: BaseException) -> None:
        """A task of ours is gone, and with it perhaps the news of a worker's end: only a new agent
        finds out."""
        log.error("a task of the agent has died", exc_info=error)
        self._failure = self._failure or unexpected("a task of the agent", error)
        self._wake.set()

    def _tell(self, event: Event) -> None:
        self._waiting.append(_Waiting(event))
        self._wake.set()

    async def _heard(self, event: Event) -> None:
        await self._submit(event)

    def _shares(self, key: Key, body: Any) -> None:
        queue = self._machine.queue_of(key)
        if queue is not None:
            self.coordination.heard(key, queue, body)

    async def _submit(self, event: Event) -> Answer | None:
        if self._loop is None or self._loop.done():
            raise _ended(self._machine.node)
        future: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
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
                batch, self._waiting = [*self._waiting, _Waiting(Timer())], []
                await self._deal_with(batch)
        finally:
            for waiting in (*batch, *self._waiting):
                if waiting.dealt_with is not None and not waiting.dealt_with.done():
                    waiting.dealt_with.set_exception(_ended(self._machine.node))

    async def _sleep(self) -> None:
        """Until there is an event, or the machine wants to look at the clock."""
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
        entries = [action.entry for action in actions if isinstance(action, JournalAction)]
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
                await self._channel.open(key, self._folders.worker(key))
                self._supervisor.start(action)
            case SignalProcess(key, force):
                self._supervisor.signal(key, force)
            case Tell(key, what):
                self._channel.tell(key, what)
            case Examine(key):
                self._supervisor.examine(key)
            case BeginProbes():
                self._prober.begin(action)
            case WatchDisk(key, bytes_max):
                self._disk_watch.begin(key, bytes_max)
            case Bury(key):
                self._prober.end(key)
                self._disk_watch.end(key)
                self._channel.close(key)
                self.coordination.ended(key)
                self._supervisor.bury(key, frozenset(self._machine.living()))


def _answer(actions: list[Action]) -> Answer | None:
    return next((action for action in actions if isinstance(action, Answer)), None)


def _ended(node: str) -> Cancelled:
    return Cancelled(f"the agent of {node} has ended", fix="start it again; its workers go on")
