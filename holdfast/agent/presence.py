"""The agent in the coordination plane: its session, its place among the nodes, and the leader.

Its workers do not depend on any of it. A plane that is away, a session that was lost, a name that
somebody else took: each time it gets its place again, and the workers notice nothing. Only while it
has its place does it speak to a leader, so no order of a former session is obeyed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from holdfast.coordination import Config, Member, Membership, Session, Versioned
from holdfast.coordination.follow import Follow
from holdfast.wire import logs, rpc
from holdfast.wire.errors import HoldfastError, RetryError, SessionLost
from holdfast.wire.limits import RECONNECT_DELAY_S_MAX
from holdfast.wire.rpc import Contact

# An agent that has no place in the coordination plane looks so often whether it can have it.
PRESENCE_LOOK_S: Final = 0.2
# An agent that has its place looks so often whether somebody took it.
PRESENCE_CHECK_S: Final = 1.0

T = TypeVar("T")

log = logs.get(__name__)


class Presence:
    """Runs in the agent's loop. `connect` gives a session; it may block, and is called aside.
    `connected` is given the session once there is one."""

    def __init__(
        self,
        connect: Callable[[], Session],
        node: str,
        data: Mapping[str, Any],
        connected: Callable[[Session], None] = lambda _: None,
    ) -> None:
        self._connect = connect
        self._connected = connected
        self._node = node
        self._data = dict(data)
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._session: Session | None = None
        self._member: Member | None = None
        self._follow: Follow[Versioned] | None = None
        self._contact: Contact | None = None

    def session_id(self) -> str:
        """Our present session, as orders name it; empty while there is none."""
        session = self._session
        found = session.session_id if session is not None else 0
        return f"{found:x}" if found else ""

    async def run(self, point_to: Callable[[Contact | None], None]) -> None:
        """Until it is cancelled; raises what only a person can mend (wrong credentials).

        `point_to` is told where the leader is, and None while we may not speak to it.
        """
        self._session = await self._try(self._connect)
        session = self._session
        self._connected(session)
        session.on_change(self._wake)
        self._follow = Config(session, rpc.CONTACT_PATH).watch(self._contact_is)
        while True:
            member = await self._try(self._join)
            while not member.displaced:
                joined = member.joined and bool(session.session_id)
                point_to(self._contact if joined else None)
                if session.over:
                    raise SessionLost("the session is over", fix="start the agent again")
                await self._sleep(PRESENCE_CHECK_S if joined else PRESENCE_LOOK_S)
            point_to(None)
            await self._name_is_free()

    async def leave(self) -> None:
        """Give up our place: the leader knows at once that this node is gone, with its workers.

        An agent whose workers go on does not leave. Its place stays for as long as its session,
        and the next agent takes it over.
        """
        await asyncio.to_thread(self._leave)

    def _leave(self) -> None:
        if self._session is None:
            return
        self._session.forget(self._wake)
        if self._member is not None:
            self._member.leave()
        self._session.close()
        if self._follow is not None:
            self._follow.close()

    # --- private --------------------------------------------------------------------------------

    def _join(self) -> Member:
        assert self._session is not None
        self._member = Membership(self._session, rpc.NODES_PATH).join(self._node, self._data)
        return self._member

    async def _name_is_free(self) -> None:
        """Two that fight for a name take it from each other for ever. The newer one has it."""
        log.error(
            "another agent has this node's name",
            node=self._node,
            fix="stop one of the two, or start it under another name; workers here go on",
        )
        assert self._session is not None
        membership = Membership(self._session, rpc.NODES_PATH)
        while self._node in await self._try(membership.members):
            await self._sleep(PRESENCE_CHECK_S)

    async def _try(self, call: Callable[[], T]) -> T:
        """Call it on a thread, again and again while the plane is away."""
        told = ""
        while True:
            try:
                return await asyncio.to_thread(call)
            except (RetryError, SessionLost) as error:
                if self._session is not None and self._session.over:
                    raise
                if error.what != told:
                    log.warning("no place in the coordination plane yet", reason=str(error))
                    told = error.what
                await asyncio.sleep(RECONNECT_DELAY_S_MAX)

    async def _sleep(self, longest_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._changed.wait()
        self._changed.clear()

    # --- called on other threads ----------------------------------------------------------------

    def _contact_is(self, versioned: Versioned) -> None:
        try:
            self._contact = rpc.contact_from(versioned.value)
        except HoldfastError as error:
            log.warning("the leader's address cannot be read", reason=str(error))
            self._contact = None
        self._wake()

    def _wake(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._changed.set)
