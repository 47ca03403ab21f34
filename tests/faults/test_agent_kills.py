"""The agent is killed at random points: no order is lost or repeated, no worker notices."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.agent_process import AgentProcess, processes_of, until

WORKER = ["python", "-m", "tests.faults.agent_worker"]
ROUNDS = 12


def started(folder: Path, worker: int) -> list[int]:
    path = folder / f"starts.{worker}"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("seed", [1, 2])
def test_each_order_is_carried_out_once_however_often_the_agent_is_killed(
    tmp_path: Path, seed: int, warm: bool
) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    with AgentProcess(tmp_path / "agent", warm=warm, light=True) as agent:
        agent.start()
        for worker in range(1, ROUNDS + 1):
            # Sent twice, and the agent is killed somewhere between taking it and starting it.
            agent.send("start", worker=worker, command=[*WORKER, str(tmp_path)])
            agent.send("start", worker=worker, command=[*WORKER, str(tmp_path)])
            moment_s = chance.choice([0.0, 0.005, 0.02, 0.05, 0.15]) * chance.random()
            time.sleep(moment_s)  # pause: the kill comes at any moment
            agent.kill()
            agent.start()
            for before in range(1, worker + 1):
                agent.ask("start", worker=before, command=[*WORKER, str(tmp_path)])
        numbers = [str(worker) for worker in range(1, ROUNDS + 1)]
        seen = agent.until(
            lambda now: all(now.get(number, {}).get("phase") == "ready" for number in numbers)
        )
        assert sorted(seen, key=int) == numbers
        pids = {worker: started(tmp_path, worker) for worker in range(1, ROUNDS + 1)}
        assert all(len(found) == 1 for found in pids.values()), pids
        assert all(alive(found[0]) for found in pids.values())

        for worker in range(1, ROUNDS + 1):
            agent.send("stop", worker=worker, notice_s=120.0)
            if chance.random() < 0.3:
                agent.kill()
                agent.start()
                for before in range(1, worker + 1):
                    agent.ask("stop", worker=before, notice_s=120.0)
        ends = agent.until(lambda now: all(one["phase"] == "gone" for one in now.values()))
        others = [one for one in ends.values() if one["exit"] != "left"]
        assert not others, others
        until(lambda: processes_of(tmp_path / "agent"), lambda found: not found)


def test_a_worker_goes_on_with_the_same_process_and_its_state_is_reported_again(
    tmp_path: Path,
) -> None:
    with AgentProcess(tmp_path / "agent") as agent:
        agent.start()
        agent.ask("start", worker=1, command=[*WORKER, str(tmp_path)])
        agent.until(lambda now: now["1"]["phase"] == "ready")
        agent.ask("view", worker=1, number=1)
        before = agent.until(lambda now: (now["1"]["step"] or 0) > 5)["1"]
        agent.kill()
        (pid,) = started(tmp_path, 1)
        first = agent.start()["1"]
        assert (first["phase"], first["view"]) == ("running", 1)
        assert first["step"] is not None, "it still holds state"
        after = agent.until(lambda now: (now["1"]["step"] or 0) > before["step"] + 5)["1"]
        assert after["view"] == 1
        assert started(tmp_path, 1) == [pid]
        assert alive(pid)


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ([*WORKER, "MARKS", "30"], "done"),
        (["python", "-c", "import time; time.sleep(0.5); raise ValueError('no')"], "error"),
        (["python", "-c", "import os, time; time.sleep(0.5); os.kill(os.getpid(), 9)"], "signal"),
    ],
)
def test_an_end_while_the_agent_is_down_is_not_lost(
    tmp_path: Path, command: list[str], kind: str
) -> None:
    with AgentProcess(tmp_path / "agent") as agent:
        agent.start()
        given = [str(tmp_path) if word == "MARKS" else word for word in command]
        agent.ask("start", worker=1, command=given)
        until(lambda: list((tmp_path / "agent" / "workers").glob("*/claim")), bool)
        agent.kill()
        until(lambda: processes_of(tmp_path / "agent"), lambda found: not found)
        end: dict[str, Any] = agent.start()["1"]
        assert (end["phase"], end["exit"]) == ("gone", kind), end
        if kind == "error":
            assert end["detail"].startswith("Traceback")
        until(lambda: list((tmp_path / "agent" / "workers").iterdir()), lambda found: not found)


def test_an_order_of_an_older_term_is_refused_by_the_next_agent(tmp_path: Path) -> None:
    with AgentProcess(tmp_path / "agent") as agent:
        agent.start()
        agent.ask("start", worker=1, term=5, command=["sleep", "1000"])
        agent.kill()
        agent.start()
        agent.ask("stop", worker=1, term=4, notice_s=0.0)
        agent.ask("start", worker=2, term=4, command=["sleep", "1000"])
        seen = agent.ask("look")
        assert list(seen) == ["1"]
        assert seen["1"]["exit"] is None


def test_a_stopped_worker_is_killed_by_the_next_agent_when_its_notice_is_over(
    tmp_path: Path,
) -> None:
    script = (
        "import pathlib, signal, sys, time\n"
        "def asked(*_): pathlib.Path(sys.argv[1]).open('a').write('x')\n"
        "signal.signal(signal.SIGTERM, asked)\n"
        "pathlib.Path(sys.argv[1]).touch()\n"
        "while True: time.sleep(1)\n"
    )
    mark = tmp_path / "asked"
    with AgentProcess(tmp_path / "agent") as agent:
        agent.start()
        agent.ask("start", worker=1, command=["python", "-c", script, str(mark)])
        until(mark.exists, bool)
        agent.ask("stop", worker=1, notice_s=3.0)
        until(mark.read_text, bool)
        agent.kill()
        agent.start()
        end = agent.until(lambda now: now["1"]["phase"] == "gone")["1"]
        assert end["exit"] == "stopped"
        assert "SIGKILL" in end["detail"]
        assert mark.read_text() == "x", "it was asked once"


def test_workers_end_by_themselves_when_no_agent_comes_back(tmp_path: Path) -> None:
    with AgentProcess(tmp_path / "agent", away_s=1.0) as agent:
        agent.start()
        agent.ask("start", worker=1, command=[*WORKER, str(tmp_path)])
        agent.ask("start", worker=2, command=["sleep", "1000"])
        agent.until(lambda now: now["1"]["phase"] == "ready")
        agent.kill()
        until(lambda: processes_of(tmp_path / "agent"), lambda found: not found)
        ends = agent.start()
        assert ends["1"]["exit"] == "left"
        assert ends["2"]["exit"] == "stopped"
        assert "did not come back" in ends["2"]["detail"]


def test_workers_go_on_when_an_agent_comes_back_in_time(tmp_path: Path) -> None:
    with AgentProcess(tmp_path / "agent", away_s=15.0) as agent:
        agent.start()
        agent.ask("start", worker=1, command=[*WORKER, str(tmp_path)])
        agent.until(lambda now: now["1"]["phase"] == "ready")
        agent.kill()
        agent.start()
        time.sleep(16.0)  # pause: they would have ended by now
        assert agent.ask("look")["1"]["exit"] is None


def test_a_worker_that_the_journal_does_not_know_is_ended(tmp_path: Path) -> None:
    with AgentProcess(tmp_path / "agent") as agent:
        agent.start()
        agent.ask("start", worker=1, command=["sleep", "1000"])
        until(lambda: list((tmp_path / "agent" / "workers").glob("*/claim")), bool)
        agent.kill()
        (tmp_path / "agent" / "journal").unlink()
        assert agent.start() == {}
        assert processes_of(tmp_path / "agent") == []
        assert list((tmp_path / "agent" / "workers").iterdir()) == []


def test_a_paused_agent_does_not_end_its_workers(tmp_path: Path) -> None:
    with AgentProcess(tmp_path / "agent", away_s=0.5) as agent:
        agent.start()
        agent.ask("start", worker=1, command=[*WORKER, str(tmp_path)])
        agent.until(lambda now: now["1"]["phase"] == "ready")
        assert agent.process is not None
        os.kill(agent.process.pid, signal.SIGSTOP)
        time.sleep(2.0)  # pause: longer than workers wait for an agent that is away
        os.kill(agent.process.pid, signal.SIGCONT)
        assert agent.ask("look")["1"]["phase"] == "ready"
