"""More than can be computed in time is refused at once, and seldom tried elsewhere."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

import numpy as np
import pytest

from holdfast.serve.records import Limits
from holdfast.serve.replica.batching import Batcher, BatchPace, Outputs
from holdfast.serve.replica.engine import RetryBudget
from holdfast.wire.errors import Full
from tests.unit.serve.replica.test_batching import row


class Slow:
    """Computes when it is let: one request for each `let`."""

    def __init__(self) -> None:
        self.computed = 0
        self._turns = threading.Semaphore(0)

    def let(self, count: int = 1) -> None:
        self._turns.release(count)

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> Outputs:
        self._turns.acquire(timeout=30)
        self.computed += len(inputs["x"])
        return {"y": inputs["x"]}


def begun(batcher: Batcher, count: int) -> tuple[list[asyncio.Future[Outputs]], int]:
    """What was taken of so many requests, and how many were refused."""
    taken, refused = [], 0
    for _ in range(count):
        try:
            taken.append(batcher.begin(row(1.0)))
        except Full:
            refused += 1
    return taken, refused


async def running(batcher: Batcher) -> None:
    while not batcher.running:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def test_as_many_wait_as_are_computed_within_the_patience_of_the_service() -> None:
    async def run() -> None:
        model = Slow()
        limits = Limits(timeout_s=10.0, wait_s=0.25)
        batcher = Batcher(
            "m@1", model, limits, batches=False, pace=BatchPace.LONG, service="digits"
        )
        batcher._cost_s = 0.02  # as if it had computed for 20 ms each time
        first, _ = begun(batcher, 1)
        await running(batcher)
        taken, refused = begun(batcher, 500)
        assert len(taken) == 13, "12 times 20 ms are within 0.25 s, and so one more is taken"
        assert refused == batcher.refused == 487
        with pytest.raises(Full) as error:
            batcher.check_capacity()
        assert "would wait for more than 0.25 s" in error.value.why
        assert error.value.fix.endswith("or: holdfast serve digits --wait-max 0.5s")
        model.let(14)
        await asyncio.gather(*first, *taken)
        assert model.computed == 14, "what was refused is not computed"
        assert await batcher.close(10)

    asyncio.run(run())


def test_what_one_request_costs_is_measured_and_a_lone_one_is_never_refused() -> None:
    async def run() -> None:
        model = Slow()
        batcher = Batcher(
            "m@1", model, Limits(wait_s=0.001), batches=False, pace=BatchPace.LONG, service="digits"
        )
        for _ in range(3):
            future = batcher.begin(row(1.0))
            await asyncio.sleep(0.02)
            model.let()
            await future
        assert batcher._cost_s > 0.015
        batcher._cost_s = 1e9
        future = batcher.begin(row(1.0))
        model.let()
        await future
        assert await batcher.close(10)

    asyncio.run(run())


def test_requests_that_fit_into_one_batch_are_taken_whatever_one_alone_costs() -> None:
    async def run() -> None:
        model = Slow()
        limits = Limits(batch_max=64, wait_s=0.1, queue_max=512)
        batcher = Batcher("m@1", model, limits, batches=True, pace=BatchPace.LONG)
        batcher._cost_s = 0.02
        first, _ = begun(batcher, 1)
        await running(batcher)
        taken, refused = begun(batcher, 100)
        assert (len(taken), refused) == (64, 36)
        model.let(2)
        await asyncio.gather(*first, *taken)
        assert batcher._cost_s < 0.02, "together they cost less"
        assert await batcher.close(10)

    asyncio.run(run())


def test_the_queue_is_bounded_by_its_count_too() -> None:
    async def run() -> None:
        model = Slow()
        batcher = Batcher(
            "m@1", model, Limits(queue_max=5), batches=True, pace=BatchPace.LONG, service="digits"
        )
        first, _ = begun(batcher, 1)
        await running(batcher)
        taken, refused = begun(batcher, 10)
        assert (len(taken), refused) == (5, 5)
        with pytest.raises(Full) as error:
            batcher.check_capacity()
        assert error.value.fix.endswith("or: holdfast serve digits --queue-max 10")
        model.let(2)
        await asyncio.gather(*first, *taken)
        assert await batcher.close(10)

    asyncio.run(run())


def test_a_full_replica_lets_few_requests_be_tried_elsewhere_and_each_once() -> None:
    budget = RetryBudget(share=0.1, most=10.0)
    assert not budget.spend(0, "2"), "it was tried already"
    after_quiet = sum(budget.spend(0, "1") for _ in range(100))
    assert after_quiet == 10
    under_load = sum(budget.spend(answered, None) for answered in range(1_000))
    assert 98 <= under_load <= 100, "a tenth of what is answered"
    assert not budget.spend(0, "1"), "a version that was unloaded took its count along"
