"""Scripts of every kind, with the same bits alone and on several workers, whoever dies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.control.decide.views import assign
from tests.faults.training_stage import Host, TrainingStage, hosted


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with hosted("tests.faults.step_scenarios") as found:
        yield found


# What is one idea of a user's is in tests/conformance; these are many at once, or take long.
SCRIPTS: list[Any] = [
    pytest.param({"script": "modules"}, id="modules"),
    pytest.param({"script": "optimizers"}, id="optimizers"),
    pytest.param({"script": "compiled", "epochs": 1}, id="inductor", marks=pytest.mark.engines),
]


@pytest.mark.parametrize("options", SCRIPTS)
def test_a_script_ends_with_the_same_bits_alone_and_on_three_workers(
    options: dict[str, Any], host: Host, tmp_path: Path
) -> None:
    with TrainingStage(tmp_path / "alone", host) as stage:
        stage.options = options
        right = stage.alone()
    with TrainingStage(tmp_path / "three", host) as stage:
        stage.options = options
        answers = stage.train(range(3))
    assert {answer["digest"] for answer in answers} == {right["digest"]}
    assert {json.dumps(answer["metrics"]) for answer in answers} == {json.dumps(right["metrics"])}


@pytest.mark.parametrize("script", ["gan", "sam"])
def test_a_job_that_dies_between_two_updates_of_a_batch_goes_on_with_the_second_one(
    script: str, host: Host, tmp_path: Path
) -> None:
    with TrainingStage(tmp_path, host) as stage:
        stage.options = {"script": script, "samples": 200, "epochs": 3}
        right = stage.alone()
        stage.start(0, 1, 2)
        stage.move([0, 1, 2], restore=0)
        stage.wait_for_step(1)
        step = stage.step + 4
        step += 1 - step % 2  # an odd number of updates: the first on some batch, not the second
        manifest = stage.commit(stage.checkpoint(step), step)
        for worker in stage.workers.values():
            worker.kill()
        stage.start(3, 4)
        stage.move([3, 4], restore=step, manifest=manifest)
        answers = stage.answers()
    assert {answer["digest"] for answer in answers} == {right["digest"]}


@pytest.mark.parametrize("step", [7, 8])
def test_a_worker_killed_in_the_first_or_second_update_of_a_batch_costs_no_bits(
    step: int, host: Host, tmp_path: Path
) -> None:
    with TrainingStage(tmp_path, host) as stage:
        stage.options = {"script": "gan", "samples": 200, "loader_workers": 1}
        right = stage.alone()
        lanes = assign(stage.lanes, [0, 1, 2], {})
        stage.options["kills"] = [[1, step, max(lanes[1])]]
        stage.start(0, 1, 2)
        stage.move([0, 1, 2], restore=0)
        stage.wait("worker 1 is dead", lambda: not stage.workers[1].alive)
        stage.move([0, 2])
        answers = stage.answers()
    assert {answer["digest"] for answer in answers} == {right["digest"]}
