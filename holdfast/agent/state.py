"""What an agent holds: which workers, in which state; how journal entries make it; what is always
true of it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from holdfast.agent.events import (
    Accepted,
    Action,
    Entry,
    Exited,
    Forgotten,
    GpuFaulty,
    Held,
    Key,
    Moved,
    Slots,
    Started,
    Stopping,
    TermSeen,
    WriteEntry,
    key_of,
)
from holdfast.agent.record import WorkerRecord
from holdfast.agent.slots import Machine, SlotAllocator
from holdfast.wire.causes import is_gpu_fault
from holdfast.wire.errors import BugError
from holdfast.wire.limits import AGENT_WORKERS_MAX
from holdfast.wire.reports import NodeFacts
from holdfast.wire.resources import Resources

# Numbers of forgotten workers, kept within a term: an order of the same term that is late by more
# than so many lives of workers is not a late order any more.
FORGOTTEN_KEPT_MAX: Final = 10_000


# A GPU that has ended so many workers by a fault of its own is not given out any more. Once may be
# a bit that a particle has flipped.
GPU_FAULTS_MAX: Final = 2


class AgentState:
    """The state of one agent. It changes by entries alone, as far as a restart must know it."""

    def __init__(self, node: str, machine: Machine) -> None:
        self.node = node
        self.term = 0
        self._allocator = SlotAllocator(machine)
        self._workers: dict[Key, WorkerRecord] = {}
        self._forgotten: dict[Key, None] = {}  # in the order of forgetting
        self._gpu_faults: Counter[int] = Counter()  # that have ended workers which are forgotten

    # --- what others may ask -----------------------------------------------------------------

    def snapshot(self) -> NodeFacts:
        """What is true of this machine, once the actions given out so far are done."""
        workers = tuple(worker.facts() for worker in self._workers.values())
        capacity = self._allocator.capacity(self._living_slots(), self._drained())
        return NodeFacts(self.node, capacity, workers)

    def living(self) -> list[Key]:
        """Workers whose end is not known."""
        return [key for key, worker in self._workers.items() if not worker.gone]

    def is_stopping(self, key: Key) -> bool:
        """Whether it is to end, or has ended."""
        worker = self._workers[key]
        return worker.gone or worker.kill_at_s is not None

    def queue_of(self, key: Key) -> str | None:
        """The queue of a living worker, as its order says; None: it has ended."""
        worker = self._workers.get(key)
        return None if worker is None or worker.gone or not worker.order else worker.order.queue

    def known(self) -> frozenset[Key]:
        return frozenset(self._workers)

    @property
    def wake_s(self) -> float | None:
        """When the next `Timer` is wanted."""
        due = [at for worker in self._workers.values() if (at := worker.due_s) is not None]
        return min(due, default=None)

    def entries(self) -> Iterator[Entry]:
        """The shortest journal that gives this state."""
        if self.term:
            yield TermSeen(self.term)
        for gpu, faults in self._gpu_faults.items():
            yield GpuFaulty(gpu, faults)
        for key in self._forgotten:
            yield Forgotten(key)
        for worker in self._workers.values():
            yield from worker.entries()

    # --- the journal -----------------------------------------------------------------------------

    def _recovered(self, entry: Entry, now_s: float) -> list[Action]:
        self._apply(entry, now_s)
        if isinstance(entry, Accepted):
            self._workers[key_of(entry.order)].inherited = True
        return []

    def _keep(self, entry: Entry, now_s: float) -> WriteEntry:
        """Change the state as the entry says. A restart applies the same entries, in order."""
        self._apply(entry, now_s)
        return WriteEntry(entry)

    def _apply(self, entry: Entry, now_s: float) -> None:
        match entry:
            case TermSeen(term):
                self.term = term
                self._forgotten.clear()
            case Accepted(order, slots):
                key = key_of(order)
                host = self._allocator.machine.host
                self._workers[key] = WorkerRecord(key, order, slots, progress_s=now_s, host=host)
                self._allocator.took(slots)
            case Exited(key, end):
                worker = self._workers.setdefault(key, WorkerRecord(key, None))
                worker.exit = end
            case Forgotten(key):
                self._gpu_faults.update(_faulty(self._workers.pop(key, None)))
                self._forgotten[key] = None
                while len(self._forgotten) > FORGOTTEN_KEPT_MAX:
                    del self._forgotten[next(iter(self._forgotten))]
            case GpuFaulty(gpu, faults):
                self._gpu_faults[gpu] = faults
            case Started() | Held() | Moved() | Stopping():
                self._known(entry.key).apply(entry)
                if isinstance(entry, Moved):
                    self._allocator.took(entry.slots)

    def _known(self, key: Key) -> WorkerRecord:
        worker = self._workers.get(key)
        if worker is None:
            raise BugError(f"the journal speaks of worker {key}, which it never accepted")
        return worker

    # --- invariants ----------------------------------------------------------------------------

    def validate(self) -> None:
        """What must be true at any time. Always on."""
        for key, worker in self._workers.items():
            if key in self._forgotten:
                raise BugError(f"worker {key} is known and forgotten")
            worker.validate()
        if len(self._workers) > AGENT_WORKERS_MAX or len(self._forgotten) > FORGOTTEN_KEPT_MAX:
            raise BugError("the agent holds more workers than it may")
        # A machine may have become smaller while its workers went on without an agent.
        living = [worker for worker in self._workers.values() if not worker.gone]
        self._allocator.validate(
            [worker.slots for worker in living if not worker.inherited],
            [worker.slots for worker in living if worker.inherited],
        )
        if not all(worker.inherited for worker in living):
            self._allocator.validate_promises(self._living_resources())

    def _drained(self) -> frozenset[int]:
        """The GPUs that have failed too often to be given to anybody."""
        faults = self._gpu_faults + Counter(
            gpu for worker in self._workers.values() for gpu in _faulty(worker)
        )
        return frozenset(gpu for gpu, count in faults.items() if count >= GPU_FAULTS_MAX)

    def _living_slots(self) -> list[Slots]:
        return [worker.slots for worker in self._workers.values() if not worker.gone]

    def _living_resources(self) -> list[Resources]:
        found = [worker.order for worker in self._workers.values() if not worker.gone]
        return [order.resources for order in found if order is not None]


def _faulty(worker: WorkerRecord | None) -> tuple[int, ...]:
    """The GPU whose fault has ended it: a worker trains on the first of those that it has."""
    if worker is None or worker.exit is None or not is_gpu_fault(worker.exit.detail):
        return ()
    return tuple(sorted(worker.slots.gpus)[:1])
