"""Hooks, chance, thawing and code around loops: the same bits alone, on workers, with deaths."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.faults.training_stage import Host, TrainingStage, hosted, said

SAME = ("average", "behind", "loops", "noise", "thaw")


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with hosted("tests.faults.edge_host") as found:
        yield found


@pytest.mark.parametrize("scenario", SAME)
def test_three_workers_of_which_one_dies_come_to_what_one_process_comes_to(
    scenario: str, host: Host, tmp_path: Path
) -> None:
    with TrainingStage(tmp_path, host, lanes=6) as stage:
        stage.options = {"scenario": scenario}
        right = stage.alone()
        stage.options["kills"] = [[1, 6, 2]]
        stage.start(0, 1, 2)
        stage.move([0, 1, 2], restore=0)
        stage.wait("worker 1 is dead", lambda: not stage.workers[1].alive)
        stage.move([0, 2])
        answers = stage.answers()
    assert answers == [right, right]


@pytest.mark.parametrize("scenario", ["average", "loops"])
def test_a_worker_that_joins_late_runs_the_script_again_and_changes_nothing_twice(
    scenario: str, host: Host, tmp_path: Path
) -> None:
    with TrainingStage(tmp_path, host, lanes=6) as stage:
        stage.options = {"scenario": scenario}
        right = stage.alone()
        # The first dies in the step in which the other shall be joined.
        stage.options["kills"] = [[0, 12, 0]]
        stage.start(0, 1)
        stage.move([0, 1], restore=0)
        stage.wait("worker 0 is dead", lambda: not stage.workers[0].alive)
        stage.start(2)
        stage.move([1, 2])
        answers = stage.answers()
    assert answers == [right, right]


@pytest.mark.parametrize("scenario", ["behind", "thaw"])
def test_a_job_that_goes_on_from_a_checkpoint_on_other_workers_comes_to_the_same(
    scenario: str, host: Host, tmp_path: Path
) -> None:
    with TrainingStage(tmp_path, host, lanes=6) as stage:
        stage.options = {"scenario": scenario}
        right = stage.alone()
        stage.start(0, 1, 2)
        stage.move([0, 1, 2], restore=0)
        stage.wait_for_step(1)
        step = stage.step + 5
        manifest = stage.commit(stage.checkpoint(step), step)
        for worker in stage.workers.values():
            worker.kill()
        stage.start(3)
        stage.move([3], restore=step, manifest=manifest)
        answers = stage.answers()
    assert answers == [right]


def test_a_worker_that_joins_while_a_hook_evaluates_what_it_has_changed_changes_it_once(
    host: Host, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with TrainingStage(tmp_path / "stage", host, lanes=6) as stage:
        stage.options = {"scenario": "average"}
        right = stage.alone()
        stage.options["hold"] = [8, str(gate)]
        stage.start(0, 1)
        stage.move([0, 1], restore=0)
        for worker in (0, 1):
            output = stage.workers[worker].output
            stage.wait("all are in the hook", partial(said, "holds", output))
        stage.workers[0].kill()
        stage.options["hold"] = None
        stage.start(2)
        stage.move([1, 2])
        gate.touch()
        answers = stage.answers()
    assert answers == [right, right]


@pytest.mark.parametrize(
    ("scenario", "when"),
    [("alone_in_a_hook", "after step"), ("alone_behind_the_loop", "was to be published")],
)
def test_workers_that_differ_publish_nothing_and_are_told_in_what_they_differ(
    scenario: str, when: str, host: Host, tmp_path: Path
) -> None:
    with TrainingStage(tmp_path, host, lanes=6) as stage:
        stage.options = {"scenario": scenario}
        stage.start(0, 1, 2)
        stage.move([0, 1, 2], restore=0)
        workers = list(stage.workers.values())
        stage.wait("all have ended", lambda: not any(worker.alive for worker in workers))
        for worker in workers:
            assert worker.process.returncode == 1
            output = worker.output.read_text()
            assert when in output and "hold different states" in output
            assert "4.bias" in output and "the likely reason" in output
    assert not list(tmp_path.rglob("*.safetensors")), "nothing was published"


def test_a_checkpoint_of_members_that_differ_is_marked_unreadable_in_the_next_step(
    host: Host, tmp_path: Path
) -> None:
    with TrainingStage(tmp_path, host, lanes=6) as stage:
        stage.options = {"scenario": "alone_in_a_hook"}
        stage.start(0, 1)
        stage.move([0, 1], restore=0)
        stage.checkpoint(7)  # the hook of step 7 spoils one of them
        workers = list(stage.workers.values())
        stage.wait("all have ended", lambda: not any(worker.alive for worker in workers))
        for worker in workers:
            assert "after step 7 the workers hold different states" in worker.output.read_text()
        assert any(7 in worker.said.get("unreadable", []) for worker in workers)
