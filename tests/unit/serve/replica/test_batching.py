"""How requests become batches, in the loop and in a thread."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from holdfast.serve.records import Limits
from holdfast.serve.replica.batching import (
    INLINE_STALL_S,
    INLINE_WINDOW,
    Batcher,
    BatchPace,
    Outputs,
)
from holdfast.wire.errors import Full, ModelFailed, NotHere, TimedOut

Predict = Callable[[Mapping[str, np.ndarray]], Outputs]
LOOP = [BatchPace.INSTANT, BatchPace.SHORT]
EVERY = [*LOOP, BatchPace.LONG]


def made(
    predict: Predict, pace: BatchPace, limits: Limits | None = None, *, batches: bool = True
) -> Batcher:
    return Batcher("m@1", predict, limits or Limits(), batches=batches, pace=pace)


def row(value: float, width: int = 2) -> dict[str, np.ndarray]:
    return {"x": np.full((1, width), value, np.float32)}


class Model:
    """Doubles; remembers the sizes of its batches. Waits while `gate` is closed."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> Outputs:
        self.sizes.append(len(inputs["x"]))
        self.entered.set()
        self.gate.wait(30)
        if (inputs["x"] < 0).any():
            raise ValueError("negative\nsecond line")
        return {"y": inputs["x"] * 2}


async def _answers(pace: BatchPace) -> None:
    batcher = made(Model(), pace)
    found = await asyncio.gather(*[batcher.compute(row(value)) for value in range(20)])
    for value, outputs in enumerate(found):
        assert outputs["y"].tolist() == [[2 * value] * 2]
    assert batcher.waiting == batcher.running == 0
    assert await batcher.close(10)


@pytest.mark.parametrize("pace", EVERY)
def test_every_request_gets_its_own_answer(pace: BatchPace) -> None:
    asyncio.run(_answers(pace))


def test_requests_of_one_turn_of_the_loop_are_one_batch() -> None:
    async def run() -> None:
        model = Model()
        batcher = made(model, BatchPace.SHORT, Limits(batch_max=8))
        await asyncio.gather(*[batcher.compute(row(value)) for value in range(20)])
        assert model.sizes == [8, 8, 4]

    asyncio.run(run())


def test_a_lone_request_is_computed_alone_and_what_comes_meanwhile_is_one_batch() -> None:
    async def run() -> None:
        model = Model()
        batcher = made(model, BatchPace.LONG)
        model.gate.clear()
        lone = asyncio.create_task(batcher.compute(row(1)))
        await asyncio.to_thread(model.entered.wait, 30)
        others = [asyncio.create_task(batcher.compute(row(value))) for value in range(5)]
        await asyncio.sleep(0)
        assert (batcher.running, batcher.waiting) == (1, 5)
        model.gate.set()
        await asyncio.gather(lone, *others)
        assert model.sizes == [1, 5]

    asyncio.run(run())


def test_requests_of_other_shapes_wait_for_their_own_batch() -> None:
    async def run() -> None:
        model = Model()
        batcher = made(model, BatchPace.SHORT)
        asked = [row(1, 2), row(2, 3), row(3, 2), row(4, 3), row(5, 2)]
        found = await asyncio.gather(*[batcher.compute(inputs) for inputs in asked])
        for inputs, outputs in zip(asked, found, strict=True):
            assert np.array_equal(outputs["y"], inputs["x"] * 2)
        assert model.sizes == [3, 2]

    asyncio.run(run())


def test_a_version_that_does_not_batch_gets_every_request_for_itself() -> None:
    async def run() -> None:
        model = Model()
        batcher = made(model, BatchPace.LONG, batches=False)
        await asyncio.gather(*[batcher.compute(row(value)) for value in range(5)])
        assert model.sizes == [1] * 5

    asyncio.run(run())


@pytest.mark.parametrize("pace", [BatchPace.SHORT, BatchPace.LONG])
def test_one_bad_request_does_not_fail_its_neighbours(pace: BatchPace) -> None:
    async def run() -> None:
        model = Model()
        batcher = made(model, pace)
        if pace is BatchPace.LONG:
            model.gate.clear()
        tasks = [asyncio.create_task(batcher.compute(row(v))) for v in (1, 2, -3, 4)]
        await asyncio.sleep(0)
        model.gate.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(found[2], ModelFailed)
        assert "ValueError: negative" in found[2].what
        assert "second line" not in str(found[2])
        for index in (0, 1, 3):
            assert isinstance(found[index], dict)

    asyncio.run(run())


@pytest.mark.parametrize("pace", EVERY)
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_whatever_a_model_raises_is_the_models_failure(
    pace: BatchPace, error: BaseException
) -> None:
    def predict(inputs: Mapping[str, np.ndarray]) -> Outputs:
        raise error

    async def run() -> None:
        batcher = made(predict, pace)
        with pytest.raises(ModelFailed):
            await batcher.compute(row(1))
        with pytest.raises(ModelFailed):
            await batcher.compute(row(1))

    asyncio.run(run())


def test_a_full_queue_refuses_at_once() -> None:
    async def run() -> None:
        model = Model()
        model.gate.clear()
        batcher = made(model, BatchPace.LONG, Limits(queue_max=2))
        first = asyncio.create_task(batcher.compute(row(0)))
        await asyncio.to_thread(model.entered.wait, 30)
        waiting = [asyncio.create_task(batcher.compute(row(1))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Full):
            await batcher.compute(row(2))
        assert batcher.refused == 1
        model.gate.set()
        await asyncio.gather(first, *waiting)

    asyncio.run(run())


def test_a_request_that_waits_too_long_is_told_so_and_never_computed() -> None:
    async def run() -> None:
        model = Model()
        model.gate.clear()
        batcher = made(model, BatchPace.LONG, Limits(timeout_s=0.05))
        first = asyncio.create_task(batcher.compute(row(0)))
        await asyncio.to_thread(model.entered.wait, 30)
        second = asyncio.create_task(batcher.compute(row(1)))
        for each in (first, second):
            with pytest.raises(TimedOut):
                await each
        model.gate.set()
        assert await batcher.close(30)
        assert model.sizes == [1]

    asyncio.run(run())


def test_a_cancelled_request_is_dropped_from_the_queue() -> None:
    async def run() -> None:
        model = Model()
        model.gate.clear()
        batcher = made(model, BatchPace.LONG)
        first = asyncio.create_task(batcher.compute(row(0)))
        await asyncio.to_thread(model.entered.wait, 30)
        second = asyncio.create_task(batcher.compute(row(1)))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        model.gate.set()
        await first
        assert await batcher.close(30)
        assert model.sizes == [1]

    asyncio.run(run())


@pytest.mark.parametrize("pace", EVERY)
def test_a_closed_batcher_answers_what_it_has_and_takes_nothing_more(pace: BatchPace) -> None:
    async def run() -> None:
        batcher = made(Model(), pace)
        asked = [asyncio.create_task(batcher.compute(row(value))) for value in range(3)]
        await asyncio.sleep(0)
        assert await batcher.close(30)
        assert len(await asyncio.gather(*asked)) == 3
        with pytest.raises(NotHere):
            await batcher.compute(row(1))

    asyncio.run(run())


@pytest.mark.parametrize("pace", LOOP)
def test_a_computation_that_turns_out_long_moves_into_a_thread(pace: BatchPace) -> None:
    threads = []

    def predict(inputs: Mapping[str, np.ndarray]) -> Outputs:
        threads.append(threading.current_thread())
        if inputs["x"][0, 0] == 1:
            time.sleep(2 * INLINE_STALL_S)  # pause: what it computes so long
        return {"y": inputs["x"]}

    async def run() -> None:
        batcher = made(predict, pace, Limits(batch_max=1))
        await asyncio.gather(*[batcher.compute(row(value)) for value in (0, 1, 2, 3)])
        await batcher.compute(row(4))
        assert batcher.pace is BatchPace.LONG
        assert threads[0] is threading.main_thread()
        assert threads[-1] is not threading.main_thread()
        assert len(threads) == 5

    asyncio.run(run())


@pytest.mark.parametrize("pace", LOOP)
def test_a_version_that_is_short_again_comes_back_from_its_thread_and_loses_nobody(
    pace: BatchPace,
) -> None:
    threads = []

    def predict(inputs: Mapping[str, np.ndarray]) -> Outputs:
        threads.append(threading.current_thread())
        if inputs["x"][0, 0] == 1:
            time.sleep(2 * INLINE_STALL_S)  # pause: what it computes so long
        return {"y": inputs["x"]}

    async def asks(batcher: Batcher, value: float) -> None:
        while batcher.pace is BatchPace.LONG:
            assert (await batcher.compute(row(value)))["y"].tolist() == [[value] * 2]

    async def run() -> None:
        batcher = made(predict, pace, Limits(batch_max=1))
        await batcher.compute(row(1))
        assert batcher.pace is BatchPace.LONG
        # Several ask all the time, so that the thread always has something to do.
        await asyncio.gather(*[asks(batcher, float(value)) for value in range(2, 10)])
        assert batcher.pace is pace
        await batcher.compute(row(2))
        assert threads[-1] is threading.main_thread()
        assert len(threads) > INLINE_WINDOW
        assert batcher.waiting == batcher.running == 0
        # And goes again when it must.
        await batcher.compute(row(1))
        assert batcher.pace is BatchPace.LONG
        await batcher.compute(row(3))
        assert threads[-1] is not threading.main_thread()
        assert await batcher.close(30)

    asyncio.run(run())


def test_what_waits_while_a_version_comes_back_is_answered_also_when_the_rest_was_given_up() -> (
    None
):
    model = Model()

    async def run() -> None:
        batcher = made(model, BatchPace.SHORT, Limits(batch_max=1))
        batcher.pace = BatchPace.LONG  # as if it had been moved
        batcher._start_thread()
        model.gate.clear()
        first = asyncio.create_task(batcher.compute(row(1)))
        await asyncio.to_thread(model.entered.wait, 30)
        given_up = asyncio.create_task(batcher.compute(row(2)))
        await asyncio.sleep(0)
        batcher._returning = True
        later = asyncio.create_task(batcher.compute(row(3)))
        await asyncio.sleep(0)
        given_up.cancel()
        model.gate.set()
        assert (await first)["y"].tolist() == [[2, 2]]
        assert (await asyncio.wait_for(later, 30))["y"].tolist() == [[6, 6]]
        assert batcher.pace is BatchPace.SHORT
        assert await batcher.close(30)

    asyncio.run(run())


def test_how_long_a_computation_runs_can_be_asked_by_another_thread() -> None:
    async def run() -> None:
        model = Model()
        model.gate.clear()
        batcher = made(model, BatchPace.LONG)
        asked = asyncio.create_task(batcher.compute(row(0)))
        await asyncio.to_thread(model.entered.wait, 30)
        assert batcher.busy_s(time.monotonic() + 60) > 59
        model.gate.set()
        await asked
        assert batcher.busy_s(time.monotonic() + 60) == 0

    asyncio.run(run())


def test_a_computation_that_hangs_is_watched_though_the_one_before_it_is_delivered_late() -> None:
    """The event loop is busy while the thread ends one batch and begins the next, which hangs."""

    async def run() -> None:
        hangs, released = threading.Event(), threading.Event()

        def predict(inputs: Mapping[str, np.ndarray]) -> Outputs:
            if inputs["x"][0, 0] == 2:
                hangs.set()
                released.wait(30)
            return {"y": inputs["x"]}

        batcher = made(predict, BatchPace.LONG, Limits(batch_max=1))
        first, second = batcher.begin(row(1)), batcher.begin(row(2))
        assert hangs.wait(30)  # and the loop stands still meanwhile
        await first
        assert batcher.busy_s(time.monotonic() + 60) > 59
        assert batcher.running == 1
        released.set()
        await second
        assert batcher.busy_s(time.monotonic() + 60) == 0
        assert await batcher.close(10)

    asyncio.run(run())


def test_a_thread_that_waits_for_requests_does_not_keep_the_last_one_in_memory() -> None:
    async def run() -> None:
        batcher = made(lambda inputs: {"y": inputs["x"]}, BatchPace.LONG)
        large = np.zeros((1, 2), np.float32)
        gone = asyncio.Event()
        weakref.finalize(large, asyncio.get_running_loop().call_soon_threadsafe, gone.set)
        assert (await batcher.compute({"x": large}))["y"] is large
        del large
        async with asyncio.timeout(30):
            await gone.wait()
        assert await batcher.close(10)

    asyncio.run(run())
