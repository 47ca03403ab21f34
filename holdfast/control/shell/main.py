"""A coordinator as a process: options in, an exit code out.

    python -m holdfast.control --cluster DIR --name NAME

Any number of them run over one cluster; one leads, and its house-keeping (removing blobs that
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

from holdfast.cluster import Cluster, Registration, opened, register, ties
from holdfast.cluster.sessions import awaited_session
from holdfast.control.rpc.agents import GrpcAgents, Listening
from holdfast.control.shell.coordinator import Coordinator
from holdfast.control.shell.housekeeping import Housekeeping
from holdfast.control.store.manifests import manifests_in
from holdfast.coordination import Election, Leader, Session, protection
from holdfast.storage.claims import Claims
from holdfast.wire import logs, process
from holdfast.wire.certificates import Authority, checked_name
from holdfast.wire.errors import Cancelled, HoldfastError, Occupied
from holdfast.wire.places import LEADER_PATH
from holdfast.wire.tasks import OwnedThread, start_thread

# An older version gave all services to all workers; its replicas have nothing else to show.
_OLD_SERVICE: Final = "holdfast down, then holdfast up: its replicas get a secret of their own"

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """How a coordinator is started. Ports 0: the ones it had before, or any free ones."""

    cluster: Path
    name: str
    port: int = 0
    door_port: int = 0
    tied: bool = False


@dataclass(frozen=True, slots=True)
class Said:
    """What a coordinator says of itself. `term` 0: it stands by, and `leader` leads, if that is
    known."""

    address: str
    door: str
    term: int
    leader: Leader | None = None


Tell = Callable[[Said], None]


def parsed(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m holdfast.control")
    parser.add_argument("--cluster", type=Path, required=True, help="the cluster's folder")
    parser.add_argument("--name", required=True, help="what agents and people see of it")
    parser.add_argument("--port", type=int, default=0, help="where agents connect")
    parser.add_argument("--door-port", type=int, default=0, help="where machines join")
    parser.add_argument("--tied", action="store_true", help="end with the parent (its pipe: stdin)")
    given = parser.parse_args(arguments)
    name = checked_name("coordinator", given.name)
    return Options(given.cluster, name, given.port, given.door_port, given.tied)


def serve(options: Options, tell: Tell | None = None) -> int:
    """Run a coordinator until it is told to stop. 0 if all is well.

    `tell` is called, on another thread, when it stands by and when it leads. Raises what keeps it
    from starting: no authority here, a port that somebody else has.
    """
    cluster = opened(options.cluster)
    authority = cluster.authority()
    stop = threading.Event()
    process.when_told_to_end(stop.set)
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
        for service in protection.ready_for_workers(session):
            log.warning("a service is open to all workers", service=service, fix=_OLD_SERVICE)
        agents = stack.enter_context(_agents(cluster, session, authority, options))
        registration.note(address=agents.address, door=agents.door_address)
        blobs, claims = cluster.blobs(), Claims()
        coordinator = Coordinator(session, agents, manifests_in(blobs, claims), options.name)
        housekeeping = Housekeeping(
            session, blobs, agents.observed, lambda: coordinator.acting, claims=claims
        )
        stack.enter_context(housekeeping)
        leader = Election(session, LEADER_PATH).current_leader
        stack.enter_context(_Telling(coordinator, registration, leader, tell, stop))
        coordinator.run(stop)
    return 0


def _agents(
    cluster: Cluster, session: Session, authority: Authority, options: Options
) -> GrpcAgents:
    """Listen: on the ports asked for, else on those of last time (tokens name them), else any."""
    note = cluster.run_folder / f"ports-{options.name}"
    port, door_port = _noted(note)
    hosts = tuple(dict.fromkeys((cluster.listen, "127.0.0.1", "localhost")))
    listening: dict[str, Any] = {"host": cluster.listen, "hosts": hosts}
    asked = (options.port, options.door_port)
    try:
        found = Listening(port=asked[0] or port, door_port=asked[1] or door_port, **listening)
        agents = GrpcAgents.start(session, authority, found)
    except Occupied:
        if any(asked):
            raise
        agents = GrpcAgents.start(session, authority, Listening(**listening))
    ports = [where.rpartition(":")[2] for where in (agents.address, agents.door_address)]
    note.write_text(" ".join(ports) + "\n")
    return agents


def _noted(note: Path) -> tuple[int, int]:
    try:
        port, door_port = note.read_text().split()
        return int(port), int(door_port)
    except (FileNotFoundError, ValueError):
        return 0, 0


class _Telling:
    """Says in our record whether we lead, for whoever waits for that or wonders."""

    def __init__(
        self,
        coordinator: Coordinator,
        registration: Registration,
        leader: Callable[[], Leader | None],
        tell: Tell | None,
        stop: threading.Event,
    ) -> None:
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
            self._registration.note(term=term)
            # One that steps down because it ends does not stand by.
            if self._tell is not None and term != told and not self._stop.is_set():
                self._tell(self._said(term))
                told = term

    def _said(self, term: int) -> Said:
        facts, leader = self._registration.process.facts, None
        if not term:
            with suppress(HoldfastError):
                leader = self._leader()
        if leader is not None and leader.name == self._registration.process.name:
            leader = None  # a term of ours that is just over, or about to begin
        return Said(str(facts["address"]), str(facts["door"]), term, leader)
