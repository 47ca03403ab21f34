"""Jobs whose workers are replicas: no views, no end of their own, each failure for itself."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from holdfast.control.decide.commands import GiveView, Order, StopWorker, WriteView
from holdfast.control.decide.facts import ExitKind, Failure, Intent, JobRecord, Phase, WorkerPhase
from holdfast.control.decide.invariants import check_job
from holdfast.control.decide.serving import failure_streak, may_start, pause_s
from holdfast.control.decide.spec import JobSpec, Mode, Resources, RestartPolicy
from holdfast.control.jobfile.reading import dump, parse
from holdfast.wire.errors import BugError
from holdfast.wire.limits import FAILURES_KEPT, REPLICA_READY_S
from holdfast.wire.orders import View
from tests.unit.control.world import World, submitted

ONE = Resources(cpu=1.0)
RESTART = RestartPolicy(backoff_s=1.0, backoff_s_max=8.0, forgiven_after_s=100.0)


def service(most: int = 2, priority: int = 100) -> JobSpec:
    return JobSpec(
        "serve.it",
        ("serve",),
        priority=priority,
        workers_max=most,
        resources=ONE,
        mode=Mode.SERVE,
        restart=RESTART,
    )


def world_of(*specs: JobSpec, nodes: int = 2, cpu: float = 4.0) -> World:
    machines = {f"n{number}": Resources(cpu=cpu) for number in range(1, nodes + 1)}
    return World({spec.name: submitted(spec) for spec in specs}, machines)


def served(world: World, count: int, ticks_max: int = 60) -> None:
    """Quiet ticks until so many replicas are ready, and the status says so."""
    for _ in range(ticks_max):
        status = world.desired.jobs["serve.it"].status
        ready = [one for one in world.alive("serve.it").values() if one.phase is WorkerPhase.READY]
        many = "1 replica" if count == 1 else f"{count} replicas"
        if len(ready) == count and (status.phase, status.reason) == (Phase.RUNNING, f"on {many}"):
            return
        world.tick()
    raise AssertionError("\n".join([f"{world.desired.jobs['serve.it'].status}", *world.story]))


def job_of(world: World) -> JobRecord:
    return world.desired.jobs["serve.it"]


def failed_at(*times_s: float) -> JobRecord:
    failures = tuple(Failure(n, "ValueError", at_s) for n, at_s in enumerate(times_s, 1))
    return replace(submitted(service()), failures=failures)


# --- its life ---------------------------------------------------------------------------------


def test_replicas_are_started_and_never_put_into_a_view() -> None:
    world = world_of(service(3))
    decisions = [each.command for _ in range(10) for each in world.tick()]
    served(world, 3)
    assert not [each for each in decisions if isinstance(each, WriteView | GiveView)]
    assert job_of(world).view is None


def test_a_steady_service_needs_no_decision() -> None:
    world = world_of(service())
    served(world, 2)
    assert [world.tick(60.0) for _ in range(20)] == [[]] * 20


def test_a_killed_replica_is_replaced_at_once_for_ever() -> None:
    world = world_of(service())
    for _ in range(40):
        served(world, 2)
        victim = min(world.alive("serve.it"))
        world.alive("serve.it")[victim].end(ExitKind.SIGNAL, "SIGKILL")
        world.tick(0.01)  # its end is noted, and its room is free
        world.tick(0.01)
        assert len(job_of(world).placements) == 2
    assert job_of(world).failures == ()
    assert job_of(world).next_worker == 43


@pytest.mark.parametrize("kind", [ExitKind.ERROR, ExitKind.MEMORY, ExitKind.DONE])
def test_a_replica_that_ends_by_its_own_fault_waits_and_the_other_stays(kind: ExitKind) -> None:
    world = world_of(service())
    served(world, 2)
    first, second = sorted(world.alive("serve.it"))
    world.alive("serve.it")[first].end(kind, "Traceback\nValueError: no such file")
    world.tick(0.1)
    world.tick(0.1)
    assert sorted(world.alive("serve.it")) == [second]
    status = job_of(world).status
    assert status.phase is Phase.RUNNING
    expected = "on 1 replica; 1 replica started again after a pause of 1 s, for a failure"
    assert status.reason.startswith(expected), status.reason
    world.tick(1.0)
    served(world, 2)
    assert second in world.alive("serve.it")


def test_a_service_that_always_fails_is_tried_for_ever_and_ever_more_rarely() -> None:
    world = world_of(service(1))
    starts = []
    for _ in range(2_000):
        world.tick(0.1)
        for number, replica in world.alive("serve.it").items():
            starts.append((number, world.now_s))
            replica.end(ExitKind.ERROR, "ValueError: it cannot be loaded")
    times_s = [at_s for _, at_s in starts]
    gaps = [round(after - before) for before, after in pairwise(times_s)]
    assert gaps[:4] == [1, 2, 4, 8]
    assert set(gaps[4:]) == {8}
    status = job_of(world).status
    assert status.phase is Phase.QUEUED
    assert "failures in a row: ValueError: it cannot be loaded" in status.reason


def test_a_killed_replica_is_replaced_at_once_while_another_one_fails() -> None:
    world = world_of(service(3), cpu=8.0)
    served(world, 3)
    first, second, _ = sorted(world.alive("serve.it"))
    world.alive("serve.it")[first].end(ExitKind.ERROR, "boom")
    world.alive("serve.it")[second].end(ExitKind.SIGNAL, "SIGKILL")
    for _ in range(3):
        world.tick(0.1)
    assert len(world.alive("serve.it")) == 2  # the one that failed still rests


def test_it_ends_only_when_its_user_asks_and_without_a_checkpoint() -> None:
    world = world_of(service())
    served(world, 2)
    world.change("serve.it", intent=Intent.STOP)
    world.settle(20)
    assert job_of(world).status.phase is Phase.STOPPED


def test_a_paused_service_goes_on_when_it_is_resumed() -> None:
    world = world_of(service())
    served(world, 2)
    world.change("serve.it", intent=Intent.PAUSE)
    for _ in range(10):
        world.tick()
    assert job_of(world).status.phase is Phase.PAUSED
    assert not world.alive("serve.it")
    world.change("serve.it", intent=Intent.RUN)
    served(world, 2)


# --- leaving ----------------------------------------------------------------------------------


def test_it_is_scaled_up_and_down() -> None:
    world = world_of(service(8))
    world.change("serve.it", workers_wanted=2)
    served(world, 2)
    world.change("serve.it", workers_wanted=5)
    served(world, 5)
    world.change("serve.it", workers_wanted=1)
    served(world, 1)


def test_a_machine_is_drained_only_when_the_replacements_are_ready() -> None:
    world = world_of(service(2), cpu=2.0)
    served(world, 2)
    node = job_of(world).placements[0].node
    before = len(world.alive("serve.it"))
    world.desired = replace(world.desired, draining_nodes=frozenset({node}))
    for _ in range(30):
        world.tick(0.1)
        ready = [one for one in world.alive("serve.it").values() if one.phase is WorkerPhase.READY]
        assert len(ready) >= before, world.story[-10:]
    served(world, 2)
    assert node not in {placement.node for placement in job_of(world).placements}


def test_a_machine_gets_empty_though_the_replacement_never_comes_up() -> None:
    world = world_of(service(1), cpu=1.0)
    served(world, 1)
    (old,) = job_of(world).placements
    world.desired = replace(world.desired, draining_nodes=frozenset({old.node}))
    for _ in range(5):
        unmoved(world, 1.0)
    (_, new) = job_of(world).placements
    assert world.alive("serve.it")[new.worker].phase is WorkerPhase.STARTING
    assert world.alive("serve.it")[old.worker].phase is WorkerPhase.READY
    for _ in range(3):
        unmoved(world, REPLICA_READY_S)
    assert old.worker not in world.alive("serve.it")


def unmoved(world: World, delay_s: float) -> None:
    """A moment in which the control plane acts, and no replica comes up."""
    world.now_s += delay_s
    world.refresh()
    for decision in world.decide():
        if isinstance(decision.command, Order):
            world.obey(decision.command)
        else:
            world.write(decision)


def away_and_back(world: World) -> None:
    """The sessions of all machines are lost, and made again; their replicas go on answering."""
    for machine in world.machines.values():
        machine.there = False
    for _ in range(3):
        world.tick()
    assert job_of(world).placements == ()
    for machine in world.machines.values():
        machine.there = True


def ready(world: World) -> set[int]:
    alive = world.alive("serve.it").items()
    return {number for number, one in alive if one.phase is WorkerPhase.READY}


def test_replicas_of_machines_that_were_away_answer_until_others_are_ready() -> None:
    world = world_of(service(3), nodes=3, cpu=2.0)
    served(world, 3)
    before = ready(world)
    away_and_back(world)
    for _ in range(30):
        world.tick(0.1)
        assert len(ready(world)) >= 3, world.story[-10:]
    served(world, 3)
    assert not ready(world) & before


def test_replicas_of_machines_that_were_away_go_one_by_one_if_there_is_no_room_beside_them() -> (
    None
):
    world = world_of(service(3), nodes=3, cpu=1.0)
    served(world, 3)
    before = ready(world)
    away_and_back(world)
    for _ in range(60):
        world.tick(0.1)
        assert len(ready(world)) >= 2, world.story[-10:]
    served(world, 3)
    assert not ready(world) & before


def test_a_service_that_ends_while_its_machines_are_away_leaves_no_replica() -> None:
    world = world_of(service(2))
    served(world, 2)
    away_and_back(world)
    world.change("serve.it", intent=Intent.STOP)
    for _ in range(10):
        world.tick()
    assert world.alive("serve.it") == {}
    assert job_of(world).status.phase is Phase.STOPPED


def test_a_leaving_replica_is_stopped_with_a_notice_to_answer_what_it_has() -> None:
    world = world_of(service(2))
    served(world, 2)
    world.change("serve.it", workers_wanted=1)
    stops = [
        each for _ in range(4) for each in world.tick(0.1) if isinstance(each.command, StopWorker)
    ]
    assert stops and "it answers what it has begun" in stops[0].reason


# --- room -------------------------------------------------------------------------------------


def test_serving_takes_room_by_shrinking_a_training_and_does_not_stop_it() -> None:
    training = JobSpec("train", ("train",), lanes=4, workers_min=1, workers_max=4, resources=ONE)
    world = World({"train": submitted(training)}, {"n1": Resources(cpu=4.0)}, steps=10_000)
    for _ in range(20):
        world.tick()
    assert len(world.alive("train")) == 4
    jobs = {**world.desired.jobs, "serve.it": submitted(service(2), world.now_s)}
    world.desired = replace(world.desired, jobs=jobs)
    seen = []
    for _ in range(40):
        world.tick()
        seen.append(len(world.alive("train")))
    served(world, 2)
    assert min(seen) == 2
    assert len(world.alive("train")) == 2


def test_a_service_of_low_priority_waits_for_a_training() -> None:
    training = JobSpec("train", ("train",), priority=5, workers_max=2, lanes=2, resources=ONE)
    world = World({"train": submitted(training)}, {"n1": Resources(cpu=2.0)}, steps=10_000)
    for _ in range(20):
        world.tick()
    low = submitted(service(2, priority=-1), world.now_s)
    world.desired = replace(world.desired, jobs={**world.desired.jobs, "serve.it": low})
    for _ in range(10):
        world.tick()
    assert not world.alive("serve.it")
    assert "waits for 1 cpu" in job_of(world).status.reason


# --- failures in a row ------------------------------------------------------------------------


def test_failures_within_the_pause_are_one_round_and_each_holds_back_one_start() -> None:
    job = failed_at(10.0, 10.2, 10.9)
    assert failure_streak(job) == (1, 10.0, 3)
    assert [may_start(job, wanted, 10.95) for wanted in (1, 3, 5)] == [0, 0, 2]
    assert may_start(job, 5, 11.0) == 5


def test_a_row_is_broken_by_time_alone() -> None:
    assert failure_streak(failed_at(10.0, 12.0, 20.0)).rounds == 3
    assert failure_streak(failed_at(10.0, 12.0, 112.0)) == (1, 112.0, 1)


def test_when_more_have_failed_than_is_remembered_nobody_starts() -> None:
    job = failed_at(*[10.0] * FAILURES_KEPT)
    assert may_start(job, 1_000, 10.5) == 0


def test_the_pause_is_bounded() -> None:
    job = failed_at(1.0)
    assert [pause_s(job, rounds) for rounds in (1, 2, 3, 4, 5, 5_000)] == [1, 2, 4, 8, 8, 8]


# --- what must always be true -----------------------------------------------------------------


def test_a_service_with_a_view_is_a_bug() -> None:
    with pytest.raises(BugError, match="invariant 4"):
        check_job(replace(submitted(service()), view=View(1, {1: (0,)})))


def test_a_job_file_may_ask_for_the_mode_and_needs_no_lanes() -> None:
    text = "name: web\ncommand: python web.py\nmode: serve\nworkers: {min: 1, max: 3}\n"
    spec = parse(text, "job.yaml")
    assert (spec.mode, spec.workers_max, spec.serves) == (Mode.SERVE, 3, True)
    assert parse(dump(spec), "again") == spec
