"""Whoever dies, and whoever joins: the same bits, and only what was lost is computed again."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.control.decide.views import assign
from tests.faults.proof_training import prove
from tests.faults.training_stage import Host, TrainingStage, consumed, hosted, said


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with hosted() as found:
        yield found


@pytest.mark.parametrize("model", ["mlp", "convnet"])
def test_a_worker_killed_in_the_middle_of_a_step_costs_only_its_own_lanes(
    model: str, host: Host, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with TrainingStage(tmp_path / "stage", host, more={"HOLDFAST_SAMPLE_LOG": str(log)}) as stage:
        stage.options = {"model": model, "samples": 200, "epochs": 2}
        right = stage.alone()
        for path in log.iterdir():
            path.unlink()
        lanes = assign(stage.lanes, [0, 1, 2], {})
        stage.options["kills"] = [[1, 9, max(lanes[1])]]
        stage.start(0, 1, 2)
        stage.move([0, 1, 2], restore=0)
        stage.wait("worker 1 is dead", lambda: not stage.workers[1].alive)
        stage.move([0, 2])
        answers = stage.answers()
    assert stage.workers[1].process.returncode == -signal.SIGKILL
    assert {answer["digest"] for answer in answers} == {right["digest"]}
    times = Counter((row["step"], row["lane"]) for row in consumed(log))
    twice = {place for place, count in times.items() if count > 1}
    lost = {(9, lane) for lane in lanes[1]}
    assert twice == lost, "only the lanes of the dead were computed twice, and only of that step"
    assert max(times.values()) == 2


def test_when_all_but_one_die_in_the_same_step_no_completed_step_is_lost(
    host: Host, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with TrainingStage(tmp_path / "stage", host, more={"HOLDFAST_SAMPLE_LOG": str(log)}) as stage:
        stage.options = {"model": "mlp", "samples": 200, "epochs": 2}
        right = stage.alone()
        for path in log.iterdir():
            path.unlink()
        lanes = assign(stage.lanes, [0, 1, 2, 3], {})
        stage.options["kills"] = [[worker, 9, max(lanes[worker])] for worker in (0, 1, 3)]
        stage.start(0, 1, 2, 3)
        stage.move([0, 1, 2, 3], restore=0)
        dead = [stage.workers[worker] for worker in (0, 1, 3)]
        stage.wait("three are dead", lambda: not any(worker.alive for worker in dead))
        stage.move([2])  # no checkpoint was ever made: what it holds is all that there is
        answers = stage.answers()
    assert [answer["digest"] for answer in answers] == [right["digest"]]
    times = Counter((row["step"], row["lane"]) for row in consumed(log))
    twice = {place for place, count in times.items() if count > 1}
    assert twice == {(9, lane) for worker in (0, 1, 3) for lane in lanes[worker]}


def test_a_worker_joins_in_the_middle_and_another_leaves_and_the_bits_stay(
    host: Host, tmp_path: Path
) -> None:
    with TrainingStage(tmp_path, host) as stage:
        stage.options = {"model": "transformer", "samples": 200, "epochs": 4}
        right = stage.alone()
        stage.start(0, 1)
        stage.move([0, 1], restore=0)
        stage.wait_for_step(3)
        stage.start(2)
        stage.move([0, 1, 2])
        stage.wait_for_adoption()
        stage.move([1, 2])  # worker 0 leaves at a boundary
        stage.wait_for_adoption()
        answers = stage.answers()
    assert {answer["digest"] for answer in answers} == {right["digest"]}
    assert stage.workers[0].word == "left"
    assert stage.workers[0].process.returncode == 0


def test_a_job_whose_workers_all_die_goes_on_from_its_checkpoint_on_other_workers(
    host: Host, tmp_path: Path
) -> None:
    with TrainingStage(tmp_path, host) as stage:
        stage.options = {"model": "convnet", "samples": 200, "epochs": 4}
        right = stage.alone()
        stage.start(0, 1, 2)
        stage.move([0, 1, 2], restore=0)
        stage.wait_for_step(1)
        step = stage.step + 4
        manifest = stage.commit(stage.checkpoint(step), step)
        for worker in stage.workers.values():
            worker.kill()
        stage.start(3, 4)
        stage.move([3, 4], restore=step, manifest=manifest)
        answers = stage.answers()
    assert {answer["digest"] for answer in answers} == {right["digest"]}


def test_random_schedules_of_deaths_joins_pauses_and_crashes_end_with_the_same_bits() -> None:
    seed = random.randrange(10**6)
    assert not prove(range(2), seed, acts=4), f"python -m tests.faults.proof_training --seed {seed}"


def test_a_barrier_waits_for_the_living_and_not_for_the_dead(host: Host, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with TrainingStage(tmp_path / "stage", host) as stage:
        stage.options = {"samples": 100, "epochs": 1, "gates": {"1": "kill", "2": str(gate)}}
        stage.start(0, 1, 2)
        stage.move([0, 1, 2], restore=0)
        stage.wait("worker 1 is dead", lambda: not stage.workers[1].alive)
        stage.move([0, 2])
        stage.wait("worker 0 is there", lambda: said("arrived", stage.workers[0].output))
        assert not said("passed", stage.workers[0].output)
        gate.touch()
        for worker in (0, 2):
            stage.wait("it passes", lambda it=worker: said("passed", stage.workers[it].output))  # type: ignore[misc]
        stage.start(3)
        stage.move([0, 2, 3])  # whoever joins later passes by itself
        answers = stage.answers()
    assert len({answer["digest"] for answer in answers}) == 1
    assert said("passed", stage.workers[3].output)
