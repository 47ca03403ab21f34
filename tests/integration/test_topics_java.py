"""Kafka's own tools, which are the Java client, against our broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import require_part
from tests.servers.broker import BrokerServer
from tests.servers.kafka import kafka_missing, run_tool

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerServer]:
    require_part(kafka_missing())
    with BrokerServer(tmp_path_factory.mktemp("broker")) as server:
        yield server


def test_the_java_client_makes_a_topic_writes_reads_and_shows_its_group(
    broker: BrokerServer,
) -> None:
    where = ("--bootstrap-server", broker.hosts)
    made = ("--create", "--topic", "java", "--partitions", "2", "--config", "retention.ms=100000")
    assert "Created topic java" in run_tool("TopicCommand", *where, *made)
    described = run_tool("TopicCommand", *where, "--describe", "--topic", "java")
    assert "PartitionCount: 2" in described
    assert "retention.ms=100000" in described
    lines = [f"line {number}" for number in range(200)]
    run_tool("ConsoleProducer", *where, "--topic", "java", stdin="\n".join(lines))
    asked = ("--topic", "java", "--group", "java", "--from-beginning", "--max-messages", "200")
    read = run_tool("consumer.ConsoleConsumer", *where, *asked, "--timeout-ms", "60000")
    assert sorted(read.split("\n")[:200]) == sorted(lines)
    shown = run_tool("consumer.group.ConsumerGroupCommand", *where, "--describe", "--group", "java")
    rows = [line.split() for line in shown.splitlines() if line.startswith("java")]
    assert {(row[2], row[5]) for row in rows} == {("0", "0"), ("1", "0")}, "no lag"


def test_the_java_client_copies_records_in_transactions(broker: BrokerServer) -> None:
    where = ("--bootstrap-server", broker.hosts)
    for topic in ("source", "target"):
        run_tool("TopicCommand", *where, "--create", "--topic", topic, "--partitions", "1")
    count = 500
    written = run_tool(
        "VerifiableProducer", *where, "--topic", "source", "--max-messages", str(count)
    )
    assert written.count('"name":"producer_send_success"') == count
    copied = run_tool(
        "TransactionalMessageCopier",
        *("--transactional-id", "copier", "--consumer-group", "copiers", "--broker-list"),
        *(broker.hosts, "--input-topic", "source", "--output-topic", "target"),
        *("--input-partition", "0", "--max-messages", str(count), "--transaction-size", "50"),
        "--enable-random-aborts",
    )
    assert f'"totalProcessed":{count}' in copied.replace(" ", "")
    asked = ("--topic", "target", "--from-beginning", "--max-messages", str(count))
    committed = ("--isolation-level", "read_committed", "--timeout-ms", "60000")
    read = run_tool("consumer.ConsoleConsumer", *where, *asked, *committed)
    found = [line for line in read.splitlines() if line.isdigit()]
    assert found == [str(number) for number in range(count)], "each once, in order"
