"""What a worker's folder says to the next agent: it is made before the journal knows of the worker,
and removed after the journal knows of its end."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.agent.assembly import LocalAgent
from holdfast.agent.events import Accepted, Entry, Exited, Key, Stopping, key_of
from holdfast.agent.journal import Journal
from holdfast.wire.errors import Refused, RetryError
from holdfast.wire.orders import StartWorker, StopWorker
from holdfast.wire.reports import Exit, ExitKind
from holdfast.wire.resources import Resources
from tests.faults.agent_process import NODE, WAIT_S, AgentProcess, machine, processes_of, until
from tests.faults.test_agent_shim import launch, shims
from tests.servers import port_block

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

    async def story() -> None:
        agent = await LocalAgent.start(home, NODE, machine(), none_yet)
        await agent.deliver(1, order(tmp_path, "b"))
        await agent.close()
        assert folder.is_dir()
        assert not (folder / "claim").exists()
        agent = await LocalAgent.start(home, NODE, machine(), lambda _name: tmp_path)
        end = await end_of(agent)
        assert end.kind is ExitKind.DONE, end
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
        agent = await LocalAgent.start(home, NODE, machine(), lambda _name: tmp_path)
        await agent.deliver(1, order(tmp_path))
        await asyncio.to_thread(until, lambda: count(tmp_path), bool)
        await agent.close()

    monkeypatch.setattr(Journal, "append", look)
    with AgentProcess(home):
        asyncio.run(story())
    assert seen == [True]


def watched(monkeypatch: pytest.MonkeyPatch, home: Path) -> list[bool]:
    """Whether the folder of a worker was claimed when its end came into the journal, of each."""
    append, seen = Journal.append, []

    def look(self: Journal, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if isinstance(entry, Exited):
                seen.append((home / "workers" / str(entry.key) / "claim").exists())
        append(self, entries)

    monkeypatch.setattr(Journal, "append", look)
    return seen


async def end_of(agent: LocalAgent) -> Exit:
    async with asyncio.timeout(WAIT_S):
        while (end := agent.snapshot().workers[0].exit) is None:
            await agent.changed(agent.version)
    return end


def none_yet(name: str) -> Path:
    raise RetryError(f"{name} is not there yet", fix="wait")


@pytest.mark.parametrize("restart", [False, True], ids=["at once", "by the next agent"])
def test_a_late_shim_finds_a_claim_before_the_end_of_its_worker_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restart: bool
) -> None:
    home = tmp_path / "agent"

    async def story() -> None:
        agent = await LocalAgent.start(home, NODE, machine(), none_yet)
        await agent.deliver(1, order(tmp_path, "b"))
        if restart:
            await agent.close()
            journal, _ = Journal.open(home)
            journal.append([Stopping(Key("job", 1), 1e12)])
            journal.close()
            agent = await LocalAgent.start(home, NODE, machine(), none_yet)
        else:
            await agent.deliver(1, StopWorker(NODE, "job", 1, 100.0))
        end = await end_of(agent)
        assert end.kind is ExitKind.STOPPED, end
        await agent.close()

    seen = watched(monkeypatch, home)
    with AgentProcess(home):
        asyncio.run(story())
    assert seen == [True]
    assert count(tmp_path) == 0


@pytest.mark.parametrize("trouble", ["no bundle", "its port is taken"])
def test_what_an_earlier_agent_has_started_is_adopted_whatever_hinders_this_one(
    tmp_path: Path, trouble: str
) -> None:
    home = tmp_path / "agent"
    folder = home / "workers" / "job.1"
    ports = port_block()
    others: list[subprocess.Popen[bytes]] = []
    busy = socket.socket()

    def bundle_folder(name: str) -> Path:
        launch(folder, "sleep", "1000", agent=str(home / "agent"))
        others.extend(shims(folder))
        until((folder / "claim").exists, bool)
        if trouble == "no bundle":
            raise Refused(f"{name} cannot be read", fix="none")
        busy.bind(("127.0.0.1", ports[0]))
        busy.listen()
        return tmp_path

    async def story() -> None:
        agent = await LocalAgent.start(home, NODE, machine(ports), bundle_folder)
        await agent.deliver(1, order(tmp_path, "b"))
        await asyncio.to_thread(until, lambda: b'"identity":[' in read(), bool)
        (facts,) = agent.snapshot().workers
        assert facts.exit is None
        assert facts.address.endswith(f":{ports[0]}")
        assert f'"identity":[{others[0].pid},'.encode() in read()
        await agent.stop_workers(0.0)
        await agent.close()

    def read() -> bytes:
        return (home / "journal").read_bytes()

    with AgentProcess(home), busy:
        asyncio.run(story())
    others[0].wait(WAIT_S)
