"""A real Kafka as a process on loopback, and its Java tools: a part that lies beside the checkout.

Its tools are the Java client; they are run against our broker, too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from holdfast.topics.broker.protocol import apis
from holdfast.topics.broker.protocol.cluster import MetadataRequest
from tests.servers.broker import Wire
from tests.servers.parts import parts_folder, unpacked_folder
from tests.servers.process import ServerProcess, free_port
from tests.waiting import eventually

_NAME: Final = "kafka-4.3.1.tar.xz"
_TOOLS: Final = "org.apache.kafka.tools"
TOOL_S: Final = 120.0


def kafka_missing() -> str:
    """Which part is not there; "" if Kafka can be started."""
    if not (parts_folder() / _NAME).is_file():
        return f"Kafka is not beside the checkout: {_NAME} is not in HOLDFAST_PARTS"
    return (
        "" if shutil.which("java") else "java is not installed: apt install openjdk-17-jre-headless"
    )


def _java(*arguments: str) -> list[str]:
    settings = parts_folder() / "kafka" / "log4j2.yaml"
    options = ["-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    where = ["-cp", f"{unpacked_folder(parts_folder() / _NAME)}/lib/*"]
    return ["java", *options, f"-Dlog4j2.configurationFile={settings}", *where, *arguments]


def run_tool(name: str, *arguments: str, stdin: str = "") -> str:
    """Run one of Kafka's own tools; what it prints."""
    done = subprocess.run(
        _java(f"{_TOOLS}.{name}", *arguments),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TOOL_S,
        check=False,
    )
    assert done.returncode == 0, f"{name} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


class KafkaServer(ServerProcess):
    """A node of a real Kafka: alone, or the `number`-th of a cluster whose controllers listen at
    these ports. `properties`: lines of its own, such as `log.flush.interval.messages=1`. `cut`: it
    also listens at this port, and whoever comes there is told this address."""

    def __init__(
        self,
        folder: Path,
        port: int | None = None,
        *,
        number: int = 1,
        controllers: Sequence[int] = (),
        cluster_id: str = "",
        properties: Sequence[str] = (),
        cut: tuple[int, str] | None = None,
    ) -> None:
        super().__init__(folder, port)
        self.number = number
        self._cut = cut
        self._controllers = tuple(controllers) or (free_port(),)
        self._cluster_id = cluster_id or new_cluster_id()
        self._more = tuple(properties)
        self._properties = folder / "node.properties"

    def command(self) -> Sequence[str]:
        if not self._properties.exists():
            self.format()
        return _java("kafka.Kafka", str(self._properties))

    def format(self) -> None:
        """Make its folder ready, once; otherwise its first start does."""
        text = (parts_folder() / "kafka" / "node.properties").read_text()
        many = len(self._controllers) > 1
        voters = enumerate(self._controllers, 1)
        fields = {
            "id": str(self.number),
            "voters": ",".join(f"{number}@{self.host}:{port}" for number, port in voters),
            "host": self.host,
            "port": str(self.port),
            "controller": str(self._controllers[self.number - 1]),
            "dir": str(self.folder / "data"),
            "copies": str(len(self._controllers)),
            "most": "2" if many else "1",
        }
        for name, value in fields.items():
            text = text.replace(f"{{{name}}}", value)
        text += "\n" + "\n".join(self._more) + "\n"
        if self._cut is not None:
            text = _with_listener(text, "CUT", f"{self.host}:{self._cut[0]}", self._cut[1])
        self._properties.write_text(text)
        arguments = ("format", "-t", self._cluster_id, "-c", str(self._properties))
        done = subprocess.run(
            _java("kafka.tools.StorageTool", *arguments),
            capture_output=True,
            text=True,
            timeout=TOOL_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def brokers(self) -> int:
        """How many brokers it knows of; none: it does not answer."""
        try:
            with Wire(self.hosts) as wire:
                return len(wire.call(apis.METADATA, 9, MetadataRequest(topics=[])).brokers)
        except (OSError, EOFError):
            return 0

    def ready(self) -> bool:
        """An open port is not a cluster: it names a broker."""
        return self.brokers() > 0


def _with_listener(properties: str, name: str, hosts: str, told: str) -> str:
    """One more listener; who comes there is told that address of it."""
    more = {
        "listeners": f"{name}://{hosts}",
        "advertised.listeners": f"{name}://{told}",
        "listener.security.protocol.map": f"{name}:PLAINTEXT",
    }
    lines = []
    for line in properties.splitlines():
        key = line.partition("=")[0]
        lines.append(f"{line},{more[key]}" if key in more else line)
    return "\n".join((*lines, ""))


def new_cluster_id() -> str:
    return urlsafe_b64encode(os.urandom(16)).decode().rstrip("=").replace("-", "x")


class KafkaCluster:
    """Three nodes of a real Kafka: topics have three copies, and two must have a record."""

    def __init__(self, folder: Path, count: int = 3, *, properties: Sequence[str] = ()) -> None:
        controllers = [free_port() for _ in range(count)]
        cluster_id = new_cluster_id()
        self.nodes = [
            KafkaServer(
                folder / f"node-{number}",
                number=number,
                controllers=controllers,
                cluster_id=cluster_id,
                properties=properties,
            )
            for number in range(1, count + 1)
        ]

    @property
    def hosts(self) -> str:
        """What a client is given."""
        return ",".join(node.hosts for node in self.nodes)

    def start(self) -> Self:
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.wait_ready()
        self.wait_whole()
        return self

    def wait_whole(self) -> None:
        """Every node knows all of them: before that a topic with three copies is refused."""
        whole = len(self.nodes)
        eventually(
            lambda: all(node.brokers() == whole for node in self.nodes),
            "all nodes know one another",
        )

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()
