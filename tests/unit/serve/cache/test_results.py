"""The cache as a replica uses it, without a Redis."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from holdfast.serve.cache.results import Outputs, ResultCache
from holdfast.serve.records import ServiceSpec
from holdfast.wire.errors import Full

SERVICE = ServiceSpec("svc", "m", "prod", cache_entries=10)


def made(*, entries: int = 10, redis: str = "") -> ResultCache:
    results = ResultCache()
    results.configure(ServiceSpec("svc", "m", "prod", cache_entries=entries, redis=redis))
    return results


class Model:
    """Counts how often it computes, and does so when it is let."""

    def __init__(self) -> None:
        self.computed = 0
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> Outputs:
        self.computed += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return {"y": np.array([self.computed])}


def test_the_second_request_is_not_computed() -> None:
    async def body() -> None:
        results, model = made(), Model()
        model.gate.set()
        first, cached_first = await results.through(b"k", model)
        second, cached_second = await results.through(b"k", model)
        assert (cached_first, cached_second) == (False, True)
        assert first["y"].tolist() == second["y"].tolist() == [1]
        counts = results.counts()
        assert (counts.hits, counts.misses, counts.entries) == (1, 1, 1)

    asyncio.run(body())


def test_equal_requests_at_once_are_computed_once() -> None:
    async def body() -> None:
        results, model = made(), Model()
        tasks = [asyncio.create_task(results.through(b"k", model)) for _ in range(5)]
        other = asyncio.create_task(results.through(b"other", model))
        await asyncio.sleep(0)
        model.gate.set()
        answers = await asyncio.gather(*tasks)
        await other
        assert model.computed == 2
        assert [cached for _, cached in answers] == [False, True, True, True, True]
        assert results.counts().joined == 4

    asyncio.run(body())


@pytest.mark.parametrize("end", ["cancelled", "failed"])
def test_when_the_one_that_computes_does_not_finish_the_others_compute_themselves(end: str) -> None:
    async def body() -> None:
        results, bad, good = made(), Model(), Model()
        bad.error = Full("the queue is full")
        good.gate.set()
        first = asyncio.create_task(results.through(b"k", bad))
        await asyncio.sleep(0)
        second = asyncio.create_task(results.through(b"k", good))
        await asyncio.sleep(0)
        assert not second.done()
        if end == "cancelled":
            first.cancel()
        else:
            bad.gate.set()
        with pytest.raises(asyncio.CancelledError if end == "cancelled" else Full):
            await first
        outputs, cached = await second
        assert outputs["y"].tolist() == [1] and not cached
        assert results.counts().entries == 0

    asyncio.run(body())


def test_one_who_waits_and_hangs_up_does_not_disturb_the_others() -> None:
    async def body() -> None:
        results, model = made(), Model()
        tasks = [asyncio.create_task(results.through(b"k", model)) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.sleep(0)
        model.gate.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(answers[1], asyncio.CancelledError)
        assert not isinstance(answers[0], BaseException)
        assert not isinstance(answers[2], BaseException)
        assert model.computed == 1

    asyncio.run(body())


def test_a_service_that_wants_no_cache_has_none_and_may_change_its_mind() -> None:
    async def body() -> None:
        results, model = made(entries=0), Model()
        model.gate.set()
        assert not results.wanted
        results.configure(SERVICE)
        assert results.wanted
        await results.through(b"k", model)
        results.configure(ServiceSpec("svc", "m", "prod"))
        assert not results.wanted and results.counts().entries == 0

    asyncio.run(body())


@pytest.mark.parametrize("address", ["nonsense", "http://somewhere", "redis://127.0.0.1:x"])
def test_an_address_that_is_none_is_no_shared_cache_and_no_error(address: str) -> None:
    async def body() -> None:
        results, model = made(redis=address), Model()
        model.gate.set()
        _, cached = await results.through(b"k", model)
        assert not cached and not results.counts().shared
        await results.close()

    asyncio.run(body())
