"""Topics of a cluster: its own broker is started when something uses it, kept alive, ended by
`down`, and open to nobody else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from holdfast.cluster import topics
from holdfast.control.decide.facts import Phase
from holdfast.control.decide.spec import JobSpec, Resources
from holdfast.launch import local
from holdfast.topics import hosting
from holdfast.topics.address import TopicsAddress
from holdfast.wire.errors import Usage
from tests.conftest import require_part
from tests.integration.clusters import Home, holdfast
from tests.servers.kafka import KafkaServer, kafka_missing
from tests.waiting import PATIENCE_S, eventually

SOON_S = 60.0
NOBODY = 65_534


def settings(address: TopicsAddress) -> dict[str, Any]:
    return {**address.client_settings(), "log_level": 0}


def where(home: Home) -> TopicsAddress:
    with home.cluster.session() as session:
        return topics.address(home.cluster, topics.wanted(session))


def send(address: TopicsAddress, topic: str, *values: str) -> None:
    producer = Producer({**settings(address), "message.timeout.ms": int(SOON_S * 1_000)})
    refused: list[object] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: refused.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert not [error for error in refused if error is not None]


def read(address: TopicsAddress, topic: str, count: int) -> list[str]:
    consumer = Consumer(
        {**settings(address), "group.id": "reading", "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([topic])
        found: list[str] = []

        def all_there() -> bool:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                found.append((message.value() or b"").decode())
            return len(found) >= count

        eventually(all_there, "the records are read", PATIENCE_S)
    finally:
        consumer.close()
    return found


def kinds(home: Home) -> list[str]:
    return sorted(one.kind for one in local.processes(home.cluster))


JOB = """
import os, sys
from confluent_kafka import Producer
from holdfast.topics.address import TopicsAddress
address = TopicsAddress.parse(os.environ["HOLDFAST_TOPICS"])
assert "password-file" in str(address), address
for topic, may in (("of-the-job", True), ("holdfast.events", False), ("model.updated", False)):
    producer = Producer({**address.client_settings(), "message.timeout.ms": 8000, "log_level": 0})
    got = []
    producer.produce(topic, "from a worker", on_delivery=lambda error, _: got.append(error))
    assert producer.flush(30) == 0
    assert (got[0] is None) is may, (topic, got)
"""


def test_a_broker_is_started_when_topics_are_used_kept_alive_and_ended_with_all_records_kept(
    home: Home,
) -> None:
    home.up(supervised=True)
    assert hosting.KIND not in kinds(home), "nothing uses topics yet"
    with home.cluster.session() as session:
        assert topics.record(session) is None
    address = where(home)
    send(address, "kept", "first")

    eventually(lambda: hosting.KIND in kinds(home), "the broker has its record")
    before = home.process(hosting.KIND).pid
    home.kill(hosting.KIND)
    send(address, "kept", "second")
    assert home.process(hosting.KIND).pid != before
    told = json.loads(holdfast("status", "--json", "--cluster", str(home.cluster.folder)).stdout)
    (broker,) = [one for one in told["processes"] if one["kind"] == hosting.KIND]
    assert broker["facts"]["address"] == address.servers[0]

    spec = JobSpec("produces", (sys.executable, "-c", JOB), resources=Resources(cpu=1.0))
    with home.control() as control:
        control.submit(spec)
    ended = home.ended("produces").status
    assert ended.phase is Phase.SUCCEEDED, ended.reason
    assert read(address, "of-the-job", 1) == ["from a worker"]

    local.down(home.cluster)
    assert home.left() == []
    home.up(supervised=True)
    assert read(where(home), "kept", 2) == ["first", "second"]


STRANGER = """
import os, sys
from pathlib import Path
from confluent_kafka import Consumer, KafkaException, Producer
folder, server, owner, user = sys.argv[1:]
os.setgroups([]); os.setgid(int(user)); os.setuid(int(user))
for name in ("topics-access/users", "coordination/access", "topics/server.json"):
    try:
        Path(folder, name).read_text()
    except PermissionError:
        pass
    else:
        sys.exit(f"{name} could be read")
plain = {"bootstrap.servers": server, "log_level": 0}
guess = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512",
         "sasl.username": owner, "sasl.password": "guessed"}
for known in (plain, {**plain, **guess}):
    got = []
    producer = Producer({**known, "message.timeout.ms": 3000})
    producer.produce("kept", "forged", on_delivery=lambda error, _: got.append(error))
    producer.flush(20)
    producer.purge()
    if any(error is None for error in got):
        sys.exit("a stranger produced")
    consumer = Consumer({**known, "group.id": "stranger", "auto.offset.reset": "earliest"})
    try:
        consumer.list_topics(timeout=3)
    except KafkaException:
        pass
    else:
        sys.exit("a stranger was told of topics")
    finally:
        consumer.close()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed: only root can be one")
def test_a_process_of_another_user_without_the_secret_neither_produces_nor_reads(
    home: Home,
) -> None:
    home.up(supervised=True, agents=0)
    address = where(home)
    send(address, "kept", "ours")
    words = (str(home.cluster.folder), address.servers[0], hosting.OWNER, str(NOBODY))
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, *words],
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert read(address, "kept", 1) == ["ours"]
    with pytest.raises(KafkaException):
        AdminClient(settings(TopicsAddress(address.servers))).list_topics(timeout=3)


def test_topics_at_a_real_address_are_used_and_no_broker_is_started(home: Home) -> None:
    text = "kafka://h1:9092,h2:9092?prefix=team."
    home.up(supervised=True, agents=0, topics=text)
    with home.cluster.session() as session:
        found = topics.wanted(session)
        assert found == topics.TopicsRecord(text, embedded=False)
        assert topics.address(home.cluster, found).prefix == "team."
    assert hosting.KIND not in kinds(home)
    for other in ("embedded", "kafka://h3"):
        with pytest.raises(Usage, match="the topics of this cluster are at kafka://h1"):
            home.up(supervised=True, agents=0, topics=other)
    with pytest.raises(Usage, match="did you mean"):
        home.up(supervised=True, agents=0, topics="kafka://h1?prefx=a")


REAL_JOB = """
from holdfast import topics
with topics.connect() as cluster:
    cluster.producer(codec=topics.TEXT).send("of-the-job", "from a worker").result(60)
"""


@pytest.mark.engines
def test_a_job_of_a_cluster_with_a_real_kafka_writes_there_below_the_prefix(
    home: Home, tmp_path: Path
) -> None:
    require_part(kafka_missing())
    with KafkaServer(tmp_path / "kafka") as kafka:
        home.up(supervised=True, topics=f"kafka://{kafka.hosts}?prefix=ml.")
        words = ("topics", "create", "of-the-job", "--cluster", str(home.cluster.folder))
        made = holdfast(*words)
        assert made.returncode == 0, made.stderr
        assert "1 copy, 1 in sync" in made.stderr
        spec = JobSpec("produces", (sys.executable, "-c", REAL_JOB), resources=Resources(cpu=1.0))
        with home.control() as control:
            control.submit(spec)
        ended = home.ended("produces").status
        assert ended.phase is Phase.SUCCEEDED, ended.reason
        assert read(TopicsAddress((kafka.hosts,)), "ml.of-the-job", 1) == ["from a worker"]
        assert hosting.KIND not in kinds(home)


def test_the_broker_of_a_cluster_that_others_join_speaks_tls_and_shows_the_clusters_certificate(
    tmp_path: Path,
) -> None:
    secret = "ab" * 32
    folder, worker = tmp_path / "cluster", tmp_path / "worker"
    folder.mkdir()
    worker.mkdir()
    listen = f"127.0.0.1:{hosting.free_port('127.0.0.1')}"
    command = hosting.command(folder, listen, secret, encrypts=True)
    plain = command.index("--cluster")
    broker = subprocess.Popen(
        [*command[:plain], *command[plain + 2 :]],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        address = hosting.address_at(listen, encrypts=True)
        assert TopicsAddress.parse(address.format()) == address
        send(hosting.as_owner(address, secret), "kept", "over TLS")
        told = hosting.equip_worker(address, worker, secret).format()
        assert read(TopicsAddress.parse(told), "kept", 1) == ["over TLS"]
        wrong = hosting.as_owner(address, "cd" * 32)
        with pytest.raises(KafkaException):
            AdminClient(settings(wrong)).list_topics(timeout=3)
    finally:
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(PATIENCE_S) == 0
