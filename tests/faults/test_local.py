"""The local mode under real deaths: the same bits, and what the synchronous mode reaches."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.control.decide.views import assign
from tests.faults.training_stage import Host, TrainingStage, consumed, hosted

pytestmark = pytest.mark.engines

SETTINGS = {"local_steps": "3", "outer_lr": "0.8", "outer_momentum": "0.5"}
EPOCHS = 18


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with hosted() as found:
        yield found


def local(folder: Path, host: Host, settings: dict[str, str], **more: str) -> TrainingStage:
    """A stage whose workers know these settings from the beginning."""
    stage = TrainingStage(
        folder,
        host,
        more={"HOLDFAST_MODE": "local", "HOLDFAST_SETTINGS": json.dumps(settings), **more},
    )
    stage.settings.extend((name, value, 0) for name, value in sorted(settings.items()))
    return stage


@pytest.mark.parametrize("compress", ["none", "int8"])
def test_rounds_end_with_the_same_bits_on_any_number_of_workers(
    compress: str, host: Host, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "compress": compress}
    options = {"model": "convnet", "samples": 250, "epochs": 2}
    answers: list[dict[str, Any]] = []
    for count in (0, 1, 3):
        with local(tmp_path / f"{count}", host, settings) as stage:
            stage.options = options
            answers += stage.train(range(count)) if count else [stage.alone()]
    assert len({answer["digest"] for answer in answers}) == 1
    assert {answer["step"] for answer in answers} == {2 * 3}, "8 steps of data are 3 rounds"


def test_a_death_in_the_middle_of_a_round_costs_only_the_lanes_of_the_dead(
    host: Host, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with local(tmp_path / "stage", host, SETTINGS, HOLDFAST_SAMPLE_LOG=str(log)) as stage:
        stage.options = {"model": "mlp", "samples": 300, "epochs": 2}
        right = stage.alone()
        for path in log.iterdir():
            path.unlink()
        lanes = assign(stage.lanes, [0, 1, 2], {})
        stage.options["kills"] = [[1, 3, max(lanes[1])]]
        stage.start(0, 1, 2)
        stage.move([0, 1, 2], restore=0)
        stage.wait("worker 1 is dead", lambda: not stage.workers[1].alive)
        stage.start(3)
        stage.move([0, 2, 3])  # one joins in the same moment
        answers = stage.answers()
    assert stage.workers[1].process.returncode == -signal.SIGKILL
    assert {answer["digest"] for answer in answers} == {right["digest"]}
    times = Counter((row["step"], row["lane"], row["samples"][0]) for row in consumed(log))
    twice = {place[:2] for place, count in times.items() if count > 1}
    assert twice <= {(3, lane) for lane in lanes[1]}
    assert twice, "the lanes that it had computed in that round were computed again"
    for epoch in range(2):
        seen = {
            (row["step"], row["lane"], sample)
            for row in consumed(log)
            for sample in row["samples"]
            if row["epoch"] == epoch
        }
        assert Counter(sample for *_, sample in seen) == Counter(range(300))


def test_a_job_whose_workers_all_die_goes_on_from_its_last_committed_round(
    host: Host, tmp_path: Path
) -> None:
    with local(tmp_path, host, SETTINGS) as stage:
        stage.options = {"model": "convnet", "samples": 250, "epochs": 4}
        right = stage.alone()
        stage.start(0, 1)
        stage.move([0, 1], restore=0)
        stage.wait_for_step(1)
        step = stage.step + 3
        manifest = stage.commit(stage.checkpoint(step), step)
        for worker in stage.workers.values():
            worker.kill()
        stage.start(2, 3, 4)
        stage.move([2, 3, 4], restore=step, manifest=manifest)
        answers = stage.answers()
    assert {answer["digest"] for answer in answers} == {right["digest"]}


def test_digits_are_read_as_well_as_in_the_synchronous_mode_although_half_the_workers_are_killed(
    host: Host, tmp_path: Path
) -> None:
    def accuracy(answer: dict[str, Any]) -> float:
        return float.fromhex(answer["metrics"]["accuracy"])

    epochs = {"HOLDFAST_SETTINGS": json.dumps({"epochs": str(EPOCHS)})}
    with TrainingStage(tmp_path / "sync", host, more=epochs) as stage:
        stage.options = {"model": "digits"}
        synchronous = accuracy(stage.alone())
    settings = {
        "epochs": str(EPOCHS),
        "local_steps": "12",  # an epoch: a round of the whole data
        "outer_lr": "0.9",
        "outer_momentum": "0.5",
    }
    with local(tmp_path / "local", host, settings) as stage:
        stage.options = {"model": "digits"}
        stage.start(0, 1, 2, 3)
        stage.move([0, 1, 2, 3], restore=0)
        stage.wait_for_step(4)
        stage.workers[3].kill()
        stage.move([0, 1, 2])
        stage.wait_for_step(10)
        stage.workers[0].kill()
        stage.move([1, 2])
        for step in range(12, EPOCHS, 3):
            stage.wait_for_step(step)
        answers = stage.answers()
    assert {accuracy(answer) for answer in answers} == {accuracy(answers[0])}
    # From one epoch to the next it changes by up to a point, in both modes.
    assert accuracy(answers[0]) >= synchronous - 0.02
