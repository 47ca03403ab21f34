"""A worker's agent client and its agent's channel, over real sockets."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.channel import Channel
from holdfast.agent.events import Connected, Disconnected, Event, Key, PartsReport, WorkerReport
from holdfast.wire import values, worker_messages
from holdfast.wire.errors import Refused, Usage
from holdfast.wire.limits import CHANNEL_MESSAGE_BYTES_MAX
from holdfast.wire.orders import Attempt, GiveSettings, GiveView, StopWorker, TakeShare, View
from holdfast.wire.reports import Part
from holdfast.worker.agent_client import AgentClient, WantedShare

KEY = Key("job", 1)
VIEW = View(3, {1: (0, 1), 2: (2, 3)}, 40)
ATTEMPT = Attempt(2, 50, 3, 1.5)
PART = Part("parts/x", 3, "x")
WAIT_S = 120.0


class Ear:
    """What the agent has heard."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ends: list[Disconnected] = []
        self.news = asyncio.Condition()

    async def __call__(self, event: Event) -> None:
        async with self.news:
            self.events.append(event)
            self.news.notify_all()

    def lost(self, event: Disconnected) -> None:
        self.ends.append(event)

    async def until(self, condition: Callable[[list[Event]], object]) -> None:
        async with self.news:
            await self.news.wait_for(lambda: condition(self.events))


def said(*what: Any, **more: Any) -> WorkerReport:
    """What a worker says: it always goes on to give signs of life."""
    more["beats"] = True
    return WorkerReport(KEY, *what, **more)


def play(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(WAIT_S):
            await story

    asyncio.run(bounded())


async def soon(condition: Callable[[], object]) -> None:
    """Until it is so; the test's own bound ends the wait."""
    loop, seen = asyncio.get_running_loop(), asyncio.Event()

    def look() -> None:
        seen.set() if condition() else loop.call_later(0.002, look)

    look()
    await seen.wait()


def test_what_either_side_says_arrives_at_the_other(tmp_path: Path) -> None:
    async def story() -> None:
        ear = Ear()
        channel = Channel(ear, ear.lost)
        await channel.open(KEY, tmp_path)
        agent = AgentClient(tmp_path, "job", 1)
        await ear.until(lambda events: Connected(KEY) in events)
        agent.ready()
        await ear.until(lambda events: said(ready=True) in events)
        channel.tell(KEY, GiveView("n", "job", 1, VIEW))
        assert await asyncio.to_thread(agent.view, WAIT_S) == VIEW
        assert not agent.leaving
        agent.adopted(3, 40)
        assert agent.view(timeout_s=0.0) is None
        agent.step(41)
        await ear.until(lambda events: said(True, 3, 41) in events)
        agent.unreadable(40, "a hole")
        told = said(True, 3, 41, frozenset({40}), unreadable_why="a hole")
        await ear.until(lambda events: told in events)
        channel.tell(KEY, GiveSettings("n", "job", 1, (("lr", "0.1", 50),)))
        channel.tell(KEY, TakeShare("n", "job", 1, ATTEMPT, 1, 2))
        await soon(lambda: agent.shares() == [WantedShare(ATTEMPT, 1, 2)])
        assert agent.settings == (("lr", "0.1", 50),)
        agent.part_done(2, (PART,))
        assert agent.shares() == []
        await ear.until(lambda events: PartsReport(KEY, 2, (PART,)) in events)
        channel.tell(KEY, StopWorker("n", "job", 1, 0.0))
        await soon(lambda: agent.leaving)
        agent.close()
        channel.close_all()

    play(story())


def test_a_worker_that_is_ready_and_says_so_again_wakes_nobody(tmp_path: Path) -> None:
    async def story() -> None:
        ear = Ear()
        channel = Channel(ear, ear.lost)
        await channel.open(KEY, tmp_path)
        agent = AgentClient(tmp_path, "job", 1)
        await ear.until(lambda events: Connected(KEY) in events)
        agent.ready()
        await ear.until(lambda events: said(ready=True) in events)
        for _ in range(20):
            agent.ready()
            await asyncio.sleep(0.002)
        agent.adopted(3, 40)
        await ear.until(lambda events: said(True, 3, 40) in events)
        assert ear.events.count(said(ready=True)) == 1
        agent.close()
        channel.close_all()

    play(story())


def test_everything_is_said_again_to_the_agent_that_comes_back(tmp_path: Path) -> None:
    async def story() -> None:
        first = Ear()
        channel = Channel(first, first.lost)
        await channel.open(KEY, tmp_path)
        agent = AgentClient(tmp_path, "job", 1)
        agent.ready()
        await first.until(lambda events: said(ready=True) in events)
        channel.close_all()
        # WorkerReport while nobody listens: only what is true at the end has to arrive.
        agent.adopted(4, 10)
        for step in range(11, 500):
            agent.step(step)
        agent.missed(1)
        agent.part_done(2, (PART,))
        second = Ear()
        channel = Channel(second, second.lost)
        await channel.open(KEY, tmp_path)
        wanted = [
            Connected(KEY),
            said(True, 4, 499),
            PartsReport(KEY, 1, missed=True),
            PartsReport(KEY, 2, (PART,)),
        ]
        await second.until(lambda events: all(one in events for one in wanted))
        assert all(one in wanted for one in second.events), "nothing but the present is said"
        agent.close()
        channel.close_all()

    play(story())


def test_many_steps_become_few_messages_and_the_last_one_arrives(tmp_path: Path) -> None:
    async def story() -> None:
        ear = Ear()
        channel = Channel(ear, ear.lost)
        await channel.open(KEY, tmp_path)
        agent = AgentClient(tmp_path, "job", 1)

        def train() -> None:
            for step in range(20_000):
                agent.step(step)

        await asyncio.to_thread(train)
        await ear.until(lambda events: said(False, 0, 19_999) in events)
        assert len(ear.events) < 2_000
        agent.close()
        channel.close_all()

    play(story())


def test_what_does_not_change_is_said_again_as_a_sign_of_life(tmp_path: Path) -> None:
    async def story() -> None:
        ear = Ear()
        channel = Channel(ear, ear.lost)
        await channel.open(KEY, tmp_path)
        agent = AgentClient(tmp_path, "job", 1)
        agent.ready()
        await ear.until(lambda events: events.count(said(True)) >= 3)
        assert ear.ends == []
        agent.close()
        await soon(lambda: ear.ends == [Disconnected(KEY)])
        channel.close_all()

    play(story())


def test_waiting_for_peers_is_said_at_once_and_taken_back(tmp_path: Path) -> None:
    async def story() -> None:
        ear = Ear()
        channel = Channel(ear, ear.lost)
        await channel.open(KEY, tmp_path)
        agent = AgentClient(tmp_path, "job", 1)
        agent.waits(True)
        await ear.until(lambda events: said(waits=True) in events)
        agent.waits(False)
        await ear.until(lambda events: events[-1] == said())
        agent.close()
        channel.close_all()

    play(story())


def test_a_view_without_the_worker_asks_it_to_leave(tmp_path: Path) -> None:
    async def story() -> None:
        ear = Ear()
        channel = Channel(ear, ear.lost)
        await channel.open(KEY, tmp_path)
        agent = AgentClient(tmp_path, "job", 7)
        await ear.until(bool)
        channel.tell(KEY, GiveView("n", "job", 7, VIEW))
        await soon(lambda: agent.leaving)
        agent.close()
        channel.close_all()

    play(story())


@pytest.mark.parametrize(
    "line",
    [
        b"hello\n",
        b"[]\n",
        b'{"say": {}}\n',
        b'{"say": {"ready": true, "view": "x", "step": 1}}\n',
        b'{"parts": {"attempt": 1, "parts": [{"key": 1}], "missed": false}}\n',
        b'{"say": 1, "parts": 2}\n',
        b"x" * (CHANNEL_MESSAGE_BYTES_MAX + 10),
    ],
    ids=lambda line: line[:20].decode(),
)
def test_a_line_that_is_not_understood_ends_the_connection_alone(
    tmp_path: Path, line: bytes
) -> None:
    async def story() -> None:
        ear = Ear()
        channel = Channel(ear, ear.lost)
        await channel.open(KEY, tmp_path)
        folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
        reader, writer = await asyncio.open_unix_connection(worker_messages.socket_path(folder))
        writer.write(line)
        try:
            assert await reader.read() == b""
        except ConnectionResetError:
            assert len(line) > CHANNEL_MESSAGE_BYTES_MAX, "it was cut in the middle of a line"
        assert ear.events == [Connected(KEY)]
        agent = AgentClient(tmp_path, "job", 1)
        agent.ready()
        await ear.until(lambda events: said(ready=True) in events)
        writer.close()
        agent.close()
        channel.close_all()
        os.close(folder)

    play(story())


def test_a_socket_works_in_a_folder_with_a_long_name(tmp_path: Path) -> None:
    async def story() -> None:
        deep = tmp_path / ("d" * 100) / ("e" * 100)
        deep.mkdir(parents=True)
        ear = Ear()
        channel = Channel(ear, ear.lost)
        await channel.open(KEY, deep)
        agent = AgentClient(deep, "job", 1)
        await ear.until(lambda events: Connected(KEY) in events)
        agent.close()
        channel.close_all()

    play(story())


def test_a_script_without_an_agent_has_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(worker_messages.FOLDER_VARIABLE, raising=False)
    assert AgentClient.from_environment() is None


def test_half_an_environment_is_an_error_with_its_fix(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(worker_messages.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.delenv(worker_messages.WORKER_VARIABLE, raising=False)
    with pytest.raises(Usage, match="fix: unset"):
        AgentClient.from_environment()


def test_a_forked_process_may_not_use_its_parents_link(tmp_path: Path) -> None:
    agent = AgentClient(tmp_path, "job", 1)
    pid = os.fork()
    if pid == 0:
        try:
            agent.step(1)
        except Usage:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    agent.close()


def test_the_last_word_is_a_file_that_stays_when_nobody_listens(tmp_path: Path) -> None:
    agent = AgentClient(tmp_path, "job", 1)
    agent.done()
    assert (tmp_path / worker_messages.WORD_NAME).read_text() == worker_messages.DONE
    agent.left()
    assert (tmp_path / worker_messages.WORD_NAME).read_text() == worker_messages.LEFT
    agent.close()


def test_what_a_newer_agent_says_besides_is_passed_over_and_nonsense_is_refused(
    tmp_path: Path,
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        agent = AgentClient(tmp_path, "job", 1)
        stop = values.order_bytes(StopWorker("n", "job", 1, 3.0))
        theirs.sendall(b'{"news": 1}\n' + stop + b"\n")
        assert agent._receive(ours, b"") == b""
        assert agent.leaving
        theirs.sendall(b'{"give_view": 1}\n')
        with pytest.raises(Refused, match="not understood"):
            agent._receive(ours, b"")
        agent.close()


def test_what_a_newer_worker_says_besides_is_passed_over(tmp_path: Path) -> None:
    async def story() -> None:
        ear = Ear()
        channel = Channel(ear, ear.lost)
        await channel.open(KEY, tmp_path)
        folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
        _reader, writer = await asyncio.open_unix_connection(worker_messages.socket_path(folder))
        say = values.Say(True, 0, None, [], [], False, False, {})
        writer.write(b'{"other": 1}\n' + values.line("say", say))
        await ear.until(lambda events: said(ready=True) in events)
        writer.close()
        channel.close_all()
        os.close(folder)

    play(story())
