"""The engine asked without a task gives what it gives with one."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast.serve.protocol.tensors import InferAnswer
from holdfast.serve.records import Limits, ServiceSpec
from holdfast.serve.replica.batching import BatchPace, Outputs
from holdfast.serve.replica.engine import Engine
from holdfast.wire.errors import Cancelled, Full, ModelFailed, TimedOut
from tests.unit.serve.replica.test_engine import asked, fails_in_use, record, times
from tests.waiting import PATIENCE_S

EACH_PACE = pytest.mark.parametrize("pace", BatchPace)


def engine_of(pace: BatchPace, **service: object) -> Engine:
    """Version 2 is the stable one and doubles, version 3 fails in use."""
    engine = Engine(ServiceSpec("s", "m", "prod"))
    engine.configure(ServiceSpec("s", "m", "prod", **service))  # type: ignore[arg-type]
    engine.install(record(2), times(2), batches=True, pace=pace)
    engine.install(record(3), fails_in_use, batches=True, pace=pace)
    engine.stable = 2
    return engine


async def told(engine: Engine, value: float, version: int, variant: str = "") -> object:
    """What the engine tells when it is asked."""
    answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    request = asked(value, version)
    request.variant = variant
    engine.ask(request, engine.held(version), answered.set_result)
    return await asyncio.wait_for(answered, PATIENCE_S)


@EACH_PACE
def test_an_answer_is_told_and_counted(pace: BatchPace) -> None:
    async def run() -> None:
        engine = engine_of(pace)
        found = await told(engine, 5, 2)
        assert isinstance(found, InferAnswer)
        assert (found.version, found.outputs["y"].item(), found.cached) == (2, 10, False)
        assert engine.stats().versions[2].requests == 1

    asyncio.run(run())


@EACH_PACE
def test_the_stable_version_answers_for_one_that_fails_if_a_gateway_chose_that(
    pace: BatchPace,
) -> None:
    async def run() -> None:
        engine = engine_of(pace)
        found = await told(engine, 5, 3, variant="canary")
        assert isinstance(found, InferAnswer)
        assert (found.version, found.outputs["y"].item()) == (2, 10)
        assert isinstance(await told(engine, 5, 3), ModelFailed)
        assert isinstance(await told(engine, -1, 2, variant="stable"), ModelFailed)
        counts = engine.stats().versions
        assert (counts[3].requests, counts[3].errors) == (2, 2)
        assert (counts[2].requests, counts[2].errors) == (2, 1)

    asyncio.run(run())


@EACH_PACE
def test_what_was_computed_before_is_not_computed_again(pace: BatchPace) -> None:
    async def run() -> None:
        engine = engine_of(pace, cache_entries=10)
        found = [await told(engine, 5, 2) for _ in range(3)]
        assert [each.cached for each in found if isinstance(each, InferAnswer)] == [
            False,
            True,
            True,
        ]
        assert isinstance(await told(engine, 5, 3), ModelFailed)
        cache = engine.stats().cache
        assert (cache.hits, cache.misses) == (2, 2)
        assert engine.stats().versions[2].requests == 3
        await engine.close()

    asyncio.run(run())


def test_what_waits_too_long_is_too_late_and_too_many_are_refused_at_once() -> None:
    async def run() -> None:
        gate = threading.Event()

        def slow(inputs: object) -> Outputs:
            gate.wait(PATIENCE_S)
            return {}

        engine = engine_of(BatchPace.LONG)
        engine.install(record(4), slow, batches=False, pace=BatchPace.LONG)
        held = engine.held(4)
        outcomes: asyncio.Queue[object] = asyncio.Queue()
        async with asyncio.timeout(PATIENCE_S):
            engine.ask(asked(1, 4), held, outcomes.put_nowait)
            while not held.batcher.running:  # noqa: ASYNC110  # another thread's
                await asyncio.sleep(0.01)
            engine.configure(
                ServiceSpec("s", "m", "prod", limits=Limits(timeout_s=0.1, queue_max=2))
            )
            waits = engine.ask(asked(1, 4), held, outcomes.put_nowait)
            engine.ask(asked(1, 4), held, outcomes.put_nowait)
            with pytest.raises(Full):
                engine.ask(asked(1, 4), held, outcomes.put_nowait)
            assert waits is not None
            waits.cancel()
            assert isinstance(await outcomes.get(), Cancelled)
            assert isinstance(await outcomes.get(), TimedOut)
            gate.set()
            assert isinstance(await outcomes.get(), InferAnswer)
        assert await held.batcher.close(PATIENCE_S)
        counts = engine.stats().versions[4]
        assert (counts.requests, counts.errors, held.batcher.refused) == (2, 1, 1)

    asyncio.run(run())
