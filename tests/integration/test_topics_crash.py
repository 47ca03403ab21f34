"""`kill -9` under writers: what was acknowledged is there once, what was aborted is never seen."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from holdfast.system.tasks import WAITED, start_thread
from tests.servers.broker import BrokerServer
from tests.waiting import PATIENCE_S, eventually

KILLS = 2
ACKNOWLEDGED_BEFORE_KILL = 300


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerServer]:
    with BrokerServer(tmp_path / "broker") as server:
        yield server


def create(broker: BrokerServer, name: str, partitions: int = 2) -> None:
    admin = AdminClient({"bootstrap.servers": broker.hosts})
    admin.create_topics([NewTopic(name, partitions)])[name].result()


def read_all(broker: BrokerServer, topic: str, partitions: int) -> dict[int, list[str]]:
    """Every committed record of each partition, in its order."""
    reading = Consumer({"bootstrap.servers": broker.hosts, "group.id": "checker"})
    found: dict[int, list[str]] = {}
    for number in range(partitions):
        low, high = reading.get_watermark_offsets(TopicPartition(topic, number), PATIENCE_S)
        reading.assign([TopicPartition(topic, number, low)])
        values: list[str] = []

        def at_end(values: list[str] = values, number: int = number, high: int = high) -> bool:
            for message in reading.consume(500, 0.2):
                assert message.error() is None, message.error()
                values.append((message.value() or b"").decode())
            (position,) = reading.position([TopicPartition(topic, number)])
            return position.offset >= high

        if high > low:
            eventually(at_end, f"partition {number} is read to its end")
        found[number] = values
    reading.close()
    return found


def test_a_kill_under_a_producer_loses_and_doubles_nothing_that_was_acknowledged(
    broker: BrokerServer,
) -> None:
    create(broker, "kept")
    sent: dict[int, list[str]] = {0: [], 1: []}
    acknowledged: set[str] = set()
    stop = threading.Event()

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is None:
            acknowledged.add((message.value() or b"").decode())

    def write() -> None:
        producing = Producer(
            {
                "bootstrap.servers": broker.hosts,
                "enable.idempotence": True,
                "linger.ms": 1,
                "reconnect.backoff.max.ms": 200,
            }
        )
        for number in itertools.count():
            if stop.is_set():
                break
            value, partition = str(number), number % 2
            sent[partition].append(value)
            producing.produce("kept", value=value, partition=partition, on_delivery=on_delivery)
            producing.poll(0.001)
        assert producing.flush(PATIENCE_S) == 0

    writer = start_thread(write, "writer", WAITED)
    for _ in range(KILLS):
        goal = len(acknowledged) + ACKNOWLEDGED_BEFORE_KILL
        eventually(lambda goal=goal: len(acknowledged) >= goal, "more is acknowledged")  # type: ignore[misc]
        broker.kill()
        broker.start()
    stop.set()
    writer.result()
    found = read_all(broker, "kept", 2)
    for partition, values in found.items():
        assert values == sent[partition], "each once, in the order in which it was sent"
    assert acknowledged == {*sent[0], *sent[1]}


@pytest.mark.engines
def test_a_kill_under_transactions_shows_none_in_part(broker: BrokerServer) -> None:
    create(broker, "whole")
    fates: dict[str, str] = {}
    stop = threading.Event()

    def write() -> None:
        options = {
            "bootstrap.servers": broker.hosts,
            "transactional.id": "writer",
            "reconnect.backoff.max.ms": 200,
        }
        producing = Producer(options)
        producing.init_transactions(PATIENCE_S)
        for number in itertools.count():
            if stop.is_set():
                return
            name, aborts = str(number), number % 3 == 0
            fates[name] = "unknown"
            try:
                producing.begin_transaction()
                for partition in (0, 1, 0):
                    producing.produce("whole", value=name, partition=partition)
                if aborts:
                    producing.flush(PATIENCE_S)
                    producing.abort_transaction(PATIENCE_S)
                else:
                    producing.commit_transaction(PATIENCE_S)
                fates[name] = "aborted" if aborts else "committed"
            except KafkaException as error:
                if error.args[0].txn_requires_abort():
                    producing.abort_transaction(PATIENCE_S)
                    fates[name] = "aborted"
                else:
                    producing = Producer(options)
                    producing.init_transactions(PATIENCE_S)

    writer = start_thread(write, "writer", WAITED)
    for _ in range(KILLS):
        goal = len(fates) + 30
        eventually(lambda goal=goal: len(fates) >= goal, "more transactions")  # type: ignore[misc]
        broker.kill()
        broker.start()
    stop.set()
    writer.result()
    found = read_all(broker, "whole", 2)
    counts = Counter(found[0]), Counter(found[1])
    for name, fate in fates.items():
        seen = counts[0][name], counts[1][name]
        whole = {"committed": [(2, 1)], "aborted": [(0, 0)], "unknown": [(0, 0), (2, 1)]}
        assert seen in whole[fate], f"transaction {name} was {fate}"
    assert "committed" in fates.values()
    assert "aborted" in fates.values()


@pytest.mark.engines
def test_a_group_goes_on_over_a_kill(broker: BrokerServer) -> None:
    create(broker, "read", 1)
    producing = Producer({"bootstrap.servers": broker.hosts})
    for number in range(100):
        producing.produce("read", value=str(number))
    producing.flush(PATIENCE_S)
    lost: list[object] = []
    reading = Consumer(
        {
            "bootstrap.servers": broker.hosts,
            "group.id": "over-a-kill",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 200,
        }
    )
    reading.subscribe(["read"], on_lost=lambda *given: lost.append(given))
    found: list[str] = []

    def have(count: int) -> bool:
        for message in reading.consume(10, 0.2):
            if message.error() is None:
                found.append((message.value() or b"").decode())
        return len(found) >= count

    eventually(lambda: have(100), "the first hundred")
    reading.commit(asynchronous=False)
    broker.kill()
    broker.start()
    for number in range(100, 200):
        producing.produce("read", value=str(number))
    producing.flush(PATIENCE_S)
    eventually(lambda: have(200), "the other hundred, by the same member")
    assert found == [str(number) for number in range(200)]
    assert lost == []
    (held,) = reading.committed([TopicPartition("read", 0)], PATIENCE_S)
    assert held.offset == 100
    reading.close()
