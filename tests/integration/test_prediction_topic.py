"""The prediction topic over a real broker: records flow, nothing waits, drops are counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast import topics
from holdfast.serve import prediction_topic
from holdfast.serve.prediction_record import FirstOfEach, Prediction, array_of, read
from holdfast.serve.prediction_topic import PredictionTopic
from holdfast.serve.predictions import PREDICTIONS_WAITING_MAX
from holdfast.serve.protocol.tensors import InferAnswer, InferRequest
from holdfast.serve.records import PredictionCounts, PredictionPolicy
from holdfast.storage import Blobs, open_store
from holdfast.wire.errors import Unavailable
from tests.servers.broker import BrokerServer
from tests.waiting import eventually

NAME = "digits"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerServer]:
    with BrokerServer(tmp_path / "broker") as server:
        yield server


class TopicWriter:
    """A prediction topic, and who reads it."""

    def __init__(self, server: BrokerServer, folder: Path, **policy: Any) -> None:
        self.address = f"kafka://{server.hosts}"
        self.policy = PredictionPolicy(topic=True, **policy)
        self.store = open_store(f"file:{folder / 'store'}")
        self.topic = self.open()

    def open(self, replica: int = 0, connect: Callable[[], Any] | None = None) -> PredictionTopic:
        connect = connect or (lambda: topics.connect(self.address))
        return PredictionTopic(NAME, replica, self.policy, connect, lambda: self.store)

    def read(self, count: int, timeout_s: float = 20.0) -> list[Prediction]:
        """The first so many records, by partition."""
        found: list[Prediction] = []
        with topics.connect(self.address) as cluster:
            consumer = cluster.consumer(self.topic.topic, start="earliest")
            until_s = time.monotonic() + timeout_s
            while len(found) < count and time.monotonic() < until_s:
                found += [read(record.value) for record in consumer.poll(0.5)]
        return found


@contextmanager
def topic_writer(server: BrokerServer, folder: Path, **policy: Any) -> Iterator[TopicWriter]:
    made = TopicWriter(server, folder, **policy)
    try:
        yield made
    finally:
        made.topic.close()


def asked(number: int, size: int = 4, **inputs: Any) -> tuple[InferRequest, InferAnswer, float]:
    x = np.full((1, size), number, np.float32)
    request = InferRequest("m", 3, "", {"x": x, **inputs}, variant="stable", trace=f"r-{number}")
    return request, InferAnswer("m", 3, "", {"y": x * 2}), 0.5


def test_what_was_answered_is_in_the_topic_and_its_retention_is_the_services(
    broker: BrokerServer, tmp_path: Path
) -> None:
    with topic_writer(broker, tmp_path, keep_s=3_600.0) as made:
        for number in range(300):
            made.topic.note(*asked(number))
        found = made.read(300)
        assert {one.id for one in found} == {f"r-{number}" for number in range(300)}
        for one in found:
            value = float(one.id[2:])
            assert array_of(one.inputs["x"]).tolist() == [[value] * 4]
            assert array_of(one.outputs["y"]).tolist() == [[2 * value] * 4]
            assert (one.service, one.version, one.variant) == (NAME, 3, "stable")
        eventually(lambda: made.topic.counts() == PredictionCounts(sent=300), "all are counted")
        with topics.connect(made.address) as cluster:
            configs = cluster.admin.describe(made.topic.topic).configs
            assert configs["retention.ms"] == "3600000"
            made.topic.configure(PredictionPolicy(topic=True, keep_s=7_200.0))
            made.topic.note(*asked(301))
            eventually(
                lambda: (
                    cluster.admin.describe(made.topic.topic).configs["retention.ms"] == "7200000"
                ),
                "the topic's retention follows the service's",
            )


def test_a_request_that_two_replicas_answered_is_two_records_with_one_id_in_one_partition(
    broker: BrokerServer, tmp_path: Path
) -> None:
    with topic_writer(broker, tmp_path, sample=0.5) as made:
        other = made.open(replica=1)
        for number in range(200):
            made.topic.note(*asked(number))
            other.note(*asked(number))
        other.close()
        made.topic.close()
        with topics.connect(made.address) as cluster:
            consumer = cluster.consumer(made.topic.topic, start="earliest")
            found: list[topics.Record] = []
            want = made.topic.counts().sent + other.counts().sent

            def all_read() -> bool:
                found.extend(consumer.poll(0.5))
                return len(found) >= want

            eventually(all_read, "all are read")
        # Both replicas have chosen the same half, so each request is there twice, in one place.
        places: dict[str, set[int]] = {}
        first = FirstOfEach()
        kept = [read(one.value) for one in found if first.is_new(read(one.value).id)]
        for record in found:
            places.setdefault(read(record.value).id, set()).add(record.partition)
        assert len(found) == 2 * len(places) == 2 * len(kept) == want
        assert 60 < len(places) < 140
        assert all(len(each) == 1 for each in places.values())


def test_large_inputs_are_blobs_and_small_requests_do_not_wait_for_them(
    broker: BrokerServer, tmp_path: Path
) -> None:
    image = np.empty(1, object)
    image[0] = np.random.default_rng(1).bytes(300_000)
    with topic_writer(broker, tmp_path, redact=("secret",)) as made:
        secret = np.empty(1, object)
        secret[0] = b"s" * 100_000
        made.topic.note(*asked(1, image=image, secret=secret))
        made.topic.note(*asked(2))
        large, small = sorted(made.read(2), key=lambda one: one.id)
        assert small.id == "r-2" and large.inputs["secret"].redacted
        reference = large.inputs["image"].blob
        assert reference is not None and reference.bytes == 300_000
        assert array_of(large.inputs["image"], made.store.get).tolist() == [image[0]]
        assert [one.key for one in made.store.list("lapsing")] == [reference.key]
        assert reference.key.split("/")[2:4] == ["predictions", NAME]


def test_a_store_that_is_away_costs_those_records_and_no_others(
    broker: BrokerServer, tmp_path: Path
) -> None:
    def away() -> Blobs:
        raise Unavailable("the store is away")

    policy = PredictionPolicy(topic=True, blob_bytes=1_000)
    address = f"kafka://{broker.hosts}"
    topic = PredictionTopic(NAME, 0, policy, lambda: topics.connect(address), away)
    topic.note(*asked(1, size=10_000))
    topic.note(*asked(2))
    eventually(lambda: topic.counts().dropped == 1 and topic.counts().sent == 1, "both are over")
    topic.close()


def test_while_the_broker_is_away_no_note_waits_and_what_does_not_fit_is_dropped_and_counted(
    broker: BrokerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction_topic, "PREDICTIONS_BUFFER_BYTES_MAX", 1 << 20)
    with topic_writer(broker, tmp_path) as made:
        made.topic.note(*asked(0))
        made.read(1)
        broker.kill()
        slowest_s = 0.0
        for number in range(1, 8_000):
            began_s = time.thread_time()
            made.topic.note(*asked(number, size=64))
            slowest_s = max(slowest_s, time.thread_time() - began_s)
            if number % 50 == 0:
                time.sleep(0.005)  # pause: a load
        assert slowest_s < 0.01
        eventually(lambda: made.topic.counts().dropped > 0, "what does not fit is dropped")
        eventually(lambda: "wait" in made.topic.counts().why, "why is said")
        broker.start()
        eventually(lambda: made.topic.counts().why == "", "it is well again")
        made.topic.note(*asked(9_000))
        made.topic.close()
        counts = made.topic.counts()
        assert counts.sent + counts.dropped == 8_001
        found = made.read(counts.sent)
        ids = {one.id for one in found}
        assert len(ids) == len(found) == counts.sent
        assert "r-9000" in ids and "r-1" in ids


def test_a_cluster_without_topics_costs_records_and_is_asked_again(
    broker: BrokerServer, tmp_path: Path
) -> None:
    there = False
    made = TopicWriter(broker, tmp_path)
    made.topic.close()

    def connect() -> topics.Connection:
        if not there:
            raise Unavailable("the cluster has no topics yet")
        return topics.connect(made.address)

    topic = made.topic = made.open(connect=connect)
    for number in range(5_000):
        topic.note(*asked(number))
    assert topic.counts().dropped == 5_000 - PREDICTIONS_WAITING_MAX
    eventually(lambda: "no topics yet" in topic.counts().why, "why is said")
    there = True
    eventually(lambda: topic.counts().sent == PREDICTIONS_WAITING_MAX, "they flow")
    topic.close()


def test_closing_does_not_wait_long_for_a_broker_that_is_away(
    broker: BrokerServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction_topic, "PREDICTIONS_CLOSE_S", 0.5)
    made = TopicWriter(broker, tmp_path)
    made.topic.note(*asked(0))
    made.read(1)
    broker.kill()
    made.topic.note(*asked(1))
    time.sleep(0.1)  # pause: the producer has it
    began_s = time.monotonic()
    made.topic.close()
    assert time.monotonic() - began_s < 5
    assert (made.topic.counts().sent, made.topic.counts().dropped) == (1, 1)
