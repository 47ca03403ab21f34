"""The loop in which a real shell runs: order, time, death, pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from simulation.aio import Killed, VirtualLoop, loop_of
from simulation.kernel import Kernel, SimulatedProcess, Violation

Story = Callable[[list[str]], Coroutine[Any, Any, None]]


class Slow:
    def takes_s(self) -> float:
        return 2.0


def begun(story: Story) -> tuple[SimulatedProcess, VirtualLoop, list[str]]:
    process, told = SimulatedProcess(Kernel(1), "it"), list[str]()
    process.begin()
    loop = loop_of(process)
    loop.run(story(told), lambda task: task.cancelled() or task.result())
    return process, loop, told


def ended(process: SimulatedProcess) -> None:
    while process.kernel.step():
        pass


async def counts(told: list[str]) -> None:
    async def one(name: str, pause_s: float) -> None:
        told.append(f"{name} begins")
        await asyncio.sleep(pause_s)
        told.append(f"{name} ends at {asyncio.get_running_loop().time():g}")

    await asyncio.gather(one("a", 3.0), one("b", 1.0), one("c", 1.0))


def test_what_is_ready_runs_in_order_and_timers_in_the_order_of_their_times() -> None:
    process, _, told = begun(counts)
    assert told == ["a begins", "b begins", "c begins"]
    ended(process)
    assert told[3:] == ["b ends at 1", "c ends at 1", "a ends at 3"]


def test_nothing_of_a_dead_process_runs_and_its_tidying_up_starts_nothing() -> None:
    async def tidies(told: list[str]) -> None:
        try:
            await asyncio.sleep(1.0)
            told.append("it goes on")
        finally:
            told.append("it tidies up")
            await asyncio.sleep(1.0)
            told.append("and takes its time")

    process, loop, told = begun(tidies)
    process.die()
    loop.end()
    ended(process)
    assert told == ["it tidies up"]


def test_a_stopped_process_goes_on_later_with_all_that_it_waits_for() -> None:
    process, _, told = begun(counts)
    process.stop()
    ended(process)
    assert len(told) == 3
    process.go_on()
    assert told[3:] == ["b ends at 3", "c ends at 3", "a ends at 3"]


def test_work_takes_as_long_as_its_executor_says_and_none_without_one() -> None:
    async def works(told: list[str]) -> None:
        loop: Any = asyncio.get_running_loop()
        await asyncio.to_thread(told.append, f"at {loop.time():g}")
        await loop.run_in_executor(Slow(), told.append, "written")
        told.append(f"at {loop.time():g}")

    process, _, told = begun(works)
    assert told == ["at 0"]
    ended(process)
    assert told == ["at 0", "written", "at 2"]


def test_a_violation_is_raised_though_the_shell_catches_everything() -> None:
    def breaks() -> None:
        raise Violation("rule", "what")

    async def catches(told: list[str]) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        try:
            loop.check(breaks)
        except Exception:
            told.append("it was caught")
        told.append("it went on")

    with pytest.raises(Violation, match="rule"):
        begun(catches)


def test_a_process_that_dies_while_it_does_something_does_nothing_after_it() -> None:
    async def dies(told: list[str]) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.call_soon(told.append, "what was ready")
        loop.process.die()
        loop.end()
        raise Killed

    process, _, told = begun(dies)
    ended(process)
    assert told == []
