"""A state machine with its journal as a list: what was durable can be replayed at any time."""

from __future__ import annotations

from typing import Any

from holdfast.agent.events import (
    Action,
    Ending,
    Entry,
    Event,
    Identity,
    Key,
    OrderAnswer,
    OrderReceived,
    ProcessExited,
    ProcessStarted,
    Recovered,
    WorkerReport,
    WriteEntry,
)
from holdfast.agent.machine import AgentMachine
from holdfast.agent.slots import Machine
from holdfast.wire.orders import Order, StartWorker, StopWorker
from holdfast.wire.reports import ExitKind, WorkerFacts
from holdfast.wire.resources import Resources

NODE = "node-1"
MACHINE = Machine(Resources(8.0, 1 << 34, 2), cpus=tuple(range(8)), gpus=(0, 1))
KEY = Key("job", 1)
IDENTITY = Identity(100, 7, "boot")


def start(worker: int = 1, **more: Any) -> StartWorker:
    resources = more.pop("resources", Resources(1.0))
    return StartWorker(NODE, "job", worker, "", ("true",), resources, **more)


def stop(worker: int = 1, notice_s: float = 10.0) -> StopWorker:
    return StopWorker(NODE, "job", worker, notice_s)


class Driven:
    """The machine, the time, and the entries that are durable."""

    def __init__(
        self,
        entries: list[Entry] | None = None,
        now_s: float = 0.0,
        machine: Machine = MACHINE,
    ) -> None:
        self.machine = AgentMachine(NODE, machine)
        self.now_s = now_s
        self.entries: list[Entry] = list(entries or [])
        for entry in self.entries:
            self.machine.handle(Recovered(entry), now_s)
        self.machine.validate()

    def handle(self, event: Event) -> list[Action]:
        """What follows, without what was written down."""
        actions = self.machine.handle(event, self.now_s)
        written = [action.entry for action in actions if isinstance(action, WriteEntry)]
        self.entries += written
        rest: list[Action] = [action for action in actions if not isinstance(action, WriteEntry)]
        assert actions[: len(written)] == [WriteEntry(entry) for entry in written]
        return rest

    def order(self, order: Order, term: int = 1) -> tuple[OrderAnswer, list[Action]]:
        """The answer, and whatever else follows."""
        actions = self.handle(OrderReceived(term, order))
        answers = [action for action in actions if isinstance(action, OrderAnswer)]
        (answer,) = answers
        return answer, [action for action in actions if action is not answer]

    def started(self, worker: int = 1, **more: Any) -> Key:
        """A worker with a process."""
        answer, _ = self.order(start(worker, **more))
        assert answer.accepted, answer.reason
        self.handle(ProcessStarted(Key("job", worker), IDENTITY))
        return Key("job", worker)

    def ready(self, worker: int = 1, **more: Any) -> Key:
        key = self.started(worker, **more)
        self.handle(WorkerReport(key, ready=True))
        return key

    def end(self, key: Key, ending: Ending | None = None) -> list[Action]:
        return self.handle(ProcessExited(key, ending or Ending(code=1)))

    def restarted(self) -> Driven:
        """What the next agent knows."""
        return Driven(self.entries, self.now_s)

    def facts(self, worker: int = 1) -> WorkerFacts | None:
        found = [one for one in self.machine.snapshot().workers if one.worker == worker]
        return found[0] if found else None

    def known(self, worker: int = 1) -> WorkerFacts:
        facts = self.facts(worker)
        assert facts is not None, f"worker {worker} is not known"
        return facts

    def exit_kind(self, worker: int = 1) -> ExitKind | None:
        end = self.known(worker).exit
        return end.kind if end else None
