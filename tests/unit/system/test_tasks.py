"""Threads and tasks with an owner: it hears of their death, and of nothing else."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.system import tasks
from holdfast.system.tasks import WAITED, Tasks, owned, start_task, start_thread, unexpected
from holdfast.wire.errors import BugError, Unavailable


async def _ends(how: BaseException | None) -> None:
    if how is not None:
        raise how


def _fails() -> None:
    raise ValueError("a bug")


# --- tasks ----------------------------------------------------------------------------------------


def test_the_owner_of_a_task_hears_why_it_died() -> None:
    deaths: list[BaseException] = []
    why = ValueError("a bug")

    async def run() -> None:
        await asyncio.wait([start_task(_ends(why), "a task", deaths.append)])
        await asyncio.sleep(0)

    asyncio.run(run())
    assert deaths == [why]
    found = unexpected("a task", why)
    assert isinstance(found, BugError)
    assert "ValueError: a bug" in str(found)


def test_a_task_that_ends_or_is_called_off_has_not_died() -> None:
    deaths: list[BaseException] = []

    async def run() -> None:
        done = start_task(_ends(None), "done", deaths.append)
        cancelled = start_task(asyncio.sleep(1_000), "cancelled", deaths.append)
        await asyncio.wait([done])
        await tasks.end(cancelled)
        assert cancelled.cancelled()
        await asyncio.sleep(0)

    asyncio.run(run())
    assert deaths == []


def test_the_owner_of_what_runs_in_another_thread_hears_too() -> None:
    deaths: list[BaseException] = []
    with ThreadPoolExecutor(1) as pool:
        owned(pool.submit(lambda: 1 // 0), deaths.append)
    assert [type(each) for each in deaths] == [ZeroDivisionError]


def test_an_owner_of_many_tasks_ends_them_all_and_waits_for_it() -> None:
    ended: list[str] = []

    async def stays(name: str) -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            await asyncio.sleep(0.01)  # tidying up takes a while
            ended.append(name)

    async def run() -> None:
        group = Tasks(WAITED)
        for name in ("one", "two"):
            group.start(stays(name), name)
        group.start(_ends(None), "short")
        await asyncio.sleep(0)
        await group.close()
        assert sorted(ended) == ["one", "two"]
        await group.wait()  # there is nothing left

    asyncio.run(run())


def test_of_several_works_the_first_end_ends_all_and_its_error_is_raised() -> None:
    cut: list[str] = []

    async def stays() -> None:
        try:
            await asyncio.sleep(1_000)
        except asyncio.CancelledError:
            cut.append("stays")
            raise

    async def run() -> None:
        with pytest.raises(ValueError, match="a bug"):
            await tasks.until_one_ends(stays(), _ends(ValueError("a bug")), name="works")
        await tasks.until_one_ends(stays(), _ends(None), name="works")

    asyncio.run(run())
    assert cut == ["stays", "stays"]


def test_what_is_meant_for_a_loop_that_has_ended_harms_nobody() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    tasks.in_loop(loop, _fails)


# --- threads --------------------------------------------------------------------------------------


def test_the_owner_of_a_thread_hears_why_it_died_and_can_wait_for_its_end() -> None:
    deaths: list[BaseException] = []
    thread = start_thread(_fails, "a thread", deaths.append)
    assert thread.join(120.0)
    assert [str(each) for each in deaths] == ["a bug"]


def test_who_waits_for_a_thread_gets_what_it_died_of() -> None:
    with pytest.raises(ValueError, match="a bug"):
        start_thread(_fails, "a thread", WAITED).result()


def test_a_thread_that_closes_its_own_owner_does_not_wait_for_itself() -> None:
    seen: list[bool] = []
    ready = threading.Event()

    def run() -> None:
        ready.wait(120.0)
        seen.append(thread.join())

    thread = start_thread(run, "a thread", WAITED)
    ready.set()
    thread.result()
    assert seen == [False]


# --- the end of a process -------------------------------------------------------------------------


def test_a_main_of_ours_is_told_to_end_and_knows_why() -> None:
    ends: list[str] = []
    with tasks.main_ended_by(lambda: ends.append("end")):
        for name in ("the watch", "another"):
            start_thread(_fails, name).join()
    found = tasks.death()
    assert ends == ["end"], "it is told once"
    assert isinstance(found, BugError)
    assert (found.what, found.why) == ("the watch has ended unexpectedly", "ValueError: a bug")


def test_an_error_with_a_meaning_of_its_own_stays_what_it_is() -> None:
    away = Unavailable("no server answers")

    def fails() -> None:
        raise away

    with tasks.main_ended_by(lambda: None):
        start_thread(fails, "the watch").join()
        assert tasks.death() is away


# A process of ours that waits to be told to end, and a part of it that dies.
DYING = """
import sys, threading
from holdfast.system import process, tasks

def dies():
    raise ValueError("a bug")

def serve(_words):
    stop = threading.Event()
    process.on_termination({end})
    part = tasks.start_thread(dies, "the watch")
    print("ended well", stop.wait(60))
    part.join()
    return 0

tasks.DEATH_END_S = {within_s}
sys.exit(process.main(serve))
"""


def test_a_process_of_ours_that_loses_a_part_ends_in_order_and_says_which() -> None:
    done = _run(DYING.format(end="stop.set", within_s=60))
    assert done.returncode == BugError.exit_code
    assert done.stdout == "ended well True\n"
    assert "ValueError: a bug" in done.stderr, "the traceback is in its log"
    assert "the watch has ended unexpectedly" in done.stderr.splitlines()[-3]


def test_a_process_of_ours_that_loses_a_part_and_does_not_end_is_ended() -> None:
    done = _run(DYING.format(end="lambda: None", within_s=0.05))
    assert done.returncode == BugError.exit_code
    assert "does not come to an end by itself" in done.stderr


def test_in_a_program_of_somebody_else_nothing_is_ended_and_the_death_is_seen() -> None:
    done = _run(
        "from holdfast.system import tasks\n"
        "tasks.start_thread(lambda: 1 // 0, 'the watch').join()\n"
        "print('goes on')"
    )
    assert (done.returncode, done.stdout) == (0, "goes on\n")
    assert "ZeroDivisionError" in done.stderr


def _run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120
    )
