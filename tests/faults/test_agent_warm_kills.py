"""Agent, zygote, shim and worker are killed in every order: nothing is lost, nothing stays."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent import leftovers
from tests.faults.agent_process import AgentProcess, processes_of, until, zygotes_of
from tests.faults.test_agent_kills import WORKER, alive, started

PROCESSES = ("agent", "zygote", "shim", "worker")
numbers = itertools.count(1)


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    home = tmp_path_factory.mktemp("warm") / "agent"
    with AgentProcess(home, warm=True, light=True) as warm:
        warm.start()
        yield warm


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """A worker that starts two more, one of them in another session."""
    (tmp_path / "family.py").write_text(
        "import os, subprocess, sys\n"
        "from pathlib import Path\n"
        "from tests.faults.agent_worker import main\n"
        "for session in (False, True):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid() if session else None\n"
        "        os.execvp('sleep', ['sleep', '1000'])\n"
        "if os.fork() == 0:\n"
        "    import time\n"
        "    time.sleep(1000)\n"
        "sys.exit(main(Path(sys.argv[1]), None))\n"
    )
    return tmp_path


def begun(agent: AgentProcess, marks: Path) -> tuple[int, dict[str, int]]:
    """A forked worker with a family; the number of each that can be killed."""
    worker = next(numbers)
    command = ["python", str(marks / "family.py"), str(marks)]
    # It wants to be forked, so it waits while a new zygote begins.
    agent.ask("start", worker=worker, command=command, environment={"HOLDFAST_WARM": "1"})
    agent.until(lambda now: now[str(worker)]["phase"] == "ready")
    (pid,) = started(marks, worker)
    shim = parent(pid)
    zygote = agent.until_warm()
    assert parent(shim) == zygote, "it was forked"
    assert agent.process is not None
    return worker, {"agent": agent.process.pid, "zygote": zygote, "shim": shim, "worker": pid}


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def zombies(pid: int) -> list[str]:
    listing = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    states = {one: Path(f"/proc/{one}/stat") for one in listing}
    found = {one: path.read_text() for one, path in states.items() if path.exists()}
    return [one for one, text in found.items() if text.rpartition(")")[2].split()[0] == "Z"]


@pytest.mark.parametrize("order", list(itertools.permutations(PROCESSES)), ids="-".join)
def test_killed_in_any_order_nothing_is_lost_and_nothing_stays(
    agent: AgentProcess, marks: Path, order: tuple[str, ...]
) -> None:
    chance = random.Random("-".join(order))
    worker, pids = begun(agent, marks)
    for killed in order:
        time.sleep(chance.choice([0.0, 0.0, 0.01, 0.05]))  # pause: a kill comes at any moment
        if killed == "agent":
            agent.kill()
        else:
            try:
                os.kill(pids[killed], signal.SIGKILL)
            except ProcessLookupError:
                assert killed == "worker" or order.index("worker") < order.index(killed), killed
    agent.start()
    end = agent.until(lambda now: now[str(worker)]["phase"] == "gone")[str(worker)]
    # Killed by somebody, where its shim lived to see it; otherwise nobody knows.
    seen = order.index("worker") < order.index("shim")
    assert end["exit"] in (("signal", "lost") if seen else ("lost",)), end
    until(lambda: processes_of(agent.folder), lambda found: not found)
    assert not alive(pids["worker"])
    fresh = agent.until_warm()
    assert fresh != pids["zygote"]
    assert agent.process is not None
    for pid in (fresh, agent.process.pid):
        until(lambda pid=pid: zombies(pid), lambda found: not found)  # type: ignore[misc]


@pytest.mark.parametrize("killed", ["agent", "zygote"])
def test_a_forked_worker_does_not_notice_when_its_makers_die(
    agent: AgentProcess, marks: Path, killed: str
) -> None:
    worker, pids = begun(agent, marks)
    agent.ask("view", worker=worker, number=1)
    if killed == "agent":
        agent.kill()
        agent.start()
        assert agent.until_warm() == pids["zygote"], "the next agent goes on with it"
    else:
        os.kill(pids["zygote"], signal.SIGKILL)
        until(lambda: zygotes_of(agent.folder) not in ([], [pids["zygote"]]), bool)
        agent.until_warm()
    name = str(worker)
    before = agent.until(lambda now: now[name]["step"] is not None)[name]["step"]
    agent.until(lambda now: now[name]["step"] > before + 3)
    assert started(marks, worker) == [pids["worker"]]
    agent.ask("stop", worker=worker, notice_s=120.0)
    assert agent.until(lambda now: now[name]["phase"] == "gone")[name]["exit"] == "left"
    until(lambda: processes_of(agent.folder), lambda found: not found)


def test_a_worker_is_forked_again_after_the_zygote_was_killed(
    agent: AgentProcess, marks: Path
) -> None:
    _, pids = begun(agent, marks)
    os.kill(pids["zygote"], signal.SIGKILL)
    # At once, while there is none: it waits or is started cold, but is started once.
    worker = next(numbers)
    agent.ask("start", worker=worker, command=[*WORKER, str(marks)])
    agent.until(lambda now: now[str(worker)]["phase"] == "ready")
    assert len(started(marks, worker)) == 1
    until(lambda: zygotes_of(agent.folder) not in ([], [pids["zygote"]]), bool)
    agent.until_warm()
    begun(agent, marks)
    end_all(agent)


def end_all(agent: AgentProcess) -> None:
    for name, one in agent.ask("look").items():
        if one["phase"] != "gone":
            agent.ask("stop", worker=int(name), notice_s=120.0)
    agent.until(lambda now: all(one["phase"] == "gone" for one in now.values()))


def test_a_zygote_that_does_not_answer_is_replaced_and_the_worker_started_without_it(
    agent: AgentProcess, marks: Path
) -> None:
    zygote = agent.until_warm()
    os.kill(zygote, signal.SIGSTOP)
    worker = next(numbers)
    agent.ask("start", worker=worker, command=[*WORKER, str(marks)])
    agent.until(lambda now: now[str(worker)]["phase"] == "ready")
    assert len(started(marks, worker)) == 1
    until(lambda: alive(zygote), lambda found: not found)
    agent.until_warm()
    end_all(agent)


def test_an_agent_that_ends_well_takes_its_zygote_along_and_leaves_its_workers(
    tmp_path: Path,
) -> None:
    with AgentProcess(tmp_path / "agent", warm=True, light=True) as agent:
        agent.start()
        agent.ask("start", worker=1, command=[*WORKER, str(tmp_path)])
        agent.until(lambda now: now["1"]["phase"] == "ready")
        assert agent.process is not None
        assert agent.process.stdin is not None
        agent.process.stdin.close()
        agent.process.wait()
        assert zygotes_of(agent.folder) == []
        (pid,) = started(tmp_path, 1)
        assert alive(pid)
        again: dict[str, Any] = agent.start()["1"]
        assert again["exit"] is None


def test_a_zygote_ends_when_no_agent_comes_back_and_its_workers_too(tmp_path: Path) -> None:
    with AgentProcess(tmp_path / "agent", away_s=1.0, warm=True, light=True) as agent:
        agent.start()
        agent.ask("start", worker=1, command=[*WORKER, str(tmp_path)])
        agent.until(lambda now: now["1"]["phase"] == "ready")
        agent.kill()
        until(lambda: zygotes_of(agent.folder), lambda found: not found)
        until(lambda: processes_of(agent.folder), lambda found: not found)
        assert not (agent.folder / "zygote.sock").exists()
        assert agent.start()["1"]["exit"] == "left"


def test_what_a_killed_agent_left_is_ended_with_its_zygote(tmp_path: Path) -> None:
    with AgentProcess(tmp_path / "agent", warm=True, light=True) as agent:
        agent.start()
        agent.ask("start", worker=1, command=[*WORKER, str(tmp_path)])
        agent.until(lambda now: now["1"]["phase"] == "ready")
        agent.kill()
        assert leftovers.end_workers(agent.folder, 30.0) == 1
        assert (zygotes_of(agent.folder), processes_of(agent.folder)) == ([], [])
