"""Machines with agents and workers, in the test's process, and coordinators in processes of their
own that reach them over a socket, so that a coordinator can be killed and paused.

The agents are those of `tests.unit.control.world`, which keep the truth about their workers and
check it. Here they also have a term: an older one is refused, and what was refused is kept.
A coordinator is forked from a process that has imported this module.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Self

from holdfast import topics
from holdfast.control.decide.commands import CommitCheckpoint, Decision, StartWorker
from holdfast.control.decide.facts import DesiredState, NodeFacts, ObservedState
from holdfast.control.decide.spec import Resources
from holdfast.control.shell.coordinator import Coordinator
from holdfast.control.shell.topic_watch import TopicWatch
from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import Transaction, connect
from holdfast.wire.errors import Fenced
from holdfast.wire.orders import Order
from tests.servers import forking
from tests.unit.control.world import World

MOVE_S = 0.01


class Field:
    """The machines. `control` is asked for the jobs, to check the workers against."""

    def __init__(self, folder: Path, control: ControlPlane, nodes: tuple[str, ...], steps: int):
        self.path = str(folder / "field.sock")
        self.nodes = nodes
        self.world = World({}, {node: Resources(cpu=2.0) for node in nodes}, steps)
        self.lock = threading.RLock()
        self.term = 0
        self.terms: dict[int, float] = {}  # when an order of that term came first
        self.refused: list[tuple[int, Order]] = []
        self.fenced: list[int] = []
        self.starts: Counter[tuple[str, int]] = Counter()
        self.errors: list[BaseException] = []
        self.moving = True
        self._control = control
        self._connections: list[Connection] = []
        self._told: dict[str, NodeFacts] = {}
        self._closed = threading.Event()
        self._listener = Listener(self.path, "AF_UNIX")
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._accept, self._live)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._closed.set()
        self._threads[1].join(30)
        self._listener.close()
        for connection in list(self._connections):
            connection.close()
        for error in self.errors:
            raise AssertionError("\n".join(self.world.story[-40:])) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection = self._listener.accept()
            except OSError:
                continue
            with self.lock:
                self._connections.append(connection)
                for node in self.nodes:
                    _tell(connection, self.world.machines[node].report(node))
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        while True:
            try:
                kind, term, what = connection.recv()
            except (EOFError, OSError):
                break
            with self.lock:
                if kind == "fenced":
                    self.fenced.append(term)
                else:
                    self._obey(term, what)
        with self.lock:
            self._connections.remove(connection)

    def _obey(self, term: int, order: Order) -> None:
        if term < self.term:
            self.refused.append((term, order))
            return
        self.term = term
        self.terms.setdefault(term, time.monotonic())
        machine = self.world.machines[order.node]
        key = (order.job, order.worker)
        if isinstance(order, StartWorker) and key not in {*machine.workers, *machine.forgotten}:
            self.starts[key] += 1
        self.world.obey(order)
        self._broadcast()

    def _live(self) -> None:
        """Workers move, and what changed is told."""
        try:
            while not self._closed.wait(MOVE_S):
                with self.lock:
                    self.world.desired = DesiredState(jobs=self._control.jobs())
                    for job in self.world.desired.jobs if self.moving else ():
                        self.world.move(job)
                    self._broadcast()
        except BaseException as error:
            self.errors.append(error)
            raise

    def _broadcast(self) -> None:
        for node in self.nodes:
            facts = self.world.machines[node].report(node)
            if self._told.get(node) != facts:
                self._told[node] = facts
                for connection in self._connections:
                    _tell(connection, facts)


def _tell(connection: Connection, facts: NodeFacts) -> None:
    try:
        connection.send(facts)
    except OSError:
        return  # it was killed; whoever reads from it finds out


class FieldAgents:
    """The port of a coordinator to the field."""

    def __init__(self, path: str, nodes: tuple[str, ...]) -> None:
        self._path = path
        self._nodes = nodes
        self._news = threading.Event()
        self._heard: dict[str, NodeFacts] = {}
        self._line: Connection | None = None
        self.before_order: Callable[[], None] = lambda: None

    def begin(self, term: int) -> None:
        self._heard = {}
        self._line = Client(self._path, "AF_UNIX")
        threading.Thread(target=self._listen, args=(self._line, self._heard), daemon=True).start()

    def end(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None

    def observed(self) -> ObservedState:
        heard = dict(self._heard)
        return ObservedState(heard, frozenset(self._nodes) - set(heard))

    def connection(self, node: str) -> int:
        return 0 if self._line is None else 1

    def order(self, term: int, decision: Decision) -> None:
        self.before_order()
        self.say("order", term, decision.command)

    def say(self, kind: str, term: int, what: Any) -> None:
        if self._line is not None:
            self._line.send((kind, term, what))

    def wait(self, timeout_s: float) -> bool:
        woken = self._news.wait(timeout_s)
        self._news.clear()
        return woken

    def wake(self) -> None:
        self._news.set()

    def _listen(self, line: Connection, heard: dict[str, NodeFacts]) -> None:
        while True:
            try:
                facts = line.recv()
            except (EOFError, OSError, TypeError):
                return  # closed, perhaps by us while we read
            heard[facts.node] = facts
            self._news.set()


class Process:
    """A coordinator as a process. `fault` is one of those of `_commit_with`; `topics`: the address
    of those that triggers are for."""

    def __init__(
        self, address: str, field: Field, name: str, fault: str = "", topics: str = ""
    ) -> None:
        order = {"address": address, "field": field.path, "name": name, "fault": fault}
        order["topics"] = topics
        errors, end = os.pipe()
        self._errors = os.fdopen(errors)
        try:
            self._process = forking.shared(__name__).fork(
                {**order, "nodes": field.nodes},
                env=os.environ,
                cwd=Path.cwd(),
                outputs=(end, end),
            )
        finally:
            os.close(end)
        self.name = name
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with self._errors:
            self.log.extend(self._errors)

    @property
    def code(self) -> int | None:
        return self._process.poll()

    @property
    def paused(self) -> bool:
        if self.code is not None:
            return False
        stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def end(self) -> None:
        self.kill()
        self._reader.join(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()


def _commit_with(fault: str, agents: FieldAgents) -> None:
    """Let this process die or fall asleep at a commit: `kill after N`, `kill during N` (SIGKILL
    while the N-th is on its way), `sleep before N` (SIGSTOP); or at an order: `sleep at order N`.
    """
    kind, _, number = fault.rpartition(" ")
    count = [0]
    orders = [0]
    real = Transaction.commit

    def reached(counted: list[int]) -> bool:
        counted[0] += 1
        return counted[0] == int(number or 0)

    def commit(self: Transaction) -> int:
        here = reached(count)
        if here and kind == "sleep before":
            os.kill(os.getpid(), signal.SIGSTOP)
        if here and kind == "kill during":
            delay_s = random.random() * 0.004
            threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
        try:
            zxid = real(self)
        except Fenced:
            agents.say("fenced", 0, None)
            raise
        if here and kind == "kill after":
            os.kill(os.getpid(), signal.SIGKILL)
        return zxid

    def before_order() -> None:
        if kind == "sleep at order" and reached(orders):
            os.kill(os.getpid(), signal.SIGSTOP)

    Transaction.commit = commit  # type: ignore[method-assign]
    agents.before_order = before_order


def _manifest(commit: CommitCheckpoint) -> str:
    return f"manifest-{commit.attempt.step}"


def prepare() -> None:
    """All that a coordinator needs is imported above."""


def become(order: dict[str, Any]) -> None:
    """In a forked process: a coordinator, until it is killed."""
    agents = FieldAgents(order["field"], tuple(order["nodes"]))
    _commit_with(order["fault"], agents)
    where = order["topics"]
    with (
        connect(order["address"]) as session,
        TopicWatch(lambda: topics.connect(where), agents.wake, every_s=0.1) as watch,
    ):
        coordinator = Coordinator(
            session, agents, _manifest, order["name"], topics=watch if where else None
        )
        coordinator.run(threading.Event())
