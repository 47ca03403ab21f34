"""A machine: what survives its agent. Its disk, its workers' folders, its processes."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.agent.events import NOBODY, Ending, Identity, Key
from holdfast.wire.errors import Full
from holdfast.wire.resources import Resources
from simulation.agent import Agent
from simulation.births import LOCAL_S, Shim
from simulation.disk import Disk
from simulation.worker import Worker

if TYPE_CHECKING:
    from simulation.world import World

FULL_S: Final = (0.2, 2.0)


class Folders:
    """The workers' folders (`ports.WorkerFolders`): each is made, is claimed once, and goes."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.made: dict[Key, object] = {}
        self.claims: dict[Key, Identity] = {}
        self.endings: dict[Key, Ending] = {}  # as their shims have noted them

    def worker(self, key: Key) -> Path:
        return Path(f"{key.job}.{key.worker}")

    def is_there(self, key: Key) -> bool:
        return key in self.made

    def promise(self, keys: Iterable[Key]) -> None:
        self._host.agent.may_die()
        if self._host.is_full:
            raise Full("no room for a worker's folder")
        for key in keys:
            self.made.setdefault(key, object())

    def present(self) -> list[Key]:
        return list(self.made)

    def claim(self, key: Key) -> Identity | None:
        return self.claims.get(key)

    def claim_void(self, key: Key) -> bool:
        self._host.agent.may_die()
        if key not in self.made:
            raise FileNotFoundError(errno.ENOENT, "it has no folder")
        if key in self.claims:
            return False
        if self._host.is_full:
            raise OSError(errno.ENOSPC, "no room for a claim")
        self.claims[key] = NOBODY
        return True

    def ending(self, key: Key) -> Ending | None:
        return self.endings.get(key)

    def stderr_tail(self, key: Key) -> str:
        return ""

    def shim_words(self, key: Key) -> str:
        return ""

    def drop_old_logs(self, living: frozenset[Key]) -> None:
        pass

    def finish_removals(self) -> None:
        pass

    def remove(self, key: Key) -> None:
        """Nothing can be started from it any more, however late."""
        self.made.pop(key, None)
        self.claims.pop(key, None)
        self.endings.pop(key, None)


class Host:
    """What survives the agent: the machine's processes and how they ended, and its disk."""

    def __init__(self, world: World, name: str, capacity: Resources) -> None:
        self.world = world
        self.name = name
        self.capacity = capacity
        self.boot = 1
        self.forked = 0
        self.clock_ahead_s = 0.0  # its steady clock, beside the world's
        self.processes: dict[Key, Worker] = {}  # those that are alive
        self.shims: dict[Identity, Shim] = {}
        self.folders = Folders(self)
        self.agent = Agent(world, self)
        self.disk = self._new_disk()
        self._full_until_s = 0.0
        self._saying: set[Key] = set()

    # --- its disk --------------------------------------------------------------------------------

    def _new_disk(self) -> Disk:
        disk = Disk(self._writes)
        disk.is_full = self._finds_no_room
        return disk

    @property
    def is_full(self) -> bool:
        return self.world.kernel.now_s < self._full_until_s

    def _finds_no_room(self) -> bool:
        if not self.is_full and self.world.faults.strikes("full disk"):
            self.agent.tell("has no room for its journal")
            kernel = self.world.kernel
            self._full_until_s = kernel.now_s + kernel.between(*FULL_S)
        return self.is_full

    def _writes(self) -> tuple[float | None, Callable[[], None]]:
        """How much of a write is written, and what happens to the writer."""
        faults = self.world.faults
        if faults.strikes("torn write"):
            return faults.random.choice((1.0, faults.random.random())), self.agent.kill
        if faults.strikes("lost write"):
            return 0.0, self._lose_power
        return None, lambda: None

    def _lose_power(self) -> None:
        self.crash()
        self.agent.unwind()

    # --- its processes ---------------------------------------------------------------------------

    def born(self, shim: Shim) -> None:
        """A shim has claimed the worker's folder, and starts its process."""
        key = shim.key
        worker = Worker(self.world, self, key, self.world.settings.trainings[key.job])
        self.processes[key] = worker
        self.world.workers[key] = worker
        self.world.checks.started(self, key)

    def reap(self, worker: Worker, ending: Ending) -> None:
        """A process has ended: its shim notes how, and ends too."""
        del self.processes[worker.key]
        self.world.news = True
        self.folders.endings[worker.key] = ending
        shim = self.shims.get(self.folders.claims.get(worker.key, NOBODY))
        if shim is not None:
            shim.end()

    def report_soon(self, worker: Worker) -> None:
        """A worker has something to say; what it says in one moment is said once."""
        if worker.key not in self._saying:
            self._saying.add(worker.key)
            self.world.kernel.after(LOCAL_S, lambda: self._report(worker))

    def _report(self, worker: Worker) -> None:
        self._saying.discard(worker.key)
        self.world.news = True
        if worker.up:
            self.agent.arrive(lambda: self.agent.take_report(worker))

    # --- what becomes of it ----------------------------------------------------------------------

    def crash(self) -> None:
        """The power fails: everything dies, and nobody sees how."""
        self._end_processes("dies with its machine")
        self.disk.lose_power()
        self.boot += 1
        self.agent.crash()

    def repair(self) -> None:
        """What a person does about a damaged journal, as the error says: end the workers of this
        machine, move the file away, start the agent again."""
        self._end_processes("is ended by hand")
        self.disk = self._new_disk()
        self.world.checks.forgot(self)
        self.agent.start()

    def _end_processes(self, how: str) -> None:
        self.world.news = True
        for worker in list(self.processes.values()):
            worker.tell(how)
            worker.die()
        self.processes.clear()
        for shim in list(self.shims.values()):
            shim.end()
