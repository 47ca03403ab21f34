"""The agent in the coordination plane: its session, its place among the nodes, and the leader.

Its workers do not depend on any of it. A plane that is away, a session that was lost, a name that
somebody else took: each time it gets its place again, and the workers notice nothing. Only while it
has its place does it speak to a leader, so no order of a former session is obeyed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from holdfast.agent.ports import LeaderAddress, PlaneMember, PlaneSession
from holdfast.system import logs
from holdfast.wire.errors import RetryError, SessionLost
from holdfast.wire.limits import RECONNECT_DELAY_S_MAX

# An agent that has no place in the coordination plane looks so often whether it can have it.
PRESENCE_LOOK_S: Final = 0.2
# An agent that has its place looks so often whether somebody took it.
PRESENCE_CHECK_S: Final = 1.0

T = TypeVar("T")

log = logs.get(__name__)


class Presence:
    """Runs in the agent's loop. `connect` gives a session."""

    def __init__(
        self, connect: Callable[[], Awaitable[PlaneSession]], node: str, data: Mapping[str, Any]
    ) -> None:
        self._connect = connect
        self._node = node
        self._data = dict(data)
        self._changed = asyncio.Event()
        self._session: PlaneSession | None = None
        self._contact: LeaderAddress | None = None

    def session_id(self) -> str:
        """Our present session, as orders name it; empty while there is none."""
        found = self._session.session_id if self._session is not None else 0
        return f"{found:x}" if found else ""

    async def run(self, point_to: Callable[[LeaderAddress | None], None]) -> None:
        """Until it is cancelled; raises what only a person can mend (wrong credentials).

        `point_to` is told where the leader is, and None while we may not speak to it.
        """
        self._session = session = await self._try(self._connect)
        session.on_change(self._changed.set)
        session.follow_leader(self._leader_is)
        while True:
            member: PlaneMember = await self._try(lambda: session.join(self._node, self._data))
            while not member.displaced:
                joined = member.joined and bool(session.session_id)
                point_to(self._contact if joined else None)
                if session.over:
                    raise SessionLost("the session is over", fix="start the agent again")
                await self._sleep(PRESENCE_CHECK_S if joined else PRESENCE_LOOK_S)
            point_to(None)
            await self._name_is_free(session)

    async def leave(self) -> None:
        """Give up our place: the leader knows at once that this node is gone, with its workers.

        An agent whose workers go on does not leave. Its place stays for as long as its session,
        and the next agent takes it over.
        """
        if self._session is not None:
            await self._session.close()

    # --- private --------------------------------------------------------------------------------

    def _leader_is(self, contact: LeaderAddress | None) -> None:
        self._contact = contact
        self._changed.set()

    async def _name_is_free(self, session: PlaneSession) -> None:
        """Two that fight for a name take it from each other for ever. The newer one has it."""
        log.error(
            "another agent has this node's name",
            node=self._node,
            fix="stop one of the two, or start it under another name; workers here go on",
        )
        while self._node in await self._try(session.members):
            await self._sleep(PRESENCE_CHECK_S)

    async def _try(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call it, again and again while the plane is away."""
        logged = ""
        while True:
            try:
                return await call()
            except (RetryError, SessionLost) as error:
                if self._session is not None and self._session.over:
                    raise
                if error.what != logged:
                    log.warning("no place in the coordination plane yet", reason=str(error))
                    logged = error.what
                await asyncio.sleep(RECONNECT_DELAY_S_MAX)

    async def _sleep(self, longest_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._changed.wait()
        self._changed.clear()
