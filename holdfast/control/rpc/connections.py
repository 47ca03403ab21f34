"""Who is connected, what each reported last, and what waits to be sent. No network in here.

`AgentConnections` is shared by the coordinator's thread and the loop of the server: one lock, held
briefly, never over I/O. A connection is one stream of one agent. Orders wait in it by what they are
about, so that a newer order replaces an older one of its kind: what waits for a slow agent is
bounded, and never delays another's.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import grpc

from holdfast.control.decide.commands import Decision, Order
from holdfast.control.decide.facts import NodeFacts, ObservedState
from holdfast.system import logs
from holdfast.wire.errors import BugError, Conflict, Full, TimedOut, Unavailable
from holdfast.wire.limits import (
    REPORT_STEPS_S,
    REPORT_STEPS_S_MAX,
    RPC_MESSAGE_BYTES_MAX,
    STREAMS_MAX,
)
from holdfast.wire.orders import GiveView, View
from holdfast.wire.rpc import Denied
from holdfast.wire.values import order_bytes, view_bytes

# Orders are sent together up to this size: one fsync of the agent for all of them.
ORDERS_BYTES: Final = 1024 * 1024
# Orders that wait for one agent's stream: several for each of its workers.
ORDERS_WAITING_MAX: Final = 4_096
# Orders that agents refused, kept for people.
REFUSALS_KEPT: Final = 256
# Reports of steps a second that a leader wants of all its agents together: with more of them each
# reports more rarely. A report costs it half a millisecond, and half of its time is for deciding.
REPORTS_PER_S_MAX: Final = 1_000

log = logs.get(__name__)

Wakeup = Callable[[], None]
Cut = Callable[[Denied], None]
_About = tuple[type[Order], str, int]


@dataclass(frozen=True, slots=True)
class AgentHello:
    """Who opened a stream: what its hello said."""

    node: str
    session: str
    process: str
    serial: int


@dataclass(eq=False, slots=True)
class AgentConnection:
    """One stream. `wake_writer` tells its writer that something waits; `cut` ends it. Both may
    be called from any thread."""

    number: int
    term: int
    hello: AgentHello
    wake_writer: Wakeup
    cut: Cut
    # Each without its view, and the view that it gives, which orders for other workers share.
    waiting: dict[_About, tuple[Order, bytes, View | None]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OrderRefused:
    """What an agent answered to an order that it did not take."""

    node: str
    term: int
    order: str
    job: str
    worker: int
    reason: str
    fenced: bool


@dataclass(frozen=True, slots=True)
class ObservedAgents:
    """Who is alive (and since when), what each said last, and who has a stream now."""

    term: int
    members: Mapping[str, int]
    facts: Mapping[str, NodeFacts]
    connected: frozenset[str]


class AgentConnections:
    """The agents as one leader sees them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._woken = False
        self._term: int | None = None
        self._steps_s = REPORT_STEPS_S
        self._opened = 0
        self._members: dict[str, int] = {}
        self._facts: dict[str, NodeFacts] = {}
        self._connections: dict[str, AgentConnection] = {}
        self._refusals: deque[OrderRefused] = deque(maxlen=REFUSALS_KEPT)

    # --- for the coordinator ------------------------------------------------------------------

    def begin(self, term: int) -> None:
        """Lead in `term`. Who is alive is said next, by `set_members`; until then it is nobody."""
        with self._lock:
            self._forget_all(_another_term(term))
            self._term = term
            self._wake()

    def end(self) -> None:
        with self._lock:
            self._forget_all(not_leading())
            self._term = None
            self._wake()

    def observed(self) -> ObservedState:
        with self._lock:
            reported = {node: facts for node, facts in self._facts.items() if node in self._members}
            unreported = frozenset(node for node in self._members if node not in reported)
        return ObservedState(reported, unreported)

    def observed_agents(self) -> ObservedAgents | None:
        """All that is known of agents in this term, for people; None: this one does not lead."""
        with self._lock:
            if self._term is None:
                return None
            facts = {node: self._facts[node] for node in self._members if node in self._facts}
            return ObservedAgents(
                self._term, dict(self._members), facts, frozenset(self._connections)
            )

    def connection(self, node: str) -> int:
        with self._lock:
            connection = self._connections.get(node)
            return connection.number if connection is not None and node in self._members else 0

    def order(self, term: int, decision: Decision) -> None:
        """Let the order wait for its agent's stream; without one it is dropped."""
        order = decision.command
        if not isinstance(order, Order):
            raise BugError(f"{type(order).__name__} is not an order", why="it is a record")
        view = order.view if isinstance(order, GiveView) else None
        spelled = order_bytes(order, with_view=False)
        size = len(spelled) + (len(view_bytes(view)) if view is not None else 0)
        if size > RPC_MESSAGE_BYTES_MAX // 2:
            raise BugError(
                f"an order for worker {order.worker} of {order.job} has {size} bytes",
                why=f"a message has at most {RPC_MESSAGE_BYTES_MAX}",
            )
        with self._lock:
            connection = self._connections.get(order.node)
            if connection is None or term != self._term or order.node not in self._members:
                return
            about = (type(order), order.job, order.worker)
            connection.waiting.pop(about, None)
            connection.waiting[about] = (order, spelled, view)
            if len(connection.waiting) > ORDERS_WAITING_MAX:
                # It does not read. A new stream is told everything again.
                self._drop(connection, _does_not_read(order.node))
                return
        connection.wake_writer()

    def wait(self, timeout_s: float) -> bool:
        with self._news:
            self._news.wait_for(lambda: self._woken, timeout_s)
            woken, self._woken = self._woken, False
        return woken

    def wake(self) -> None:
        with self._lock:
            self._wake()

    def refusals(self) -> tuple[OrderRefused, ...]:
        """The last orders that agents refused, oldest first."""
        with self._lock:
            return tuple(self._refusals)

    # --- for the server -----------------------------------------------------------------------

    def set_members(self, term: int, members: Mapping[str, int]) -> None:
        """Who is alive, and when each joined. What a former session said is forgotten, and what
        waits for it is not told any more. What was learned for another term does not count."""
        with self._lock:
            if term != self._term:
                return
            for node, since in self._members.items():
                if members.get(node) != since:
                    self._facts.pop(node, None)
                    connection = self._connections.get(node)
                    if connection is not None:
                        connection.waiting.clear()
            self._members = dict(members)
            self._wake()
            steps_s = steps_pause_s(len(members))
            connections = () if steps_s == self._steps_s else tuple(self._connections.values())
            self._steps_s = steps_s
        for connection in connections:
            connection.wake_writer()  # all agents are told of the other pace

    def attach(self, hello: AgentHello, wake_writer: Wakeup, cut: Cut) -> AgentConnection:
        """A new stream. An older one of the same agent is cut."""
        with self._lock:
            if self._term is None:
                raise not_leading()
            former = self._connections.get(hello.node)
            if former is None and len(self._connections) >= STREAMS_MAX:
                raise _full()
            if former is not None:
                if former.hello.process == hello.process and former.hello.serial >= hello.serial:
                    raise _replaced(hello.node)
                self._drop(former, _replaced(hello.node))
            self._opened += 1
            connection = AgentConnection(self._opened, self._term, hello, wake_writer, cut)
            self._connections[hello.node] = connection
            self._wake()
        return connection

    def report(self, connection: AgentConnection, facts: NodeFacts) -> None:
        """An agent's snapshot. That of a stream that was replaced says nothing any more."""
        node = connection.hello.node
        with self._lock:
            if self._connections.get(node) is not connection:
                return
            if self._facts.get(node) != facts:
                self._facts[node] = facts
                self._wake()

    def refused(self, refusal: OrderRefused) -> None:
        with self._lock:
            self._refusals.append(refusal)

    @property
    def steps_s(self) -> float:
        """How often agents shall report steps."""
        return self._steps_s

    def take(self, connection: AgentConnection) -> list[bytes]:
        """Orders to be sent now, together; none if nothing waits, or the connection is not
        current. A view that several of them give one after the other is in the first of them."""
        taken: list[bytes] = []
        size = 0
        given: View | None = None
        with self._lock:
            if self._connections.get(connection.hello.node) is not connection:
                return taken
            for about in tuple(connection.waiting):
                order, spelled, view = connection.waiting[about]
                if view is not None and view is not given:
                    spelled = order_bytes(order)
                size += len(spelled)
                if taken and size > ORDERS_BYTES:
                    break
                del connection.waiting[about]
                given = view
                taken.append(spelled)
        return taken

    def detach(self, connection: AgentConnection) -> None:
        """The stream is over. What the agent said last stays true until something else is known."""
        with self._lock:
            if self._connections.get(connection.hello.node) is connection:
                del self._connections[connection.hello.node]
                self._wake()

    # --- private ------------------------------------------------------------------------------

    def _forget_all(self, denied: Denied) -> None:
        for connection in tuple(self._connections.values()):
            self._drop(connection, denied)
        self._facts.clear()
        self._members.clear()

    def _drop(self, connection: AgentConnection, denied: Denied) -> None:
        connection.waiting.clear()
        del self._connections[connection.hello.node]
        connection.cut(denied)

    def _wake(self) -> None:
        self._woken = True
        self._news.notify_all()


def steps_pause_s(agents: int) -> float:
    """How often each of so many agents shall report steps. Doubled, so that it changes rarely."""
    pause_s = REPORT_STEPS_S
    while agents > REPORTS_PER_S_MAX * pause_s and pause_s < REPORT_STEPS_S_MAX:
        pause_s *= 2
    return min(pause_s, REPORT_STEPS_S_MAX)


# --- why a stream ends --------------------------------------------------------------------------


def not_leading() -> Denied:
    return Denied(
        grpc.StatusCode.UNAVAILABLE,
        Unavailable(
            "this coordinator does not lead",
            why="another one does, or none yet",
            fix="follow the leader's address in the coordination plane; it is tried again",
        ),
    )


def _another_term(term: int) -> Denied:
    return Denied(
        grpc.StatusCode.UNAVAILABLE,
        Unavailable(f"this coordinator now leads in term {term}", fix="say hello again"),
    )


def _full() -> Denied:
    return Denied(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        Full(
            f"{STREAMS_MAX} agents are connected",
            why="more cannot be watched by one coordinator",
            fix="split the machines into several clusters",
        ),
    )


def _replaced(node: str) -> Denied:
    return Denied(
        grpc.StatusCode.ABORTED,
        Conflict(
            f"a newer stream of node {node} is open",
            why="its agent connected again, or another machine has the same name",
            fix="give each machine a name of its own",
        ),
    )


def _does_not_read(node: str) -> Denied:
    return Denied(
        grpc.StatusCode.DEADLINE_EXCEEDED,
        TimedOut(
            f"the agent of {node} does not take its orders",
            why=f"more than {ORDERS_WAITING_MAX} wait",
            fix="look at that machine's agent and its disk",
        ),
    )
