"""Which version answers, and what is counted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from holdfast.models.records import ModelKind, Signature, TensorSpec, Version
from holdfast.serve.predictions import FILE
from holdfast.serve.protocol.tensors import InferRequest
from holdfast.serve.records import LATENCY_BOUNDS_MS, Limits, ServiceSpec
from holdfast.serve.replica import http
from holdfast.serve.replica.batching import BatchPace, Outputs
from holdfast.serve.replica.engine import Engine
from holdfast.wire.errors import ModelFailed, NotHere, TimedOut
from tests.waiting import eventually

SIGNATURE = Signature(
    (TensorSpec("x", "FP32", (-1, 1)),),
    (TensorSpec("y", "FP32", (-1, 1)), TensorSpec("z", "FP32", (-1, 1))),
)


def record(number: int) -> Version:
    return Version("m", number, ModelKind.FUNCTION, SIGNATURE, {}, f"sha256:{number}", 0.0)


def times(factor: float) -> Callable[[Mapping[str, np.ndarray]], Outputs]:
    def predict(inputs: Mapping[str, np.ndarray]) -> Outputs:
        if (inputs["x"] < 0).any():
            raise ValueError("negative")
        return {"y": inputs["x"] * factor, "z": inputs["x"] + factor}

    return predict


def engine_with(*numbers: int) -> Engine:
    engine = Engine(ServiceSpec("s", "m", "prod"))
    for number in numbers:
        engine.install(record(number), times(number), batches=True, pace=BatchPace.INSTANT)
    return engine


def asked(value: float, version: int | None = None, outputs: tuple[str, ...] = ()) -> InferRequest:
    return InferRequest("m", version, "", {"x": np.array([[value]], np.float32)}, outputs)


def fails_in_use(inputs: Mapping[str, np.ndarray]) -> Outputs:
    raise ValueError("worse")


def test_the_stable_version_answers_for_a_new_one_that_fails_and_the_failure_counts() -> None:
    async def run() -> None:
        engine = engine_with(2)
        engine.install(record(3), fails_in_use, batches=True, pace=BatchPace.INSTANT)
        engine.stable = 2
        request = asked(5, 3)
        request.variant = "canary"
        answer = await engine.infer(request)
        assert (answer.version, answer.outputs["y"].item()) == (2, 10)
        counts = engine.stats().versions
        assert (counts[3].requests, counts[3].errors) == (1, 1)
        assert (counts[2].requests, counts[2].errors) == (1, 0)

    asyncio.run(run())


def test_nobody_answers_for_a_version_that_the_client_named_or_for_the_stable_one() -> None:
    async def run() -> None:
        engine = engine_with(2)
        engine.install(record(3), fails_in_use, batches=True, pace=BatchPace.INSTANT)
        engine.stable = 2
        with pytest.raises(ModelFailed):
            await engine.infer(asked(5, 3))
        engine.stable = 3
        request = asked(5, 3)
        request.variant = "stable"
        with pytest.raises(ModelFailed):
            await engine.infer(request)

    asyncio.run(run())


def test_a_request_that_names_no_version_gets_the_stable_one() -> None:
    async def run() -> None:
        engine = engine_with(2, 3)
        with pytest.raises(NotHere):
            await engine.infer(asked(1))
        assert not engine.ready()
        engine.stable = 3
        assert engine.ready()
        assert (await engine.infer(asked(1))).version == 3
        answer = await engine.infer(asked(1, 2, ("y",)))
        assert (answer.version, list(answer.outputs)) == (2, ["y"])
        with pytest.raises(NotHere, match="version 9"):
            await engine.infer(asked(1, 9))

    asyncio.run(run())


def test_a_model_may_be_called_by_its_own_name_or_the_services() -> None:
    engine = Engine(ServiceSpec("s", "m", "prod"))
    assert engine.knows("s") and engine.knows("m") and not engine.knows("x")


def test_answers_and_failures_are_counted_by_version_and_latency() -> None:
    async def run() -> None:
        engine = engine_with(2, 3)
        for value in (1, 2, -1):
            try:
                await engine.infer(asked(value, 2))
            except ModelFailed:
                continue
        counts = engine.stats().versions
        assert (counts[2].requests, counts[2].errors, counts[3].requests) == (3, 1, 0)
        assert sum(counts[2].buckets) == 3
        assert len(counts[2].buckets) == len(LATENCY_BOUNDS_MS) + 1
        text = http.metrics(engine)
        assert 'holdfast_request_errors_total{service="s",version="2"} 1' in text
        assert 'le="+Inf"} 3' in text

    asyncio.run(run())


def test_a_computation_that_is_stuck_is_first_not_ready_and_then_hopeless(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.serve.replica.engine.STUCK_SLACK_S", 0.0)
    monkeypatch.setattr("holdfast.serve.replica.engine.STUCK_END_S", 0.5)
    gate, entered = threading.Event(), threading.Event()

    def predict(inputs: Mapping[str, np.ndarray]) -> Outputs:
        entered.set()
        gate.wait(60)
        return {"y": inputs["x"], "z": inputs["x"]}

    async def run() -> None:
        engine = Engine(ServiceSpec("s", "m", "prod", limits=Limits(timeout_s=0.2)))
        engine.install(record(2), predict, batches=True, pace=BatchPace.LONG)
        engine.stable = 2
        assert engine.ready() and engine.live()
        with pytest.raises(TimedOut):
            await engine.infer(asked(1))
        assert entered.is_set()
        await asyncio.to_thread(eventually, lambda: not engine.ready(), "it is not ready")
        await asyncio.to_thread(eventually, lambda: not engine.live(), "it is beyond hope")
        assert engine.hopeless() == "m@2"
        gate.set()
        await asyncio.to_thread(eventually, engine.ready, "it is ready again")
        assert engine.live()
        assert engine.stats().versions[2].errors == 1

    asyncio.run(run())


def test_a_draining_engine_is_not_ready_but_answers() -> None:
    async def run() -> None:
        engine = engine_with(2)
        engine.stable = 2
        engine.draining = True
        assert not engine.ready()
        assert engine.ready(2)
        assert engine.live()
        assert (await engine.infer(asked(1))).version == 2

    asyncio.run(run())


def test_who_chose_a_version_before_it_was_removed_is_still_answered() -> None:
    async def run() -> None:
        engine = engine_with(2, 3)
        engine.stable = 2
        chosen = engine.held(2)
        chosen.chosen += 1
        engine.stable = 3
        removing = asyncio.create_task(engine.remove(2))
        await asyncio.sleep(0)
        assert not engine.ready(2)
        assert (await engine.infer(asked(1), chosen)).version == 2
        assert (await engine.infer(asked(1))).version == 3
        chosen.chosen -= 1
        assert await removing
        with pytest.raises(NotHere):
            engine.held(2)

    asyncio.run(run())


def test_a_service_that_wants_it_gets_equal_requests_from_the_cache() -> None:
    async def run() -> None:
        engine = engine_with(2)
        engine.configure(ServiceSpec("s", "m", "prod", cache_entries=10))
        first, second = [await engine.infer(asked(1, 2)) for _ in range(2)]
        assert (first.cached, second.cached) == (False, True)
        assert second.outputs["y"].tolist() == [[2]]
        assert engine.stats().cache.hits == 1
        await engine.close()

    asyncio.run(run())


def test_a_service_that_wants_it_has_its_predictions_written_down(tmp_path: Path) -> None:
    async def run() -> None:
        engine = Engine(ServiceSpec("s", "m", "prod"), logs=tmp_path)
        engine.install(record(2), times(2), batches=True, pace=BatchPace.INSTANT)
        await engine.infer(asked(1, 2))
        engine.configure(ServiceSpec("s", "m", "prod", log_predictions=True))
        await engine.infer(asked(5, 2))
        await engine.close()

    asyncio.run(run())
    path = tmp_path / FILE
    eventually(lambda: path.exists() and path.read_text().count("\n") == 1, "one line")
    assert '"version":2' in path.read_text()
