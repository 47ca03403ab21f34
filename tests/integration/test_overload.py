"""Ten times what replicas can carry, through a real gateway: each request has an answer, what was
refused was not computed, and it was hardly ever tried again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.serving.replies import Reply, Shot
from bench.serving.steady import Generator
from holdfast.cluster import create
from holdfast.serve.records import GATEWAYS, Limits
from holdfast.serve.replica.engine import ELSEWHERE_MAX, ELSEWHERE_SHARE
from tests.conftest import require_service
from tests.integration.gateway_world import GatewayProcess
from tests.integration.replica_stage import FLOATS, ReplicaStage
from tests.servers.envoy import envoy_missing
from tests.waiting import eventually

REPLICAS = 2
REQUESTS = 600
RATE = 10 * REPLICAS / 0.05  # ten times what they can carry

SLOW = """
    import time

    def predict(inputs):
        time.sleep(0.05)
        return {"y": inputs["x"] * 2}
"""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[ReplicaStage]:
    require_service(envoy_missing())
    made = ReplicaStage(tmp_path, limits=Limits(timeout_s=20.0, wait_s=0.5))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def gateway(stage: ReplicaStage, tmp_path: Path) -> Iterator[GatewayProcess]:
    cluster = create(tmp_path / "cluster", coordination=stage.plane.address())
    world: Any = SimpleNamespace(cluster=cluster, folder=tmp_path)
    made = GatewayProcess(world, "front", ()).start()
    try:
        yield made
    finally:
        made.end()


def answered_or_told_when(reply: Reply) -> str:
    """The check of each reply: an answer, or when to come again."""
    if reply.status == 200:
        return "" if json.loads(reply.body)["y"] == [[2.0] * 4] else f"not right: {reply.body!r}"
    told = reply.status == 503 and reply.header("retry-after").isdigit()
    fits = told and "holdfast serve digits --" in json.loads(reply.body)["error"]
    return "" if fits else f"status {reply.status}: {reply.body[:200]!r}"


def computed(stage: ReplicaStage) -> list[int]:
    """What each replica has computed, as it counts itself."""
    found = [one.get("/holdfast/stats").json for one in stage.replicas]
    return [sum(counts["requests"] for counts in one["versions"].values()) for one in found]


def test_at_ten_times_the_capacity_each_request_is_answered_or_refused_at_once(
    stage: ReplicaStage, gateway: GatewayProcess
) -> None:
    signature = replace(FLOATS, batches=False)
    number = stage.publish(SLOW, signature=signature).number
    plan = stage.hold(number)
    for worker in range(1, REPLICAS + 1):
        stage.start(worker)
    for replica in stage.replicas:
        replica.await_ready()

    def applied() -> bool:
        path = f"{GATEWAYS}/front"
        fact = stage.facts.read(path)
        return fact is not None and json.loads(fact.data)["data"]["applied"] == {
            "digits": plan.number
        }

    eventually(applied, "the gateway has taken the plan")
    shot = Shot("/predict/digits", b'{"x": [[1.0, 1.0, 1.0, 1.0]]}')
    address = (gateway.host, gateway.port)
    eventually(
        lambda: gateway.ask("/predict/digits", body=shot.body).status == 200, "a first answer"
    )
    before = computed(stage)
    generator = Generator(
        address, [shot], RATE, answered_or_told_when, connections=256, timeout_s=60.0
    )
    try:
        end_s = generator.begun_s + REQUESTS / RATE
        generator.settle(end_s)
        found = generator.cut()
    finally:
        generator.close()
    assert (found.failed, found.unsent) == (0, 0), found.reasons
    assert found.sent == REQUESTS
    good, refused = found.statuses[200], found.statuses[503]
    assert good + refused == REQUESTS and refused > REQUESTS // 4, found.statuses
    after = computed(stage)
    assert sum(after) - sum(before) == good, "what was refused was not computed, and nothing twice"

    def tries() -> list[int]:
        lines = (gateway.folder / "access.log").read_text().splitlines()
        asked = [json.loads(line) for line in lines if "predict" in line]
        return [one["tries"] for one in asked][-REQUESTS:]

    eventually(lambda: len(tries()) == REQUESTS, "the access log has all of them")
    again = sum(tries()) - REQUESTS
    budget = REPLICAS * (ELSEWHERE_MAX + 1) + ELSEWHERE_SHARE * sum(after)
    assert again <= budget, f"{again} tries more, for {good} answers"
    assert max(tries()) <= 2, "none was tried a third time"
