"""One replica's life: it listens, follows its service's plan, answers, drains, and goes."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import os
import signal
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc
import uvloop

from holdfast.cluster import opened
from holdfast.coordination import Session, connect
from holdfast.models.records import Version
from holdfast.serve.cache.updates import ModelUpdates
from holdfast.serve.prediction_topic import PredictionTopic
from holdfast.serve.records import PredictionCounts, Replica, RolloutStage, ServiceSpec
from holdfast.serve.replica.engine import Engine
from holdfast.serve.replica.following import DesiredVersions, Following
from holdfast.serve.replica.http import App
from holdfast.serve.replica.listening import GrpcListener, Listener
from holdfast.serve.replica.model_cache import ModelCache
from holdfast.serve.replica.trial import PreforkServer
from holdfast.serve.replica.versions import Versions
from holdfast.storage import Blobs, open_store
from holdfast.system import logs
from holdfast.system.job_credentials import TRUSTED
from holdfast.system.listening import is_loopback
from holdfast.system.tasks import WAITED, death, end, ends_process, start_task, start_thread
from holdfast.wire import worker_messages
from holdfast.wire.errors import BugError, Usage
from holdfast.wire.limits import STUCK_END_S, STUCK_SLACK_S
from holdfast.worker.agent_client import AgentClient

if TYPE_CHECKING:
    from holdfast.topics import Connection

# How often a replica looks whether it has grown, and may give memory back.
MEMORY_LOOK_S: Final = 2.0
# Others are shown at most so often that more predictions were dropped: each time wakes all who
# follow the service.
DROPPED_SHOW_S: Final = 10.0
# How often a replica looks at its own computations; stuck is what it finds stuck so often in a row,
# since a process that was paused finds everything late, once.
STUCK_LOOK_S: Final = 0.5
STUCK_LOOKS: Final = 4
# A replica that is to go says so first. Gateways see it and stop sending; they have the first at
# least, and it goes when nothing came for the second; after the third it goes anyway: the notice
# that coordinators give (`NOTICE_S`) covers it, and the few seconds that its servers take to end.
DRAIN_S_MIN: Final = 1.0
DRAIN_QUIET_S: Final = 0.5
DRAIN_S_MAX: Final = 20.0
# The coordination plane is told first; when it is away, the drain begins after this.
DRAIN_SHOWN_S: Final = 2.0
# How often it looks whether it is quiet.
DRAIN_LOOK_S: Final = 0.05

__all__ = ["parsed", "serve"]

log = logs.get(__name__)

_FROZEN_EXIT: Final = BugError.exit_code


def serve(options: ReplicaOptions) -> int:
    """Run a replica until it is told to leave. 0 if it left as it should."""
    prefork = PreforkServer.fork(options.blobs)  # before any thread
    agent = AgentClient.from_environment(ends_process("the line to the agent"))
    try:
        return uvloop.run(_ReplicaProcess(options, prefork, agent).run())
    finally:
        prefork.close()
        if agent is not None:
            agent.close()


class _ReplicaProcess:
    """One replica."""

    def __init__(
        self, options: ReplicaOptions, prefork: PreforkServer, agent: AgentClient | None
    ) -> None:
        self._options = options
        self._prefork = prefork
        self._agent = agent
        self._stop = asyncio.Event()
        self._code = 0
        self._plan = 0
        self._started_s = time.time()
        self._beat_s = time.monotonic()
        self._updates: ModelUpdates | None = None
        self._dropped = PredictionCounts()  # as others were shown
        self._dropped_s = 0.0

    async def run(self) -> int:
        options = self._options
        self._loop = asyncio.get_running_loop()
        # Until the plane has said what the service is, it has the name that we were given.
        unknown = ServiceSpec(name=options.service, model=options.service, target="")
        self._engine = Engine(
            unknown,
            worker=options.worker,
            region=options.region,
            logs=options.logs,
            topic=self._open_topic,
        )
        self._app = App(self._engine)
        self._following = Following(options.connect, options.service)
        cached = ModelCache(options.cache_folder, options.worker)
        self._versions = Versions(self._engine, cached, self, self._prefork, self._changed)
        self._listen_to_signals()
        tls = self._tls = ReplicaTls.found(options.host, os.environ)
        context = tls.context() if tls else None
        listener = Listener(self._app, options.host, options.http_port, tls=context)
        await listener.start()
        self._grpc = GrpcListener(
            self._engine, options.host, options.grpc_port, tls.credentials() if tls else None
        )
        await self._grpc.start()
        log.info("a replica listens", http=f"{options.host}:{options.http_port}")
        self._following.changed()
        tasks = [
            start_task(self._following.run(self._apply_desired, self._shown), "following", WAITED),
            start_task(self._versions.run(), "versions", WAITED),
            start_task(self._look(), "look", WAITED),
            start_task(self._grpc.run(), "grpc", WAITED),
            start_task(_give_memory_back(), "memory", WAITED),
        ]
        start_thread(self._guard, "guard", lasts="the loop may be stuck to the very end")
        try:
            await self._until_stopped(tasks)
            await self._drain()
        finally:
            await end(*tasks)
            await self._following.leave()
            await self._grpc.stop()
            await listener.stop()
            if self._updates is not None:
                await self._updates.close()
            await self._engine.close()
        if self._agent is not None and not self._code and death() is None:
            self._agent.left()
        return self._code

    # --- where versions come from (`versions.Source`) --------------------------------------------

    def record(self, number: int) -> Version:
        return self._following.record(self._engine.service.model, number)

    def blobs(self) -> Blobs:
        return self._options.blobs()

    # --- what is wanted, and what is shown -------------------------------------------------------

    def _apply_desired(self, desired: DesiredVersions) -> None:
        """Follow it. What is not there, or cannot be read, changes nothing."""
        if desired.service is not None:
            self._engine.configure(desired.service)
            self._grpc.changed()
            self._follow_updates(desired.service)
        plan = desired.plan
        if plan is not None:
            under_way = plan.stage in (RolloutStage.LOADING, RolloutStage.SHIFTING)
            self._engine.follow(plan.stable, plan.next if under_way else None, plan.leaving)
            self._plan = plan.number
            self._versions.hold(plan.hold, plan.version_revision)

    def _follow_updates(self, service: ServiceSpec) -> None:
        """Where the cluster has topics, they tell which answers need not be kept."""
        keeps = bool(service.cache_entries or service.redis)
        if keeps and self._options.topics and self._updates is None:
            self._updates = ModelUpdates(
                self._options.topics, service.model, self._engine.model_updated
            )

    def _shown(self) -> Replica:
        options = self._options
        return Replica(
            service=options.service,
            worker=options.worker,
            host=options.host,
            http_port=options.http_port,
            grpc_port=options.grpc_port,
            node=options.node,
            region=options.region,
            versions=dict(self._versions.states),
            draining=self._engine.draining,
            plan=self._plan,
            started_s=self._started_s,
            trust=self._tls.trust if self._tls else "",
            predictions_dropped=self._dropped.dropped,
            predictions_trouble=self._dropped.why,
        )

    def _changed(self) -> None:
        self._following.changed()
        if self._agent is not None and self._engine.ready():
            self._agent.ready()

    def _open_topic(self, service: ServiceSpec) -> PredictionTopic:
        return PredictionTopic(
            service.name, self._options.worker, service.predictions, _topics, self.blobs
        )

    def _show_dropped(self) -> None:
        """Let others see that predictions are dropped, but not each of them."""
        now_s = time.monotonic()
        counts = self._engine.predictions()
        same = counts.dropped == self._dropped.dropped and bool(counts.why) == bool(
            self._dropped.why
        )
        if not same and now_s >= self._dropped_s + DROPPED_SHOW_S:
            self._dropped, self._dropped_s = counts, now_s
            self._following.changed()

    # --- the end ---------------------------------------------------------------------------------

    def _listen_to_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop.set)
        if self._agent is not None:
            self._agent.listen(self._news)

    def _news(self) -> None:
        """In the client's thread. Replicas have no lanes: a view is adopted as it comes."""
        agent = self._agent
        assert agent is not None
        view = agent.view(0.0)
        if view is not None:
            agent.adopted(view.number, None)
        if agent.leaving and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)

    async def _until_stopped(self, tasks: list[asyncio.Task[None]]) -> None:
        """Raises what ended one of our tasks, if one has."""
        stopped = start_task(self._stop.wait(), "stop", WAITED)
        done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
        await end(stopped)
        for task in done - {stopped}:
            error = task.exception()
            if error is not None:
                raise error

    async def _drain(self) -> None:
        """Say that we go, and answer until nothing comes any more."""
        engine, app = self._engine, self._app
        engine.draining = True
        self._following.changed()
        log.info("draining", unanswered=engine.unanswered)
        began_s = time.monotonic()
        await self._following.shown(DRAIN_SHOWN_S)
        seen_s = time.monotonic()
        while time.monotonic() - began_s < DRAIN_S_MAX:
            now_s = time.monotonic()
            busy = app.active or engine.unanswered
            quiet_s = now_s - max(app.last_s, engine.last_s)
            if now_s - seen_s >= DRAIN_S_MIN and not busy and quiet_s >= DRAIN_QUIET_S:
                break
            await asyncio.sleep(DRAIN_LOOK_S)
        log.info("drained", took_s=round(time.monotonic() - began_s, 3))

    # --- is it well? -----------------------------------------------------------------------------

    async def _look(self) -> None:
        """A computation that never ends can only be ended with the process: drain, and go."""
        looks = 0
        while True:
            self._beat_s = time.monotonic()
            self._show_dropped()
            stuck = self._engine.hopeless() or self._versions.stuck(time.monotonic())
            looks = looks + 1 if stuck else 0
            if looks >= STUCK_LOOKS:
                log.error("something does not come to an end: this replica does", stuck=stuck)
                self._code = BugError.exit_code
                self._stop.set()
                return
            await asyncio.sleep(STUCK_LOOK_S)

    def _guard(self) -> None:
        """In a thread: a loop that is stuck in a computation cannot even say so."""
        looks = 0
        while True:
            time.sleep(STUCK_LOOK_S)
            limit_s = self._engine.service.limits.timeout_s + STUCK_SLACK_S + STUCK_END_S
            late = time.monotonic() - self._beat_s > limit_s
            # Several looks: a process that was paused for long is late as well, but only once.
            looks = looks + 1 if late and not self._stop.is_set() else 0
            if looks >= STUCK_LOOKS:
                with suppress(Exception):
                    log.critical("the event loop is stuck: this replica ends")
                os._exit(_FROZEN_EXIT)


def _topics() -> Connection:
    """The cluster's topics; the Kafka client is loaded when it is first needed."""
    from holdfast import topics  # noqa: PLC0415

    return topics.connect()


async def _give_memory_back() -> None:
    """What large requests took is not ours for ever."""
    growth = Growth()
    while True:
        await asyncio.sleep(MEMORY_LOOK_S)
        if growth.is_over(resident_bytes()):
            await asyncio.to_thread(give_back)
            growth.given_back(resident_bytes())


# --- memory ---------------------------------------------------------------------------------------
# Memory that nobody uses any more goes back to the system.
#
# The C library keeps what was freed, in heaps of each thread: after a large message over gRPC,
# which comes in many small pieces, hundreds of megabytes that no other process can have. It gives
# them back when it is asked. That costs some milliseconds, in which its heaps are locked: so a
# replica asks only when it has grown, and has stopped growing.


# A replica that has grown by so much gives back what is free of it, once it has stopped growing: a
# few large bodies, and more than it grows by in an ordinary hour.
MEMORY_GROWN_BYTES_MIN: Final = 32 * 1024 * 1024


_STATM: Final = Path("/proc/self/statm")
_RESIDENT: Final = 1  # the field


class Growth:
    """When memory is worth giving back. Pure: it is told what the process has."""

    def __init__(self) -> None:
        self._least = 0  # what it had when it had nothing to give back; 0: not known yet
        self._before = 0  # at the last look

    def is_over(self, resident: int) -> bool:
        """Whether the process has grown by much since it had nothing to give back, and does not
        grow now: what it was for is probably gone."""
        before, self._before = self._before, resident
        self._least = min(self._least or resident, resident)
        return resident <= before and resident >= self._least + MEMORY_GROWN_BYTES_MIN

    def given_back(self, resident: int) -> None:
        """What is left is in use."""
        self._least = self._before = resident


def resident_bytes() -> int:
    """What this process has in memory; 0 where the system does not say."""
    try:
        return int(_STATM.read_text().split()[_RESIDENT]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def give_back() -> None:
    """Have the C library give back what is free; nothing, where it has no such function. Takes as
    long as its heaps are large: for a thread of its own."""
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


# --- tls ------------------------------------------------------------------------------------------
# The TLS of a replica that other machines reach.
#
# Its certificate is that of a worker of its job (`holdfast.system.job_certificates`). It is not
# asked for one: who may ask is known by the service's secret (`holdfast.serve.guard`), which TLS
# hides. A replica that listens on loopback has none: nobody else can listen there.


_KEY_END = b"-----END PRIVATE KEY-----\n"


@dataclass(frozen=True, slots=True)
class ReplicaTls:
    """`identity`: the file of its key and certificate; `trust`: what others know it by, PEM."""

    identity: Path
    trust: str

    @classmethod
    def found(cls, host: str, environment: Mapping[str, str]) -> ReplicaTls | None:
        """None: it listens on loopback, its network is trusted, or no agent has started it."""
        given = environment.get(worker_messages.FOLDER_VARIABLE)
        trusted = environment.get(worker_messages.NETWORK_VARIABLE) == TRUSTED
        if given is None or trusted or is_loopback(host):
            return None
        identity, trust = (
            Path(given, worker_messages.IDENTITY_NAME),
            Path(given, worker_messages.TRUST_NAME),
        )
        return cls(identity, trust.read_text()) if identity.is_file() else None

    def context(self) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_3
        made.load_cert_chain(self.identity)
        return made

    def credentials(self) -> grpc.ServerCredentials:
        key, end, certificate = self.identity.read_bytes().partition(_KEY_END)
        return grpc.ssl_server_credentials([(key + end, certificate)])


# --- options --------------------------------------------------------------------------------------
# What a replica is told when it is started: by its agent, or by hand.


_CACHE: Final = "serving"
_WORKERS: Final = "workers"  # in an agent's folder: above the folders of its workers


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    """`cache_folder`: where versions' files are kept; replicas of one machine share it. `topics`:
    the address of the cluster's, if it has some."""

    service: str
    coordination: str
    store: str
    cache_folder: Path
    logs: Path
    worker: int = 0
    host: str = "127.0.0.1"
    http_port: int = 0
    grpc_port: int = 0
    region: str = ""
    node: str = ""
    topics: str = ""

    @property
    def connect(self) -> Callable[[], Session]:
        return lambda: connect(self.coordination)

    def blobs(self) -> Blobs:
        return open_store(self.store)


def parsed(arguments: Sequence[str]) -> ReplicaOptions:
    """`Usage` if neither the environment nor a cluster's folder says where everything is."""
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.serve.replica",
        description="One replica of a service. Agents start it; by hand it needs --cluster.",
        epilog="example: python -m holdfast.serve.replica digits --cluster .holdfast --port 8001",
    )
    parser.add_argument("service", metavar="SERVICE")
    parser.add_argument("--cluster", type=Path, metavar="DIR", help="the cluster's folder")
    parser.add_argument("--port", type=int, default=0, help="of HTTP; by hand only")
    parser.add_argument("--grpc-port", type=int, default=0, help="of gRPC; by hand only")
    parser.add_argument("--worker", type=int, default=0, help="its number; by hand only")
    parser.add_argument("--region", default="", help="where it is; by hand only")
    given = parser.parse_args(arguments)
    if given.cluster is not None:
        return _by_hand(given)
    return _by_agent(given.service, os.environ)


def _by_hand(given: argparse.Namespace) -> ReplicaOptions:
    cluster = opened(given.cluster)
    http_port, grpc_port = given.port or _free_port(), given.grpc_port or _free_port()
    return ReplicaOptions(
        service=given.service,
        coordination=cluster.coordination_here,
        store=cluster.store,
        cache_folder=cluster.folder / _CACHE,
        logs=cluster.logs_folder,
        worker=given.worker,
        host=cluster.listen,
        http_port=http_port,
        grpc_port=grpc_port,
        region=given.region,
    )


def _cache_folder(folder: Path) -> Path:
    """Where versions' files are kept: replicas of the agent's user share it. One with a user of its
    own has its own, since what is in there is run."""
    shared = folder.stat().st_uid == os.geteuid()
    return (_home(folder) if shared else folder / "work") / _CACHE


def _by_agent(service: str, environment: os._Environ[str]) -> ReplicaOptions:
    try:
        folder = Path(environment[worker_messages.FOLDER_VARIABLE])
        http_port, grpc_port = (
            int(port) for port in environment[worker_messages.PORTS_VARIABLE].split(",")[:2]
        )
        return ReplicaOptions(
            service=service,
            coordination=environment[worker_messages.COORDINATION_VARIABLE],
            store=environment[worker_messages.STORE_VARIABLE],
            cache_folder=_cache_folder(folder),
            logs=_home(folder) / "logs" / folder.name,
            worker=int(environment[worker_messages.WORKER_VARIABLE]),
            host=environment.get(worker_messages.HOST_VARIABLE, "127.0.0.1"),
            http_port=http_port,
            grpc_port=grpc_port,
            region=environment.get(worker_messages.REGION_VARIABLE, ""),
            node=_node(folder),
            topics=environment.get(worker_messages.TOPICS_VARIABLE, ""),
        )
    except (KeyError, ValueError) as error:
        raise Usage(
            "this replica does not know where it is",
            why=f"no agent has started it ({type(error).__name__}: {error})",
            fix=f"give it the cluster's folder: python -m holdfast.serve.replica {service} "
            "--cluster DIR",
        ) from error


def _home(folder: Path) -> Path:
    """The agent's folder: what is kept there outlives each of its workers."""
    return folder.parent.parent if folder.parent.name == _WORKERS else folder


def _node(folder: Path) -> str:
    return folder.parent.parent.name if folder.parent.name == _WORKERS else ""


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
