"""What a cluster tells while its leader dies, and events on a real Kafka that loses a node."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from holdfast import topics as client
from holdfast.cluster import topics
from holdfast.control.decide.facts import Phase
from holdfast.control.decide.spec import CheckpointPolicy, JobSpec, Resources
from holdfast.events.records import COMMITTED, EVENTS_TOPIC, GAP, PHASE, Event, decode
from holdfast.launch import local
from tests.conftest import require_service
from tests.integration.clusters import Home
from tests.integration.published_events import PublishedEvents
from tests.servers.kafka import KafkaCluster, kafka_missing
from tests.waiting import eventually

pytestmark = pytest.mark.engines

EPOCHS = 6
SCRIPT = """
import torch
from torch.utils.data import TensorDataset
from holdfast import train

x = torch.linspace(-1, 1, 64)[:, None]


def main(run):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    print("begins", flush=True)
    for batch in run.batches(TensorDataset(x, 3 * x), lane_batch=8, epochs=EPOCHS):
        loss = torch.nn.functional.mse_loss(model(batch.x), batch.y)
        run.log("doubled", 2 * loss.item())
        run.step(loss)
    print("ends", flush=True)


train.launch(main, lanes=2)
"""


def test_a_cluster_tells_all_that_it_decides_though_its_leader_is_killed(
    home: Home, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("EPOCHS", str(EPOCHS)))
    home.up(supervised=True, coordinators=2, topics="embedded")
    spec = JobSpec(
        "line",
        (sys.executable, str(script)),
        lanes=2,
        resources=Resources(cpu=1.0),
        checkpoint=CheckpointPolicy(every_steps=5, every_s=None),
        log_topic=True,
    )
    with home.cluster.session() as session:
        address = topics.address(home.cluster, topics.wanted(session))
    home.submit("waiting")
    home.started("waiting")
    with home.control() as control:
        control.submit(spec)
    every = [one.name for one in local.processes(home.cluster) if one.kind == "coordinator"]
    for name in sorted(every):
        home.kill("coordinator", name)
    assert home.ended("line").status.phase is Phase.SUCCEEDED
    home.release("waiting")
    assert home.ended("waiting").status.phase is Phase.SUCCEEDED
    with home.control() as control:
        wanted = {
            (job, entry.reason) for job in ("line", "waiting") for entry in control.history(job)
        }
    with client.connect(address) as cluster:
        reading = cluster.consumer(EVENTS_TOPIC, start="earliest")
        events: dict[str, Event] = {}

        def all_told() -> bool:
            for record in reading.poll(0.3):
                event = decode(record.value)
                assert events.setdefault(event.id, event) == event
            return {(event.name, event.reason) for event in events.values()} >= wanted

        eventually(all_told, "all that was decided is told")
        zxids = [event.zxid for event in events.values()]
        assert zxids == sorted(zxids)
        assert GAP not in {event.kind for event in events.values()}
        of_line = [event for event in events.values() if event.name == "line"]
        assert [one.data["step"] for one in of_line if one.kind == COMMITTED][-1] == 4 * EPOCHS
        assert [one.data["phase"] for one in of_line if one.kind == PHASE][-1] == "succeeded"

        steps = [
            msgspec.json.decode(record.value)
            for record in _read(cluster, "metrics.line", 4 * EPOCHS)
        ]
        assert [one["step"] for one in steps] == list(range(1, 4 * EPOCHS + 1))
        assert all(one["metrics"]["doubled"] > one["metrics"]["loss"] for one in steps)
        said = [msgspec.json.decode(one.value)["line"] for one in _read(cluster, "logs.line", 2)]
        assert {"begins", "ends"} <= set(said)
        assert not [name for name in cluster.admin.list_topics() if name == "logs.waiting"]


def _read(cluster: client.Connection, topic: str, count: int) -> list[client.Record]:
    reading = cluster.consumer(topic, start="earliest")
    found: list[client.Record] = []

    def there() -> bool:
        found.extend(reading.poll(0.3))
        return len(found) >= count

    eventually(there, f"{topic} has {count} records")
    return found


def test_no_event_is_missing_on_three_nodes_of_a_real_kafka_though_one_is_killed_under_way(
    tmp_path: Path,
) -> None:
    require_service(kafka_missing())
    with (
        KafkaCluster(tmp_path / "kafka") as kafka,
        PublishedEvents(tmp_path, kafka.hosts) as source,
    ):
        first = source.start_teller()
        source.decide(0, 20)
        source.wait_for("trouble 19")
        kafka.nodes[0].kill()
        source.decide(20, 40)
        source.start_teller()
        first.kill()
        source.decide(60, 40)
        source.check(source.wait_for("trouble 99"))
        kafka.nodes[0].launch()
        kafka.nodes[0].wait_ready()
        kafka.wait_whole()
        kafka.nodes[1].kill()
        source.decide(100, 20)
        source.check(source.wait_for("trouble 119"))
