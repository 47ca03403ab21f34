"""Disk as a resource: who is placed where there is some, who waits for it, and who holds it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from holdfast.control.decide.facts import DesiredState, ObservedState
from holdfast.control.decide.reconcile import node_capacities
from holdfast.control.decide.schedule import NodeCapacity
from holdfast.control.decide.spec import Resources
from holdfast.control.jobfile import reading as jobfile
from holdfast.wire import values
from holdfast.wire.errors import Usage
from holdfast.wire.reports import NodeFacts
from tests.unit.control.clusters import Cluster, running

GB = 10**9
NEED = Resources(1.0, disk_bytes=20 * GB)


def cluster_of(**disks: int) -> Cluster:
    """Machines of eight cores each, with so many GB."""
    cluster = Cluster()
    for name, disk in disks.items():
        resources = Resources(8.0, disk_bytes=disk * GB)
        cluster.nodes[name] = NodeCapacity(name, resources, knows_disk=disk > 0)
    return cluster


def test_a_job_goes_where_there_is_disk_for_it() -> None:
    cluster = cluster_of(small=10, large=45)
    cluster.submit("train", (1, 4), need=NEED)
    cluster.settle()
    assert [placement.node for placement in running(cluster.jobs["train"])] == ["large"] * 2


def test_a_job_that_waits_for_disk_names_who_holds_it_and_the_command() -> None:
    cluster = cluster_of(a=30)
    cluster.submit("first", (1, 1), need=NEED)
    cluster.settle()
    cluster.submit("second", (1, 1), need=NEED)
    said = cluster.plan().of("second").waits
    assert said == (
        "waits for 1 cpu and 20 GB disk; job `first` holds it; `holdfast pause first` frees it;"
        " it is 1st in queue default"
    )
    cluster.finish("first")
    cluster.settle()
    assert len(running(cluster.jobs["second"])) == 1, "and it was true"


def test_a_job_that_asks_for_no_disk_runs_where_all_of_it_is_promised() -> None:
    cluster = cluster_of(a=20)
    cluster.submit("full", (1, 1), need=NEED)
    cluster.submit("plain", (1, 1))
    cluster.settle()
    assert len(running(cluster.jobs["plain"])) == 1


def test_an_older_agent_gets_no_job_that_asks_for_disk_and_the_job_says_so() -> None:
    cluster = cluster_of(old=0)
    cluster.submit("train", (1, 1), need=NEED)
    cluster.submit("plain", (1, 1))
    cluster.settle()
    assert len(running(cluster.jobs["plain"])) == 1 and not running(cluster.jobs["train"])
    assert cluster.plan().of("train").waits == (
        "the machines that are here, all empty, could not hold its minimum of 1 worker of 1 cpu and"
        " 20 GB disk each; old reports no disk (its agent is of an older version), so not there"
    )


def test_what_an_older_agent_reports_is_read_as_no_disk() -> None:
    older = {"node": "old", "capacity": {"cpu": 4.0, "memory_bytes": 1 << 30}}
    capacity = values.facts_from(json.dumps(older).encode()).capacity
    assert capacity == Resources(4.0, 1 << 30)
    nodes = {"old": NodeFacts("old", capacity)}
    nodes["new"] = NodeFacts("new", replace(capacity, disk_bytes=1))
    capacities = node_capacities(DesiredState(), ObservedState(nodes))
    assert {one.node: one.knows_disk for one in capacities} == {"old": False, "new": True}


def test_a_queue_that_names_disk_is_held_to_it() -> None:
    cluster = cluster_of(a=100)
    cluster.queue("default", 0.0, 8.0)
    limit = Resources(8.0, disk_bytes=40 * GB)
    cluster.queues["default"] = replace(cluster.queues["default"], limit=limit)
    cluster.submit("train", (1, 4), need=NEED)
    cluster.settle()
    assert len(running(cluster.jobs["train"])) == 2


def test_a_job_file_says_disk_with_a_unit_and_is_written_back_as_it_was_read() -> None:
    text = "name: a\ncommand: 'true'\nresources: {disk: DISK}\n"
    spec = jobfile.parse(text.replace("DISK", "20GB"), "job.yaml")
    assert spec.resources == NEED
    assert jobfile.parse(jobfile.dump(spec), "job.yaml") == spec
    with pytest.raises(Usage, match=r"`resources.disk` should be a size") as refused:
        jobfile.parse(text.replace("DISK", "20"), "job.yaml")
    assert refused.value.fix == "say the unit: resources.disk: 20GiB"
