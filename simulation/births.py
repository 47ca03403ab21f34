"""How workers come into the world: the agent forks a shim, and the shim claims the worker's folder.

As the supervisor and the shim do it. The shim is no longer the agent's once it is forked: it may
claim after its agent has died, and after the next one has looked for a claim and found none. Then
two shims want the same folder; the first claim decides, and the other shim ends.

What is drawn here is drawn from a source of its own: a world in which nothing of it happens is the
same as one without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.agent.events import (
    Ending,
    Identity,
    Key,
    ProcessExited,
    ProcessStarted,
    StartProcess,
    key_of,
)
from simulation.kernel import Being

if TYPE_CHECKING:
    from simulation.host import Host

# From the decision to the fork: a bundle is unpacked, the nursery is waited for.
FORK_S: Final = (0.01, 0.5)
# From the fork to the claim, on a machine that is busy.
CLAIM_S: Final = (0.01, 4.0)
# How long after a fork an agent dies, and after which time it is started again.
CRASH_S: Final = (0.0, 0.1)
RESTART_S: Final = (0.05, 0.6)
PAUSE_S: Final = (0.0, 0.6)
# The numbers of shims that are late; those of the others are low.
_LATE_PID: Final = 10_000

_BEFORE: Final = "it was stopped before it was started"
_UNCLAIMED: Final = "it could not be started: its shim was ended"


class Shim(Being):
    """A process that was forked and has not made its claim yet. `maker`: the life of its agent."""

    def __init__(self, host: Host, key: Key, number: int) -> None:
        super().__init__(host.world.kernel, f"{key.job}.{key.worker}")
        self.key = key
        self.identity = Identity(_LATE_PID + number, 0, str(host.boot))
        self.maker = host.agent.life
        self.folder = host.folders.get(key)
        self.serves = host.world.settings.trainings[key.job].spec.serves
        self.begin()


class Births:
    """Those of one machine."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._launching: dict[Key, int] = {}  # what is not forked yet, and by which life
        self._forked = 0
        self.shims: list[Shim] = []

    def start(self, order: StartProcess) -> None:
        """Start a worker's process, once: its claim shows whether it ever was."""
        key, agent, faults = key_of(order.order), self._host.agent, self._host.world.faults
        if faults.strikes_birth("slow fork"):
            self._launching[key] = agent.life
            agent.after(faults.birth_s(*FORK_S), lambda: self._fork_late(key))
        else:
            self._fork(key)

    def _fork_late(self, key: Key) -> None:
        if self._launching.pop(key, None) == self._host.agent.life:
            self._fork(key)

    def _fork(self, key: Key) -> None:
        host = self._host
        agent, faults = host.agent, host.world.faults
        if not faults.strikes_birth("late claim"):
            if key in host.started:
                agent.soon(agent.found(key))  # another shim came first
            else:
                host.born(key, Identity(len(host.world.workers) + 1, 0, str(host.boot)))
                agent.soon(ProcessStarted(key, host.started[key]))
            return
        self._forked += 1
        shim, late_s = Shim(host, key, self._forked), faults.birth_s(*CLAIM_S)
        shim.tell("has a shim that is late")
        self.shims.append(shim)
        agent.soon(ProcessStarted(key, shim.identity))
        shim.after(late_s, lambda: self._claim(shim))
        if faults.strikes_birth("launch crash"):
            agent.after(faults.birth_s(*CRASH_S), lambda: agent.crash(RESTART_S))
        if not shim.serves and faults.strikes_birth("early pause"):
            shim.after(faults.birth_s(*PAUSE_S), lambda: self._pause(key))

    def _pause(self, key: Key) -> None:
        if not self._host.world.faults.quiet:  # at peace users want what they wanted at first
            self._host.world.pause(key.job)

    def _claim(self, shim: Shim) -> None:
        host, agent = self._host, self._host.agent
        self._end(shim)
        in_place = shim.folder is not None and host.folders.get(shim.key) is shim.folder
        if in_place and shim.key not in host.started:
            shim.tell("is claimed")
            host.born(shim.key, shim.identity)
        elif in_place and agent.up and agent.life == shim.maker:
            agent.soon(agent.found(shim.key))

    def signal(self, key: Key) -> None:
        """The agent tells a worker to end that is not there yet."""
        life = self._host.agent.life
        if self._launching.get(key) == life:
            del self._launching[key]
            self._never(key, _BEFORE)
        for shim in [one for one in self.shims if one.key == key and one.maker == life]:
            self._end(shim)
            self._never(key, _UNCLAIMED)

    def _never(self, key: Key, why: str) -> None:
        """It will not be started: from now on by nobody, or somebody else has started it."""
        agent = self._host.agent
        if self._host.void(key):
            agent.soon(ProcessExited(key, Ending(fault=why)))
        else:
            agent.soon(agent.found(key))

    def awaits(self, key: Key) -> bool:
        """Whether a shim may still come for it."""
        return any(shim.key == key for shim in self.shims)

    def starting(self, key: Key) -> bool:
        """Whether the agent is about to start it: then it does not watch the process that the shim
        of an earlier agent has started meanwhile."""
        life = self._host.agent.life
        own = any(shim.key == key and shim.maker == life for shim in self.shims)
        return own or self._launching.get(key) == life

    def end_all(self) -> None:
        """The power fails."""
        for shim in list(self.shims):
            self._end(shim)

    def _end(self, shim: Shim) -> None:
        self._host.world.news = True
        shim.die()
        self.shims.remove(shim)
