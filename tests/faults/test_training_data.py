"""Data of all kinds: the same bits on any number of workers, whoever dies, and nothing read twice
that need not be."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest

from tests.conftest import require_service
from tests.faults.data_host import bucket, write_rows
from tests.faults.training_stage import Host, TrainingStage, consumed, hosted
from tests.servers.s3 import MotoServer, moto_missing


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with hosted("tests.faults.data_host") as found:
        yield found


class Data(TrainingStage):
    """A stage whose workers note what they read."""

    def __init__(self, folder: Path, host: Host, options: dict[str, Any], **more: Any) -> None:
        super().__init__(folder, host, **more)
        self.read = folder / "read"
        self.read.mkdir()
        self.options = {**options, "folder": str(self.read)}

    def rows(self, worker: int) -> list[dict[str, Any]]:
        return [
            json.loads(line)
            for path in sorted(self.read.glob(f"read-{worker}-*.jsonl"))
            for line in path.read_text().splitlines()
        ]

    def killed_at(self, step: int, worker: int, members: list[int]) -> list[dict[str, Any]]:
        """One of the members is killed in this step; what the others say at the end."""
        self.options["kills"] = [[worker, step]]
        self.start(*members)
        self.move(members, restore=0)
        self.wait("one is dead", lambda: not self.workers[worker].alive)
        self.move([each for each in members if each != worker])
        return self.answers()


def one_digest(answers: list[dict[str, Any]]) -> str:
    (found,) = {answer["digest"] for answer in answers}
    return str(found)


MAP = {"data": "points", "samples": 151, "epochs": 3}


@pytest.mark.parametrize(
    "options",
    [
        {**MAP, "sampler": "buckets", "parts": 2},
        {**MAP, "sampler": "torch", "loader_workers": 1},
        {"data": "started", "samples": 130, "loader_workers": 1, "drop_last": True},
    ],
    ids=["buckets", "torch", "started-loaders"],
)
def test_every_kind_of_data_gives_the_same_bits_alone_and_on_three_workers_of_which_one_dies(
    options: dict[str, Any], host: Host, tmp_path: Path
) -> None:
    with Data(tmp_path / "alone", host, options, lanes=4) as stage:
        right = stage.alone()
    with Data(tmp_path / "death", host, options, lanes=4) as stage:
        assert one_digest(stage.killed_at(5, 1, [0, 1, 2])) == right["digest"]


@pytest.mark.parametrize("change", [("lane_batch", "7"), ("accumulate", "3")])
def test_a_step_that_is_announced_to_be_larger_takes_the_rest_of_the_epoch_once_whoever_dies(
    change: tuple[str, str], host: Host, tmp_path: Path
) -> None:
    options = {"data": "points", "samples": 151, "epochs": 3, "lane_batch": 4}
    digests = set()
    for name, members in (("one", [0]), ("three", [0, 1, 2])):
        log = tmp_path / f"log-{name}"
        more = {"HOLDFAST_SAMPLE_LOG": str(log)}
        with Data(tmp_path / name, host, options, lanes=4, more=more) as stage:
            stage.settings.append((*change, 5))
            digests.add(one_digest(stage.train(members)))
        rows = consumed(log)
        for epoch in range(3):
            seen = Counter(s for row in rows if row["epoch"] == epoch for s in row["samples"])
            assert seen == Counter(range(151)), (name, epoch)
        sizes = {row["step"]: 0 for row in rows}
        for row in rows:
            sizes[row["step"]] += len(row["samples"])
        larger = 4 * 7 if change[0] == "lane_batch" else 4 * 4 * 3
        assert [sizes[step] for step in (4, 5)] == [16, larger]
    with Data(tmp_path / "death", host, options, lanes=4) as stage:
        stage.settings.append((*change, 5))
        digests.add(one_digest(stage.killed_at(5, 1, [0, 1, 2])))
    with Data(tmp_path / "restart", host, options, lanes=4) as stage:
        stage.settings.append((*change, 5))
        stage.start(0, 1)
        stage.move([0, 1], restore=0)
        stage.wait_for_step(1)
        step = stage.step + 3
        manifest = stage.commit(stage.checkpoint(step), step)
        for worker in stage.workers.values():
            worker.kill()
        stage.start(3, 4, 5)
        stage.move([3, 4, 5], restore=step, manifest=manifest)
        stage.wait_for_adoption()
        digests.add(one_digest(stage.answers()))
    assert len(digests) == 1
    with Data(tmp_path / "unchanged", host, options, lanes=4) as stage:
        assert stage.alone()["digest"] not in digests


def test_a_job_does_not_go_on_when_its_script_reads_other_data(host: Host, tmp_path: Path) -> None:
    options = {"data": "points", "samples": 151, "epochs": 3, "lane_batch": 4}
    with Data(tmp_path, host, options, lanes=4) as stage:
        stage.start(0)
        stage.move([0], restore=0)
        stage.wait_for_step(1)
        step = stage.step + 3
        manifest = stage.commit(stage.checkpoint(step), step)
        stage.workers[0].kill()
        stage.options = {**stage.options, "samples": 160, "lane_batch": 5}
        stage.start(1)
        stage.move([1], restore=step, manifest=manifest)
        worker = stage.workers[1]
        stage.wait("it has ended", lambda: not worker.alive)
        output = worker.output.read_text()
    assert f"reads other data than it did until step {step}" in output
    assert "lane_batch: 4 -> 5; samples: 151 -> 160" in output
    assert worker.word == "refused", "trying again cannot help"


@pytest.mark.parametrize("mode", ["sync", "local", "async"])
def test_a_worker_that_reads_other_data_than_the_others_is_refused(
    mode: str, host: Host, tmp_path: Path
) -> None:
    options = {"data": "points", "samples": 151, "epochs": 100_000, "lane_batch": 4}
    more = {"HOLDFAST_MODE": mode}
    with Data(tmp_path, host, options, lanes=4, more=more) as stage:
        stage.start(0)
        stage.move([0], restore=0)
        stage.wait_for_step(2)
        stage.options = {**stage.options, "lane_batch": 5}
        stage.start(1)
        stage.move([0, 1])
        worker = stage.workers[1]
        stage.wait("it has ended", lambda: not worker.alive)
        output = worker.output.read_text()
    assert "why: lane_batch: 4 -> 5\n" in output
    assert worker.word == "refused"


FILES = {"data": "files", "files": 8, "epochs": 2, "lane_batch": 4, "piece": 8}
ROWS = 96  # of each file


@pytest.fixture(params=["folder", "s3"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Eight files of rows in a folder, or in a bucket."""
    found = [write_rows(tmp_path / "rows", file, ROWS) for file in range(8)]
    if request.param == "folder":
        yield {**FILES, "rows": str(tmp_path / "rows")}
        return
    require_service(moto_missing())
    with MotoServer(tmp_path / "s3") as server:
        endpoint = f"http://127.0.0.1:{server.port}"
        store = bucket(endpoint)
        for file, data in enumerate(found):
            obstore.put(store, f"rows-{file}", data)
        yield {**FILES, "endpoint": endpoint}


@pytest.mark.parametrize("loader_workers", [0, 2])
def test_a_lane_that_moves_is_entered_where_it_was_without_reading_what_was_before(
    files: dict[str, Any], loader_workers: int, host: Host, tmp_path: Path
) -> None:
    options = {**files, "loader_workers": loader_workers}
    with Data(tmp_path / "alone", host, options, lanes=2) as stage:
        right = stage.alone()
    # Each lane has four files of 96 rows. Worker 1 dies at step 60 of 96: 236 rows of its lane are
    # done, so its third file is under way.
    with Data(tmp_path / "death", host, options, lanes=2) as stage:
        answers = stage.killed_at(60, 1, [0, 1])
        mine, theirs = (
            [row for row in stage.rows(worker) if row["file"] // 4 == lane]
            for worker, lane in ((0, 1), (1, 1))
        )
    assert one_digest(answers) == right["digest"]
    assert max((row["file"], row["start"]) for row in theirs) >= (6, 44)
    # What worker 0 reads of lane 1 in that epoch begins in the file where the lane was.
    first = mine[0]
    assert (first["file"], first["start"]) == (6, 236 - 2 * ROWS)
    whole = 2 * 4 * ROWS  # of both epochs
    done = sum(row["samples"] for row in mine)
    # Nothing is read twice by whoever goes on; loaders read a little ahead of the end.
    ahead = 4 * files["piece"] if loader_workers else 0
    assert whole - 236 <= done <= whole - 236 + ahead


def test_loader_processes_end_with_a_worker_that_is_killed(host: Host, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows", 0, 4_000)
    options = {**FILES, "files": 1, "rows": str(tmp_path / "rows"), "loader_workers": 2}
    with Data(tmp_path / "stage", host, options, lanes=2) as stage:
        stage.start(0)
        stage.move([0], restore=0)
        stage.wait_for_step(3)
        worker = stage.workers[0].process.pid
        children = Path(f"/proc/{worker}/task/{worker}/children").read_text().split()
        assert len(children) == 2
        stage.workers[0].kill()
        stage.wait("its loaders are gone", lambda: not any(map(_runs, children)))


def _runs(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # whoever inherits it collects it
