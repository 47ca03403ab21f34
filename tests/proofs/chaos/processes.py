"""The processes on their hosts: started, kept running as init would, and ended.

Servers, coordinators, controllers, agents, gateways and the store each have a host and a folder of
their own, as on machines of their own; some folders are small disks. Machines join with a token.
Workers, replicas and Envoys are the system's business; they are found by the traces they leave.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from holdfast.cluster import Cluster, create, opened
from holdfast.cluster import processes as registered
from holdfast.coordination import Membership, Session, access, connect
from holdfast.coordination.access import Access
from holdfast.coordination.address import with_secret_file
from holdfast.serve.records import job_name
from holdfast.system.certificates import Authority
from holdfast.wire import tokens
from holdfast.wire.rpc import NODES_PATH
from holdfast.wire.tokens import ClusterAddress
from tests.proofs.chaos.cast import (
    CLIENT,
    DIRECTOR,
    MACHINE_BYTES,
    MACHINE_CPU,
    WRITER,
    Cast,
)
from tests.proofs.chaos.disks import Disks
from tests.proofs.chaos.histories import Strike
from tests.proofs.chaos.network import MARK, Network, run_id
from tests.proofs.control.engines import ROOT, SESSION_S
from tests.proofs.control.events import Event, Fault
from tests.proofs.control.processes import Found, Kept, Traces
from tests.proofs.patience import PATIENCE_S, patiently
from tests.proofs.serving.cluster import SERVICE
from tests.servers import EmbeddedServer, ServerProcess, ZooKeeperEnsemble, free_port, port_block
from tests.servers.s3 import RcloneServer, credentials
from tests.waiting import eventually

KEEP_S: Final = 0.05
# An agent gives its workers ten seconds, and kills those that do not hear.
END_S: Final = 60.0
# Of each machine, for its workers.
REPOSITORY: Final = Path(__file__).parents[3]
_JOIN: Final = (
    "import sys; from pathlib import Path; from holdfast.launch import joining;"
    "joining.join(Path(sys.argv[1]), sys.stdin.read(), sys.argv[2])"
)
_CLIENTS: Final = "tests.proofs.chaos.clients"


class HostProcesses:
    """Everything that runs. `kept` has, by kind, whom init keeps; `note` is told what happens;
    `strikes` tells when the client may have lost a gateway."""

    def __init__(
        self, folder: Path, network: Network, disks: Disks, cast: Cast, rate: float
    ) -> None:
        self.folder, self.network, self.disks, self.cast = folder, network, disks, cast
        self.run = run_id()
        self._s3 = (
            RcloneServer(folder / "store", host=network.address(cast.store)) if cast.store else None
        )
        self.store = self._s3.address("chaos") if self._s3 else f"file:{folder / 'store'}"
        self.gateways = {host: (network.address(host), free_port()) for host in cast.gateways}
        self.strikes: list[Strike] = []
        self.note: Callable[[Event], None] = lambda _event: None
        self.leading: Callable[[], str] = lambda: ""
        self.lock = threading.Lock()
        self.unasked: list[str] = []
        self.kept: dict[str, list[Kept]] = {}
        self.traces = {
            machine: Traces(machine, self._home(machine) / "nodes" / machine)
            for machine in cast.machines
        }
        self._rate = rate
        self._closed = threading.Event()
        self._init = threading.Thread(target=self._keep, name="init", daemon=True)
        self._servers = self._made_servers()
        self.where = folder / "replicas.json"  # for the prober

    def _made_servers(self) -> list[ServerProcess]:
        addresses = [self.network.address(host) for host in self.cast.servers]
        if len(addresses) > 1:
            return list(ZooKeeperEnsemble(self.folder / "plane", hosts=addresses).servers)
        options = ("--tick-ms", "500")
        return [EmbeddedServer(self.folder / "plane", options=options, host=addresses[0])]

    def _home(self, host: str) -> Path:
        """The cluster's folder on that host."""
        return self.folder / "hosts" / host

    def lay_disks(self) -> None:
        """Before anything is written there."""
        for host in self.cast.disks:
            server = host in self.cast.servers
            self.disks.add(host, self.folder / "plane" if server else self._home(host))

    # --- addresses ------------------------------------------------------------------------------

    def hosts(self, host: str) -> str:
        """The coordination servers for a client of ZooKeeper's family on that host."""
        servers = zip(self.cast.servers, [one.port for one in self._servers], strict=True)
        return f"{self.network.plane(host, list(servers))}{ROOT}"

    def plane(self, host: str) -> str:
        """The same for `holdfast.coordination.connect`."""
        return f"zk://{self.hosts(host)}?timeout_s={SESSION_S}"

    @property
    def secret_file(self) -> Path:
        """What opens the plane, once it is closed: for the director and the clients."""
        return self.folder / access.NAME

    @property
    def access(self) -> Access:
        """Who the hosts are in the plane that did not join: all have the same secret."""
        return access.kept(self.secret_file)

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
        own = {"PYTHONPATH": path.rstrip(os.pathsep), "HOLDFAST_LOG": "json", MARK: self.run}
        return {**os.environ, **(credentials() if self._s3 else {}), **own}

    # --- the beginning --------------------------------------------------------------------------

    def start(self, say: Callable[[str], None]) -> Session:
        """All processes but the clients; a session of the director's."""
        say("the coordination plane")
        self.start_servers()
        say("a store, coordinators, agents, gateways")
        self.start_store()
        endpoints = self._start_coordinators()
        authority = Authority.open(self._home(self.cast.coordinators[0]) / "authority")
        with ThreadPoolExecutor() as pool:
            joining = [
                pool.submit(self._join, authority, machine, endpoints)
                for machine in self.cast.machines
            ]
        for number, machine in enumerate(self.cast.machines):
            joining[number].result()
            self._add("agent", machine, machine, self._agent(machine, number))
        for host, (address, port) in self.gateways.items():
            self._make(host)
            command = self._module("holdfast.serve.gateway", host, "--name", host)
            self._add("gateway", host, host, [*command, "--listen", f"{address}:{port}"])
        director = with_secret_file(self.plane(DIRECTOR), self.secret_file)
        session = patiently(lambda: connect(director))
        nodes = Membership(session, NODES_PATH)
        there = set(self.cast.machines)
        eventually(lambda: patiently(nodes.members).keys() >= there, "agents are there", PATIENCE_S)
        return session

    def start_clients(self) -> None:
        words = [f"--gateway={name}={host}:{port}" for name, (host, port) in self.gateways.items()]
        words += ["--path", f"/predict/{SERVICE}"]
        words += ["--rate", f"{self._rate:g}", "--record", str(self.record("calls"))]
        self._add("caller", "caller", CLIENT, _python(f"{_CLIENTS}.caller", *words))
        for host in self.gateways:
            words = ["--where", str(self.where), "--gateway", host]
            words += ["--record", str(self.record(f"probes-{host}"))]
            self._add("prober", host, host, _python(f"{_CLIENTS}.prober", *words))
        words = ["--hosts", self.hosts(WRITER), "--secret-file", str(self.secret_file)]
        words += ["--record", str(self.record("writes"))]
        self._add("writer", "writer", WRITER, _python(f"{_CLIENTS}.writer", *words))

    def record(self, name: str) -> Path:
        """What a client has written down."""
        return self.folder / f"{name}.jsonl"

    def cluster(self, host: str) -> Cluster:
        return opened(self._home(host))

    def _add(
        self,
        kind: str,
        name: str,
        host: str,
        command: Sequence[str],
        more: Mapping[str, str] | None = None,
    ) -> Kept:
        log, environment = self.folder / f"{kind}-{name}.log", {**(more or {}), **self.environment}
        one = Kept(name, [*self.network.within(host), *command], log, environment)
        with self.lock:
            self.kept.setdefault(kind, []).append(one)
        return one

    def _make(self, host: str) -> Cluster:
        made = create(
            self._home(host),
            name="chaos",
            coordination=self.plane(host),
            store=self.store,
            listen=self.network.address(host),
        )
        access.keep(made.access_file, self.access)
        return made

    def start_servers(self) -> None:
        """Those of the coordination plane, kept from now on; they answer."""
        for host, server in zip(self.cast.servers, self._servers, strict=True):
            self._add("server", host, host, server.command())
        self._keep_all()
        for server in self._servers:
            eventually(server.ready, f"the server at {server.hosts} answers", PATIENCE_S)

    def _keep_all(self) -> None:
        if not self._init.is_alive():
            self._init.start()

    def start_store(self) -> None:
        """Kept from now on; it answers."""
        if self._s3 is None:
            (self.folder / "store").mkdir()
            return
        os.environ.update(credentials())
        own = self._s3.environment()
        self._add("store", self.cast.store, self.cast.store, self._s3.command(), own)
        self._keep_all()
        eventually(self._s3.ready, f"the store at {self._s3.hosts} answers", PATIENCE_S)

    def _start_coordinators(self) -> tuple[str, ...]:
        """With a controller beside each; where machines join."""
        first = self._home(self.cast.coordinators[0])
        for host in self.cast.coordinators:
            made = self._make(host)
            if made.folder == first:
                Authority.make(made.authority_folder, made.name)
            else:
                shutil.copytree(first / "authority", made.authority_folder)
        for host in self.cast.coordinators:
            command = self._module("holdfast.control", host, "--name", host)
            self._add("coordinator", host, host, command)
            command = self._module("holdfast.serve.controller", host, "--name", host)
            self._add("controller", host, host, command)
        found = []
        for host in self.cast.coordinators:
            address = partial(self._join_address, host)
            found.append(eventually(address, f"{host} lets machines join", PATIENCE_S))
        return tuple(found)

    def _join_address(self, host: str) -> str:
        records = registered(self.cluster(host))
        return next(
            (str(one.facts["join_address"]) for one in records if one.facts.get("join_address")), ""
        )

    def _join(self, authority: Authority, machine: str, endpoints: tuple[str, ...]) -> None:
        place = ClusterAddress(endpoints, self.plane(machine), self.store)
        done = subprocess.run(
            [
                *self.network.within(machine),
                *(sys.executable, "-c", _JOIN, str(self._home(machine)), machine),
            ],
            input=tokens.join_token(authority, PATIENCE_S, machine, place),
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, f"{machine} cannot join: {done.stderr}"

    def _agent(self, machine: str, number: int) -> list[str]:
        # Without namespaces several runs share the machine's ports: each has some of its own.
        ports = port_block(number)
        words = ["--node", machine, "--host", self.network.address(machine), "--warm"]
        words += ["--cpu", f"{MACHINE_CPU:g}", "--memory", str(MACHINE_BYTES), "--gpu", "0"]
        words += ["--ports", f"{ports[0]}-{ports[-1]}"]
        return self._module("holdfast.agent", machine, *words)

    def _module(self, module: str, host: str, *words: str) -> list[str]:
        return _python(module, "--cluster", str(self._home(host)), *words)

    # --- init -----------------------------------------------------------------------------------

    def everybody(self) -> Iterator[Kept]:
        for those in self.kept.values():
            yield from those

    def _keep(self) -> None:
        while not self._closed.wait(KEEP_S):
            with self.lock:
                for kept in list(self.everybody()):
                    code = kept.keep()
                    if code is not None:
                        self.unasked.append(f"{kept.log.stem} ended by itself with code {code}")
                        self.note(Fault(time.time(), "unasked", self.unasked[-1]))

    def all_back(self) -> None:
        """Start at once whoever is away."""
        with self.lock:
            for kept in self.everybody():
                kept.back_s = 0.0

    # --- who is there ---------------------------------------------------------------------------

    def workers(self) -> dict[tuple[str, int], Found]:
        """Those of trainings."""
        return {key: one for key, one in self._all() if key[0] != job_name(SERVICE)}

    def replicas(self) -> dict[tuple[str, int], Found]:
        return {key: one for key, one in self._all() if key[0] == job_name(SERVICE)}

    def envoys(self) -> list[Found | None]:
        """One for each gateway; None: there is none now."""
        found: list[Found | None] = []
        for host in self.cast.gateways:
            records = [one for one in registered(self.cluster(host)) if one.kind == "envoy"]
            found += [Found(one.name, one.pid, one.start_ticks) for one in records[:1]] or [None]
        return found

    def may_be_filled(self, host: str) -> bool:
        """Whether its disk is small, and all that need room to start have started: nothing is
        promised of those who start on a full disk."""
        if host not in self.disks:
            return False
        if host in self.cast.servers:
            number = self.cast.servers.index(host)
            return self.kept["server"][number].alive and self._servers[number].ready()
        agent = self.kept["agent"][self.cast.machines.index(host)]
        with self.lock:
            pid = agent.process.pid if agent.alive and agent.process is not None else 0
        records = registered(self.cluster(host))
        return any(one.pid == pid and "leader" in one.facts for one in records)

    def _all(self) -> Iterator[tuple[tuple[str, int], Found]]:
        for traces in self.traces.values():
            yield from traces.workers().items()

    # --- the end --------------------------------------------------------------------------------

    def end_clients(self) -> None:
        """What was asked has its answer; nothing is written any more."""
        for kind in ("caller", "writer", "prober"):
            for kept in self.kept.get(kind, []):
                self._end(kept, signal.SIGTERM)

    def end(self) -> list[str]:
        """Politely, everybody; who did not end by that."""
        self._closed.set()
        if self._init.is_alive():
            self._init.join(END_S)
        late = []
        polite = {"agent": signal.SIGINT}  # its workers end with it
        for kind in ("caller", "writer", "prober", "agent", "gateway", "controller"):
            late += [self._end(kept, polite.get(kind, signal.SIGTERM)) for kept in self._of(kind)]
        for kind in ("coordinator", "server", "store"):
            late += [self._end(kept, signal.SIGTERM) for kept in self._of(kind)]
        return [name for name in late if name]

    def end_at_once(self) -> None:
        """Nobody is asked."""
        self._closed.set()
        if self._init.is_alive():
            self._init.join(END_S)
        for kept in self.everybody():
            kept.kill(float("inf"))

    def _of(self, kind: str) -> list[Kept]:
        return self.kept.get(kind, [])

    def _end(self, kept: Kept, number: signal.Signals) -> str:
        with self.lock:
            kept.ours, kept.back_s = True, float("inf")
            process = kept.process
            if process is None or process.poll() is not None:
                return ""
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return kept.log.stem
        return ""


def _python(module: str, *words: str) -> list[str]:
    return [sys.executable, "-m", module, *words]
