"""The replica in the coordination plane: what it is to hold, and what it says of itself.

Nothing here stops a replica from answering. A plane that is away, a session that was lost, a
service that cannot be read: each time the replica goes on with what it last knew, and is back as
soon as it can be.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeVar

from holdfast.coordination import Follow, Member, Membership, Mirror, Mirrored, Session, document
from holdfast.coordination.waits import Wake
from holdfast.models.catalogue import Catalogue
from holdfast.models.records import Version
from holdfast.serve.priority import lower_own_priority
from holdfast.serve.records import (
    Replica,
    RolloutPlan,
    ServiceSpec,
    plan_path,
    replicas_path,
    service_path,
)
from holdfast.serve.replica.aside import Aside
from holdfast.system import logs
from holdfast.wire import documents
from holdfast.wire.errors import HoldfastError, RetryError, SessionLost, Unavailable
from holdfast.wire.limits import RECONNECT_DELAY_S_MAX

# A replica reads a plan so long after it has changed, drawn anew each time: when controller and
# gateways have done what is to be done at once, and not all replicas of a machine together.
PLAN_PAUSE_S: Final = (0.06, 0.15)
# Traces of replicas that are gone, in the coordination plane: more than late requests come from.
REPLICA_TURNS_KEPT: Final = 100
# It leaves the plane within this; a plane that is away finds out by itself.
LEAVE_PLANE_S: Final = 5.0

T = TypeVar("T")

log = logs.get(__name__)


class DesiredVersions(NamedTuple):
    """What users and the controller want; None: it is not there, or cannot be read."""

    service: ServiceSpec | None
    plan: RolloutPlan | None


class ServiceReader:
    """What the plane holds of a service: only what has changed is read, and without a round through
    all servers, but for the first time in a session."""

    def __init__(self, session: Session, service: str) -> None:
        self._service = Mirrored(service_path(service), document(ServiceSpec))
        self._plan = Mirrored(plan_path(service), document(RolloutPlan))
        self._mirror = Mirror(session, self._service, self._plan)

    def read(self, wake: Wake) -> DesiredVersions:
        """`wake` is called when that changes."""
        self._mirror.wake = wake
        self._mirror.refresh()
        service, plan = self._service.values, self._plan.values
        return DesiredVersions(next(iter(service.values()), None), next(iter(plan.values()), None))

    def close(self) -> None:
        """Nobody is woken any more."""
        self._mirror.close()


class Following:
    """Runs in the replica's loop; what blocks is done aside."""

    def __init__(self, connect: Callable[[], Session], service: str) -> None:
        self._connect = connect
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._session: Session | None = None
        self._member: Member | None = None
        self._follow: Follow[DesiredVersions] | None = None
        # Whoever answers goes first, also before the threads of the session, which start there.
        self._aside = Aside(lower_own_priority)
        self._changed = asyncio.Event()
        self._shown = asyncio.Event()
        self._tell: Callable[[DesiredVersions], None] = lambda _: None

    async def run(
        self, tell: Callable[[DesiredVersions], None], show: Callable[[], Replica]
    ) -> None:
        """Until it is cancelled. `tell` is given each desired state; `show` says what others are to
        see, and is asked again after each `changed`. Raises what keeps it from ever reaching the
        plane; after the first time that it has, it never gives up."""
        self._tell = tell
        self._session = await self._try("no place in the coordination plane yet", self._connect)
        while True:
            try:
                wanted = ServiceReader(self._session, self._service)
                self._follow = Follow(
                    self._session, self._service, wanted.read, self._read, _pause_s, wanted.close
                )
                await self._go_on_showing(show)
            except HoldfastError as error:
                log.warning("the plane is of no use; going on without it", reason=str(error))
            await self._aside.call(self._leave)
            await asyncio.sleep(RECONNECT_DELAY_S_MAX)
            self._session = await self._again()
            self.changed()

    async def _go_on_showing(self, show: Callable[[], Replica]) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            show_it = partial(self._show, documents.document(show()))
            await self._try("others cannot see this replica yet", show_it)
            if not self._changed.is_set():
                self._shown.set()

    async def _again(self) -> Session:
        """Another session in place of one that is over."""
        while True:
            try:
                return await self._try("no session with the plane yet", self._connect)
            except HoldfastError as error:
                log.warning("no session with the plane yet", reason=str(error))
                await asyncio.sleep(RECONNECT_DELAY_S_MAX)

    def changed(self) -> None:
        """What this replica says of itself has changed."""
        self._shown.clear()
        self._changed.set()

    async def shown(self, timeout_s: float) -> bool:
        """Wait until others can see the last change; False: not within this time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._shown.wait()
        except TimeoutError:
            return False
        return True

    def record(self, model: str, number: int) -> Version:
        """The record of a version. Blocks; `Unavailable` while the plane is away."""
        session = self._session
        if session is None:
            raise Unavailable("the coordination plane is not reached yet")
        return Catalogue(session).version(model, number)

    async def leave(self) -> None:
        """Others see at once that this replica is gone, if the plane is there. `run` has ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_PLANE_S):
                # On a thread of its own: the other one may be waiting for a plane that is away.
                await Aside().call(self._leave)

    # --- aside -----------------------------------------------------------------------------------

    def _leave(self) -> None:
        session, self._session = self._session, None
        member, self._member = self._member, None
        follow, self._follow = self._follow, None
        if session is None:
            return
        if member is not None:
            member.leave()
        session.close()
        if follow is not None:
            follow.close()

    def _show(self, shown: dict[str, object]) -> None:
        assert self._session is not None
        worker = str(shown["worker"])
        if self._member is None or self._member.displaced:
            members = Membership(self._session, replicas_path(self._service))
            self._member = members.join(worker, shown)
            members.tidy(REPLICA_TURNS_KEPT)  # a worker's number is used once
        else:
            self._member.update(shown)

    async def _try(self, trouble: str, call: Callable[[], T]) -> T:
        """Call it aside, again and again while the plane is away."""
        told = ""
        while True:
            try:
                return await self._aside.call(call)
            except (RetryError, SessionLost) as error:
                session = self._session
                if session is not None and session.over:
                    raise
                if error.what != told:
                    log.warning(trouble, reason=str(error))
                    told = error.what
                await asyncio.sleep(RECONNECT_DELAY_S_MAX)

    def _read(self, desired: DesiredVersions) -> None:
        """On the thread that follows."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell, desired)


def _pause_s() -> float:
    return random.uniform(*PLAN_PAUSE_S)  # noqa: S311
