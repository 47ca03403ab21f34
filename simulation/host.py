"""A machine: what survives its agent."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from holdfast.agent.events import NOBODY, Ending, Identity, Key, ProcessExited
from holdfast.wire.room import Resources
from simulation.agent import LOCAL_S, Agent
from simulation.births import Births
from simulation.disk import Disk
from simulation.worker import Worker

if TYPE_CHECKING:
    from simulation.world import World


class Host:
    """What survives the agent: the machine's processes and how they ended, and its disk."""

    def __init__(self, world: World, name: str, capacity: Resources) -> None:
        self.world = world
        self.name = name
        self.capacity = capacity
        self.disk = Disk()
        self.boot = 1
        self.clock_ahead_s = 0.0  # its steady clock, beside the world's
        self.processes: dict[Key, Worker] = {}  # those that are alive
        self.endings: dict[Key, Ending] = {}  # as their parents have noted them
        self.folders: dict[Key, object] = {}  # made before the journal knows of the worker
        self.started: dict[Key, Identity] = {}  # the claims in them
        self.agent = Agent(world, self)
        self.births = Births(self)
        self._saying: set[Key] = set()

    def born(self, key: Key, claim: Identity) -> None:
        """A shim has claimed the worker's folder, and starts its process."""
        self.started[key] = claim
        worker = Worker(self.world, self, key, self.world.settings.trainings[key.job])
        self.processes[key] = worker
        self.world.workers[key] = worker
        self.world.checks.started(self, key)

    def void(self, key: Key) -> bool:
        """Make a claim for nobody: no shim can come any more; False: one has come."""
        if key in self.started:
            return False
        if key in self.folders:
            self.started[key] = NOBODY
        return True

    def reap(self, worker: Worker, ending: Ending) -> None:
        """A process has ended."""
        del self.processes[worker.key]
        self.world.news = True
        self.endings[worker.key] = ending
        if not self.births.starting(worker.key):
            self.agent.soon(ProcessExited(worker.key, ending))

    def heard(self, worker: Worker) -> None:
        """A worker has something to say; what it says in one moment is said once."""
        if worker.key not in self._saying:
            self._saying.add(worker.key)
            self.world.kernel.after(LOCAL_S, lambda: self._hear(worker))

    def _hear(self, worker: Worker) -> None:
        self._saying.discard(worker.key)
        self.world.news = True
        if worker.up:
            self.agent.arrive(lambda: self.agent.hear(worker))

    def crash(self) -> None:
        """The power fails: everything dies, and nobody sees how."""
        self._end_processes("dies with its machine")
        self.boot += 1
        self.agent.crash()

    def repair(self) -> None:
        """What a person does about a damaged journal, as the error says: end the workers of this
        machine, move the file away, start the agent again."""
        self._end_processes("is ended by hand")
        self.disk = Disk()
        self.world.checks.forgot(self)
        self.agent.start()

    def end_strangers(self, living: Collection[Key]) -> None:
        """As the supervisor does: what the journal does not know is ended, its folder removed."""
        self.world.news = True
        for key in [key for key in self.folders if key not in living]:
            self.bury(key)

    def bury(self, key: Key) -> None:
        """Remove a worker's folder; nothing can be started from it any more, however late."""
        stranger = self.processes.pop(key, None)
        if stranger is not None:
            stranger.tell("is not known to the journal, and is ended")
            stranger.die()
        self.folders.pop(key, None)
        self.started.pop(key, None)
        self.endings.pop(key, None)

    def _end_processes(self, how: str) -> None:
        self.world.news = True
        self.births.end_all()
        for worker in list(self.processes.values()):
            worker.tell(how)
            worker.die()
        self.processes.clear()
