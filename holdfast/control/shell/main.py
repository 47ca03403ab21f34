"""A coordinator as a process: options in, an exit code out.

    python -m holdfast.control --cluster DIR --name NAME

Any number of them run over one cluster; one leads, and its housekeeping (removing blobs that
nothing needs) is done by it alone. SIGTERM and SIGINT end it, and the next one leads at once. One
that is killed leaves nothing behind: its place in the election goes with its session.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from holdfast.cluster import Cluster, Registration, migration, opened, register, ties
from holdfast.cluster.sessions import awaited_session
from holdfast.cluster.topics import open as open_topics
from holdfast.control.rpc.agents import GrpcAgents, Listening
from holdfast.control.shell.coordinator import Coordinator
from holdfast.control.shell.events import EventsKeeper
from holdfast.control.shell.housekeeping import Housekeeping
from holdfast.control.shell.store_watch import StoreWatch
from holdfast.control.shell.topic_watch import TopicWatch
from holdfast.control.shell.topics import TopicsKeeper
from holdfast.control.store.manifests import manifests_in
from holdfast.coordination import Election, Leader, Session, protection
from holdfast.storage.claims import Claims
from holdfast.system import logs, process
from holdfast.system.certificates import Authority
from holdfast.system.tasks import OwnedThread, start_thread
from holdfast.wire.errors import Cancelled, HoldfastError, Occupied
from holdfast.wire.names import LEADER_PATH, checked_name

# An older version gave all services to all workers; its replicas have nothing else to show.
_OLD_SERVICE: Final = "holdfast down, then holdfast up: its replicas get a secret of their own"
# A broker of our own is started within this, or the next look asks again.
_TOPICS_S: Final = 5.0

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """How a coordinator is started. Ports 0: the ones it had before, or any free ones."""

    cluster: Path
    name: str
    port: int = 0
    join_port: int = 0
    tied: bool = False


@dataclass(frozen=True, slots=True)
class CoordinatorStatus:
    """What a coordinator says of itself. `term` 0: it stands by, and `leader` leads, if that is
    known."""

    address: str
    join_address: str
    term: int
    leader: Leader | None = None


Tell = Callable[[CoordinatorStatus], None]


def parsed(arguments: Sequence[str]) -> CoordinatorOptions:
    parser = argparse.ArgumentParser(prog="python -m holdfast.control")
    parser.add_argument("--cluster", type=Path, required=True, help="the cluster's folder")
    parser.add_argument("--name", required=True, help="what agents and people see of it")
    parser.add_argument("--port", type=int, default=0, help="where agents connect")
    parser.add_argument(
        "--join-port", "--door-port", type=int, default=0, help="where machines join"
    )
    parser.add_argument("--tied", action="store_true", help="end with the parent (its pipe: stdin)")
    given = parser.parse_args(arguments)
    name = checked_name("coordinator", given.name)
    return CoordinatorOptions(given.cluster, name, given.port, given.join_port, given.tied)


def serve(options: CoordinatorOptions, tell: Tell | None = None) -> int:
    """Run a coordinator until it is told to stop. 0 if all is well.

    `tell` is called, on another thread, when it stands by and when it leads. Raises what keeps it
    from starting: no authority here, a port that somebody else has.
    """
    cluster = opened(options.cluster)
    authority = cluster.authority()
    stop = threading.Event()
    process.on_termination(stop.set)
    if options.tied:
        ties.watch(stop.set)
    with ExitStack() as stack:
        registration = stack.enter_context(
            register(cluster, "coordinator", options.name, kept=not options.tied)
        )
        try:
            session = stack.enter_context(awaited_session(cluster, stop))
        except Cancelled:
            return 0
        migration.check_plane(session)
        for service in protection.ready_for_workers(session):
            log.warning("a service is open to all workers", service=service, fix=_OLD_SERVICE)
        agents = stack.enter_context(_agents(cluster, session, authority, options))
        registration.note(address=agents.address, join_address=agents.join_address)
        blobs, claims = cluster.blobs(), Claims()
        store = stack.enter_context(StoreWatch(blobs, agents.wake))
        topics = stack.enter_context(
            TopicWatch(lambda: open_topics(cluster, session, _TOPICS_S), agents.wake)
        )
        coordinator = Coordinator(
            session, agents, manifests_in(blobs, claims), options.name, store, topics
        )
        housekeeping = Housekeeping(
            session, blobs, agents.observed, lambda: coordinator.acting, claims=claims
        )
        stack.enter_context(housekeeping)
        stack.enter_context(TopicsKeeper(cluster, session))
        stack.enter_context(EventsKeeper(cluster, session, options.name))
        leader = Election(session, LEADER_PATH).current_leader
        stack.enter_context(_StatusWriter(coordinator, registration, leader, tell, stop, store))
        coordinator.run(stop)
    return 0


def _agents(
    cluster: Cluster, session: Session, authority: Authority, options: CoordinatorOptions
) -> GrpcAgents:
    """Listen: on the ports asked for, else on those of last time (tokens name them), else any."""
    note = cluster.run_folder / f"ports-{options.name}"
    port, join_port = _noted(note)
    hosts = tuple(dict.fromkeys((cluster.listen, "127.0.0.1", "localhost")))
    listening: dict[str, Any] = {"host": cluster.listen, "hosts": hosts}
    asked = (options.port, options.join_port)
    try:
        found = Listening(port=asked[0] or port, join_port=asked[1] or join_port, **listening)
        agents = GrpcAgents.start(session, authority, found)
    except Occupied:
        if any(asked):
            raise
        agents = GrpcAgents.start(session, authority, Listening(**listening))
    ports = [where.rpartition(":")[2] for where in (agents.address, agents.join_address)]
    note.write_text(" ".join(ports) + "\n")
    return agents


def _noted(note: Path) -> tuple[int, int]:
    try:
        port, join_port = note.read_text().split()
        return int(port), int(join_port)
    except (FileNotFoundError, ValueError):
        return 0, 0


class _StatusWriter:
    """Says in our record whether we lead, for whoever waits for that or wonders."""

    def __init__(
        self,
        coordinator: Coordinator,
        registration: Registration,
        leader: Callable[[], Leader | None],
        tell: Tell | None,
        stop: threading.Event,
        store: StoreWatch,
    ) -> None:
        self._store = store
        self._coordinator = coordinator
        self._registration = registration
        self._leader = leader
        self._tell = tell
        self._stop = stop
        self._ended = threading.Event()
        self._thread: OwnedThread | None = None

    def __enter__(self) -> None:
        self._thread = start_thread(self._run, "telling")

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        told = -1
        while not self._ended.wait(0.1):
            term = self._coordinator.term
            self._registration.note(term=term, store_trouble=self._store.trouble if term else "")
            # One that steps down because it ends does not stand by.
            if self._tell is not None and term != told and not self._stop.is_set():
                self._tell(self._status(term))
                told = term

    def _status(self, term: int) -> CoordinatorStatus:
        facts, leader = self._registration.process.facts, None
        if not term:
            with suppress(HoldfastError):
                leader = self._leader()
        if leader is not None and leader.name == self._registration.process.name:
            leader = None  # a term of ours that is just over, or about to begin
        return CoordinatorStatus(str(facts["address"]), str(facts["join_address"]), term, leader)
