"""Real workers that are paused, hang or wait, and ports that strangers hold."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

from holdfast.agent.assembly import LocalAgent
from holdfast.agent.record import WORKER_FROZEN_S
from holdfast.wire.orders import GiveView, View
from holdfast.wire.reports import ExitKind, WorkerPhase
from tests.faults.agent_process import NODE, AgentProcess, start_order, until
from tests.faults.test_agent_workers import WORKER, ended, exit_of, facts_when, play

# In a view, and no step after the first. What it does meanwhile is given on the command line.
STUCK = (
    "import ctypes, sys, time\n"
    "from holdfast.worker.agent_client import AgentClient\n"
    "agent = AgentClient.from_environment()\n"
    "agent.ready()\n"
    "agent.adopted(agent.view().number, 0)\n"
    "exec(sys.argv[1])\n"
    "while not agent.leaving: time.sleep(0.01)\n"
    "agent.left()\n"
)


async def in_view(agent: LocalAgent) -> None:
    await facts_when(agent, lambda one: one.phase is WorkerPhase.READY)
    await agent.deliver(1, GiveView(NODE, "job", 1, View(1, {1: (0,)})))
    await facts_when(agent, lambda one: one.step is not None)


def test_a_paused_worker_is_killed_and_nobody_blames_the_job(tmp_path: Path) -> None:
    async def story(agent: LocalAgent, folder: Path) -> None:
        await agent.deliver(1, start_order(1, *WORKER, str(folder)))
        await in_view(agent)
        os.kill(int((folder / "starts.1").read_text()), signal.SIGSTOP)
        kind, detail = exit_of(await ended(agent))
        assert kind is ExitKind.SIGNAL
        assert detail.startswith("somebody had paused it (SIGSTOP)")

    play(tmp_path, story)


def test_a_worker_that_is_paused_while_its_agent_is_away_is_killed_by_the_next(
    tmp_path: Path,
) -> None:
    with AgentProcess(tmp_path / "agent") as agent:
        agent.start()
        agent.ask("start", worker=1, command=[*WORKER, str(tmp_path)])
        agent.until(lambda now: now["1"]["phase"] == "ready")
        agent.kill()
        os.kill(int((tmp_path / "starts.1").read_text()), signal.SIGSTOP)
        agent.start()
        end = agent.until(lambda now: now["1"]["phase"] == "gone")["1"]
        assert end["exit"] == "signal"
        assert "paused" in end["detail"]


def test_a_worker_that_is_woken_in_time_goes_on(tmp_path: Path) -> None:
    with AgentProcess(tmp_path / "agent") as agent:
        agent.start()
        agent.ask("start", worker=1, command=[*WORKER, str(tmp_path)])
        agent.until(lambda now: now["1"]["phase"] == "ready")
        agent.ask("view", worker=1, number=1)
        pid = int((tmp_path / "starts.1").read_text())
        for _ in range(3):
            step = agent.until(lambda now: now["1"]["step"] is not None)["1"]["step"]
            os.kill(pid, signal.SIGSTOP)
            until(lambda: Path(f"/proc/{pid}/stat").read_text().split()[2], lambda at: at == "T")
            os.kill(pid, signal.SIGCONT)
            agent.until(lambda now, step=step: now["1"]["step"] > step)  # type: ignore[misc]


def test_a_worker_that_holds_pythons_lock_for_long_is_not_paused(tmp_path: Path) -> None:
    async def story(agent: LocalAgent, _folder: Path) -> None:
        # `PyDLL` does not let go of the lock: no thread of the worker can say anything.
        busy = f"ctypes.PyDLL(None).sleep({int(2 * WORKER_FROZEN_S) + 1}); agent.step(1)"
        await agent.deliver(1, start_order(1, "python", "-c", STUCK, busy))
        await in_view(agent)
        facts = await facts_when(agent, lambda one: one.step == 1 or one.exit)
        assert facts.exit is None

    play(tmp_path, story)


def test_a_worker_without_progress_has_hung_although_it_gives_signs_of_life(
    tmp_path: Path,
) -> None:
    async def story(agent: LocalAgent, _folder: Path) -> None:
        await agent.deliver(1, start_order(1, "python", "-c", STUCK, "", silence_s=6.0))
        await in_view(agent)
        assert exit_of(await ended(agent))[0] is ExitKind.HUNG

    play(tmp_path, story)


def test_a_worker_that_waits_for_its_peers_has_not_hung(tmp_path: Path) -> None:
    async def story(agent: LocalAgent, _folder: Path) -> None:
        waits = "agent.waits(True); time.sleep(8); agent.waits(False); agent.step(1)"
        await agent.deliver(1, start_order(1, "python", "-c", STUCK, waits, silence_s=6.0))
        await in_view(agent)
        facts = await facts_when(agent, lambda one: one.step == 1 or one.exit)
        assert facts.exit is None

    play(tmp_path, story)


def test_a_port_that_a_stranger_holds_is_passed_over_and_the_true_one_is_reported(
    tmp_path: Path,
) -> None:
    script = "import os, sys; open(sys.argv[1], 'w').write(os.environ['HOLDFAST_PORTS'])"

    async def story(agent: LocalAgent, folder: Path) -> None:
        order = start_order(1, "python", "-c", script, str(folder / "ports"))
        first = agent._machine._allocator._next_port
        with stranger(first), stranger(first + 3):
            await agent.deliver(1, order)
            facts = await ended(agent)
        assert facts.exit is not None
        assert facts.exit.kind is ExitKind.DONE
        ports = [int(port) for port in (folder / "ports").read_text().split(",")]
        assert facts.address == f"127.0.0.1:{ports[0]}"
        assert not {first, first + 3} & set(ports)

    play(tmp_path, story)


def stranger(port: int) -> socket.socket:
    """Somebody else listens there, or did already."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen()
    except OSError:
        pass
    return listener


def test_a_worker_may_listen_on_the_ports_that_it_was_given(tmp_path: Path) -> None:
    script = (
        "import os, socket\n"
        "for port in os.environ['HOLDFAST_PORTS'].split(','):\n"
        "    socket.create_server((os.environ['HOLDFAST_HOST'], int(port)))\n"
    )

    async def story(agent: LocalAgent, _folder: Path) -> None:
        await asyncio.gather(
            *(agent.deliver(1, start_order(n, "python", "-c", script)) for n in (1, 2, 3))
        )
        for worker in (1, 2, 3):
            kind, detail = exit_of(await ended(agent, worker))
            assert kind is ExitKind.DONE, detail

    play(tmp_path, story)
