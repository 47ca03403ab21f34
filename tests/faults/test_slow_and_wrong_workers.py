"""A worker that is far slower than the others, and one that computes wrongly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.training_stage import Host, TrainingStage, hosted

STEPS = 24
SAMPLES = 8 * 4 * STEPS


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with hosted() as found:
        yield found


def test_the_lanes_of_a_worker_ten_times_slower_are_computed_by_the_others(
    host: Host, tmp_path: Path
) -> None:
    with TrainingStage(tmp_path / "stage", host) as stage:
        stage.options = {"model": "convnet", "samples": SAMPLES, "epochs": 1, "silent": True}
        right = stage.alone()
        stage.options["slow"] = {"1": 0.4}
        answers = stage.train([0, 1, 2])
    assert {answer["digest"] for answer in answers} == {right["digest"]}
    computed = [answer["computed"] for answer in answers]
    assert sum(computed) == 8 * STEPS
    assert computed[1] <= 3 * 3 + 3, "three slow steps, and a lane now and then"


@pytest.mark.engines
def test_a_slow_worker_that_is_killed_while_others_have_its_lanes_costs_no_bits(
    host: Host, tmp_path: Path
) -> None:
    with TrainingStage(tmp_path / "stage", host) as stage:
        stage.options = {"model": "mlp", "samples": SAMPLES, "epochs": 1, "silent": True}
        right = stage.alone()
        stage.options["slow"] = {"1": 0.4}
        # Worker 0 has lanes of worker 1 by then, and is killed in the last one of its own.
        stage.options["kills"] = [[0, 12, 0]]
        stage.start(0, 1, 2)
        stage.move([0, 1, 2], restore=0)
        stage.wait("worker 0 is dead", lambda: not stage.workers[0].alive)
        stage.move([1, 2])
        answers = stage.answers()
    assert {answer["digest"] for answer in answers} == {right["digest"]}


@pytest.mark.parametrize("parts", [1, pytest.param(2, marks=pytest.mark.engines)])
def test_where_everyone_is_checked_in_every_step_nobody_is_wrong(
    host: Host, tmp_path: Path, parts: int
) -> None:
    more = {"HOLDFAST_CHECK_STEPS": "3"}
    with TrainingStage(tmp_path / "stage", host, more=more) as stage:
        stage.options = {"model": "convnet", "samples": SAMPLES, "epochs": 1, "silent": True}
        stage.options |= {"parts": parts, "lane_batch": 4 // parts}
        right = stage.alone()
        answers = stage.train([0, 1, 2])
    assert {answer["digest"] for answer in answers} == {right["digest"]}


def wrong_worker(host: Host, folder: Path, steps: list[int]) -> tuple[str, bool]:
    """What worker 1 of three ends with, which flips a bit in these steps; and whether the others
    come to the right bits without it. Worker 1 is checked in step 3, 9, 15, ..."""
    with TrainingStage(folder, host, more={"HOLDFAST_CHECK_STEPS": "6"}) as stage:
        stage.options = {"model": "mlp", "samples": SAMPLES, "epochs": 1, "silent": True}
        right = stage.alone()
        stage.options["flips"] = {"1": steps}
        stage.start(0, 1, 2)
        stage.move([0, 1, 2], restore=0)
        stage.wait("worker 1 has ended", lambda: not stage.workers[1].alive)
        stage.move([0, 2])
        answers = stage.answers()
    same = {answer["digest"] for answer in answers} == {right["digest"]}
    return stage.workers[1].output.read_text(), same


@pytest.mark.engines
def test_a_bit_that_is_flipped_in_a_step_that_is_checked_costs_its_worker_and_no_bits(
    host: Host, tmp_path: Path
) -> None:
    said, same = wrong_worker(host, tmp_path / "stage", [3, 4])
    assert "WrongResult: the processor of worker 1 has computed lane" in said, said[-2000:]
    assert "of step 3 wrongly" in said, said[-2000:]
    assert same, "nothing was updated with what it had computed"


def test_a_worker_that_flips_bits_from_some_step_on_is_found_within_the_configured_steps(
    host: Host, tmp_path: Path
) -> None:
    said, same = wrong_worker(host, tmp_path / "stage", [5, STEPS + 1])
    assert "WrongResult: the processor of worker 1 has computed lane" in said, said[-2000:]
    assert "of step 9 wrongly" in said, said[-2000:]
    assert not same, "the steps before were updated with it"
