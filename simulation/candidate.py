"""A process that wants to lead: its session, its place in the line, its term.

As the client's `Election` does it: an ephemeral sequential node in a line; whoever is first takes
the next term, in one transaction that checks its own node and that the term has not moved.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final

from holdfast.coordination.embedded import protocol as p
from holdfast.coordination.embedded.acl import OPEN
from holdfast.coordination.embedded.transactions import (
    CheckVersion,
    Create,
    Multi,
    SetData,
    TreeEvent,
)
from holdfast.coordination.embedded.tree import Tree
from simulation.flow import Flow, Steps, Wait
from simulation.kernel import SimulatedProcess
from simulation.plane import Client, refused_at

if TYPE_CHECKING:
    from simulation.world import World

RESTART_S: Final = (0.3, 4.0)
# How long a thread of ours goes on after the client has got a new session.
TOLD_S: Final = (0.0, 0.3)
# A standby looks again after this, though nothing woke it: never, here. A watch must be enough.
LOOK_AGAIN_S: Final = 10_000.0
CANDIDATES: Final = "/holdfast/leader/candidates"
TERM: Final = "/holdfast/leader/term"


class Deposed(Exception):
    """Our session is over, or another leads."""


class Candidate(SimulatedProcess, ABC):
    """Lives, campaigns, and leads by `lead` until it is deposed."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world.kernel, name)
        self.world = world
        self.client = Client(self, name, self._session_lost, self.wake)
        self._living: Flow | None = None
        self._reopening: Flow | None = None
        self.forget()

    def forget(self) -> None:
        """What is only known as long as a campaign lasts."""
        self.campaign = 0  # the session in which it entered the line
        self.candidate = ""
        self.term = 0  # 0: it does not lead
        self.stale = False  # something has changed since it last read
        self._go_on: Callable[[Any], None] | None = None

    @abstractmethod
    def lead(self) -> Steps:
        """What it does as the leader; ends by `Deposed`."""

    # --- its life -------------------------------------------------------------------------------

    def start(self) -> None:
        self.begin()
        self.tell("starts")
        self.forget()
        self._reopening = None
        self._living = Flow(self._live())

    def crash(self) -> None:
        """It dies, and is started again after a while."""
        if self.up:
            self.tell("dies")
            self.die()
            self.world.plane.expect_silence(self.name)
            self.kernel.after(self.kernel.between(*RESTART_S), self.start)

    def _session_lost(self) -> None:
        """Our session is over. The client library opens another at once; whoever leads is told a
        little later, and until then goes on, over the new session."""
        self.tell("has lost its session")
        if self._reopening is not None:
            self._reopening.cancel()
        self._reopening = Flow(self._reopen())

    def _reopen(self) -> Steps:
        while not (yield self.world.plane.open(self.client)):
            pass
        yield self.pause_for(self.kernel.between(*TOLD_S))
        self._reopening = None
        if self.campaign == self.client.session:
            return  # it had not entered the line before, and did so in the new session
        self.tell("is told that its session is over")
        if self._living is not None:
            self._living.cancel()
        self.forget()
        self._living = Flow(self._live(opened=True))

    def _live(self, opened: bool = False) -> Steps:
        while True:
            while not opened:
                opened = yield self.world.plane.open(self.client)
            try:
                yield from self._campaign()
            except Deposed:
                self.tell("was refused, and stops")
                if self._reopening is not None:
                    return  # a new session is on its way, and a new campaign with it
                yield self.world.plane.close(self.client)
                self.forget()
                opened = False

    def _campaign(self) -> Steps:
        self.candidate = yield from self._enter_line()
        self.term = yield from self._take_term()
        self.tell("leads in term", self.term)
        yield from self.lead()

    # --- election: as `Election` does it ----------------------------------------------------------

    def _enter_line(self) -> Generator[Wait, Any, str]:
        plane, client = self.world.plane, self.client
        self.campaign = client.session
        mark = f"{CANDIDATES}/{self.name}.{self.campaign}-c-"
        create = Create(mark, b"", OPEN, p.FLAG_EPHEMERAL_SEQUENTIAL, -1, False)
        while True:
            outcome = yield plane.ask(client, create, self.campaign)
            if outcome is not None and outcome.error != p.OK:
                raise Deposed
            # A lost reply is resolved as any other: our mark shows which node is ours.
            names = yield plane.read(client, _line)
            if names == p.SESSION_EXPIRED:
                raise Deposed
            for name in names or ():
                if f"{CANDIDATES}/{name}".startswith(mark):
                    return f"{CANDIDATES}/{name}"
            if outcome is not None and names is not None:
                raise Deposed

    def _take_term(self) -> Generator[Wait, Any, int]:
        plane, client = self.world.plane, self.client
        mine = self.candidate.rpartition("/")[2]
        client.watches = _ends_a_candidate
        while True:
            self.stale = False
            found = yield plane.read(client, _line_and_term)
            if found is None:
                continue
            if found == p.SESSION_EXPIRED or mine not in found[0]:
                raise Deposed
            names, data, version = found
            if names[0] != mine:
                if not self.stale:
                    yield self.until_woken(LOOK_AGAIN_S)
                continue
            if data == mine.encode():
                return int(version)
            take = Multi((CheckVersion(self.candidate, -1), SetData(TERM, mine.encode(), version)))
            outcome = yield plane.ask(client, take, self.campaign)
            if outcome is not None and refused_at(outcome) is None:
                return int(version) + 1

    # --- waiting --------------------------------------------------------------------------------

    def wake(self) -> None:
        self.stale = True
        self.resume()

    def resume(self) -> None:
        if self._go_on is not None:
            go_on, self._go_on = self._go_on, None
            go_on(None)

    def until_woken(self, timeout_s: float) -> Wait:
        def begin(go_on: Callable[[Any], None]) -> None:
            self._go_on = go_on
            self.after(timeout_s, lambda: go_on(True))

        return begin

    def pause_for(self, pause_s: float) -> Wait:
        return lambda go_on: self.after(pause_s, lambda: go_on(None))


def _ends_a_candidate(event: TreeEvent) -> bool:
    return event.type == p.EVENT_DELETED and event.path.startswith(CANDIDATES)


def _line(tree: Tree) -> list[str]:
    """The candidates, first come first: by the number at the end of their names."""
    return sorted(tree.nodes[CANDIDATES].child_names(), key=lambda name: name[-10:])


def _line_and_term(tree: Tree) -> tuple[list[str], bytes | None, int]:
    node = tree.nodes[TERM]
    return _line(tree), node.data, node.version
