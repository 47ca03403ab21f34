"""Replicas with a cache that they share, and a prediction log: real processes, a real Redis."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require_service
from tests.integration.replica_stage import ReplicaProcess, ReplicaStage
from tests.servers.redis import RedisServer, redis_missing
from tests.waiting import eventually


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    require_service(redis_missing())
    with RedisServer(tmp_path / "redis") as running:
        yield running


@pytest.fixture
def stage(tmp_path: Path, server: RedisServer) -> Iterator[ReplicaStage]:
    made = ReplicaStage(
        tmp_path / "stage", cache_entries=100, redis=server.url, log_predictions=True
    )
    try:
        made.hold(made.publish_times(2))
        yield made
    finally:
        made.close()


def counted(replica: ReplicaProcess) -> Any:
    return replica.get("/holdfast/stats").json["cache"]


def shares(replica: ReplicaProcess) -> bool:
    return bool(counted(replica)["shared"])


def started(stage: ReplicaStage, *workers: int) -> list[ReplicaProcess]:
    replicas = [stage.start(worker, node=f"n{worker}") for worker in workers]
    for replica in replicas:
        replica.await_ready()
        eventually(partial(shares, replica), "Redis answers")
    return replicas


def test_a_replica_answers_with_what_another_one_computed_and_goes_on_without_redis(
    stage: ReplicaStage, server: RedisServer
) -> None:
    one, other = started(stage, 1, 2)
    assert one.predict([[1, 2, 3, 4]]).json == {"y": [[2, 4, 6, 8]]}

    # A busy machine is a miss, which is computed and kept in memory: each try asks something new.
    numbers = itertools.count(10)

    def shared() -> bool:
        row = [next(numbers), 0, 0, 0]
        for replica in (one, other):
            assert replica.predict([row]).json == {"y": [[2 * value for value in row]]}
        return bool(counted(other)["shared_hits"])

    eventually(shared, "an answer of one replica is given by the other")
    before = counted(one)["hits"]
    assert one.predict([[1, 2, 3, 4]]).json == {"y": [[2, 4, 6, 8]]}
    assert counted(one)["hits"] == before + 1
    server.kill()
    for number in range(100, 140):
        answer = other.predict([[number, 0, 0, 0]])
        assert answer.status == 200 and answer.json == {"y": [[2 * number, 0, 0, 0]]}
    eventually(lambda: not counted(other)["shared"], "the replica has noticed")
    metrics = other.get("/metrics").body.decode()
    assert "holdfast_cache_misses_total" in metrics and "holdfast_cache_hits_total" in metrics


def test_a_new_version_does_not_answer_with_what_the_old_one_said(stage: ReplicaStage) -> None:
    (one,) = started(stage, 1)
    assert one.predict([[1, 2, 3, 4]]).json == {"y": [[2, 4, 6, 8]]}
    second = stage.publish_times(3)
    stage.hold(second, 1)
    eventually(
        lambda: one.predict([[1, 2, 3, 4]]).json == {"y": [[3, 6, 9, 12]]}, "version 2 answers"
    )
    old = one.predict([[1, 2, 3, 4]], x_holdfast_version="1")
    assert old.json == {"y": [[2, 4, 6, 8]]}


def test_predictions_are_in_the_workers_folder_of_logs(stage: ReplicaStage) -> None:
    (one,) = started(stage, 1)
    one.predict([[1, 2, 3, 4]], x_holdfast_variant="canary", x_holdfast_version="1")
    one.predict([[1, 2, 3, 4]])

    def lines() -> list[Any]:
        found = sorted(stage.folder.rglob("predictions.jsonl"))
        return [json.loads(line) for path in found for line in path.read_text().splitlines()]

    eventually(lambda: len(lines()) >= 2, "two lines are written")
    first, second = lines()[:2]
    assert (first["version"], first["variant"], first["cached"]) == (1, "canary", False)
    assert first["outputs"]["y"]["data"] == [2, 4, 6, 8]
    assert (
        second["cached"] and second["variant"] == "direct" and second["digest"] == first["digest"]
    )
