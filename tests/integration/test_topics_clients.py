"""Clients that nobody here wrote, against our broker: confluent-kafka, kafka-python, aiokafka."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)
from kafka import KafkaConsumer, KafkaProducer

from tests.servers.broker import BrokerServer
from tests.waiting import PATIENCE_S, eventually

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_names = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerServer]:
    with BrokerServer(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest.fixture(scope="module")
def admin(broker: BrokerServer) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.hosts})


def fresh(admin: AdminClient, partitions: int = 1, **configs: str) -> str:
    """A new topic."""
    name = f"topic-{next(_names)}"
    own = {key.replace("_", "."): value for key, value in configs.items()}
    for future in admin.create_topics([NewTopic(name, partitions, config=own)]).values():
        future.result()
    return name


def producer(broker: BrokerServer, **more: Any) -> Producer:
    options = {key.replace("_", "."): value for key, value in more.items()}
    return Producer({"bootstrap.servers": broker.hosts, **options})


def consumer(broker: BrokerServer, group: str, **more: Any) -> Consumer:
    options = {
        "bootstrap.servers": broker.hosts,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 300,
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    return Consumer(options)


def send(producing: Producer, topic: str, *values: str, key: str | None = None) -> list[Message]:
    """Produce these and wait; what was delivered."""
    delivered: list[Message] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        delivered.append(message)

    for value in values:
        producing.produce(topic, value=value, key=key, on_delivery=on_delivery)
    assert producing.flush(PATIENCE_S) == 0
    assert len(delivered) == len(values)
    return delivered


def take(consuming: Consumer, count: int) -> list[str]:
    """So many records' values."""
    found: list[str] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        message = consuming.poll(1.0)
        if message is not None:
            assert message.error() is None, message.error()
            value = message.value()
            assert value is not None
            found.append(value.decode())
    return found


# --- confluent-kafka ------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_confluent_produces_and_consumes_with_every_codec(
    broker: BrokerServer, admin: AdminClient, codec: str
) -> None:
    topic = fresh(admin)
    values = [f"{'x' * 50}{number}" for number in range(300)]
    options = {"compression_type": codec, "enable_idempotence": True, "linger_ms": 20}
    send(producer(broker, **options), topic, *values)
    reader = consumer(broker, f"group-{topic}")
    reader.subscribe([topic])
    assert take(reader, 300) == values
    reader.close()


def test_a_group_goes_on_where_it_committed(broker: BrokerServer, admin: AdminClient) -> None:
    topic = fresh(admin)
    send(producer(broker), topic, "a", "b", "c")
    first = consumer(broker, "committing")
    first.subscribe([topic])
    assert take(first, 2) == ["a", "b"]
    first.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
    first.close()
    second = consumer(broker, "committing")
    second.subscribe([topic])
    assert take(second, 1) == ["c"]
    second.close()


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_share_partitions_and_take_over(
    broker: BrokerServer, admin: AdminClient, strategy: str
) -> None:
    topic = fresh(admin, 4)
    group = f"sharing-{strategy}"
    members = [consumer(broker, group, partition_assignment_strategy=strategy) for _ in range(2)]
    for member in members:
        member.subscribe([topic])

    def shared() -> bool:
        for member in members:
            member.poll(0.1)
        held = [{one.partition for one in member.assignment()} for member in members]
        return [len(one) for one in held] == [2, 2] and held[0] | held[1] == {0, 1, 2, 3}

    eventually(shared, "two partitions each, none twice")
    members.pop().close()

    def alone() -> bool:
        members[0].poll(0.1)
        return len(members[0].assignment()) == 4

    eventually(alone, "the one that is left has all")
    members.pop().close()


def test_a_static_member_comes_back_without_a_rebalance(
    broker: BrokerServer, admin: AdminClient
) -> None:
    topic = fresh(admin, 2)
    revoked: list[str] = []

    def joined(name: str) -> Consumer:
        made = consumer(broker, "static", group_instance_id=name)
        made.subscribe([topic], on_revoke=lambda *_: revoked.append(name))
        return made

    one, two = joined("one"), joined("two")

    def shared() -> bool:
        one.poll(0.1)
        two.poll(0.1)
        return len(one.assignment()) == len(two.assignment()) == 1

    eventually(shared, "one partition each")
    revoked.clear()
    two.close()
    again = joined("two")

    def back() -> bool:
        one.poll(0.05)
        again.poll(0.1)
        return len(again.assignment()) == 1

    eventually(back, "the member that came back has its partition")
    assert "one" not in revoked
    one.close()
    again.close()


def test_a_transaction_is_seen_as_a_whole_or_not_at_all(
    broker: BrokerServer, admin: AdminClient
) -> None:
    topic = fresh(admin, 2)
    writing = producer(broker, transactional_id=f"tx-{topic}")
    writing.init_transactions(PATIENCE_S)
    for values, commit in ((("a", "b"), True), (("bad", "worse"), False), (("c",), True)):
        writing.begin_transaction()
        for value in values:
            writing.produce(topic, value=value, partition=0)
        writing.flush(PATIENCE_S)
        if commit:
            writing.commit_transaction(PATIENCE_S)
        else:
            writing.abort_transaction(PATIENCE_S)
    committed = consumer(broker, f"committed-{topic}")
    committed.subscribe([topic])
    assert take(committed, 3) == ["a", "b", "c"]
    committed.close()
    everything = consumer(broker, f"all-{topic}", isolation_level="read_uncommitted")
    everything.subscribe([topic])
    assert sorted(take(everything, 5)) == ["a", "b", "bad", "c", "worse"]
    everything.close()


def test_consume_transform_produce_commits_its_offsets_with_its_records(
    broker: BrokerServer, admin: AdminClient
) -> None:
    source, target = fresh(admin), fresh(admin)
    send(producer(broker), source, "1", "2", "3")
    reading = consumer(broker, f"chain-{source}")
    reading.subscribe([source])
    writing = producer(broker, transactional_id=f"chain-{source}")
    writing.init_transactions(PATIENCE_S)
    assert take(reading, 3) == ["1", "2", "3"]
    for commit in (False, True):
        writing.begin_transaction()
        writing.produce(target, value="6")
        position = [TopicPartition(source, 0, 3)]
        writing.send_offsets_to_transaction(position, reading.consumer_group_metadata(), PATIENCE_S)
        if commit:
            writing.commit_transaction(PATIENCE_S)
        else:
            writing.abort_transaction(PATIENCE_S)
            (held,) = reading.committed([TopicPartition(source, 0)], PATIENCE_S)
            assert held.offset < 0
    (held,) = reading.committed([TopicPartition(source, 0)], PATIENCE_S)
    assert held.offset == 3
    reading.close()
    found = consumer(broker, f"found-{source}")
    found.subscribe([target])
    assert take(found, 1) == ["6"]
    found.close()


def test_a_second_producer_of_a_transactional_id_fences_the_first(
    broker: BrokerServer, admin: AdminClient
) -> None:
    topic = fresh(admin)
    old, new = (producer(broker, transactional_id=f"fence-{topic}") for _ in range(2))
    old.init_transactions(PATIENCE_S)
    old.begin_transaction()
    old.produce(topic, value="zombie")
    old.flush(PATIENCE_S)
    new.init_transactions(PATIENCE_S)
    with pytest.raises(KafkaException) as caught:
        old.commit_transaction(PATIENCE_S)
    assert caught.value.args[0].fatal()
    new.begin_transaction()
    new.produce(topic, value="alive")
    new.commit_transaction(PATIENCE_S)
    reading = consumer(broker, f"fenced-{topic}")
    reading.subscribe([topic])
    assert take(reading, 1) == ["alive"]
    reading.close()


def test_offsets_by_time_seek_and_watermarks(broker: BrokerServer, admin: AdminClient) -> None:
    topic = fresh(admin)
    writing = producer(broker)
    for number in range(5):
        writing.produce(topic, value=str(number), timestamp=1_700_000_000_000 + 1000 * number)
        writing.flush(PATIENCE_S)
    reading = consumer(broker, f"times-{topic}")
    assert reading.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_S) == (0, 5)
    wanted = [TopicPartition(topic, 0, 1_700_000_002_500)]
    (found,) = reading.offsets_for_times(wanted, PATIENCE_S)
    assert found.offset == 3
    reading.assign([found])
    assert take(reading, 2) == ["3", "4"]
    reading.seek(TopicPartition(topic, 0, OFFSET_BEGINNING))
    assert take(reading, 5) == list("01234")
    reading.close()
    latest: Any = OffsetSpec
    spec = {TopicPartition(topic, 0): latest.max_timestamp()}
    (future,) = admin.list_offsets(spec).values()
    assert future.result().offset == 4


def test_the_admin_client_sees_and_changes_what_there_is(
    broker: BrokerServer, admin: AdminClient
) -> None:
    topic = fresh(admin, 2, retention_ms="7000")
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result()
    assert len(admin.list_topics(topic, PATIENCE_S).topics[topic].partitions) == 3
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    (future,) = admin.describe_configs([resource]).values()
    assert future.result()["retention.ms"].value == "7000"
    send(producer(broker), topic, *"abc")
    reading = consumer(broker, f"admin-{topic}")
    reading.subscribe([topic])
    take(reading, 3)
    reading.commit(asynchronous=False)
    (described,) = admin.describe_consumer_groups([f"admin-{topic}"]).values()
    assert described.result().state.name == "STABLE"
    assert len(described.result().members) == 1
    reading.close()
    listed = admin.list_consumer_groups().result()
    assert f"admin-{topic}" in {one.group_id for one in listed.valid}
    asked = ConsumerGroupTopicPartitions(f"admin-{topic}")
    (offsets,) = admin.list_consumer_group_offsets([asked]).values()
    assert sum(one.offset for one in offsets.result().topic_partitions) == 3
    admin.delete_consumer_groups([f"admin-{topic}"])[f"admin-{topic}"].result()
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, -1)]).values()
    assert deleted.result().low_watermark >= 0
    admin.delete_topics([topic])[topic].result()
    assert topic not in admin.list_topics(timeout=PATIENCE_S).topics
    cluster = admin.describe_cluster().result()
    assert len(cluster.nodes) == 1


# --- kafka-python ---------------------------------------------------------------------------------


def test_kafka_python_produces_and_consumes_with_every_codec(
    broker: BrokerServer, admin: AdminClient
) -> None:
    topic = fresh(admin, 2)
    for codec in CODECS:
        kind = None if codec == "none" else codec
        writing = KafkaProducer(bootstrap_servers=broker.hosts, compression_type=kind)
        sent = [writing.send(topic, b"v" * 60, key=b"%d" % number) for number in range(20)]
        assert all(one.get(PATIENCE_S).offset >= 0 for one in sent)
        writing.close()
    reading = KafkaConsumer(
        topic,
        bootstrap_servers=broker.hosts,
        group_id=f"python-{topic}",
        auto_offset_reset="earliest",
    )
    found: list[Any] = []

    def all_there() -> bool:
        for batch in reading.poll(timeout_ms=500).values():
            found.extend(batch)
        return len(found) >= 100

    eventually(all_there, "a hundred records")
    assert len(found) == 100
    reading.commit()
    reading.close()


# --- aiokafka -------------------------------------------------------------------------------------


def test_aiokafka_sees_what_it_committed_and_not_what_it_aborted(
    broker: BrokerServer, admin: AdminClient
) -> None:
    topic = fresh(admin)

    async def write() -> None:
        writing = AIOKafkaProducer(bootstrap_servers=broker.hosts, transactional_id=f"aio-{topic}")
        await writing.start()
        async with writing.transaction():
            await writing.send_and_wait(topic, b"good")
        await writing.begin_transaction()
        await writing.send_and_wait(topic, b"bad")
        await writing.abort_transaction()
        async with writing.transaction():
            await writing.send_and_wait(topic, b"last")
        await writing.stop()

    async def read() -> list[bytes | None]:
        reading = AIOKafkaConsumer(
            topic,
            bootstrap_servers=broker.hosts,
            group_id=f"aio-{topic}",
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        await reading.start()
        try:
            found = [await asyncio.wait_for(reading.getone(), PATIENCE_S) for _ in range(2)]
            return [one.value for one in found]
        finally:
            await reading.stop()

    asyncio.run(write())
    assert asyncio.run(read()) == [b"good", b"last"]
