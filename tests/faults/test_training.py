"""The same bits on any number of workers: real processes, real sockets, views given by the test."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.training_stage import Host, TrainingStage, consumed, hosted, said


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with hosted() as found:
        yield found


@pytest.mark.parametrize("model", ["mlp", "convnet", "transformer"])
def test_a_model_ends_with_the_same_bits_on_one_two_three_four_and_eight_workers(
    model: str, host: Host, tmp_path: Path
) -> None:
    with TrainingStage(tmp_path / "alone", host) as stage:
        stage.options = options = {"model": model, "samples": 150, "epochs": 2}
        right = stage.alone()
    for count in (1, 2, 3, 4, 8):
        with TrainingStage(tmp_path / f"{count}", host) as stage:
            stage.options = options
            answers = stage.train(range(count))
            looks = {json.dumps(said("look", worker.output)) for worker in stage.workers.values()}
        assert {answer["digest"] for answer in answers} == {right["digest"]}, count
        assert {json.dumps(answer["metrics"]) for answer in answers} == {
            json.dumps(right["metrics"])
        }
        assert sum(answer["computed"] for answer in answers) == right["computed"]
        assert len(looks) == 1, "an evaluation gives every worker the same numbers"


def test_lanes_that_are_no_power_of_two_give_the_same_bits(host: Host, tmp_path: Path) -> None:
    digests = set()
    for count in (1, 2, 4):
        with TrainingStage(tmp_path / f"{count}", host, lanes=6) as stage:
            stage.options = {"model": "mlp", "samples": 100, "epochs": 2}
            digests |= {answer["digest"] for answer in stage.train(range(count))}
    assert len(digests) == 1


def test_accumulated_gradients_and_loader_processes_give_the_same_bits_on_any_number_of_workers(
    host: Host, tmp_path: Path
) -> None:
    with TrainingStage(tmp_path / "alone", host) as stage:
        stage.options = {"model": "convnet", "samples": 150, "parts": 2, "lane_batch": 2}
        right = stage.alone()
    with TrainingStage(tmp_path / "three", host) as stage:
        stage.options = {"model": "convnet", "samples": 150, "parts": 2, "lane_batch": 2}
        stage.options["loader_workers"] = 1
        answers = stage.train(range(3))
    assert {answer["digest"] for answer in answers} == {right["digest"]}


def test_a_rate_that_is_set_at_a_step_is_in_effect_from_it_on_everywhere(
    host: Host, tmp_path: Path
) -> None:
    digests = set()
    for count in (1, 3):
        with TrainingStage(tmp_path / f"{count}", host) as stage:
            stage.options = {"model": "mlp", "samples": 150}
            stage.settings.append(("lr", "0.003", 7))
            answers = stage.train(range(count))
            digests |= {answer["digest"] for answer in answers}
    with TrainingStage(tmp_path / "unchanged", host) as stage:
        stage.options = {"model": "mlp", "samples": 150}
        unchanged = stage.alone()["digest"]
    assert len(digests) == 1
    assert digests != {unchanged}


def test_every_sample_of_an_epoch_is_consumed_once(host: Host, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with TrainingStage(tmp_path / "stage", host, more={"HOLDFAST_SAMPLE_LOG": str(log)}) as stage:
        stage.options = {"model": "mlp", "samples": 101, "epochs": 3, "silent": True}
        stage.train(range(3))
    rows = consumed(log)
    assert len({row["worker"] for row in rows}) == 3
    for epoch in range(3):
        seen = Counter(s for row in rows if row["epoch"] == epoch for s in row["samples"])
        assert seen == Counter(range(101)), epoch
    orders = {
        tuple(s for row in _in_order(rows) if row["epoch"] == epoch for s in row["samples"])
        for epoch in range(3)
    }
    assert len(orders) == 3, "every epoch has an order of its own"


def _in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["step"], row["lane"]))
