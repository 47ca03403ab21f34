"""Compressed gradients between real processes: which bits stay, and when."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.control.decide.views import assign
from tests.faults.training_stage import Host, TrainingStage, hosted

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with hosted() as found:
        yield found


def compressed(folder: Path, host: Host, way: str) -> TrainingStage:
    settings = json.dumps({"compress": way})
    stage = TrainingStage(folder, host, more={"HOLDFAST_SETTINGS": settings})
    stage.settings.append(("compress", way, 0))
    stage.options = {"model": "mlp", "samples": 150, "epochs": 2, "silent": True}
    return stage


@pytest.mark.parametrize("way", ["bf16", "topk:0.05", "powersgd:4"])
def test_an_undisturbed_run_has_the_same_bits_on_any_number_of_workers(
    way: str, host: Host, tmp_path: Path
) -> None:
    with compressed(tmp_path / "alone", host, way) as stage:
        right = stage.alone()
    with compressed(tmp_path / "three", host, way) as stage:
        answers = stage.train(range(3))
    assert {answer["digest"] for answer in answers} == {right["digest"]}


def test_rounded_gradients_give_the_same_bits_also_when_a_worker_is_killed(
    host: Host, tmp_path: Path
) -> None:
    with compressed(tmp_path, host, "int8") as stage:
        right = stage.alone()
        stage.options["kills"] = [[1, 4, max(assign(stage.lanes, [0, 1, 2], {})[1])]]
        stage.start(0, 1, 2)
        stage.move([0, 1, 2], restore=0)
        stage.wait("worker 1 is dead", lambda: not stage.workers[1].alive)
        stage.move([0, 2])
        answers = stage.answers()
    assert {answer["digest"] for answer in answers} == {right["digest"]}


def test_what_is_left_out_may_be_lost_with_a_worker_but_members_stay_together(
    host: Host, tmp_path: Path
) -> None:
    with compressed(tmp_path, host, "powersgd:4") as stage:
        stage.options["kills"] = [[1, 4, max(assign(stage.lanes, [0, 1, 2], {})[1])]]
        stage.start(0, 1, 2)
        stage.move([0, 1, 2], restore=0)
        stage.wait("worker 1 is dead", lambda: not stage.workers[1].alive)
        stage.start(3)
        stage.move([0, 2, 3])
        answers = stage.answers()
    assert len({answer["digest"] for answer in answers}) == 1
    assert answers[0]["step"] == 10
