"""A replica with the prediction topic: a broker that is away costs nobody an answer."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import topics
from holdfast.serve.prediction_record import Prediction, array_of, read
from holdfast.serve.prediction_topic import topic_of
from holdfast.serve.records import PredictionPolicy
from holdfast.wire.worker_messages import TOPICS_NAME
from tests.integration.replica_stage import ReplicaProcess, ReplicaStage, infer_body
from tests.servers.broker import BrokerServer
from tests.waiting import eventually

ON = PredictionPolicy(topic=True)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerServer]:
    with BrokerServer(tmp_path / "broker") as server:
        yield server


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[ReplicaStage]:
    made = ReplicaStage(tmp_path / "stage")
    try:
        made.hold(made.publish_times(2.0))
        yield made
    finally:
        made.close()


def load(replica: ReplicaProcess, first: int, count: int) -> list[float]:
    """Requests one after the other, each answered right; how long each took, in ms."""
    line = http.client.HTTPConnection("127.0.0.1", replica.http_port, timeout=30)
    took = []
    for number in range(first, first + count):
        began_s = time.monotonic()
        headers = {"x-request-id": f"r-{number}"}
        line.request("POST", "/v2/models/digits/infer", infer_body([number] * 4), headers)
        answer = line.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()
        took.append(1_000 * (time.monotonic() - began_s))
    line.close()
    return sorted(took)


def told(address: str, count: int) -> list[Prediction]:
    found: list[Prediction] = []
    with topics.connect(address) as cluster:
        consumer = cluster.consumer(topic_of("digits"), start="earliest")

        def all_read() -> bool:
            found.extend(read(one.value) for one in consumer.poll(0.5))
            return len(found) >= count

        eventually(all_read, f"{count} records are read")
    return found


def counted(replica: ReplicaProcess) -> dict[str, int]:
    lines = replica.get("/metrics").body.decode().splitlines()
    found = [line for line in lines if line.startswith("holdfast_predictions_")]
    return {
        line.partition("{")[0].removeprefix("holdfast_predictions_"): int(line.split()[-1])
        for line in found
    }


def test_a_running_replica_is_told_of_topics_and_tells_them_what_it_answers(
    stage: ReplicaStage, broker: BrokerServer
) -> None:
    replica = stage.start(worker=3)
    replica.await_ready()
    load(replica, 0, 5)
    assert counted(replica) == {}, "nobody has asked for it"
    stage.change(predictions=ON)
    eventually(
        lambda: stage.shown()[3].predictions_trouble != "", "it knows no topics, and says so"
    )
    load(replica, 100, 5)
    # As its agent does when something uses topics for the first time.
    (replica.folder / TOPICS_NAME).write_text(f"kafka://{broker.hosts}")
    load(replica, 200, 5)
    found = told(f"kafka://{broker.hosts}", 10)
    assert {one.id for one in found} == {f"r-{n}" for n in (*range(100, 105), *range(200, 205))}
    for one in found:
        number = float(one.id[2:])
        assert array_of(one.outputs["y"]).tolist() == [[2 * number] * 4]
        assert (one.replica, one.version, one.variant) == (3, 1, "direct")
    eventually(
        lambda: counted(replica) == {"sent_total": 10, "dropped_total": 0, "waiting": 0},
        "it has counted them",
    )
    eventually(lambda: stage.shown()[3].predictions_trouble == "", "nothing is in the way")
    stage.change(predictions=PredictionPolicy(topic=False))
    eventually(lambda: counted(replica) == {}, "it is off")


def test_requests_are_answered_as_before_while_the_broker_is_paused_and_killed(
    stage: ReplicaStage, broker: BrokerServer
) -> None:
    stage.change(predictions=ON)
    address = f"kafka://{broker.hosts}"
    replica = stage.start(HOLDFAST_TOPICS=address)
    replica.await_ready()
    load(replica, 0, 50)
    told(address, 50)
    well = load(replica, 100, 300)
    broker.pause()
    paused = load(replica, 1_000, 300)
    broker.resume()
    broker.kill()
    away = load(replica, 2_000, 300)
    broker.start()
    load(replica, 3_000, 50)
    found = told(address, 1_000)
    assert len({one.id for one in found}) == 1_000, "none is lost: all fit into the buffer"
    # Of a machine that is busy with other tests, the median says more than the end.
    middle = len(well) // 2
    assert max(paused[middle], away[middle]) < 3 * well[middle] + 5
    eventually(
        lambda: counted(replica) == {"sent_total": 1_000, "dropped_total": 0, "waiting": 0},
        "it has counted them",
    )
