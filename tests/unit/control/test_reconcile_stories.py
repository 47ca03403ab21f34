"""Reconcile in a small world: golden transcripts, and storms that always come to an end."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given, note, settings
from hypothesis import strategies as st

from bench.control.reconcile import row
from holdfast.control.decide.commands import Order
from holdfast.control.decide.facts import Intent, JobRecord, Phase
from holdfast.control.decide.spec import CheckpointPolicy, JobSpec, Resources
from tests.unit.control.golden import FOLDER, replayed
from tests.unit.control.storm import Storm
from tests.unit.control.world import World, submitted

TRANSCRIPTS = sorted(FOLDER.glob("*.txt"))


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) >= 8


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_transcript_is_what_is_decided_today(path: Path) -> None:
    text = path.read_text()
    assert replayed(text) == text


def drawn_world(seed: int) -> World:
    """One to three jobs on one to three machines."""
    random = Random(seed)
    jobs: dict[str, JobRecord] = {}
    for number in range(random.choice([1, 1, 2, 3])):
        least = random.choice([1, 1, 2])
        policy = CheckpointPolicy(
            every_steps=random.choice([None, 4, 10]),
            every_s=random.choice([None, 5.0, 60.0]),
            keep=random.choice([1, 2, 3]),
        )
        spec = JobSpec(
            f"job-{number}",
            ("train",),
            lanes=8,
            workers_min=least,
            workers_max=least + random.choice([0, 1, 3]),
            priority=random.choice([0, 0, 1]),
            checkpoint=policy,
            settings=random.choice([{}, {"lr": "0.1"}]),
            deadline_s=random.choice([None, None, None, 40.0]),
        )
        jobs[spec.name] = submitted(spec)
    names = [f"n{number}" for number in range(random.choice([1, 2, 3]))]
    nodes = {name: Resources(cpu=random.choice([2.0, 3.0])) for name in names}
    return World(jobs, nodes, steps=random.choice([5, 30, 60]))


def weathered(seed: int) -> World:
    """A world after a storm and a calm; the invariants were checked at every look."""
    world = drawn_world(seed)
    storm = Storm(world, seed)
    for _ in range(60):
        storm.tick()
    storm.calm()
    world.settle()
    return world


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
@example(52)  # a late order of an old session would start a worker in promised room
@example(578)  # a leader that dies between a view and the record of who is gone
def test_after_any_storm_every_job_comes_to_its_end(seed: int) -> None:
    note(f"seed {seed}")
    world = weathered(seed)
    for job in world.desired.jobs.values():
        assert job.status.phase in (Phase.SUCCEEDED, Phase.FAILED)
        if job.spec.deadline_s is None:
            assert job.status.phase is Phase.SUCCEEDED, job.status.reason


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_after_the_last_end_nothing_is_left_and_nothing_is_decided(seed: int) -> None:
    note(f"seed {seed}")
    world = weathered(seed)
    for _ in range(4):
        world.tick()
    assert world.tick() == []
    assert all(not machine.workers for machine in world.machines.values())


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_orders_that_arrive_twice_change_nothing(seed: int) -> None:
    note(f"seed {seed}")
    once, twice = drawn_world(seed), drawn_world(seed)
    obey = twice.obey

    def obey_twice(order: Order) -> None:
        obey(order)
        obey(order)

    twice.obey = obey_twice  # type: ignore[method-assign]
    for world in (once, twice):
        world.settle()
    assert once.story == twice.story


def two_workers(every_steps: int | None = None) -> World:
    policy = CheckpointPolicy(every_steps=every_steps, every_s=None)
    spec = JobSpec("train", ("t",), lanes=4, workers_min=2, workers_max=2, checkpoint=policy)
    return World({"train": submitted(spec)}, {"n1": Resources(cpu=4.0)}, steps=50)


def test_a_job_that_is_stopped_in_the_queue_ends_at_once() -> None:
    world = two_workers()
    world.change("train", intent=Intent.STOP)
    world.tick()
    assert world.desired.jobs["train"].status.phase is Phase.STOPPED


def test_a_stopped_job_has_its_last_steps_in_a_checkpoint() -> None:
    world = two_workers()
    for _ in range(12):
        world.tick()
    reached = max(worker.step or 0 for worker in world.alive("train").values())
    world.change("train", intent=Intent.STOP)
    world.settle()
    job = world.desired.jobs["train"]
    assert job.status.phase is Phase.STOPPED
    assert job.committed_step > reached > 0


def test_the_bench_measures_a_cluster_that_is_as_wanted() -> None:
    measured = row(100, 10)
    assert measured["one_died_decisions"] == 2 * 1
    assert measured["checkpoint_decisions"] == 100
