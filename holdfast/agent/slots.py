"""Which cores, devices and ports a worker gets, and whether there is room for it at all. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass

from holdfast.agent.events import Slots
from holdfast.wire.errors import BugError
from holdfast.wire.limits import WORKER_PORT_FIRST, WORKER_PORT_LAST, WORKER_PORTS
from holdfast.wire.orders import StartWorker
from holdfast.wire.resources import Resources


@dataclass(frozen=True, slots=True)
class Machine:
    """What the agent may give away. `cpus` and `gpus` are the system's own numbers.

    `capacity.cpu` may be more than there are cores: then none of them is given to one worker.
    `gpu_share`: so many workers may have the same GPU, so `capacity.gpu` is that often `gpus`.
    """

    capacity: Resources
    cpus: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()
    host: str = "127.0.0.1"  # where workers listen, and where others reach them
    port_first: int = WORKER_PORT_FIRST
    port_last: int = WORKER_PORT_LAST
    gpu_share: int = 1


class SlotAllocator:
    """Gives out slots. Ports go round, so that a port that somebody else holds is not met twice."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._next_port = machine.port_first

    def capacity(self, living: Sequence[Slots], drained: Set[int]) -> Resources:
        """What there is to give away: of GPUs that are drained, only what living workers have."""
        used = Counter(gpu for slots in living for gpu in slots.gpus)
        lost = sum(self.machine.gpu_share - used[gpu] for gpu in drained & {*self.machine.gpus})
        return self.machine.capacity - Resources(gpu=lost)

    def refusal(
        self, wanted: Resources, living: Sequence[Resources], capacity: Resources
    ) -> str | None:
        """Why `wanted` does not fit beside those that have not gone; None: it does."""
        taken = sum(living, Resources())
        free = capacity - taken
        if wanted.fits(free):
            return None
        return (
            f"it needs {_amounts(wanted)}, and {_amounts(free)} is free: "
            f"{len(living)} workers have not gone"
        )

    def slots_for(
        self, order: StartWorker, living: Sequence[Slots], drained: Set[int] = frozenset()
    ) -> Slots | None:
        """Devices and ports that no living worker has (a shared device: that not too many have);
        None: there are not enough. No device that is drained."""
        used_ports = {port for slots in living for port in slots.ports}
        gpus = self._gpus(order.resources.gpu, living, drained)
        ports = self._ports(order, used_ports)
        if order.resources.gpu > len(gpus) or ports is None:
            return None
        return Slots(self._cpus(order.resources.cpu, living), gpus, ports)

    def moved(
        self, order: StartWorker, slots: Slots, taken: Sequence[int], living: Sequence[Slots]
    ) -> Slots | None:
        """The same with other ports, since strangers hold some of them; None: there are none."""
        used = {port for each in living for port in each.ports} - set(slots.ports) | set(taken)
        ports = self._ports(order, used)
        return None if ports is None else slots._replace(ports=ports)

    def took(self, slots: Slots) -> None:
        own = [port for port in slots.ports[:WORKER_PORTS] if port <= self.machine.port_last]
        if own:
            self._next_port = own[-1] + 1

    def _ports(self, order: StartWorker, used: set[int]) -> tuple[int, ...] | None:
        """Those of the worker itself, then those that its job file names, in the order of their
        names: the numbers that it fixes, else free ones. None: there are not enough, or somebody
        has one that is fixed."""
        named = [order.ports[name] for name in sorted(order.ports)]
        fixed = {number for number in named if number}
        free = self._free_ports(WORKER_PORTS + named.count(0), used | fixed)
        if fixed & used or free is None:
            return None
        chosen = iter(free)
        own = [next(chosen) for _ in range(WORKER_PORTS)]
        return (*own, *(number or next(chosen) for number in named))

    def _free_ports(self, wanted: int, used: set[int]) -> list[int] | None:
        first, last = self.machine.port_first, self.machine.port_last
        count = last - first + 1
        found: list[int] = []
        for at in range(count):
            port = first + (self._next_port - first + at) % count
            if port not in used:
                found.append(port)
            if len(found) == wanted:
                return found
        return None

    def _gpus(self, wanted: int, living: Sequence[Slots], drained: Set[int]) -> tuple[int, ...]:
        """So many shares of devices, as far as there are: of different ones, and those that the
        fewest have."""
        used = Counter(gpu for slots in living for gpu in slots.gpus)
        mine: Counter[int] = Counter()
        share, usable = self.machine.gpu_share, [*sorted({*self.machine.gpus} - drained)]
        for _ in range(wanted):
            there = [gpu for gpu in usable if used[gpu] < share]
            if not there:
                break
            chosen = min(there, key=lambda gpu: (mine[gpu], used[gpu], gpu))
            mine[chosen] += 1
            used[chosen] += 1
        return tuple(sorted(mine.elements()))

    def _cpus(self, wanted: float, living: Sequence[Slots]) -> tuple[int, ...]:
        """Whole cores for a worker that asks for whole cores; none where cores are shared."""
        count = int(wanted)
        if count < 1 or count != wanted or self.machine.capacity.cpu > len(self.machine.cpus):
            return ()
        used = {cpu for slots in living for cpu in slots.cpus}
        free = [cpu for cpu in self.machine.cpus if cpu not in used]
        return tuple(free[:count]) if len(free) >= count else ()

    def validate_promises(self, living: Sequence[Resources]) -> None:
        """No more is promised than there is."""
        if not sum(living, Resources()).fits(self.machine.capacity):
            raise BugError(f"more is promised than {_amounts(self.machine.capacity)}")

    def validate(self, slots: Sequence[Slots], inherited: Sequence[Slots] = ()) -> None:
        """Nothing is given twice; a device no more often than it may be shared. Those that an agent
        before this one has started may have had more of it."""
        everyone = [*slots, *inherited]
        for what in ("cpus", "ports"):
            given = [one for each in everyone for one in getattr(each, what)]
            if len(given) != len(set(given)):
                raise BugError(f"{what} are given to two workers: {sorted(given)}")
        shares = Counter(gpu for each in everyone for gpu in each.gpus)
        for gpu in {gpu for each in slots for gpu in each.gpus}:
            if shares[gpu] > self.machine.gpu_share:
                raise BugError(f"GPU {gpu} is given to {shares[gpu]} workers")


def _amounts(amount: Resources) -> str:
    disk = f", disk {amount.disk_bytes} B" if amount.disk_bytes else ""
    return f"cpu {amount.cpu:g}, memory {amount.memory_bytes} B, gpu {amount.gpu}{disk}"
