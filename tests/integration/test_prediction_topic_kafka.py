"""The prediction topic on three nodes of a real Kafka, one of them killed under way."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from holdfast import topics
from holdfast.serve.prediction_record import read
from holdfast.serve.prediction_topic import PredictionTopic
from holdfast.serve.protocol.tensors import InferAnswer, InferRequest
from holdfast.serve.records import PredictionPolicy
from holdfast.storage import open_store
from tests.conftest import require_service
from tests.servers.kafka import KafkaCluster, kafka_missing
from tests.waiting import eventually

pytestmark = pytest.mark.engines

COUNT = 6_000


def test_no_prediction_is_lost_or_doubled_when_a_node_is_killed(tmp_path: Path) -> None:
    require_service(kafka_missing())
    with KafkaCluster(tmp_path / "kafka") as kafka:
        address = f"kafka://{kafka.hosts}?prefix=team."
        topic = PredictionTopic(
            "digits",
            1,
            PredictionPolicy(topic=True),
            lambda: topics.connect(address),
            lambda: open_store(f"file:{tmp_path / 'store'}"),
        )
        slowest_s = 0.0
        for number in range(COUNT):
            x = np.full((1, 16), number, np.float32)
            request = InferRequest("m", 1, "", {"x": x}, trace=f"r-{number}")
            began_s = time.thread_time()
            topic.note(request, InferAnswer("m", 1, "", {"y": x}), 0.5)
            slowest_s = max(slowest_s, time.thread_time() - began_s)
            if number % 10 == 0:
                time.sleep(0.01)  # pause: a load
            if number == COUNT // 3:
                kafka.nodes[1].kill()
        eventually(lambda: topic.counts().sent == COUNT, "all are taken", 60.0)
        topic.close()
        assert topic.counts().dropped == 0
        assert slowest_s < 0.01
        found: list[str] = []
        with topics.connect(address) as cluster:
            made = cluster.admin.describe(topic.topic)
            assert (made.copies, made.configs["min.insync.replicas"]) == (3, "2")
            consumer = cluster.consumer(topic.topic, start="earliest")

            def all_read() -> bool:
                found.extend(read(one.value).id for one in consumer.poll(0.5))
                return len(found) >= COUNT

            eventually(all_read, "all are read", 60.0)
        assert sorted(found) == sorted(f"r-{number}" for number in range(COUNT))
