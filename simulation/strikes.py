"""Faults that come at a time of their own: whom they hit, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from holdfast.agent.events import Ending
from simulation.faults import LOSSES_MAX
from simulation.kernel import SimulatedProcess

if TYPE_CHECKING:
    from simulation.coordinator import Coordinator
    from simulation.host import Host
    from simulation.world import World

PAUSE_S: Final = (0.2, 5.0)
# A leader that stalls: after which time its session is over, and after which it goes on.
DEPOSED_S: Final = (0.05, 0.5)
STALL_S: Final = (0.5, 3.0)
# When the store loses a checkpoint: so long after its commit.
LOSS_S: Final = (0.0, 0.5)
# By how much a clock jumps.
JUMPS_S: Final = (-3600.0, -30.0, -2.0, 2.0, 40.0, 3600.0)
STEADY_JUMPS_S: Final = (1.0, 5.0, 60.0)


class Strikes:
    """Carries faults out."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._by_kind: dict[str, Callable[[Host, Coordinator, float], None]] = {
            "kill worker": lambda host, boss, pause_s: self._kill_worker(),
            "pause worker": lambda host, boss, pause_s: self._pause_worker(pause_s),
            "crash agent": lambda host, boss, pause_s: host.agent.crash(),
            "pause agent": lambda host, boss, pause_s: self.pause(host.agent, host.name, pause_s),
            "cut agent": lambda host, boss, pause_s: self._cut(host.name, "both", pause_s),
            "deafen agent": lambda host, boss, pause_s: self._cut(host.name, "deaf", pause_s),
            "mute agent": lambda host, boss, pause_s: self._cut(host.name, "mute", pause_s),
            "part machines": lambda host, boss, pause_s: self._part(host, 2 * pause_s, True),
            "part one way": lambda host, boss, pause_s: self._part(host, 2 * pause_s, False),
            "crash machine": lambda host, boss, pause_s: host.crash(),
            "flip bit": lambda host, boss, pause_s: self._flip_bit(host),
            "crash coordinator": lambda host, boss, pause_s: boss.crash(),
            "pause coordinator": lambda host, boss, pause_s: self.pause(boss, boss.name, pause_s),
            "cut coordinator": lambda host, boss, pause_s: self._cut_coordinator(boss, pause_s),
            "jump clock": lambda host, boss, pause_s: self._jump_clock(boss),
            "jump steady clock": lambda host, boss, pause_s: self._jump_steady_clock(host),
            "expire session": lambda host, boss, pause_s: self._expire(host, boss),
            "restart plane": lambda host, boss, pause_s: world.plane.fail(pause_s / 3),
            "crash everything": lambda host, boss, pause_s: self._crash_everything(),
        }

    def strike(self, kind: str) -> None:
        """Do it, to somebody, unless it is switched off."""
        world = self._world
        if not world.faults.happens(kind):
            return
        random = world.faults.random
        host = random.choice(list(world.hosts.values()))
        boss = random.choice(world.coordinators)
        pause_s = PAUSE_S[0] + (PAUSE_S[1] - PAUSE_S[0]) * random.random()
        world.kernel.tell("FAULT", kind)
        self._by_kind[kind](host, boss, pause_s)

    def pause(self, process: SimulatedProcess, machine: str, pause_s: float) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        if not process.up or process.stopped:
            return
        process.tell("is stopped")
        if machine:
            self._world.plane.expect_silence(machine)
        process.stop()
        life = process.life

        def go_on() -> None:
            if process.life == life and process.stopped:
                process.tell("goes on")
                process.go_on()

        self._world.kernel.after(pause_s, go_on)

    def depose(self, boss: Coordinator) -> None:
        """A leader stops, is deposed meanwhile, and then goes on with what it had decided."""
        world, session = self._world, boss.client.session
        world.kernel.after(world.kernel.between(*DEPOSED_S), lambda: world.plane.expire(session))
        self.pause(boss, boss.name, world.kernel.between(*STALL_S))

    def _kill_worker(self) -> None:
        alive = [worker for worker in self._world.workers.values() if worker.up]
        if alive:
            self._world.faults.random.choice(alive).end(Ending(signal=9))

    def _pause_worker(self, pause_s: float) -> None:
        alive = [worker for worker in self._world.workers.values() if worker.up]
        if alive:
            self.pause(self._world.faults.random.choice(alive), "", pause_s)

    def committed(self, name: str) -> None:
        """A step of a job is committed: some time later the store may lose it."""
        faults, job = self._world.faults, self._world.checks.jobs[name]
        if job.committed_step == self._world.settings.trainings[name].steps:
            return  # of its last step nothing is read any more
        for kind in LOSSES_MAX:
            if faults.loses(kind):
                lose = partial(self._lose, kind, name)
                self._world.kernel.after(faults.store.uniform(*LOSS_S), lose)

    def _lose(self, kind: str, name: str) -> None:
        """Checkpoints of a job cannot be read any more, and nobody is left who holds its state."""
        world, job = self._world, self._world.checks.jobs[name]
        if job.status.phase.final or job.finished_step is not None:
            return
        world.kernel.tell("FAULT", kind, job.name)
        lost = job.checkpoints if kind == "lose all" else job.checkpoints[-1:]
        world.blobs.lost |= {checkpoint.manifest for checkpoint in lost}
        for worker in list(world.workers.values()):
            if worker.up and worker.key.job == job.name:
                worker.end(Ending(signal=9))

    def _cut(self, name: str, how: str, pause_s: float) -> None:
        """Nothing reaches it (`deaf`), nothing comes from it (`mute`), or both."""
        world = self._world
        world.plane.expect_silence(name)
        world.kernel.tell(name, "is cut off:", how)
        for affected, which in ((world.network.deaf, "deaf"), (world.network.mute, "mute")):
            if how in (which, "both"):
                affected.add(name)
                world.kernel.after(pause_s, lambda names=affected: names.discard(name))  # type: ignore[misc]

    def _cut_coordinator(self, boss: Coordinator, pause_s: float) -> None:
        how = self._world.faults.random.choice(("both", "deaf", "mute"))
        self._cut(boss.name, how, pause_s)

    def _part(self, one: Host, pause_s: float, both_ways: bool) -> None:
        """The one does not reach the other, nor the other the one; both reach everyone else."""
        world = self._world
        other = world.faults.random.choice(list(world.hosts.values()))
        if one is other:
            return
        ways = (
            {(one.name, other.name), (other.name, one.name)}
            if both_ways
            else {(one.name, other.name)}
        )
        world.network.parted |= ways
        world.kernel.after(pause_s, lambda: world.network.parted.difference_update(ways))

    def _flip_bit(self, host: Host) -> None:
        """A disk decays while nobody reads it: it shows when the machine starts again."""
        host.disk.flip(self._world.faults.random)
        host.crash()

    def _jump_clock(self, boss: Coordinator) -> None:
        boss.skew_s += self._world.faults.random.choice(JUMPS_S)
        boss.tell("has a clock that jumped, and is wrong by", boss.skew_s)

    def _jump_steady_clock(self, host: Host) -> None:
        host.clock_ahead_s += self._world.faults.random.choice(STEADY_JUMPS_S)
        host.agent.tell("has a steady clock that jumped")

    def _expire(self, host: Host, boss: Coordinator) -> None:
        clients = [host.agent.client, boss.client]
        self._world.plane.expire(self._world.faults.random.choice(clients).session)

    def _crash_everything(self) -> None:
        for host in self._world.hosts.values():
            host.crash()
        for boss in self._world.coordinators:
            boss.crash()
