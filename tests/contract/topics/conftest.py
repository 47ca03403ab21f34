"""Every test here runs over each back end; each is started once."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from holdfast import topics
from holdfast.topics import Connection, Consumer, Record
from tests.conftest import require_part
from tests.contract.topics.cutting import CuttingBroker
from tests.servers.broker import BrokerServer
from tests.servers.kafka import KafkaCluster, KafkaServer, kafka_missing
from tests.servers.process import free_port
from tests.waiting import PATIENCE_S, eventually

OWN = ("auto.create.topics.enable=false",)
_names = itertools.count()


@pytest.fixture(scope="session")
def our_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("broker")
    with BrokerServer(folder, options=("--no-auto-create",)) as server:
        yield server.hosts


@pytest.fixture(scope="session")
def before_our_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CuttingBroker]:
    """Before one of its own."""
    folder = tmp_path_factory.mktemp("cut-broker")
    with CuttingBroker() as cutter:
        options = ("--no-auto-create", "--advertise", cutter.hosts)
        with BrokerServer(folder, options=options) as server:
            cutter.leads_to(server.port)
            yield cutter


@pytest.fixture(scope="session")
def before_one_kafka() -> Iterator[CuttingBroker]:
    """Before a listener of `one_kafka` of its own: who comes by it is told to come again by it."""
    with CuttingBroker() as cutter:
        yield cutter


@pytest.fixture(scope="session")
def one_kafka(
    tmp_path_factory: pytest.TempPathFactory, before_one_kafka: CuttingBroker
) -> Iterator[str]:
    require_part(kafka_missing())
    folder, port = tmp_path_factory.mktemp("kafka"), free_port()
    with KafkaServer(folder, properties=OWN, cut=(port, before_one_kafka.hosts)) as server:
        before_one_kafka.leads_to(port)
        yield server.hosts


@pytest.fixture(scope="session")
def three_kafkas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    require_part(kafka_missing())
    with KafkaCluster(tmp_path_factory.mktemp("kafkas"), properties=OWN) as servers:
        yield servers.hosts


@pytest.fixture(
    params=[
        "our_broker",
        "one_kafka",
        pytest.param("three_kafkas", marks=pytest.mark.engines),
    ]
)
def address(request: pytest.FixtureRequest) -> str:
    """Where the back end is; names of ours have a prefix there."""
    return f"kafka://{request.getfixturevalue(request.param)}?prefix=team.{os.getpid()}."


@pytest.fixture
def cluster(address: str) -> Iterator[Connection]:
    with topics.connect(address) as made:
        yield made


@pytest.fixture
def topic(cluster: Connection) -> str:
    """A new topic with one partition."""
    return make_topic(cluster)


def make_topic(cluster: Connection, partitions: int = 1, **configs: str) -> str:
    name = f"topic-{next(_names)}"
    own = {key.replace("_", "."): value for key, value in configs.items()}
    cluster.admin.create(name, partitions, configs=own)
    return name


def take(consumer: Consumer, count: int) -> list[Record]:
    """So many records."""
    found: list[Record] = []

    def enough() -> bool:
        found.extend(consumer.poll(0.5))
        return len(found) >= count

    eventually(enough, f"{count} records", PATIENCE_S)
    return found


def values(records: list[Record]) -> list[object]:
    return [record.value for record in records]


def write(cluster: Connection, topic: str, *given: bytes, partition: int | None = None) -> None:
    with cluster.producer() as producer:
        for value in given:
            producer.send(topic, value, partition=partition)
