"""Triggers on real processes: each record lies in exactly one started job's range, though leaders
and brokers are killed."""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from holdfast import topics
from holdfast.cluster import topics as cluster_topics
from holdfast.control.decide.facts import JobRecord, Phase
from holdfast.control.decide.spec import JobSpec, Resources, RestartPolicy, Trigger
from holdfast.launch import local
from holdfast.topics import hosting
from holdfast.topics.connection import Connection
from holdfast.wire.triggers import TriggeredRange
from tests.integration.clusters import Home
from tests.servers.kafka import KafkaCluster, kafka_missing
from tests.waiting import PATIENCE_S, eventually

# Each started job writes which records it has read.
READS = """
import json, os, sys
from pathlib import Path
from holdfast import topics
given = topics.triggered()
read = topics.read_range(given, codec=topics.JSON)
records = [[r.partition, r.offset, r.value["n"]] for r in read]
marks = Path(sys.argv[1])
tries = marks / f"{given.number}.tries"
tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
if given.number == 2 and len(tries.read_text()) == 1:
    sys.exit("fails once")
(marks / f"{given.number}.read").write_text(json.dumps(records))
"""


def spec(home: Home, on: Trigger, name: str = "etl") -> JobSpec:
    return JobSpec(
        name,
        (sys.executable, "-c", READS, str(home.marks)),
        resources=Resources(cpu=1.0),
        restart=RestartPolicy(backoff_s=0.1),
        on=on,
    )


def produce(cluster: Connection, topic: str, numbers: range) -> None:
    producer = cluster.producer(codec=topics.JSON)
    sent = [producer.send(topic, {"n": n}, key=str(n).encode()) for n in numbers]
    for each in sent:
        each.result(PATIENCE_S)
    producer.close()


def started(home: Home, name: str = "etl") -> list[JobRecord]:
    with home.control() as control:
        jobs = control.jobs().values()
    of_it = [job for job in jobs if job.spec.triggered and job.spec.triggered.trigger == name]
    return sorted(of_it, key=lambda job: job.spec.triggered.number if job.spec.triggered else 0)


def ranges(jobs: list[JobRecord]) -> list[TriggeredRange]:
    return [job.spec.triggered for job in jobs if job.spec.triggered is not None]


def check_once(given: list[TriggeredRange]) -> int:
    """That no offset is in two ranges and none is left out between; how many there are."""
    by_partition: dict[int, list[tuple[int, int]]] = {}
    for each in given:
        for part in each.ranges:
            by_partition.setdefault(part.partition, []).append((part.first, part.end))
    for spans in by_partition.values():
        spans.sort()
        assert spans[0][0] == 0
        for (_, end), (first, _) in itertools.pairwise(spans):
            assert first == end, spans
    return sum(each.count for each in given)


def until_done(home: Home, count: int, name: str = "etl") -> list[JobRecord]:
    """The started jobs, when they have all records and have ended."""

    def found() -> list[JobRecord] | None:
        jobs = started(home, name)
        whole = sum(each.count for each in ranges(jobs)) >= count
        return jobs if whole and all(job.status.phase.final for job in jobs) else None

    return eventually(found, f"{count} records are read", PATIENCE_S)


@pytest.fixture
def up(home: Home) -> Home:
    home.up(supervised=True, coordinators=2)
    return home


def leader(home: Home) -> str:
    """The coordinator that leads, as its record says."""
    found = [one for one in local.processes(home.cluster) if one.kind == "coordinator"]
    return max(found, key=lambda one: int(one.facts.get("term", 0) or 0)).name


def connection(home: Home) -> Connection:
    with home.cluster.session() as session:
        return cluster_topics.open(home.cluster, session)


def read_by_jobs(home: Home) -> list[list[Any]]:
    return [row for mark in Path(home.marks).glob("*.read") for row in json.loads(mark.read_text())]


def check_reading(cluster: Connection, given: list[TriggeredRange]) -> None:
    """A range is read whole, or in parts, or what its filter says of it."""
    everything = {
        (record.partition, record.offset)
        for each in given
        for part in each.split(3)
        for record in topics.read_range(part, cluster)
    }
    assert len(everything) == sum(each.count for each in given)
    only = replace(given[0], filter="value.n < 3 and partition >= 0")
    few = [record.value["n"] for record in topics.read_range(only, cluster, topics.JSON)]
    assert 0 < len(few) <= 3 and all(n < 3 for n in few)


def check_removed(home: Home, cluster: Connection) -> None:
    """What retention removes before a job was started for it is said, and passed over."""
    produce(cluster, "orders", range(1_000, 1_008))
    ends = cluster.admin.offsets("orders", "latest")
    places = [TopicPartition("orders", part, end) for part, end in ends.items()]
    admin = AdminClient({**cluster.address.client_settings()})  # its futures end with it
    for done in admin.delete_records(places).values():
        done.result(PATIENCE_S)

    def told() -> bool:
        return "8 records of topic orders were removed" in home.command("why", "etl")

    eventually(told, "why says what was removed", PATIENCE_S)


def test_each_record_is_read_by_exactly_one_job_though_leader_and_broker_are_killed(
    up: Home,
) -> None:
    with connection(up) as cluster:
        cluster.admin.create("orders", partitions=3)
        with up.control() as control:
            control.submit(spec(up, Trigger("orders", every_records=20, at_once=2)))
        produce(cluster, "orders", range(50))
        eventually(lambda: len(started(up)) >= 2, "jobs are started")
        up.kill("coordinator", leader(up))
        produce(cluster, "orders", range(50, 90))
        up.kill(hosting.KIND)
        cluster.admin.alter("orders", partitions=4)
        produce(cluster, "orders", range(90, 120))
        jobs = until_done(up, 120)
        check_reading(cluster, ranges(jobs))
        check_removed(up, cluster)
    assert check_once(ranges(jobs)) == 120
    assert [job.status.phase for job in jobs] == [Phase.SUCCEEDED] * 6
    rows = read_by_jobs(up)
    assert sorted(n for _, _, n in rows) == list(range(120))
    # One has failed once, and was started again for the same records.
    assert (up.marks / "2.tries").read_text() == "xx"
    shown = json.loads(up.command("jobs", "etl", "--json"))
    assert shown["on"]["started"] == 6 and sum(shown["on"]["positions"]) == 128
    assert shown["on"]["removed_before_a_job"] == 8
    assert "starts" in up.command("why", "etl")
    assert "20 records of topic orders" in up.command("jobs", "etl.1")
    up.command("stop", "etl", "--wait")
    with up.control() as control:
        assert control.job("etl").status.phase is Phase.STOPPED


@pytest.mark.engines
def test_each_record_is_in_one_range_on_three_kafka_nodes_of_which_one_is_killed(
    home: Home, tmp_path: Path
) -> None:
    """Also: a transaction that is open is waited for, an aborted one is never read, and topics of
    the cluster's prefix are others than those without."""
    if missing := kafka_missing():
        pytest.skip(missing)
    with KafkaCluster(tmp_path / "kafka") as kafka:
        address = f"kafka://{kafka.hosts}?prefix=team."
        home.up(supervised=True, coordinators=2, topics=address)
        with topics.connect(address) as cluster:
            cluster.admin.create("orders", partitions=4)
            with home.control() as control:
                control.submit(spec(home, Trigger("orders", every_records=20, every_s=3.0)))
            produce(cluster, "orders", range(60))
            eventually(lambda: len(started(home)) >= 1, "a job is started", PATIENCE_S)
            kafka.nodes[0].kill()
            produce(cluster, "orders", range(60, 100))
            home.kill("coordinator", leader(home))
            with pytest.raises(RuntimeError), cluster.transaction("t") as given_up:
                given_up.send("orders", b'{"n": -1}').result(PATIENCE_S)
                raise RuntimeError("aborted")
            produce(cluster, "orders", range(100, 130))
            eventually(
                lambda: len(read_by_jobs(home)) >= 130, "all records are read", 2 * PATIENCE_S
            )
            ends = cluster.admin.offsets("orders", "latest")
            jobs = until_done(home, sum(ends.values()))
    assert check_once(ranges(jobs)) == sum(ends.values())
    assert sorted(n for _, _, n in read_by_jobs(home)) == list(range(130))
    assert {job.status.phase for job in jobs} == {Phase.SUCCEEDED}
