"""A machine's processes: how workers come into the world and are held.

A shim is forked, and claims the worker's folder (as `holdfast.agent.shim` does it).

The shim is no longer the agent's once it is forked: it may claim after its agent has died, and
after the next one has looked for a claim and found none. Then two shims want the same folder; the
first claim decides, and the other shim ends. A shim lives as long as its worker, and notes how that
ended.

What is drawn here is drawn from a source of its own: a world in which nothing of it happens is the
same as one without it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.agent.events import Ending, Force, Identity, Key, Slots
from holdfast.wire.orders import StartWorker
from simulation.kernel import SimulatedProcess

if TYPE_CHECKING:
    from simulation.agent import Agent
    from simulation.host import Host

# Within a machine news takes so long.
LOCAL_S: Final = 0.0005
# From the decision to the fork: a bundle is unpacked, the zygote is waited for.
FORK_S: Final = (0.01, 0.5)
# From the fork to the claim, on a machine that is busy.
CLAIM_S: Final = (0.01, 4.0)
# How long after a fork an agent dies, and after which time it is started again.
CRASH_S: Final = (0.0, 0.1)
RESTART_S: Final = (0.05, 0.6)
PAUSE_S: Final = (0.0, 0.6)
PAUSED_S: Final = (1.0, 4.0)
# How long a folder is being removed for whose worker another shim may come.
REMOVAL_S: Final = (0.01, 3.0)


class Shim(SimulatedProcess):
    """A process that was forked for a worker."""

    def __init__(self, host: Host, key: Key, number: int) -> None:
        super().__init__(host.world.kernel, f"{key.job}.{key.worker}")
        self.host = host
        self.key = key
        self.identity = Identity(number, 1, str(host.boot))
        self.folder = host.folders.made.get(key)
        self.has_claimed = False
        self.holders: list[Handle] = []
        self.begin()
        host.shims[self.identity] = self

    def claim(self) -> None:
        """Take the folder, if nobody has and it is still that one; then the worker begins."""
        folders = self.host.folders
        in_place = self.folder is not None and folders.made.get(self.key) is self.folder
        if not in_place or self.key in folders.claims:
            self.end()
            return
        self.has_claimed = True
        folders.claims[self.key] = self.identity
        self.host.born(self)

    def signal(self, number: signal.Signals) -> None:
        """As the agent sends it; before its claim a shim ends by it."""
        if number == signal.SIGCONT:
            return
        if not self.has_claimed:
            self.end()
            return
        worker = self.host.processes.get(self.key)
        if worker is not None:
            worker.signal(Force.ASK if number == signal.SIGTERM else Force.KILL)

    def end(self) -> None:
        """It is gone, and whoever holds it is told."""
        if self.up:
            self.host.world.news = True
            self.die()
            del self.host.shims[self.identity]
            holders, self.holders = self.holders, []
            for holder in holders:
                holder.tell_soon()


class Handle:
    """An agent holds a shim (`ports.HeldProcess`)."""

    def __init__(self, agent: Agent, shim: Shim) -> None:
        self._agent = agent
        self._life = agent.life
        self._shim = shim
        self._ended: Callable[[], None] | None = None

    @property
    def identity(self) -> Identity:
        return self._shim.identity

    def send(self, number: signal.Signals) -> None:
        self._agent.may_die()
        self._shim.after(LOCAL_S, lambda: self._shim.signal(number))

    def on_end(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        if self._shim.up:
            self._shim.holders.append(self)
        else:
            self.tell_soon()

    def tell_soon(self) -> None:
        self._agent.kernel.after_for(LOCAL_S, self._tell, self._agent, self._life)

    def _tell(self) -> None:
        if self._ended is not None:
            ended, self._ended = self._ended, None
            self._agent.loop.enter(ended)

    async def wait(self) -> None:
        over = asyncio.get_running_loop().create_future()
        self.on_end(lambda: over.set_result(None))
        await over

    def close(self) -> None:
        self._ended = None


class Launcher:
    """What an agent starts workers by (`ports.Launching`)."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._host = agent.host

    def begin(self) -> None:
        pass

    async def gather(self, key: Key, order: StartWorker, slots: Slots) -> None:
        agent, faults = self._agent, self._host.world.faults
        agent.may_die()
        agent.loop.check(self._host.world.checks.starts, self._host, order)
        if faults.strikes_birth("slow fork"):
            await asyncio.sleep(faults.birth_s(*FORK_S))

    def taken(self, slots: Slots) -> tuple[int, ...]:
        return ()

    async def prepare(self, key: Key, order: StartWorker, slots: Slots, gathered: object) -> bool:
        return False

    async def start(self, key: Key, *, warm: bool) -> tuple[Identity, Handle | None]:
        agent, host = self._agent, self._host
        world, faults = host.world, host.world.faults
        host.forked += 1
        shim = Shim(host, key, host.forked)
        if not faults.strikes_birth("late claim"):
            agent.loop.check(shim.claim)
            return shim.identity, Handle(agent, shim)
        shim.tell("has a shim that is late")
        shim.after(faults.birth_s(*CLAIM_S), shim.claim)
        if faults.strikes_birth("launch crash"):
            agent.after(faults.birth_s(*CRASH_S), lambda: agent.crash(RESTART_S))
        if not world.settings.trainings[key.job].spec.serves and faults.strikes_birth(
            "early pause"
        ):
            shim.after(faults.birth_s(*PAUSE_S), lambda: self._pause(key))
        return shim.identity, Handle(agent, shim)

    def _pause(self, key: Key) -> None:
        world = self._host.world
        world.pause(key.job)
        if world.faults.quiet:  # at peace users want what they wanted at first
            world.kernel.after(world.faults.birth_s(*PAUSED_S), lambda: world.resume(key.job))

    async def remove(self, key: Key) -> None:
        """Slowly, if another shim may come for it: the end is reported before."""
        self._agent.may_die()
        if any(shim.key == key for shim in self._host.shims.values()):
            await asyncio.sleep(self._host.world.faults.birth_s(*REMOVAL_S))
        self._host.folders.remove(key)
        if self._host.world.faults.strikes_birth("end lost"):
            self._host.disk.flip_last(self._host.world.faults.birth_s(0.0, 1.0))
            self._agent.after(LOCAL_S, self._host.crash)

    async def tidy(self, gone: Key | None = None) -> None:
        pass

    async def close(self) -> None:
        pass


class ProcessTable:
    """The machine's processes, as its present agent sees them (`ports.Processes`)."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def hold(self, identity: Identity) -> Handle | None:
        shim = self._agent.host.shims.get(identity)
        return None if shim is None else Handle(self._agent, shim)

    def kill_all(self, folder: Path) -> None:
        host = self._agent.host
        for key, worker in list(host.processes.items()):
            if host.folders.worker(key) == folder:
                worker.end(Ending(signal=9))

    async def sweep(self, folder: Path) -> None:
        self.kill_all(folder)

    def is_paused_below(self, identity: Identity) -> bool:
        shim = self._agent.host.shims.get(identity)
        worker = None if shim is None else self._agent.host.processes.get(shim.key)
        return worker is not None and worker.stopped
