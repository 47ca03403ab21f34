"""Telling events, once something uses topics: a coordinator's thread, with a session of its own.

Every coordinator has one, and they elect who tells (`events.telling`). What is decided never waits
for it: it reads what was written, over another connection to the plane.
"""

from __future__ import annotations

import threading

from holdfast.cluster import Cluster, topics
from holdfast.cluster.sessions import awaited_session
from holdfast.coordination import Session, Versioned
from holdfast.coordination.follow import Follow
from holdfast.events.telling import EventTeller
from holdfast.system import logs
from holdfast.system.retries import Retries
from holdfast.system.tasks import OwnedThread, start_thread
from holdfast.topics import Connection, connect
from holdfast.wire.errors import Cancelled, HoldfastError, Missing
from holdfast.wire.limits import TROUBLE_S

log = logs.get(__name__)


class EventsKeeper:
    """Tells from the moment that the cluster has topics. Leaving it ends that; the next coordinator
    goes on."""

    def __init__(self, cluster: Cluster, session: Session, name: str) -> None:
        self._cluster = cluster
        self._session = session
        self._name = name
        self._used = threading.Event()
        self._ended = threading.Event()
        self._follow: Follow[Versioned] | None = None
        self._thread: OwnedThread | None = None

    def __enter__(self) -> None:
        self._follow = topics.config(self._session).watch(self._on_config)
        self._thread = start_thread(self._run, "events")

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._used.set()
        if self._follow is not None:
            self._follow.close()
        if self._thread is not None:
            self._thread.join()

    def _on_config(self, versioned: Versioned) -> None:
        found = topics.record_from(versioned.value)
        if found is not None and found.address:
            self._used.set()

    def _run(self) -> None:
        retries = Retries("telling events")
        self._used.wait()
        while not self._ended.is_set():
            try:
                self._tell()
            except Cancelled:
                return
            except HoldfastError as error:
                log.warning("events are not told for now", reason=str(error))
                self._ended.wait(TROUBLE_S)
            except Exception as error:  # a bug: what is decided does not need events
                self._ended.wait(retries.failed(error))
            else:
                retries.well()

    def _tell(self) -> None:
        with awaited_session(self._cluster, self._ended) as session:

            def connection() -> Connection:
                found = topics.record(session)
                if found is None or not found.address:
                    raise Missing("the cluster has no topics any more", fix="holdfast up")
                return connect(topics.address(self._cluster, found))

            EventTeller(session, connection, self._name).run(self._ended)
