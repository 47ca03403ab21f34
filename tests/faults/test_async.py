"""The asynchronous mode: parameter servers and workers die, and it learns all the same."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.train.modes.asynchronous.tickets import ASYNC_LEASE_MAX
from tests.faults.training_stage import Host, TrainingStage, consumed, hosted, said

ASYNC = {"HOLDFAST_MODE": "async"}
WAIT_S = 600.0  # a training on a busy machine


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with hosted("tests.faults.async_host") as found:
        yield found


def synchronous(stage: TrainingStage) -> dict[str, Any]:
    """The same script's answer in one process without a cluster: there it is `sync`."""
    output = stage.folder / "alone"
    environment = {"HOLDFAST_LANES": str(stage.lanes), **ASYNC}
    forked = stage._host.fork(environment, output, stage.options)
    assert forked.wait(WAIT_S) == 0, output.read_text()
    (answer,) = said("answer", output)
    return answer


def finished(stage: TrainingStage) -> list[dict[str, Any]]:
    """Wait for the end, and let everyone go; what the last members say."""
    members = [stage.workers[number] for number in stage.members]
    stage.wait("all end", lambda: all(each.said.get("ending") for each in members), WAIT_S)
    return stage.answers()


def looks(stage: TrainingStage) -> list[dict[str, Any]]:
    """What hooks have said, on whichever worker they ran, by epoch."""
    rows = [row for worker in stage.workers.values() for row in said("look", worker.output)]
    return sorted(rows, key=lambda row: int(row["epoch"]))


def test_undisturbed_workers_share_the_batches_and_end_with_the_same_weights(
    host: Host, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    more = {**ASYNC, "HOLDFAST_SAMPLE_LOG": str(log)}
    with TrainingStage(tmp_path / "stage", host, more=more) as stage:
        stage.options = {"epochs": 3}
        stage.start(0, 1)
        stage.move([0, 1], restore=0)
        answers = finished(stage)
    assert len({answer["digest"] for answer in answers}) == 1
    assert {answer["step"] for answer in answers} == {3 * 12}
    times = Counter((row["epoch"], sample) for row in consumed(log) for sample in row["samples"])
    assert len(times) == 3 * 1437, "every sample of every epoch"
    assert set(times.values()) == {1}, "and each once"
    assert sorted(row["epoch"] for row in looks(stage)) == [1, 2, 3], "each hook on one worker"
    assert all(answer["seen"] == looks(stage)[-1]["accuracy"] for answer in answers)
    assert all(answer["computed"] for answer in answers), "both have worked"


def test_a_killed_server_and_half_of_the_workers_killed_cost_less_than_two_points(
    host: Host, tmp_path: Path
) -> None:
    more = {**ASYNC, "HOLDFAST_SETTINGS": '{"servers": "2"}'}
    with TrainingStage(tmp_path, host, more=more) as stage:
        stage.options = {"epochs": 8}
        right = synchronous(stage)
        stage.options["pace"] = 0.005
        stage.start(0, 1, 2, 3)
        stage.move([0, 1, 2, 3], restore=0)
        stage.wait_for_step(20)
        stage.workers[0].kill()  # a server, and the first to be asked for checkpoints
        stage.move([1, 2, 3])
        stage.wait_for_step(40, 1, 2, 3)
        for number in (2, 3):  # 2 has become a server
            stage.workers[number].kill()
        stage.start(4)
        stage.move([1, 4])
        answers = finished(stage)
        rows = looks(stage)
    print("synchronous", right, "asynchronous", answers)
    assert [stage.workers[n].process.returncode for n in (0, 2, 3)] == [-signal.SIGKILL] * 3
    assert len({answer["digest"] for answer in answers}) == 1
    assert {answer["step"] for answer in answers} == {right["step"]}
    assert {round(answer["lr"], 9) for answer in answers} == {0.0}, "the schedule is at its end"
    assert answers[0]["accuracy"] >= right["accuracy"] - 0.02, rows


def test_a_worker_ten_times_slower_holds_nobody_up(host: Host, tmp_path: Path) -> None:
    log = tmp_path / "log"
    more = {**ASYNC, "HOLDFAST_SAMPLE_LOG": str(log)}
    with TrainingStage(tmp_path / "stage", host, more=more) as stage:
        stage.options = {"epochs": 4, "pace": 0.1, "slow": [2, 1.0]}
        stage.start(0, 1, 2)
        stage.move([0, 1, 2], restore=0)
        finished(stage)
    rows = consumed(log)
    samples = Counter[int]()
    for row in rows:
        samples[row["worker"]] += len(row["samples"])
    print("samples", samples)
    assert samples[2], "it has worked too"
    assert min(samples[0], samples[1]) >= 2 * samples[2], "lane by lane all would have the same"
    times = Counter((row["epoch"], sample) for row in rows for sample in row["samples"])
    assert len(times) == 4 * 1437 and set(times.values()) == {1}, "and every sample counts once"


def test_when_all_die_the_job_goes_on_from_what_its_servers_wrote(
    host: Host, tmp_path: Path
) -> None:
    more = {**ASYNC, "HOLDFAST_SETTINGS": '{"servers": "2"}'}
    with TrainingStage(tmp_path, host, more=more) as stage:
        stage.options = {"epochs": 6, "pace": 0.01}
        stage.start(0, 1, 2)
        stage.move([0, 1, 2], restore=0)
        stage.wait_for_step(1)
        step = stage.step + 4
        manifest = stage.commit(stage.checkpoint(step), step)
        for worker in stage.workers.values():
            worker.kill()
        stage.start(3, 4)
        stage.move([3, 4], restore=step, manifest=manifest)
        stage.wait_for_adoption()
        assert min(stage.workers[n].steps[-1] or 0 for n in (3, 4)) >= step
        answers = finished(stage)
    assert {answer["step"] for answer in answers} == {6 * 12}
    assert answers[0]["accuracy"] > 0.9


def test_a_server_that_leaves_hands_over_and_no_batch_is_lost(host: Host, tmp_path: Path) -> None:
    log = tmp_path / "log"
    more = {**ASYNC, "HOLDFAST_SAMPLE_LOG": str(log)}
    with TrainingStage(tmp_path / "stage", host, more=more) as stage:
        stage.options = {"epochs": 4, "pace": 0.01}
        stage.start(0, 1, 2)
        stage.move([0, 1, 2], restore=0)
        stage.wait_for_step(5)
        stage.move([1, 2])  # the only server is to go
        stage.wait("it is gone", lambda: not stage.workers[0].alive)
        answers = finished(stage)
    assert stage.workers[0].word == "left"
    assert stage.workers[0].process.returncode == 0
    assert {answer["step"] for answer in answers} == {4 * 12}
    rows = consumed(log)
    assert len({(row["epoch"], sample) for row in rows for sample in row["samples"]}) == 4 * 1437
    assert len(rows) <= 4 * 96 + 2 * ASYNC_LEASE_MAX, "few were computed twice"
