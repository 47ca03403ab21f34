"""Watching services, plans and replicas in the coordination plane, and being seen there.

One thread reads what has changed, and only that: between a plan's change and `news` there is one
read. While the plane is away nothing is told, and what was found last stays.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from holdfast.coordination import (
    Member,
    Membership,
    Mirror,
    Mirrored,
    Session,
    document,
    single,
)
from holdfast.serve.gateway.state import PlaneService
from holdfast.serve.records import (
    GATEWAYS,
    Gateway,
    Replica,
    RolloutPlan,
    ServiceSpec,
    member_of,
    plan_path,
    replicas_path,
    service_path,
)
from holdfast.system import logs
from holdfast.system.tasks import OwnedThread, start_thread
from holdfast.wire import documents
from holdfast.wire.errors import HoldfastError, RetryError, SessionLost
from holdfast.wire.limits import RECONNECT_DELAY_S_MAX, THREAD_END_S

log = logs.get(__name__)


class PlaneWatcher:
    """`found` is the last whole picture, or None before the first. `news` is called on a thread
    after each change of it, and when the connection comes or goes. `at_first`: what the thread that
    reads does before all others; Envoy is started by another."""

    def __init__(
        self,
        connect: Callable[[], Session],
        news: Callable[[], None],
        at_first: Callable[[], None] = lambda: None,
    ) -> None:
        self._connect = connect
        self._news = news
        self._at_first = at_first
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._services = Mirrored(service_path("*"), document(ServiceSpec), keeps_last=True)
        self._plans = Mirrored(plan_path("*"), document(RolloutPlan), keeps_last=True)
        self._replicas = Mirrored(f"{replicas_path('*')}/*", single(_located), keeps_last=True)
        self._mirror: Mirror | None = None
        self._session: Session | None = None
        self._member: Member | None = None
        self._gateway: Gateway | None = None
        self._shown: Gateway | None = None
        self.found: Mapping[str, PlaneService] | None = None
        self._thread: OwnedThread | None = None
        self._telling: OwnedThread | None = None
        self._to_tell = threading.Event()

    def start(self) -> None:
        self._thread = start_thread(self._run, "watching")
        self._telling = start_thread(self._tell, "telling")

    def close(self) -> None:
        """Leave the plane: nobody waits for this gateway any more."""
        self._closed.set()
        self._wake.set()
        self._to_tell.set()
        if self._telling is not None:
            self._telling.join(THREAD_END_S)
        member, session = self._member, self._session
        if member is not None and session is not None and session.connected:
            member.leave()
        if session is not None:
            session.close()
        if self._thread is not None:
            self._thread.join(THREAD_END_S)

    @property
    def present(self) -> bool:
        """Whether what was found is what the plane holds now."""
        session = self._session
        return session is not None and session.connected and self.found is not None

    def show(self, gateway: Gateway) -> None:
        """Be seen with these facts, as soon as the plane answers."""
        self._gateway = gateway
        self._to_tell.set()

    # --- the watching thread --------------------------------------------------------------------

    def _run(self) -> None:
        self._at_first()
        session = self._opened()
        if session is None:
            return
        session.on_change(self._changed)
        self._wake.set()
        self._to_tell.set()
        while not self._closed.is_set() and not session.over:
            self._wake.wait()
            self._wake.clear()
            if self._closed.is_set():
                return
            try:
                changed = self._read(session)
            except (RetryError, SessionLost) as error:
                log.debug("the plane is away", reason=str(error))
                self._news()
                self._closed.wait(RECONNECT_DELAY_S_MAX)
                self._wake.set()
                continue
            except HoldfastError as error:
                log.warning("watching goes on after an error", reason=str(error))
                self._closed.wait(RECONNECT_DELAY_S_MAX)
                self._wake.set()
                continue
            if changed or self.found is None:
                self.found = self._picture()
                self._news()

    def _opened(self) -> Session | None:
        logged = ""
        while not self._closed.is_set():
            try:
                self._session = self._connect()
            except RetryError as error:
                if error.what != logged:
                    log.warning("the coordination plane does not answer yet", reason=str(error))
                    logged = error.what
                self._closed.wait(RECONNECT_DELAY_S_MAX)
            else:
                return self._session
        return None

    def _changed(self) -> None:
        """The session's state is another one: whoever shows our age must know."""
        self._news()
        self._to_tell.set()
        self._wake.set()

    def _read(self, session: Session) -> bool:
        """Read what has changed; whether there was anything."""
        if self._mirror is None:
            every = (self._services, self._plans, self._replicas)
            self._mirror = Mirror(session, *every, wake=self._wake.set)
        return bool(self._mirror.refresh())

    def _picture(self) -> Mapping[str, PlaneService]:
        replicas: dict[str, dict[str, Replica]] = {}
        for path, replica in self._replicas.values.items():
            above, _, name = path.rpartition("/")
            replicas.setdefault(above, {})[name] = replica
        return MappingProxyType(
            {
                (name := path.rpartition("/")[2]): PlaneService(
                    service,
                    self._plans.values.get(plan_path(name)),
                    replicas.get(replicas_path(name), {}),
                )
                for path, service in self._services.values.items()
            }
        )

    # --- being seen: a thread of its own, because it waits for answers ---------------------------

    def _tell(self) -> None:
        while not self._closed.is_set():
            self._to_tell.wait()
            self._to_tell.clear()
            session, gateway = self._session, self._gateway
            if self._closed.is_set():
                return
            if session is None or gateway is None or not session.connected:
                continue
            try:
                self._show(session, gateway)
            except HoldfastError as error:
                log.debug("the gateway could not be shown", reason=str(error))
                self._closed.wait(RECONNECT_DELAY_S_MAX)
                self._to_tell.set()

    def _show(self, session: Session, gateway: Gateway) -> None:
        """A lost session is mended by the member itself."""
        if self._member is None:
            members = Membership(session, GATEWAYS)
            self._member = members.join(gateway.name, documents.document(gateway))
            self._shown = gateway
        elif gateway != self._shown:
            if self._member.displaced:
                log.error(
                    "another gateway has this name",
                    name=gateway.name,
                    fix="stop one of the two, or start it under another name",
                )
                self._gateway = None
                return
            self._member.update(documents.document(gateway))
            self._shown = gateway


def _located(path: str, data: bytes) -> Replica:
    """Envoy wants addresses, and a machine may be known by its name."""
    replica = member_of(path, Replica, data)
    try:
        return replace(replica, host=address_of(replica.host))
    except OSError as error:
        log.warning("a replica cannot be located", host=replica.host, reason=str(error))
        return replica


# --- places ---------------------------------------------------------------------------------------
# Addresses: Envoy listens on them and connects to them, and knows no names.


def address_of(host: str) -> str:
    """The address of a host; an address is its own. `OSError`: nobody knows the name."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
