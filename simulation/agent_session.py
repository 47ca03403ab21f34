"""An agent's session in the simulated plane, and its node there (`holdfast.agent.ports`).

As the client library and `Member` do it: a session that is lost is followed by another, in which
the agent's node is made again. A request of a life that is over may come late: the turn that it
read before is another by then, and it is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.agent.ports import LeaderAddress
from holdfast.coordination.embedded import protocol as p
from holdfast.coordination.embedded.acl import OPEN
from holdfast.coordination.embedded.transactions import (
    Create,
    Delete,
    Multi,
    Part,
    SetData,
    TreeEvent,
)
from holdfast.coordination.embedded.tree import Tree
from holdfast.system.tasks import end, start_task
from holdfast.wire.errors import BugError, SessionLost
from simulation.births import LOCAL_S
from simulation.flow import Wait

if TYPE_CHECKING:
    from simulation.agent import Agent

NODES: Final = "/holdfast/nodes"
NODE_TURNS: Final = "/holdfast/nodes-turns"
CONTACT: Final = "/holdfast/leader/contact"
# How late the last request of an agent that died may be: its session is still alive then, and the
# next life of the agent may have joined.
LATE_S: Final = (0.2, 1.1)
QUICK_RESTART_S: Final = (0.05, 0.6)


class LeaderContact(NamedTuple):
    """Where a leader is: here, its name."""

    term: int
    address: str


class Session:
    """The session of one life of an agent; also its membership, which nobody takes here."""

    over = False
    displaced = False

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._plane = agent.world.plane
        self._client = agent.client
        self._changed: Callable[[], None] = lambda: None
        self._stale = asyncio.Event()  # the contact may be another than was read
        self._is_member = False  # it has joined once, and does so in every session
        self._joined = 0  # in which session it has joined
        self._reopening: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None

    @property
    def session_id(self) -> int:
        return self._client.heard if self._client.heard == self._client.session else 0

    @property
    def joined(self) -> bool:
        return self._joined == self._client.session != 0

    def on_change(self, changed: Callable[[], None]) -> None:
        self._changed = changed

    async def open(self) -> None:
        while not await self._answer(self._plane.open(self._client)):
            pass
        self._client.watches = _is_of_contact
        self._stale.set()

    async def close(self) -> None:
        raise BugError("a simulated agent took its leave: it can only die")

    async def members(self) -> Collection[str]:
        raise BugError("a simulated agent asked for the names of others, which nobody takes")

    # --- what the plane tells it -----------------------------------------------------------------

    def lost(self) -> None:
        """The session is over: the library opens another."""
        self._changed()
        before, self._reopening = self._reopening, None
        self._reopening = start_task(self._reopen(before), "session", self._agent.broken)

    async def _reopen(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await end(before)
        await self.open()
        if self._is_member:
            try:
                await self._join()
            except SessionLost:
                return  # we are told, and join again
        self._changed()

    def wake(self) -> None:
        """Something has changed that it watches."""
        self._stale.set()

    # --- the leader's address --------------------------------------------------------------------

    def follow_leader(self, known: Callable[[LeaderAddress | None], None]) -> None:
        self._following = start_task(self._follow(known), "contact", self._agent.broken)

    async def _follow(self, known: Callable[[LeaderAddress | None], None]) -> None:
        while True:
            await self._stale.wait()
            self._stale.clear()
            found = await self._answer(self._plane.read(self._client, _contact))
            if found is None:
                self._stale.set()  # no answer came
            elif found != p.SESSION_EXPIRED:
                known(self._plane.value(found) if found else None)

    # --- its node --------------------------------------------------------------------------------

    async def join(self, node: str, data: Any) -> Session:
        self._is_member = True
        await self._join()
        return self

    async def _join(self) -> None:
        """Have our node in the plane, in the present session."""
        agent, client, name = self._agent, self._client, self._agent.host.name
        path, turns, session = f"{NODES}/{name}", f"{NODE_TURNS}/{name}", client.session
        create = Create(path, self._plane.keep((name, session)), OPEN, p.FLAG_EPHEMERAL, -1, False)
        while True:
            reading = self._plane.read(client, lambda tree: _seat(tree, path, turns))
            found = await self._answer(reading)
            if found is None:
                continue
            if found == p.SESSION_EXPIRED or session != client.session:
                raise SessionLost("the session has ended", fix="join again")
            turn, owner, version = found
            if owner == session:
                break
            # The node of our own life before this one goes.
            old = () if owner is None else (Delete(path, version),)
            if agent.world.faults.strikes("join crash"):
                client.awaits = agent.kernel.now_s + agent.kernel.between(*LATE_S)
                agent.after(LOCAL_S, lambda: agent.crash(QUICK_RESTART_S))
            parts = (self._take_turn(turns, turn), *old, create)
            await self._answer(self._plane.ask(client, Multi(parts), session))
        self._joined = session
        agent.tell("has joined in session", session)

    def _take_turn(self, path: str, turn: int) -> Part:
        """What comes late, when another life has joined since, is refused."""
        return SetData(path, b"", turn)

    async def _answer(self, asking: Wait) -> Any:
        """Wait for the plane, which may not answer (None)."""
        answer = self._agent.loop.create_future()

        def go_on(result: Any) -> None:
            if not answer.done():
                answer.set_result(result)

        asking(lambda result: self._agent.loop.enter(go_on, result))
        return await answer


def _seat(tree: Tree, path: str, turns: str) -> tuple[int, int | None, int]:
    """Whose turn it is, who owns the node (if there is one), and its version."""
    node = tree.find(path)
    owner, version = (None, 0) if node is None else (node.owner, node.version)
    return tree.nodes[turns].version, owner, version


def _contact(tree: Tree) -> bytes:
    return tree.nodes[CONTACT].data or b""


def _is_of_contact(event: TreeEvent) -> bool:
    return event.path == CONTACT
