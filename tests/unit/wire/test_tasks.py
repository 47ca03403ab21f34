"""Tasks with an owner: it hears of their death, and of nothing else."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from holdfast.wire.errors import BugError
from holdfast.wire.tasks import owned, unexpected


async def _ends(how: BaseException | None) -> None:
    if how is not None:
        raise how


def test_the_owner_of_a_task_hears_why_it_died() -> None:
    deaths: list[BaseException] = []
    why = ValueError("a bug")

    async def run() -> None:
        task = owned(asyncio.create_task(_ends(why)), deaths.append)
        await asyncio.wait([task])
        await asyncio.sleep(0)

    asyncio.run(run())
    assert deaths == [why]
    found = unexpected("a task", why)
    assert isinstance(found, BugError)
    assert "ValueError: a bug" in str(found)


def test_a_task_that_ends_or_is_called_off_has_not_died() -> None:
    deaths: list[BaseException] = []

    async def run() -> None:
        done = owned(asyncio.create_task(_ends(None)), deaths.append)
        cancelled = owned(asyncio.create_task(asyncio.sleep(1_000)), deaths.append)
        cancelled.cancel()
        await asyncio.wait([done, cancelled])
        await asyncio.sleep(0)

    asyncio.run(run())
    assert deaths == []


def test_the_owner_of_what_runs_in_another_thread_hears_too() -> None:
    deaths: list[BaseException] = []
    with ThreadPoolExecutor(1) as pool:
        owned(pool.submit(lambda: 1 // 0), deaths.append)
    assert [type(each) for each in deaths] == [ZeroDivisionError]
