"""A job that serves gets another program, replica by replica; it stops where that fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.control.decide.commands import HaltUpdate, StartWorker
from holdfast.control.decide.facts import DesiredSpec, ExitKind, Halt, JobRecord, Phase, WorkerPhase
from holdfast.control.decide.spec import JobSpec, Mode, Resources
from holdfast.control.decide.updating import UPDATE_FAILURES_MAX, changed
from holdfast.wire.errors import Refused
from holdfast.wire.limits import REPLICA_READY_S
from tests.unit.control.world import World, submitted

ONE = Resources(cpu=1.0)
OLD = JobSpec("web", ("old",), workers_max=3, resources=ONE, mode=Mode.SERVE)
NEW = replace(OLD, command=("new",))


class Slow(World):
    """Workers from number `stuck` on never get ready."""

    stuck = 10**9

    def move(self, job: str) -> None:
        super().move(job)
        for number, worker in self.alive(job).items():
            if number >= self.stuck:
                worker.phase = WorkerPhase.STARTING


def world_of(cpu: float) -> Slow:
    world = Slow({"web": submitted(OLD)}, {"n1": Resources(cpu=cpu)})
    for _ in range(10):
        world.tick(0.1)
    assert ready(world) == 3
    return world


def job(world: World) -> JobRecord:
    return world.desired.jobs["web"]


def ready(world: World) -> int:
    return sum(one.phase is WorkerPhase.READY for one in world.alive("web").values())


def update(world: World, spec: JobSpec = NEW) -> None:
    """As `ControlPlane.update` does."""
    now = job(world)
    wanted = DesiredSpec(
        now.spec,
        0.0,
        "s",
        now.intent,
        now.workers_wanted,
        False,
        now.revision,
        now.before,
        now.before_revision,
        now.updated_s,
    )
    placed = {placement.revision for placement in now.placements}
    after = changed(wanted, spec, now.halted, placed, world.now_s)
    names = ("spec", "revision", "before", "before_revision", "updated_s")
    world.change("web", **{name: getattr(after, name) for name in names})


def revisions(world: World) -> list[int]:
    return [placement.revision for placement in job(world).placements]


def least_ready(world: World, ticks: int = 40) -> int:
    """The fewest that were ready at any time until nothing is left to do."""
    counts = []
    for _ in range(ticks):
        world.tick(0.1)
        counts.append(ready(world))
    return min(counts)


def test_with_room_a_new_replica_is_ready_before_an_old_one_leaves() -> None:
    world = world_of(cpu=4.0)
    update(world)
    started = [
        each.command for _ in range(40) for each in world.tick(0.1) if ready(world) >= 3 or 1 / 0
    ]
    assert revisions(world) == [1, 1, 1]
    assert ready(world) == 3
    commands = {each.command for each in started if isinstance(each, StartWorker)}
    assert commands == {("new",)}
    assert job(world).status.reason == "on 3 replicas"
    assert [world.tick(60.0) for _ in range(5)] == [[]] * 5


def test_without_room_one_is_down_at_a_time() -> None:
    world = world_of(cpu=3.0)
    update(world)
    assert least_ready(world) == 2
    assert revisions(world) == [1, 1, 1]


def test_an_update_takes_no_room_from_others() -> None:
    world = world_of(cpu=4.0)
    world.steps = 10**6
    train = JobSpec("train", ("t",), resources=ONE)
    jobs = {**world.desired.jobs, "train": submitted(train)}
    world.desired = replace(world.desired, jobs=jobs)
    for _ in range(10):
        world.tick(0.1)
    update(world)
    assert least_ready(world) == 2
    assert revisions(world) == [1, 1, 1]
    assert len(world.desired.jobs["train"].placements) == 1


@pytest.mark.parametrize("cpu", [4.0, 3.0])
def test_new_replicas_that_do_not_get_ready_stop_the_update_and_the_old_ones_go_on(
    cpu: float,
) -> None:
    world = world_of(cpu)
    world.stuck = job(world).next_worker
    update(world)
    for _ in range(10):
        world.tick(0.1)
    assert job(world).is_updating
    assert ready(world) >= 2
    world.tick(REPLICA_READY_S)
    world.stuck = 10**9
    for _ in range(20):
        world.tick(0.1)
    assert job(world).halted is not None
    assert revisions(world) == [0, 0, 0]
    assert ready(world) == 3
    reason = "its update was stopped: worker 4 was not ready within 2m"
    assert job(world).status.phase is Phase.RUNNING
    assert job(world).status.reason == f"on 3 replicas; {reason}"


def test_an_update_does_not_stop_for_a_replica_whose_environment_is_being_made() -> None:
    world = world_of(4.0)
    world.stuck = number = job(world).next_worker
    update(world, replace(NEW, requirements=("numpy",)))
    for _ in range(5):
        world.tick(0.1)
    coming = world.alive("web")[number]
    coming.preparing, coming.preparing_since_s = "preparing the environment", world.now_s
    for _ in range(3):
        world.tick(REPLICA_READY_S)
    assert job(world).is_updating and ready(world) == 3
    coming.preparing, coming.preparing_since_s = "", world.now_s
    world.tick(REPLICA_READY_S / 2)
    assert job(world).is_updating, "from now on it has its time"
    world.tick(REPLICA_READY_S)
    world.tick(0.1)
    assert job(world).halted is not None


def test_after_a_stopped_update_a_killed_replica_is_replaced_by_the_program_before() -> None:
    world = world_of(cpu=4.0)
    update(world)
    world.change("web", halted=Halt(1, "it was not ready"))
    min(world.alive("web").items())[1].end(ExitKind.SIGNAL, "SIGKILL")
    started = [
        each.command
        for _ in range(10)
        for each in world.tick(0.1)
        if isinstance(each.command, StartWorker)
    ]
    assert {each.command for each in started} == {("old",)}
    assert ready(world) == 3


def test_new_replicas_that_end_by_their_own_fault_stop_the_update() -> None:
    world = world_of(cpu=4.0)
    update(world)
    halts = []
    for _ in range(400):
        for each in world.tick(0.1):
            if isinstance(each.command, HaltUpdate):
                halts.append(each.command)
        for placement in job(world).placements:
            worker = world.alive("web").get(placement.worker)
            if placement.revision == 1 and worker is not None:
                worker.end(ExitKind.ERROR, "Traceback\nSyntaxError: invalid syntax")
        assert ready(world) >= 3
    (halt,) = halts
    assert halt.reason.startswith(f"{UPDATE_FAILURES_MAX} new replicas failed, the last with:")
    assert halt.reason.endswith("SyntaxError: invalid syntax")
    assert revisions(world) == [0, 0, 0]


def test_old_replicas_that_are_not_ready_are_no_reason_to_wait() -> None:
    world = Slow({"web": submitted(OLD)}, {"n1": Resources(cpu=4.0)})
    world.stuck = 1
    for _ in range(10):
        world.tick(0.1)
    assert ready(world) == 0
    update(world)
    world.stuck = 10**9
    for _ in range(30):
        world.tick(0.1)
    assert revisions(world) == [1, 1, 1]
    assert ready(world) == 3


def test_the_program_before_again_leaves_its_replicas_alone() -> None:
    world = world_of(cpu=4.0)
    before = {placement.worker for placement in job(world).placements}
    update(world)
    world.change("web", halted=Halt(1, "no"))
    update(world, OLD)
    for _ in range(10):
        world.tick(0.1)
    assert {placement.worker for placement in job(world).placements} == before
    assert job(world).status.reason == "on 3 replicas"
    update(world, NEW)
    assert job(world).is_updating, "another try, though the same had been stopped"


def test_what_no_replica_is_started_by_changes_at_once() -> None:
    world = world_of(cpu=4.0)
    update(world, replace(OLD, workers_max=4, priority=3))
    assert (job(world).revision, job(world).spec.workers_max) == (0, 4)


def test_what_room_is_counted_by_cannot_be_changed() -> None:
    wanted = DesiredSpec(OLD, 0.0, "s")
    for spec in (replace(OLD, resources=Resources(2.0)), replace(OLD, queue="other")):
        with pytest.raises(Refused, match="cannot be changed by an update"):
            changed(wanted, spec, None, (), 0.0)
    training = DesiredSpec(replace(OLD, mode=Mode.SYNC), 0.0, "s")
    with pytest.raises(Refused, match="is a training"):
        changed(training, NEW, None, (), 0.0)
