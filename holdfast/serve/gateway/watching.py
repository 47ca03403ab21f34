"""Watching services, courses and replicas in the coordination plane, and being seen there.

One thread reads what has changed, and only that: between a course's change and `news` there is one
read. While the plane is away nothing is told, and what was found last stays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar, cast

from holdfast.coordination import Facts, Member, Membership, Session
from holdfast.serve.gateway.keeping import Found
from holdfast.serve.gateway.places import address_of
from holdfast.serve.records import (
    GATEWAYS,
    SERVICES,
    Course,
    Gateway,
    Replica,
    Service,
    course_path,
    member_of,
    replicas_path,
    service_path,
)
from holdfast.wire import documents, logs
from holdfast.wire.errors import Corrupt, HoldfastError, RetryError, SessionLost
from holdfast.wire.limits import RECONNECT_DELAY_S_MAX, THREAD_END_S
from holdfast.wire.tasks import OwnedThread, start_thread

T = TypeVar("T")

log = logs.get(__name__)


class Watching:
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
        self._lock = threading.Lock()
        self._dirty: set[str] = set()
        self._names: dict[str, list[str]] = {}
        self._values: dict[str, Any] = {}
        self._session: Session | None = None
        self._member: Member | None = None
        self._gateway: Gateway | None = None
        self._shown: Gateway | None = None
        self.found: Mapping[str, Found] | None = None
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
        self._touch(SERVICES)
        self._to_tell.set()
        while not self._closed.is_set() and not session.over:
            self._wake.wait()
            self._wake.clear()
            if self._closed.is_set():
                return
            try:
                changed = self._read(Facts(session))
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
        told = ""
        while not self._closed.is_set():
            try:
                self._session = self._connect()
            except RetryError as error:
                if error.what != told:
                    log.warning("the coordination plane does not answer yet", reason=str(error))
                    told = error.what
                self._closed.wait(RECONNECT_DELAY_S_MAX)
            else:
                return self._session
        return None

    def _changed(self) -> None:
        """The session's state is another one: whoever shows our age must know."""
        self._news()
        self._to_tell.set()
        self._wake.set()

    def _touch(self, path: str) -> None:
        with self._lock:
            self._dirty.add(path)
        self._wake.set()

    def _read(self, facts: Facts) -> bool:
        """Read what is dirty, and what that brings to light; whether there was anything."""
        changed = False
        while True:
            with self._lock:
                path = min(self._dirty, default=None)
                self._dirty.discard(path or "")
            if path is None:
                return changed
            try:
                self._read_one(facts, path)
            except BaseException:
                self._touch(path)
                raise
            changed = True

    def _read_one(self, facts: Facts, path: str) -> None:
        words = path.removeprefix(SERVICES).strip("/").split("/")
        wake = partial(self._touch, path)
        if path == SERVICES:
            self._list(facts, path, wake, service_path)
        elif len(words) == 1:
            self._keep(path, self._value(facts, path, wake, Service))
            self._also(course_path(words[0]))
            self._also(replicas_path(words[0]))
        elif len(words) == 2 and words[1] == "course":
            self._keep(path, self._value(facts, path, wake, Course))
        elif len(words) == 2:
            self._list(facts, path, wake, lambda name: f"{path}/{name}")
        else:
            self._read_replica(facts, path, wake)

    def _read_replica(self, facts: Facts, path: str, wake: Callable[[], None]) -> None:
        """One that is gone is waited for by nobody: it may never come back, and a watch for that
        would stay at the server for ever. The list above says so if it does."""
        fact = facts.read_all([path], {path: wake}).get(path)
        if fact is not None:
            self._keep(path, self._understood(path, Replica, fact.data))
            return
        self._values.pop(path, None)
        above, _, name = path.rpartition("/")
        if name in self._names.get(above, []):
            self._names[above].remove(name)

    def _list(
        self, facts: Facts, path: str, wake: Callable[[], None], below: Callable[[str], str]
    ) -> None:
        names = facts.names(path, wake)
        before = self._names.get(path, [])
        self._names[path] = names
        for name in names:
            if name not in before:
                self._touch(below(name))
        for name in set(before) - set(names):
            self._forget(below(name))

    def _also(self, path: str) -> None:
        if path not in self._values and path not in self._names:
            self._touch(path)

    def _keep(self, path: str, value: Any) -> None:
        self._values[path] = value

    def _forget(self, path: str) -> None:
        """It is gone, with all below it; what comes back is read anew."""
        with self._lock:
            self._dirty -= {one for one in self._dirty if one == path or one.startswith(f"{path}/")}
        for held in (self._values, self._names):
            for one in [one for one in held if one == path or one.startswith(f"{path}/")]:
                del held[one]

    def _value(self, facts: Facts, path: str, wake: Callable[[], None], kind: type[T]) -> T | None:
        fact = facts.read(path, wake)
        return None if fact is None else self._understood(path, kind, fact.data)

    def _understood(self, path: str, kind: type[T], data: bytes) -> T | None:
        try:
            if kind is Replica:
                return cast("T", _located(member_of(path, Replica, data)))
            return documents.from_bytes(path, kind, data)
        except Corrupt as error:
            log.warning("a fact cannot be read; the last one stays", path=path, reason=str(error))
            last: T | None = self._values.get(path)
            return last

    def _picture(self) -> Mapping[str, Found]:
        found = {}
        for name in self._names.get(SERVICES, []):
            service = self._values.get(service_path(name))
            if service is None:
                continue
            below = replicas_path(name)
            workers = {
                each: self._values.get(f"{below}/{each}") for each in self._names.get(below, [])
            }
            there = {each: one for each, one in workers.items() if one is not None}
            found[name] = Found(service, self._values.get(course_path(name)), there)
        return MappingProxyType(found)

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


def _located(replica: Replica) -> Replica:
    """Envoy wants addresses, and a machine may be known by its name."""
    try:
        return replace(replica, host=address_of(replica.host))
    except OSError as error:
        log.warning("a replica cannot be located", host=replica.host, reason=str(error))
        return replica
