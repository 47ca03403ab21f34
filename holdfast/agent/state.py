"""What an agent holds: which workers, in which state; how journal entries make it; what is always
true of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from holdfast.agent.events import (
    Accepted,
    Action,
    Entry,
    Exited,
    Forgotten,
    Held,
    Journal,
    Key,
    Moved,
    Slots,
    Started,
    Stopping,
    TermSeen,
    key_of,
)
from holdfast.agent.record import Worker
from holdfast.agent.slots import Machine, Room
from holdfast.wire.errors import BugError
from holdfast.wire.limits import AGENT_WORKERS_MAX
from holdfast.wire.reports import NodeFacts
from holdfast.wire.room import Resources

# Numbers of forgotten workers, kept within a term: an order of the same term that is late by more
# than so many lives of workers is not a late order any more.
FORGOTTEN_KEPT_MAX: Final = 10_000


class AgentState:
    """The state of one agent. It changes by entries alone, as far as a restart must know it."""

    def __init__(self, node: str, machine: Machine) -> None:
        self.node = node
        self.term = 0
        self._room = Room(machine)
        self._workers: dict[Key, Worker] = {}
        self._forgotten: dict[Key, None] = {}  # in the order of forgetting

    # --- what others may ask -----------------------------------------------------------------

    def snapshot(self) -> NodeFacts:
        """What is true of this machine, once the actions given out so far are done."""
        workers = tuple(worker.facts() for worker in self._workers.values())
        return NodeFacts(self.node, self._room.machine.capacity, workers)

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

    def _keep(self, entry: Entry, now_s: float) -> Journal:
        """Change the state as the entry says. A restart applies the same entries, in order."""
        self._apply(entry, now_s)
        return Journal(entry)

    def _apply(self, entry: Entry, now_s: float) -> None:
        match entry:
            case TermSeen(term):
                self.term = term
                self._forgotten.clear()
            case Accepted(order, slots):
                key = key_of(order)
                host = self._room.machine.host
                self._workers[key] = Worker(key, order, slots, progress_s=now_s, host=host)
                self._room.took(slots)
            case Exited(key, end):
                worker = self._workers.setdefault(key, Worker(key, None))
                worker.exit = end
            case Forgotten(key):
                self._workers.pop(key, None)
                self._forgotten[key] = None
                while len(self._forgotten) > FORGOTTEN_KEPT_MAX:
                    del self._forgotten[next(iter(self._forgotten))]
            case Started() | Held() | Moved() | Stopping():
                self._known(entry.key).apply(entry)
                if isinstance(entry, Moved):
                    self._room.took(entry.slots)

    def _known(self, key: Key) -> Worker:
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
        self._room.validate(
            [worker.slots for worker in living if not worker.inherited],
            [worker.slots for worker in living if worker.inherited],
        )
        if not all(worker.inherited for worker in living):
            self._room.validate_promises(self._living_resources())

    def _living_slots(self) -> list[Slots]:
        return [worker.slots for worker in self._workers.values() if not worker.gone]

    def _living_resources(self) -> list[Resources]:
        found = [worker.order for worker in self._workers.values() if not worker.gone]
        return [order.resources for order in found if order is not None]
