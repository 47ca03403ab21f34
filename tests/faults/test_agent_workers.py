"""Real workers under a real agent: how they end, what they leave behind, what they may use."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.assembly import LocalAgent
from holdfast.agent.events import Key
from holdfast.wire.errors import BugError, Occupied
from holdfast.wire.orders import Attempt, GiveSettings, GiveView, StopWorker, TakeShare, View
from holdfast.wire.reports import ExitKind, WorkerFacts, WorkerPhase
from tests.faults.agent_process import (
    NODE,
    WAIT_S,
    AgentProcess,
    machine,
    open_agent,
    processes_of,
    start_order,
    until,
)

WORKER = ("python", "-m", "tests.faults.agent_worker")
Story = Callable[[LocalAgent, Path], Coroutine[Any, Any, None]]


def play(folder: Path, story: Story, **bounds: Any) -> None:
    """Run `story` with an agent; nothing of it may run afterwards."""

    async def whole() -> None:
        agent = await open_agent(folder / "agent", **bounds)
        try:
            async with asyncio.timeout(WAIT_S):
                await story(agent, folder)
        finally:
            await agent.close()

    with AgentProcess(folder / "agent"):
        asyncio.run(whole())


async def facts_when(
    agent: LocalAgent, condition: Callable[[WorkerFacts], object], worker: int = 1
) -> WorkerFacts:
    """The facts of a worker, once they are so."""
    version = 0
    while True:
        for one in agent.snapshot().workers:
            if one.worker == worker and condition(one):
                return one
        version = await agent.changed(version)


async def ended(agent: LocalAgent, worker: int = 1) -> WorkerFacts:
    return await facts_when(agent, lambda one: one.exit, worker)


async def settled(condition: Callable[[], object]) -> None:
    """Wait for something that the snapshot does not say."""
    await asyncio.to_thread(until, condition, bool)


def exit_of(facts: WorkerFacts) -> tuple[ExitKind, str]:
    assert facts.exit is not None
    return facts.exit.kind, facts.exit.detail


@pytest.mark.parametrize(
    ("script", "kind", "says"),
    [
        ("raise ValueError('no')", ExitKind.ERROR, "ValueError: no"),
        ("import os; os.kill(os.getpid(), 9)", ExitKind.SIGNAL, "SIGKILL"),
        ("import os; os.abort()", ExitKind.ERROR, "SIGABRT"),
        ("print('hello')", ExitKind.DONE, "status 0"),
    ],
)
def test_an_end_is_reported_with_its_reason_and_nothing_stays(
    tmp_path: Path, script: str, kind: ExitKind, says: str
) -> None:
    before = zombies()  # of other tests in this process

    async def story(agent: LocalAgent, folder: Path) -> None:
        await agent.deliver(1, start_order(1, "python", "-c", script))
        found, detail = exit_of(await ended(agent))
        assert found is kind
        assert says in detail
        await settled(lambda: not list((folder / "agent" / "workers").iterdir()))
        assert processes_of(folder / "agent") == []

    play(tmp_path, story)
    assert set(zombies()) <= set(before)


def zombies() -> list[int]:
    """Children of this process that were not reaped."""
    listing = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    states = {}
    for pid in listing:
        states[int(pid)] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return [pid for pid, state in states.items() if state == "Z"]


def test_a_command_that_does_not_exist_is_the_users_error(tmp_path: Path) -> None:
    async def story(agent: LocalAgent, _folder: Path) -> None:
        await agent.deliver(1, start_order(1, "no-such-command"))
        kind, detail = exit_of(await ended(agent))
        assert kind is ExitKind.ERROR
        assert "cannot start 'no-such-command'" in detail

    play(tmp_path, story)


def test_a_worker_that_uses_more_memory_than_its_limit_ends_and_its_end_says_so(
    tmp_path: Path,
) -> None:
    script = "import time; held = bytearray(b'x') * (600 << 20); time.sleep(1000)"

    async def story(agent: LocalAgent, _folder: Path) -> None:
        await agent.deliver(1, start_order(1, "python", "-c", script, memory_bytes=300 << 20))
        kind, detail = exit_of(await ended(agent))
        assert kind is ExitKind.MEMORY, detail
        assert re.match(
            r"it met its memory limit: it had \d+\.\d MiB, the limit is 300 MiB; "
            r"raise `memory` under `resources` in its job file",
            detail,
        )

    play(tmp_path, story)


def test_what_a_worker_has_started_counts_to_its_memory_limit(tmp_path: Path) -> None:
    """Five children of 100 MiB each, in sessions of their own; none is over the limit alone."""
    script = (
        "import os, time\n"
        "for _ in range(5):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        held = bytearray(b'x') * (100 << 20)\n"
        "        time.sleep(1000)\n"
        "time.sleep(1000)\n"
    )

    async def story(agent: LocalAgent, folder: Path) -> None:
        await agent.deliver(1, start_order(1, "python", "-c", script, memory_bytes=300 << 20))
        kind, detail = exit_of(await ended(agent))
        assert kind is ExitKind.MEMORY, detail
        assert processes_of(folder / "agent") == []

    play(tmp_path, story)


def test_a_worker_that_reserves_much_memory_and_uses_little_of_it_lives(tmp_path: Path) -> None:
    """Four gigabytes of untouched pages, forty threads with large stacks, and four children that
    share what their parent has written: more than the limit by every count but the right one."""
    script = (
        "import mmap, os, threading, time\n"
        "reserved = mmap.mmap(-1, 4 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "threading.stack_size(256 << 20)\n"
        "shared = bytearray(b'x') * (90 << 20)\n"
        "for _ in range(4):\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(1000)\n"
        "ended = threading.Event()\n"
        "threads = [threading.Thread(target=ended.wait) for _ in range(40)]\n"
        "for thread in threads: thread.start()\n"
        "time.sleep(3)\n"  # many looks at it
        "assert all(thread.is_alive() for thread in threads)\n"
        "ended.set()\n"
    )

    async def story(agent: LocalAgent, _folder: Path) -> None:
        await agent.deliver(1, start_order(1, "python", "-c", script, memory_bytes=300 << 20))
        kind, detail = exit_of(await ended(agent))
        assert kind is ExitKind.DONE, detail

    play(tmp_path, story)


def test_what_a_worker_left_running_is_ended_also_in_another_session(tmp_path: Path) -> None:
    script = (
        "import os, sys, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        line = ['python', '-c', 'import time; time.sleep(1000)', sys.argv[1]]\n"
        "        os.execve(sys.executable, line, {})\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )

    async def story(agent: LocalAgent, folder: Path) -> None:
        # The path in its command line is how it is found: it has no environment any more.
        mark = str(folder / "agent" / "workers")
        await agent.deliver(1, start_order(1, "python", "-c", script, mark))
        kind, _ = exit_of(await ended(agent))
        assert kind is ExitKind.DONE
        assert processes_of(folder / "agent") == []

    play(tmp_path, story)


def test_a_worker_that_does_not_heed_sigterm_is_killed_with_all_that_it_started(
    tmp_path: Path,
) -> None:
    script = (
        "import os, pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: pathlib.Path(sys.argv[1], 'asked').touch())\n"
        "os.fork()\n"
        "pathlib.Path(sys.argv[1], 'up').touch()\n"
        "while True: time.sleep(1)\n"
    )

    async def story(agent: LocalAgent, folder: Path) -> None:
        await agent.deliver(1, start_order(1, "python", "-c", script, str(folder)))
        await settled((folder / "up").exists)
        await agent.deliver(1, StopWorker(NODE, "job", 1, 0.3))
        kind, detail = exit_of(await ended(agent))
        assert kind is ExitKind.STOPPED
        assert "SIGKILL" in detail
        assert (folder / "asked").exists()
        assert processes_of(folder / "agent") == []

    play(tmp_path, story)


def test_a_worker_that_is_asked_leaves_within_its_notice(tmp_path: Path) -> None:
    async def story(agent: LocalAgent, folder: Path) -> None:
        await agent.deliver(1, start_order(1, *WORKER, str(folder)))
        await facts_when(agent, lambda one: one.phase is WorkerPhase.READY)
        await agent.deliver(1, StopWorker(NODE, "job", 1, 60.0))
        assert exit_of(await ended(agent))[0] is ExitKind.LEFT

    play(tmp_path, story)


def test_a_worker_whose_shim_is_killed_dies_with_all_that_it_started(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, sys, time\n"
        "os.fork()\n"
        "pathlib.Path(sys.argv[1], 'up').touch()\n"
        "time.sleep(1000)\n"
    )

    async def story(agent: LocalAgent, folder: Path) -> None:
        await agent.deliver(1, start_order(1, "python", "-c", script, str(folder)))
        await settled((folder / "up").exists)
        claim = agent._folders.claim(Key("job", 1))
        assert claim is not None
        os.kill(claim.pid, signal.SIGKILL)
        assert exit_of(await ended(agent))[0] is ExitKind.LOST
        assert processes_of(folder / "agent") == []

    play(tmp_path, story)


def test_a_worker_hears_views_settings_and_shares_and_reports_its_steps(tmp_path: Path) -> None:
    async def story(agent: LocalAgent, folder: Path) -> None:
        await agent.deliver(1, start_order(1, *WORKER, str(folder)))
        await facts_when(agent, lambda one: one.phase is WorkerPhase.READY)
        await agent.deliver(1, GiveView(NODE, "job", 1, View(1, {1: (0,), 2: (1,)}, 0)))
        await facts_when(agent, lambda one: one.view == 1 and (one.step or 0) > 3)
        await agent.deliver(1, GiveSettings(NODE, "job", 1, (("lr", "0.1", 7),)))
        await agent.deliver(1, TakeShare(NODE, "job", 1, Attempt(1, 5, 1, 0.0), 0, 1))
        await facts_when(agent, lambda one: one.missed == {1})
        await agent.deliver(1, GiveView(NODE, "job", 1, View(2, {2: (0, 1)})))
        assert exit_of(await ended(agent))[0] is ExitKind.LEFT

    play(tmp_path, story)


def test_a_worker_has_its_own_folder_ports_and_environment(tmp_path: Path) -> None:
    script = (
        "import os, tempfile, sys, pathlib\n"
        "names = ('JOB', 'WORKER', 'PORTS', 'HOST', 'STORE')\n"
        "found = [os.environ['MINE']] + [os.environ[f'HOLDFAST_{name}'] for name in names]\n"
        "found += [tempfile.gettempdir(), os.getcwd(), str(os.getsid(0) == os.getpid())]\n"
        "pathlib.Path(sys.argv[1], 'seen').write_text('|'.join(found))\n"
    )

    async def story(agent: LocalAgent, folder: Path) -> None:
        order = start_order(
            1, "python", "-c", script, str(folder), environment={"MINE": "x", "HOLDFAST_JOB": "no"}
        )
        await agent.deliver(1, order)
        await ended(agent)
        home = folder / "agent" / "workers" / "job.1"
        mine, job, worker, ports, host, store, temporary, cwd, leader = (
            (folder / "seen").read_text().split("|")
        )
        assert (job, worker, mine, leader) == ("job", "1", "x", "True")
        (facts,) = agent.snapshot().workers
        assert facts.address == f"{host}:{ports.split(',')[0]}"
        assert (host, store) == ("127.0.0.1", "file:/somewhere")
        assert (temporary, cwd) == (str(home / "tmp"), str(home / "work"))

    play(tmp_path, story)


def test_logs_are_rotated_bounded_and_stay_after_the_end(tmp_path: Path) -> None:
    script = "for number in range(20_000): print(f'line {number}')"

    async def story(agent: LocalAgent, folder: Path) -> None:
        await agent.deliver(1, start_order(1, "python", "-c", script))
        await ended(agent)
        logs = folder / "agent" / "logs" / "job.1"
        whole = (logs / "out.log.1").read_text() + (logs / "out.log").read_text()
        assert all((logs / name).stat().st_size <= 10_000 for name in ("out.log", "out.log.1"))
        lines = whole.splitlines()[1:]
        first = int(lines[0].split()[1])
        assert lines == [f"line {number}" for number in range(first, 20_000)]

    play(tmp_path, story, log_bytes_max=10_000)


def test_a_stop_that_comes_with_the_start_leaves_nothing_running(tmp_path: Path) -> None:
    async def story(agent: LocalAgent, folder: Path) -> None:
        await asyncio.gather(
            agent.deliver(1, start_order(1, "sleep", "1000")),
            agent.deliver(1, StopWorker(NODE, "job", 1, 0.0)),
        )
        assert exit_of(await ended(agent))[0] is ExitKind.STOPPED
        await settled(lambda: processes_of(folder / "agent") == [])

    play(tmp_path, story)


def test_one_folder_has_one_agent(tmp_path: Path) -> None:
    async def story(_agent: LocalAgent, folder: Path) -> None:
        with pytest.raises(Occupied, match="in use"):
            await open_agent(folder / "agent")

    play(tmp_path, story)


def test_a_worker_whose_bundle_fails_in_a_way_that_nobody_foresaw_ends_and_says_so(
    tmp_path: Path,
) -> None:
    """It would be starting for ever: nobody asks what became of its start."""

    def broken(_name: str) -> Path:
        raise ValueError("nobody foresaw it")

    async def story() -> None:
        agent = await LocalAgent.start(tmp_path / "agent", NODE, machine(), broken)
        try:
            await agent.deliver(1, replace(start_order(1, "true"), bundle="b"))
            async with asyncio.timeout(WAIT_S):
                kind, detail = exit_of(await ended(agent))
        finally:
            await agent.close()
        assert kind is ExitKind.ERROR
        assert "ValueError('nobody foresaw it')" in detail

    with AgentProcess(tmp_path / "agent"):
        asyncio.run(story())


def test_an_agent_that_cannot_find_out_how_a_worker_ended_ends_and_says_so(tmp_path: Path) -> None:
    """The worker has spoilt what its shim wrote: the next look at it fails."""
    script = (
        "import os, pathlib; pathlib.Path(os.environ['HOLDFAST_SCRATCH'], 'claim').write_text('[]')"
    )

    async def story(agent: LocalAgent, _folder: Path) -> None:
        await agent.deliver(1, start_order(1, "python", "-c", script))
        with pytest.raises(BugError, match="a task of the agent has ended unexpectedly"):
            await agent.failed()

    play(tmp_path, story)
