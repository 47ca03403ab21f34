"""The coordination plane as `presence` asks it, over a session that has its own threads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any

from holdfast.agent.ports import LeaderAddress
from holdfast.coordination import Config, Member, Membership, Session, Versioned
from holdfast.coordination.follow import Follow
from holdfast.system import logs
from holdfast.system.tasks import in_loop
from holdfast.wire import rpc
from holdfast.wire.errors import HoldfastError

log = logs.get(__name__)


def opener(
    connect: Callable[[], Session], opened: Callable[[Session], None] = lambda _: None
) -> Callable[[], Awaitable[ThreadedSession]]:
    """What opens a session for `Presence`. `connect` may block, and is called aside; `opened` is
    given what it gave."""

    async def open_session() -> ThreadedSession:
        session = await asyncio.to_thread(connect)
        opened(session)
        return ThreadedSession(session)

    return open_session


class ThreadedSession:
    """A session, in the loop that it was made in (`ports.PlaneSession`)."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._members = Membership(session, rpc.NODES_PATH)
        self._member: Member | None = None
        self._follow: Follow[Versioned] | None = None
        self._changed: Callable[[], None] = lambda: None

    @property
    def session_id(self) -> int:
        return self._session.session_id or 0

    @property
    def over(self) -> bool:
        return self._session.over

    def on_change(self, changed: Callable[[], None]) -> None:
        self._changed = partial(in_loop, self._loop, changed)
        self._session.on_change(self._changed)

    def follow_leader(self, known: Callable[[LeaderAddress | None], None]) -> None:
        def read(versioned: Versioned) -> None:
            try:
                contact = rpc.contact_from(versioned.value)
            except HoldfastError as error:
                log.warning("the leader's address cannot be read", reason=str(error))
                contact = None
            in_loop(self._loop, known, contact)

        self._follow = Config(self._session, rpc.CONTACT_PATH).watch(read)

    async def join(self, node: str, data: Any) -> Member:
        self._member = await asyncio.to_thread(self._members.join, node, data)
        return self._member

    async def members(self) -> Collection[str]:
        return await asyncio.to_thread(self._members.members)

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._session.forget(self._changed)
        if self._member is not None:
            self._member.leave()
        self._session.close()
        if self._follow is not None:
            self._follow.close()
