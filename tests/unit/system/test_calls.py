"""The loop in which a process calls by gRPC."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from holdfast.system import calls

WAIT_S = 20.0


async def here() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def test_one_loop_serves_every_call_and_lives_on_after_each_of_them() -> None:
    found: list[asyncio.AbstractEventLoop] = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: found.append(calls.run(here())))
        thread.start()
        thread.join(WAIT_S)
    first, second = found
    assert first is second
    assert first.is_running()


def test_what_a_call_raises_is_raised_where_it_was_asked_for() -> None:
    async def fails() -> None:
        raise LookupError("no door")

    with pytest.raises(LookupError, match="no door"):
        calls.run(fails())


def test_work_that_is_ended_is_cancelled_and_over_when_end_returns() -> None:
    told: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            told.append("over")

    going = calls.Going(waits())
    calls.run(asyncio.sleep(0))  # it waits by now
    assert going.end()
    assert told == ["over"]
    assert going.end()
    with pytest.raises(asyncio.CancelledError):
        going.result()


def test_ctrl_c_while_a_call_is_waited_for_cancels_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.append("cancelled")
            raise

    def interrupted(_going: calls.Going[None]) -> None:
        calls.Going(asyncio.sleep(0)).end()  # it waits by now
        raise KeyboardInterrupt

    monkeypatch.setattr(calls.Going, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        calls.run(waits())
    assert told == ["cancelled"]


def test_a_process_that_has_called_ends_quietly_whatever_still_goes_on() -> None:
    script = (
        "import asyncio\n"
        "from holdfast.system import calls\n"
        "calls.Going(asyncio.sleep(3600))\n"
        "print(calls.run(asyncio.sleep(0, 'said')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "said\n", "")
