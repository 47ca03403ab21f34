"""A job that names a secret which nobody has set waits, says which, and keeps no room."""

from __future__ import annotations

from dataclasses import replace

from holdfast.control.decide.commands import DrainWorker, PlaceWorker, SetStatus, StartWorker
from holdfast.control.decide.facts import (
    DesiredState,
    JobRecord,
    NodeFacts,
    ObservedState,
    Phase,
    Placement,
    RecordedStatus,
)
from holdfast.control.decide.spec import JobSpec, Mode, Resources
from holdfast.control.shell.leading import decide
from tests.unit.control.world import submitted

ONE = Resources(cpu=1.0)
SPEC = JobSpec(
    "a", ("true",), resources=ONE, priority=9, secrets={"TOKEN": "hub"}, env={"STAGE": "test"}
)
SEEN = ObservedState({"n1": NodeFacts("n1", ONE, ())})


def decided(*jobs: JobRecord, secrets: frozenset[str] = frozenset()) -> list[object]:
    desired = DesiredState({job.name: job for job in jobs}, secrets=secrets)
    return [decision.command for decision in decide(desired, SEEN, 10.0)]


def test_a_job_waits_for_its_secret_and_says_how_it_is_set() -> None:
    (status,) = decided(submitted(SPEC))
    assert isinstance(status, SetStatus) and status.status.phase is Phase.QUEUED
    assert status.status.reason == "waits for secret hub: `holdfast secret set hub`"


def test_a_job_that_waits_for_a_secret_keeps_no_room_from_others() -> None:
    other = submitted(JobSpec("b", ("true",), resources=ONE))
    found = decided(submitted(SPEC), other)
    assert [one.job for one in found if isinstance(one, PlaceWorker)] == ["b"]


def test_with_its_secret_a_job_is_placed_and_its_order_names_it() -> None:
    found = decided(submitted(SPEC), secrets=frozenset({"hub"}))
    assert [one.job for one in found if isinstance(one, PlaceWorker)] == ["a"]
    placed = replace(submitted(SPEC), placements=(Placement(1, "n1"),), next_worker=2)
    (start,) = (
        one for one in decided(placed, secrets=frozenset({"hub"})) if isinstance(one, StartWorker)
    )
    assert start.references == {"TOKEN": "hub"} and not start.secrets
    assert start.environment["STAGE"] == "test"


def test_an_update_to_a_secret_that_is_not_there_takes_no_replica_away() -> None:
    old = replace(SPEC, mode=Mode.SERVE, secrets={})
    job = replace(
        submitted(old),
        spec=replace(old, secrets={"TOKEN": "hub"}),
        before=old,
        revision=1,
        placements=(Placement(1, "n1"),),
        next_worker=2,
        status=RecordedStatus(Phase.RUNNING, "", 0.0),
    )
    assert not [one for one in decided(job) if isinstance(one, DrainWorker)]
    assert [one for one in decided(job, secrets=frozenset({"hub"})) if isinstance(one, DrainWorker)]
