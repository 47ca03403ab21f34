"""A whole cluster on this machine: `up` starts what is missing, `down` ends what runs.

    cluster = make(folder)                  # once; `find` afterwards
    up(cluster, coordinators=2, agents=1)   # returns when a leader leads and the agents are ready
    down(cluster)

For a program that wants its own cluster and nothing left of it, however it ends:

    tie = Tie()
    start_server(cluster)
    start_coordinator(cluster, tie=tie)
    start_agent(cluster, AgentSize(cpu=4), tie=tie)

All three may be called again at any time: what lives stays, what was killed is started anew. The
embedded coordination server needs no care: whoever has a session with it starts it again, until
`down` has ended it.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.cluster import Cluster, Process, create, described, occupied, opened
from holdfast.cluster import topics as cluster_topics
from holdfast.cluster.folder import tighten
from holdfast.cluster.ties import Tie
from holdfast.cluster.topics import EMBEDDED
from holdfast.coordination import Election, Leader, Session, protection
from holdfast.coordination import launch as servers
from holdfast.launch import serving, wanted
from holdfast.launch.ending import Down, Stopped, down
from holdfast.launch.processes import alone, processes, server_of
from holdfast.launch.starting import (
    AGENT,
    COORDINATOR,
    GATEWAY,
    ROLLOUT_CONTROLLER,
    SERVER,
    TOPICS,
    StartedProcess,
    await_all,
    keep,
    start,
    start_as_wanted,
)
from holdfast.supervise import supervisor
from holdfast.supervise import wanted as wanted_here
from holdfast.system.certificates import Authority
from holdfast.system.listening import is_loopback
from holdfast.topics.address import TopicsAddress
from holdfast.wire.errors import Missing, Usage
from holdfast.wire.limits import TIED_LINGER_S, UP_S
from holdfast.wire.names import LEADER_PATH

# Workers of a tied agent end so soon after it, when it is killed and no other one comes.
TIED_AWAY_S: Final = 10.0
TIED_NOTICE_S: Final = 3.0

__all__ = [
    "AgentSize",
    "Down",
    "StartedProcess",
    "Stopped",
    "Tie",
    "Up",
    "await_ready",
    "down",
    "make",
    "processes",
    "server_of",
    "start_agent",
    "start_coordinator",
    "start_kept_agent",
    "start_kept_coordinator",
    "start_server",
    "up",
]


_ANYWHERE: Final = ("0.0.0.0", "::", "")  # noqa: S104 (they are refused)


@dataclass(frozen=True, slots=True)
class AgentSize:
    """What an agent is started with. None: what the machine has; `cpu` may be more than that."""

    cpu: float | None = None
    memory_bytes: int | None = None
    gpu: int | None = None
    ports: str | None = None
    region: str | None = None
    gpu_share: int | None = None
    disk_bytes: int | None = None

    def arguments(self) -> list[str]:
        given = {
            "--cpu": self.cpu,
            "--memory": self.memory_bytes,
            "--gpu": self.gpu,
            "--ports": self.ports,
            "--region": self.region,
            "--gpu-share": self.gpu_share,
            "--disk": self.disk_bytes,
        }
        return [
            word for key, value in given.items() if value is not None for word in (key, f"{value}")
        ]


@dataclass(frozen=True, slots=True)
class Up:
    """What runs after `up`, and what of it was started now."""

    cluster: Cluster
    leader: Leader
    processes: tuple[Process, ...]
    started: tuple[str, ...]  # KIND NAME
    closed: int = 0  # nodes of the coordination plane that were open to everybody until now
    tightened: int = 0  # files and folders that other users could read until now


def make(
    folder: Path,
    *,
    name: str = "local",
    coordination: str = "",
    store: str = "",
    listen: str = "127.0.0.1",
    network: str = "",
    tied: bool = False,
) -> Cluster:
    """A new cluster's folder with its authority. `tied`: for a cluster that ends with its maker.

    With an address in `listen` other machines may join; the embedded server gets a port there, and
    speaks TLS, unless `network` is "trusted".
    """
    if listen in _ANYWHERE:
        raise Usage(
            f"--listen {listen or '(nothing)'} names no address",
            why="other machines are told this address, and must be able to reach it",
            fix="give this machine's own address in your network: --listen 10.0.0.5",
        )
    if not coordination:
        more = []
        if not is_loopback(listen):
            host = f"[{listen}]" if ":" in listen else listen
            more.append(f"listen={host}:{_free_port(listen)}")
        if network:
            more.append(f"network={network}")
        if tied:
            more.append(f"linger_s={TIED_LINGER_S:g}")
        coordination = "embedded:coordination" + ("?" + "&".join(more) if more else "")
    given = {"name": name, "coordination": coordination, "store": store, "listen": listen}
    planned = described(folder, **given)
    with alone(planned):
        try:
            opened(folder)
        except Missing:
            # Of one that was killed here. Without a cluster nobody has seen it.
            shutil.rmtree(planned.authority_folder, ignore_errors=True)
            Authority.make(planned.authority_folder, name)
            made = create(folder, **given)
            made.access()
            return made
    raise occupied(planned.folder)


def up(
    cluster: Cluster,
    *,
    coordinators: int = 1,
    agents: int = 1,
    size: AgentSize | None = None,
    supervised: bool = True,
    topics: str = "",
    timeout_s: float = UP_S,
    look: Callable[[str], None] = lambda _what: None,
) -> Up:
    """Start what is missing, and return when a leader leads and the agents are connected to it.
    From then on a supervisor keeps all of it alive (unless `supervised` is False), until `down`.

    `look` is told what is being waited for, again and again. `TerminalError` with the last lines
    of its log when a process ends early. `topics`: where those of the cluster are; empty: as they
    were, and if nothing has used any, nowhere.
    """
    if topics and topics != EMBEDDED:
        TopicsAddress.parse(topics)  # a wrong one is an error before anything is started
    with alone(cluster, look):
        before = {(one.kind, one.name) for one in processes(cluster)}
        tightened = tighten(cluster)
        start_server(cluster)
        names, nodes = _wanted(cluster, coordinators, agents)
        started = [start_coordinator(cluster, name) for name in names]
        started += [_agent(cluster, size, node) for node in nodes]
        others = [*_others(cluster, started), *serving.again(cluster)]
        if supervised:
            keep(cluster, [*started, *others])
    with cluster.session() as session:
        # An embedded server closes its own tree when it starts, and nobody else can open it.
        closed = protection.close(session) if cluster.embedded is None else 0
        if topics:
            cluster_topics.use(session, topics)
        leader = await_ready(cluster, session, started, timeout_s=timeout_s, look=look)
    if supervised and wanted_here.read(cluster.folder):
        await_all((), lambda: _keeper(cluster), "a supervisor runs", timeout_s)
    if topics == EMBEDDED:
        await_all((), lambda: _broker(cluster), "the broker of topics runs", timeout_s)
    now = tuple(processes(cluster))
    fresh = tuple(f"{one.kind} {one.name}" for one in now if (one.kind, one.name) not in before)
    if (SERVER, "coordination") not in before and cluster.embedded is not None:
        closed += servers.closed(cluster.embedded.folder)
    return Up(cluster, leader, now, fresh, closed, tightened)


def start_server(cluster: Cluster) -> str | None:
    """The embedded coordination server, if the cluster has one, started if nobody has: `host:port`.

    It ends by itself when it has had no client for a while (`make(tied=True)`: for a short while),
    so it needs no tie. What `down` has ended may run again from here on.
    """
    wanted.begins(cluster)
    return servers.ensure(cluster.embedded) if cluster.embedded is not None else None


def start_coordinator(
    cluster: Cluster, name: str = "coordinator-1", *, tie: Tie | None = None
) -> StartedProcess:
    return start(cluster, COORDINATOR, name, "holdfast.control", ["--name", name], tie)


def start_agent(
    cluster: Cluster, size: AgentSize | None = None, *, node: str = "node-1", tie: Tie | None = None
) -> StartedProcess:
    """An agent. Workers of a tied one end with it; those of a detached one wait for the next."""
    words = ["--node", node, *(size or AgentSize()).arguments()]
    if tie is not None:
        words += ["--stop-workers", "--notice", f"{TIED_NOTICE_S:g}"]
        words += ["--away", f"{TIED_AWAY_S:g}", "--away-notice", f"{TIED_NOTICE_S:g}"]
    return start(cluster, AGENT, node, "holdfast.agent", words, tie)


def start_kept_agent(cluster: Cluster, size: AgentSize, node: str) -> StartedProcess:
    """An agent on a machine that has joined, which a supervisor keeps alive."""
    with alone(cluster):
        wanted.begins(cluster)
        started = start_agent(cluster, size, node=node)
        keep(cluster, [started])
    return started


def start_kept_coordinator(
    cluster: Cluster, name: str, ports: Sequence[str] = ()
) -> StartedProcess:
    """A coordinator on a machine that stands by, which a supervisor keeps alive."""
    words = ["--name", name, *ports]
    with alone(cluster):
        wanted.begins(cluster)
        started = start(cluster, COORDINATOR, name, "holdfast.control", words, None)
        keep(cluster, [started])
    return started


def await_ready(
    cluster: Cluster,
    session: Session,
    started: Sequence[StartedProcess],
    *,
    timeout_s: float = UP_S,
    look: Callable[[str], None] = lambda _what: None,
) -> Leader:
    """Wait until a leader leads, and those agents among `started` are connected to it."""
    election = Election(session, LEADER_PATH)
    agents = [one for one in started if one.kind == AGENT]
    coordinators = [one for one in started if one.kind == COORDINATOR]
    waits = ["a leader"]

    def ready() -> Leader | None:
        leader = election.current_leader()
        # A leader that was killed is still the leader by the plane, until its session ends.
        records = {one.name: one.process for one in coordinators}
        if leader is None or None in records.values() or not _leads(leader, records):
            waits[0] = "a leader"
            return None
        for one in agents:
            process = one.process
            if process is None or process.facts.get("term") != leader.term:
                trouble = str(process.facts.get("trouble", "")) if process is not None else ""
                waits[0] = f"agent {one.name}" + (
                    f" ({trouble.splitlines()[0]})" if trouble else ""
                )
                return None
        return leader

    what = "a leader leads, and the agents are connected to it"
    return await_all(started, ready, what, timeout_s, lambda: look(waits[0]))


def _keeper(cluster: Cluster) -> Process | None:
    return next((one for one in processes(cluster) if one.kind == supervisor.KIND), None)


def _broker(cluster: Cluster) -> Process | None:
    return next((one for one in processes(cluster) if one.kind == TOPICS), None)


def _agent(cluster: Cluster, size: AgentSize | None, node: str) -> StartedProcess:
    """An agent, of the size that it had unless another one is given."""
    known = wanted_here.read(cluster.folder).get(f"{AGENT} {node}")
    if known is not None and size in (None, AgentSize()):
        return start_as_wanted(cluster, known)
    return start_agent(cluster, size, node=node)


def _others(cluster: Cluster, started: Sequence[StartedProcess]) -> list[StartedProcess]:
    """What was wanted here before and not ended by `down`, started if it does not live: the machine
    may have been switched off meanwhile."""
    named = {f"{one.kind} {one.name}" for one in started}
    known = wanted_here.read(cluster.folder).items()
    return [
        start_as_wanted(cluster, one)
        for key, one in known
        if key not in named and one.kind not in (ROLLOUT_CONTROLLER, GATEWAY)
    ]


def _leads(leader: Leader, records: Mapping[str, Process | None]) -> bool:
    """Whether the leader, if it is one of these, says so itself."""
    process = records.get(leader.name)
    return process is None or process.facts.get("term") == leader.term


def _wanted(cluster: Cluster, coordinators: int, agents: int) -> tuple[list[str], list[str]]:
    """Names of coordinators and nodes. A machine that joined has the nodes that it joined as."""
    if not cluster.is_home:
        joined = cluster.credentials_folder
        return [], sorted(path.name for path in joined.iterdir()) if joined.is_dir() else []
    names = [f"coordinator-{number}" for number in range(1, coordinators + 1)]
    return names, [f"node-{number}" for number in range(1, agents + 1)]


def _free_port(host: str) -> int:
    try:
        with socket.create_server((host, 0)) as listener:
            port: int = listener.getsockname()[1]
            return port
    except OSError as error:
        raise Usage(
            f"--listen {host}: this machine cannot listen there",
            why=str(error),
            fix="give one of this machine's own addresses",
        ) from error
