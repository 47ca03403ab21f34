"""Who holds what a waiting job needs, the command that frees it, and ports that are fixed."""

from __future__ import annotations

from dataclasses import replace

from holdfast.control.decide.facts import Phase, RecordedStatus
from holdfast.control.decide.schedule import plan
from holdfast.control.decide.spec import JobSpec, Mode, Resources
from holdfast.wire.worker_messages import REPLICA_MODULE
from tests.unit.control.clusters import Cluster, running
from tests.unit.control.world import submitted

GPU = Resources(1.0, 0, 1)


def waits(cluster: Cluster, job: str) -> str:
    made = plan(
        list(cluster.jobs.values()), list(cluster.nodes.values()), cluster.queues, cluster.now_s
    )
    return made.of(job).waits


def serves(cluster: Cluster, name: str, replicas: int) -> None:
    """A service as `holdfast serve` makes it."""
    spec = JobSpec(
        f"serve.{name}",
        ("python", "-m", REPLICA_MODULE, name),
        priority=100,
        workers_max=8,
        resources=GPU,
        mode=Mode.SERVE,
    )
    cluster.jobs[spec.name] = replace(submitted(spec), workers_wanted=replicas)


def test_a_job_that_waits_for_a_gpu_names_the_service_that_has_it_and_the_command() -> None:
    cluster = Cluster()
    cluster.node("a", 8, gpu=2)
    serves(cluster, "digits", 2)
    cluster.settle()
    cluster.submit("train", (1, 1), need=GPU)
    assert waits(cluster, "train") == (
        "waits for 1 cpu and 1 gpu; job `serve.digits` holds it;"
        " `holdfast scale digits 1` frees it; it is 1st in queue default"
    )
    cluster.jobs["serve.digits"] = replace(cluster.jobs["serve.digits"], workers_wanted=1)
    cluster.settle()
    assert len(running(cluster.jobs["train"])) == 1, "and it was true"


def test_what_a_job_cannot_do_without_is_freed_whole() -> None:
    cluster = Cluster()
    cluster.node("a", 2)
    cluster.submit("first", (2, 2))
    cluster.settle()
    cluster.submit("second", (1, 1))
    assert "job `first` holds it; `holdfast pause first` frees it" in waits(cluster, "second")
    cluster.submit("third", (1, 1))
    assert "frees it" not in waits(cluster, "third"), "what gets free is the second's"


def test_the_sentence_stays_the_same_while_nothing_changes() -> None:
    cluster = Cluster()
    cluster.node("a", 2)
    cluster.submit("first", (1, 2))
    cluster.settle()
    cluster.submit("second", (2, 2))
    said = waits(cluster, "second")
    cluster.now_s += 60.0
    assert waits(cluster, "second") == said


def test_a_job_with_a_fixed_port_has_one_worker_on_each_machine() -> None:
    cluster = Cluster()
    cluster.node("a", 8)
    cluster.node("b", 8)
    _web(cluster, "web", least=1)
    cluster.settle()
    assert sorted(p.node for p in running(cluster.jobs["web"])) == ["a", "b"]
    _web(cluster, "strict", least=1, port=81)
    cluster.jobs["strict"] = replace(
        cluster.jobs["strict"], spec=replace(cluster.jobs["strict"].spec, workers_min=3)
    )
    said = waits(cluster, "strict")
    assert said == (
        "waits for 3 workers on as many machines: port 81 of its job file is fixed,"
        " so each holds one; `ports: [http]` lets each choose"
    )


def test_two_jobs_with_the_same_fixed_port_do_not_share_a_machine() -> None:
    cluster = Cluster()
    cluster.node("a", 8)
    _web(cluster, "one", least=1)
    _web(cluster, "two", least=1)
    cluster.settle()
    assert sorted(len(running(job)) for job in cluster.jobs.values()) == [0, 1]
    (waiting,) = [name for name, job in cluster.jobs.items() if not running(job)]
    assert "port 80 of its job file is fixed" in waits(cluster, waiting)
    assert "has it" in waits(cluster, waiting)


def _web(cluster: Cluster, name: str, *, least: int, port: int = 80) -> None:
    spec = JobSpec(
        name,
        ("web",),
        workers_min=least,
        workers_max=3,
        resources=Resources(1.0),
        mode=Mode.SERVE,
        ports={"http": port},
    )
    job = submitted(spec)
    cluster.jobs[name] = replace(job, status=RecordedStatus(Phase.QUEUED, "", 0.0))
