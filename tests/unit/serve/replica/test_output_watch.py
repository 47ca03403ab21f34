"""What a replica sees of outputs while a version is rolled out, and what that costs nobody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from holdfast.serve.protocol.tensors import InferRequest
from holdfast.serve.records import Guards, ServiceSpec
from holdfast.serve.replica.batching import BatchPace, Outputs
from holdfast.serve.replica.engine import Engine
from holdfast.serve.replica.output_watch import OutputWatch
from tests.unit.serve.replica.test_engine import asked, record, times
from tests.waiting import PATIENCE_S


def nan(inputs: Mapping[str, np.ndarray]) -> Outputs:
    return {"y": inputs["x"] * np.nan, "z": inputs["x"]}


def engine_in_a_rollout(
    next_: Callable[[Mapping[str, np.ndarray]], Outputs],
    guards: Guards | None = None,
    pace: BatchPace = BatchPace.INSTANT,
) -> Engine:
    engine = Engine(ServiceSpec("s", "m", "prod", guards=guards or Guards()))
    engine.install(record(2), times(2), batches=True, pace=pace)
    engine.install(record(3), next_, batches=True, pace=pace)
    engine.follow(2, 3)
    return engine


def sent(value: float, version: int) -> InferRequest:
    return replace(asked(value, version), variant="canary")


async def given(engine: Engine, request: InferRequest) -> Any:
    """What `ask` gives, as the HTTP server asks."""
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    engine.ask(request, engine.held(request.version), done.set_result)
    return await done


@pytest.mark.parametrize("pace", [BatchPace.INSTANT, BatchPace.SHORT, BatchPace.LONG])
def test_the_stable_version_answers_instead_of_a_new_one_that_gives_nan(pace: BatchPace) -> None:
    async def run() -> None:
        engine = engine_in_a_rollout(nan, pace=pace)
        for answer in (
            await given(engine, sent(1.0, 3)),
            await engine.infer(sent(1.0, 3)),
        ):
            assert (answer.version, answer.outputs["y"].tolist()) == (2, [[2.0]])
        watched = engine.stats().watched
        assert (watched[3].answers, watched[3].nonfinite) == (2, {"y": 2})
        assert (watched[2].answers, watched[2].nonfinite) == (2, {})
        assert engine.stats().versions[3].errors == 0, "it has a count of its own"
        # A client that has chosen the version itself gets what it gives.
        direct = await engine.infer(asked(1.0, 3))
        assert direct.version == 3 and np.isnan(direct.outputs["y"]).all()

    asyncio.run(run())


def test_nothing_is_looked_at_without_a_rollout() -> None:
    async def run() -> None:
        engine = engine_in_a_rollout(nan)
        engine.follow(3, None)
        answer = await given(engine, sent(1.0, 3))
        assert answer.version == 3 and np.isnan(answer.outputs["y"]).all()
        assert engine.stats().watched == {}

    asyncio.run(run())


@pytest.mark.parametrize("next_", [None, 4])
def test_requests_for_a_version_that_was_just_taken_back_are_answered_by_the_stable_one(
    next_: int | None,
) -> None:
    gate = threading.Event()

    def late(inputs: Mapping[str, np.ndarray]) -> Outputs:
        gate.wait(PATIENCE_S)
        return nan(inputs)

    async def run() -> None:
        engine = engine_in_a_rollout(late, pace=BatchPace.LONG)
        engine.install(record(4), times(4), batches=True, pace=BatchPace.INSTANT)
        under_way = asyncio.ensure_future(given(engine, sent(1.0, 3)))
        await asyncio.sleep(0)
        engine.follow(2, next_, leaving=[3])
        gate.set()
        # One that it has, and those of a gateway that has not heard of it.
        for answer in (
            await under_way,
            await given(engine, sent(1.0, 3)),
            await engine.infer(sent(1.0, 3)),
        ):
            assert (answer.version, answer.outputs["y"].tolist()) == (2, [[2.0]])
        assert 3 not in engine.stats().watched, "it is of no rollout"
        direct = await engine.infer(asked(1.0, 3))
        assert direct.version == 3

    asyncio.run(run())


def test_values_outside_of_their_range_are_counted_by_output() -> None:
    watch = OutputWatch(Guards(ranges={"p": (0.0, 1.0), "label": (0, 9)}))
    fine = {"p": np.array([0.0, 1.0]), "label": np.array([9]), "other": np.array([7e9])}
    assert not watch.breaks(fine)
    assert watch.breaks({**fine, "p": np.array([0.5, 1.5])})
    assert watch.breaks({**fine, "label": np.array([-1])})
    assert watch.breaks({**fine, "p": np.array([np.nan])}), "that is not finite, not outside"
    texts = np.array([b"a"], object)
    assert not watch.breaks({"p": np.array([]), "label": texts, "x": texts})
    counts = watch.counts()
    assert (counts.answers, counts.outside, counts.nonfinite) == (
        5,
        {"p": 1, "label": 1},
        {"p": 1},
    )
    off = OutputWatch(Guards(nonfinite_max=None))
    assert not off.breaks({"p": np.array([np.inf])})


def test_outputs_are_compared_value_by_value_and_class_by_class() -> None:
    watch = OutputWatch(Guards())
    live = {
        "p": np.array([[0.9, 0.1], [0.2, 0.8]]),
        "n": np.array([1, 2]),
        "t": np.array([b"a"], object),
    }
    own = {
        "p": np.array([[0.1, 0.9], [0.2, 0.8]]),
        "n": np.array([1, 3]),
        "t": np.array([b"b"], object),
    }
    watch.compare(live, own)
    watch.compare({"p": np.array([np.nan, 1.0, 1e300])}, {"p": np.array([1.0, 2.0, np.inf])})
    counts = watch.counts().compared
    assert (counts["p"].requests, counts["p"].values, counts["p"].rows) == (2, 5, 2)
    assert counts["p"].disagreed == 1
    assert (counts["p"].live_sum, counts["p"].next_sum) == pytest.approx((3.0, 4.0))
    assert (counts["n"].rows, counts["n"].disagreed) == (2, 1)
    assert (counts["t"].values, counts["t"].rows, counts["t"].disagreed) == (0, 1, 1)
    watch.compare({"p": np.array([1.0])}, {"p": np.array([[1.0]])})  # another shape
    assert watch.counts().compared["p"].requests == 2


class Model:
    """Adds three; waits while `gate` is closed, and counts."""

    def __init__(self) -> None:
        self.calls = 0
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> Outputs:
        self.calls += 1
        self.gate.wait(30)
        return {"y": inputs["x"] * 2 + 3, "z": inputs["x"] + 2}


async def settled(engine: Engine, calls: int) -> None:
    while engine.stats().watched[3].compared.get("y") is None or engine.unanswered:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert engine.stats().watched[3].compared["y"].requests == calls


@pytest.mark.parametrize("pace", [BatchPace.INSTANT, BatchPace.SHORT, BatchPace.LONG])
def test_the_next_version_computes_requests_of_the_stable_one_when_they_are_answered(
    pace: BatchPace,
) -> None:
    async def run() -> None:
        model = Model()
        engine = engine_in_a_rollout(model, Guards(shift_max=0.5, shadow_share=1.0), pace)
        answer = await given(engine, sent(1.0, 2))
        assert answer.version == 2 and model.calls <= 1
        await settled(engine, 1)
        found = engine.stats().watched[3].compared["y"]
        assert (found.values, found.live_sum, found.next_sum) == (1, 2.0, 5.0)
        assert engine.stats().versions[3].requests == 0, "no client has asked for that"

    asyncio.run(run())


def test_a_shadow_that_hangs_delays_no_answer_of_the_stable_version() -> None:
    async def run() -> None:
        model = Model()
        model.gate.clear()
        engine = engine_in_a_rollout(model, Guards(shift_max=0.5, shadow_share=1.0), BatchPace.LONG)
        for value in range(50):
            answer = await given(engine, sent(float(value), 2))
            assert answer.outputs["y"].tolist() == [[2.0 * value]]
        assert model.calls <= 1, "one at a time"
        model.gate.set()
        await settled(engine, 1)

    asyncio.run(run())


def test_shadows_take_a_share_of_the_time_only_and_none_if_nothing_is_compared() -> None:
    async def run() -> None:
        now_s = [0.0]
        model = Model()
        engine = engine_in_a_rollout(model, Guards(shift_max=0.5, shadow_share=0.05))
        rollout = engine._rollout
        assert rollout is not None
        rollout._clock = lambda: now_s[0]

        def takes_a_second(inputs: Mapping[str, np.ndarray]) -> Outputs:
            now_s[0] += 1.0
            return model(inputs)

        engine.install(record(3), takes_a_second, batches=True, pace=BatchPace.INSTANT)
        for _ in range(200):
            await given(engine, sent(1.0, 2))
            await asyncio.sleep(0)
            now_s[0] += 1.0
        assert 9 <= model.calls <= 11, "each takes 1 s, and the next may begin 19 s later"
        plain = engine_in_a_rollout(model)
        before = model.calls
        for _ in range(20):
            await given(plain, sent(1.0, 2))
            await asyncio.sleep(0)
        assert model.calls == before

    asyncio.run(run())
