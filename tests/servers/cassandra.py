"""A real Cassandra as a process on loopback, alone or as a ring in one data center or several: a
part that lies beside the checkout.

The nodes of a ring have one pair of ports and addresses of their own, 127.0.0.1 and on: that is how
Cassandra tells its nodes apart.
"""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import yaml
from cassandra import OperationTimedOut
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.policies import WhiteListRoundRobinPolicy

from tests.servers.parts import parts_folder, unpacked_folder
from tests.servers.process import ServerProcess, free_port
from tests.waiting import eventually

_NAME: Final = "cassandra-5.0.9.tar.xz"
TOOL_S: Final = 300.0
# Starting takes 20 s of a core, which on a busy machine is minutes.
START_S: Final = 300.0
# A node that is asked whether it is ready yet is not asked for long.
LOOK_S: Final = 5.0
# So long a node that joins waits until it has heard of all nodes and tables. One that has heard of
# no table yet takes over none: it counts, and is empty.
JOIN_DELAY_MS: Final = 10_000
# It waits for gossip, and then for the data.
JOIN_S: Final = 300.0
SUPERUSER: Final = ("cassandra", "cassandra")


def cassandra_missing() -> str:
    """Which part is not there; "" if Cassandra can be started."""
    if not (parts_folder() / _NAME).is_file():
        return f"Cassandra is not beside the checkout: {_NAME} is not in HOLDFAST_PARTS"
    return (
        "" if shutil.which("java") else "java is not installed: apt install openjdk-17-jre-headless"
    )


def tokens(count: int, shift: int = 0) -> list[int]:
    """Where so many nodes stand, evenly. No two nodes of a ring share a place, so those of a second
    data center stand a little beside those of the first."""
    return [-(1 << 63) + (1 << 64) * number // count + shift for number in range(count)]


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a node stands in its ring: address, token, data center, and whom it asks for the ring.
    A node that is no seed joins: it takes over its part of the data before it counts."""

    address: str = "127.0.0.1"
    token: int | None = -(1 << 63)
    data_center: str = "dc1"
    seeds: tuple[str, ...] = ("127.0.0.1",)
    storage_port: int = 0
    # The address of a dead node whose place it takes.
    replaces: str = ""

    @property
    def joins(self) -> bool:
        return self.address not in self.seeds


class CassandraServer(ServerProcess):
    """A node of a real Cassandra. `settings`: of cassandra.yaml, over those of the part; with None
    a setting is left out. `properties`: of the Java process, as -Dname=value."""

    def __init__(
        self,
        folder: Path,
        port: int | None = None,
        *,
        seat: Seat | None = None,
        settings: Mapping[str, object] | None = None,
        properties: Sequence[str] = (),
    ) -> None:
        self.seat = seat or Seat(storage_port=free_port())
        super().__init__(folder, port, host=self.seat.address)
        self.settings = dict(settings or {})
        self.ssl_context: ssl.SSLContext | None = None
        self._properties = tuple(properties)
        self.jmx_port = free_port()

    # --- how it is started ------------------------------------------------------------------------

    def command(self) -> Sequence[str]:
        self._configure()
        part, folder = parts_folder() / "cassandra", self.folder
        properties = [
            "-Djava.net.preferIPv4Stack=true",
            "-Dcassandra-foreground=yes",
            f"-Dcassandra.config=file://{folder}/cassandra.yaml",
            f"-Dcassandra-rackdc.properties=file://{folder}/rackdc",
            f"-Dcassandra.storagedir={folder}",
            f"-Dlogback.configurationFile=file:{part}/logback.xml",
            f"-Djava.io.tmpdir={folder}",
            f"-Dcassandra.jmx.local.port={self.jmx_port}",
            "-Dcassandra.memtable.row_overhead_size=180",
            f"-Dcassandra.ring_delay_ms={JOIN_DELAY_MS if self.seat.joins else 100}",
            "-Dcassandra.gossip_quarantine_delay_ms=10000",
            "-Dcassandra.skip_wait_for_gossip_to_settle=0",
            "-Dcassandra.superuser_setup_delay_ms=0",
            "-Dio.netty.tryReflectionSetAccessible=true",
            *self._properties,
        ]
        if self.seat.replaces:
            properties.append(f"-Dcassandra.replace_address_first_boot={self.seat.replaces}")
        memory = ["-Xms64m", "-Xmx256m", "-Xss256k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        memory += ["-XX:+ExitOnOutOfMemoryError", "-XX:-UsePerfData"]
        # Without the right to lock its memory it has half of it resident.
        unlocked = ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"]
        return [
            *(unlocked if os.geteuid() == 0 and shutil.which("setpriv") else []),
            *_java(*memory, *properties),
            "org.apache.cassandra.service.CassandraDaemon",
        ]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "MALLOC_ARENA_MAX": "2"}

    def _configure(self) -> None:
        seat, template = self.seat, (parts_folder() / "cassandra" / "node.yaml").read_text()
        fields = {
            "token": str(seat.token),
            "snitch": "GossipingPropertyFileSnitch",
            "addr": seat.address,
            "cql": str(self.port),
            "storage": str(seat.storage_port),
            "seeds": ",".join(f"{seed}:{seat.storage_port}" for seed in seat.seeds),
            "dir": str(self.folder),
        }
        for name, value in fields.items():
            template = template.replace(f"{{{name}}}", value)
        settings = yaml.safe_load(template)
        if seat.joins:
            settings["auto_bootstrap"] = True
        if seat.token is None:
            del settings["initial_token"]
        settings |= self.settings
        settings = {name: value for name, value in settings.items() if value is not None}
        (self.folder / "cassandra.yaml").write_text(yaml.safe_dump(settings))
        (self.folder / "rackdc").write_text(f"dc={seat.data_center}\nrack=r1\n")

    def wait_ready(self, timeout_s: float = START_S) -> None:
        super().wait_ready(timeout_s)

    def ready(self) -> bool:
        """An open port is not a node: it answers, and counts itself to its ring. While the port is
        closed, which is the longer part, nothing else is tried."""
        try:
            socket.create_connection((self.host, self.port), LOOK_S).close()
            with self.session() as session:
                return normal(session) > 0
        except (NoHostAvailable, OSError, OperationTimedOut):
            return False

    # --- what it is asked -------------------------------------------------------------------------

    @contextmanager
    def session(self) -> Iterator[Any]:
        """A session of the bare driver with this node alone; where it asks for a password, of the
        user that every Cassandra is born with."""
        user, password = SUPERUSER if self.settings.get("authenticator") else ("", "")
        policy = WhiteListRoundRobinPolicy([self.host])
        profile = ExecutionProfile(load_balancing_policy=policy, request_timeout=LOOK_S)
        cluster = Cluster(
            [self.host],
            port=self.port,
            protocol_version=5,
            auth_provider=PlainTextAuthProvider(user, password) if user else None,
            ssl_context=self.ssl_context,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            schema_metadata_enabled=False,
            token_metadata_enabled=False,
            connect_timeout=LOOK_S,
            control_connection_timeout=LOOK_S,
        )
        try:
            yield cluster.connect()
        finally:
            cluster.shutdown()

    def nodetool(self, *arguments: str) -> str:
        """Run its own tool; what it prints."""
        words = _java(f"-Duser.home={self.folder}")
        tool = ["org.apache.cassandra.tools.NodeTool", "-p", str(self.jmx_port), *arguments]
        done = subprocess.run(
            [*words, *tool], capture_output=True, text=True, timeout=TOOL_S, check=False
        )
        assert done.returncode == 0, f"nodetool {arguments}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def resident_bytes(self) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) << 10
        return 0

    def empty(self) -> None:
        """Take all tables away while it is down, but for Cassandra's own: it comes back under its
        name with nothing, as one of which a disk was changed. (With all of its disk gone Cassandra
        does not let it come back: "A node with address … already exists, cancelling join".)"""
        assert self.process is None, "it runs"
        shutil.rmtree(self.folder / "commitlog")
        for keyspace in (self.folder / "data").iterdir():
            if not keyspace.name.startswith("system"):
                shutil.rmtree(keyspace)


def normal(session: Any) -> int:
    """How many nodes one knows that have their place in the ring."""
    rows = session.execute("SELECT status_with_port FROM system_views.gossip_info")
    return sum(str(row.status_with_port).startswith("NORMAL") for row in rows)


def _java(*arguments: str) -> list[str]:
    modules = parts_folder() / "cassandra" / "jvm-modules.args"
    jars = f"{unpacked_folder(parts_folder() / _NAME)}/lib/*"
    return ["java", f"@{modules}", *arguments, "-cp", jars]


class CassandraRing:
    """Nodes that make one ring: so many in each data center, all of them seeds."""

    def __init__(
        self,
        folder: Path,
        nodes: Mapping[str, int] | int = 3,
        *,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        centers = {"dc1": nodes} if isinstance(nodes, int) else dict(nodes)
        self.folder = folder
        self.port = free_port()
        self._storage_port = free_port()
        self._settings = dict(settings or {})
        self.nodes: list[CassandraServer] = []
        total = sum(centers.values())
        self._seeds = tuple(f"127.0.0.{number}" for number in range(1, total + 1))
        for shift, (center, count) in enumerate(centers.items()):
            for token in tokens(count, 100 * shift):
                address = self._seeds[len(self.nodes)]
                self._node(Seat(address, token, center, self._seeds, self._storage_port))

    def _node(self, seat: Seat) -> CassandraServer:
        folder = self.folder / f"node-{len(self.nodes) + 1}"
        node = CassandraServer(folder, self.port, seat=seat, settings=self._settings)
        self.nodes.append(node)
        return node

    @property
    def hosts(self) -> str:
        """What a client is given."""
        return ",".join(node.hosts for node in self.nodes)

    def of(self, data_center: str) -> list[CassandraServer]:
        return [node for node in self.nodes if node.seat.data_center == data_center]

    def start(self) -> Self:
        for node in self.nodes:
            node.launch()
        try:
            for node in self.nodes:
                node.wait_ready()
            self.wait_whole()
        except BaseException:
            self.stop()
            raise
        return self

    def wait_whole(self) -> None:
        """Every node that runs knows all that have a place: before that, copies are missing."""
        for node in self.nodes:
            if node.process is not None:
                with node.session() as session:
                    self._wait_whole(session, f"{node.host} knows all nodes")

    def _wait_whole(self, session: Any, what: str) -> None:
        def whole() -> bool:
            try:
                return normal(session) >= len(self.nodes)
            except (NoHostAvailable, OperationTimedOut):
                return False

        eventually(whole, what)

    def add(self, data_center: str = "dc1") -> CassandraServer:
        """One more node, which has joined when this returns."""
        return self._joined(self._seat(data_center, self._gap()))

    def replace(self, node: CassandraServer) -> CassandraServer:
        """A new node in the place of one that is dead for good."""
        assert node.process is None, "it runs"
        seat = self._seat(node.seat.data_center, None, node.seat.address)
        made = self._joined(seat, tuple(one for one in self._seeds if one != node.seat.address))
        self.nodes.remove(node)
        return made

    def _seat(self, center: str, token: int | None, replaces: str = "") -> Seat:
        address = f"127.0.0.{len(list(self.folder.glob('node-*'))) + 1}"
        return Seat(address, token, center, self._seeds, self._storage_port, replaces)

    def _joined(self, seat: Seat, seeds: tuple[str, ...] = ()) -> CassandraServer:
        if seeds:
            seat = Seat(
                seat.address, seat.token, seat.data_center, seeds, seat.storage_port, seat.replaces
            )
        node = self._node(seat)
        node.launch()
        node.wait_ready(JOIN_S)
        return node

    def _gap(self) -> int:
        """The middle of the largest part of the ring that one node has."""
        taken = sorted(node.seat.token for node in self.nodes if node.seat.token is not None)
        pairs = zip(taken, [*taken[1:], taken[0] + (1 << 64)], strict=True)
        _, first = max((after - before, before) for before, after in pairs)
        following = min((one for one in taken if one > first), default=taken[0] + (1 << 64))
        middle = (first + following) // 2
        return middle if middle < 1 << 63 else middle - (1 << 64)

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()
