"""What a worker's folder says to the next agent: it is made before the journal knows of the worker,
and removed after the journal knows of its end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.agent.agent import Agent
from holdfast.agent.events import Accepted, Entry, key_of
from holdfast.agent.journal import Journal
from holdfast.wire.errors import RetryError
from holdfast.wire.orders import StartWorker
from holdfast.wire.reports import WorkerPhase
from holdfast.wire.room import Resources
from tests.faults.agent_process import NODE, WAIT_S, AgentProcess, machine, processes_of, until

COUNT = "import sys; open(sys.argv[1], 'a').write('x\\n')"


def count(folder: Path) -> int:
    path = folder / "starts"
    return len(path.read_text().splitlines()) if path.exists() else 0


def order(folder: Path, bundle: str = "") -> StartWorker:
    line = (sys.executable, "-c", COUNT, str(folder / "starts"))
    return StartWorker(NODE, "job", 1, bundle, line, Resources(1.0))


def test_a_worker_whose_end_the_journal_has_lost_again_is_not_started_twice(
    tmp_path: Path,
) -> None:
    home = tmp_path / "agent"
    with AgentProcess(home) as agent:
        agent.start()
        agent.ask("start", worker=1, command=["python", "-c", COUNT, str(tmp_path / "starts")])
        assert agent.until(lambda now: now["1"]["phase"] == "gone")["1"]["exit"] == "done"
        until(lambda: list((home / "workers").iterdir()), lambda found: not found)
        agent.kill()
        # A bit of the last batch flips: it looks as one that was being written.
        raw = bytearray((home / "journal").read_bytes())
        raw[-1] ^= 1
        (home / "journal").write_bytes(raw)
        end = agent.start()["1"]
        assert (end["phase"], end["exit"]) == ("gone", "lost"), end
        again = agent.ask("start", worker=1, command=["python", "-c", COUNT, "never"])["1"]
        assert again["phase"] == "gone"
        assert not list((home / "workers").iterdir()), "nobody made the folder again"
        agent.kill()
        assert agent.start()["1"]["exit"] == "lost", "and it stays so"
    assert count(tmp_path) == 1
    until(lambda: processes_of(home), lambda found: not found)


def test_a_worker_that_nobody_has_claimed_is_started_by_the_next_agent(tmp_path: Path) -> None:
    home = tmp_path / "agent"
    folder = home / "workers" / "job.1"

    def none_yet(name: str) -> Path:
        raise RetryError(f"{name} is not there yet", fix="wait")

    async def story() -> None:
        agent = await Agent.start(home, NODE, machine(), none_yet)
        await agent.deliver(1, order(tmp_path, "b"))
        await agent.close()
        assert folder.is_dir()
        assert not (folder / "claim").exists()
        agent = await Agent.start(home, NODE, machine(), lambda _name: tmp_path)
        async with asyncio.timeout(WAIT_S):
            while (facts := agent.snapshot().workers[0]).phase is not WorkerPhase.GONE:
                await agent.changed(agent.version)
        assert facts.exit is not None
        assert facts.exit.kind.value == "done", facts.exit
        await agent.close()

    with AgentProcess(home):
        asyncio.run(story())
    assert count(tmp_path) == 1


def test_the_folder_is_there_before_the_journal_knows_of_its_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "agent"
    append, seen = Journal.append, []

    def look(self: Journal, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if isinstance(entry, Accepted):
                seen.append((home / "workers" / str(key_of(entry.order))).is_dir())
        append(self, entries)

    async def story() -> None:
        agent = await Agent.start(home, NODE, machine(), lambda _name: tmp_path)
        await agent.deliver(1, order(tmp_path))
        await asyncio.to_thread(until, lambda: count(tmp_path), bool)
        await agent.close()

    monkeypatch.setattr(Journal, "append", look)
    with AgentProcess(home):
        asyncio.run(story())
    assert seen == [True]
