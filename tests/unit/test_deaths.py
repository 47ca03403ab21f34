"""A part of a process that dies is noticed at once, in every kind of process that we have.

Each of these died unseen before it had an owner: a gateway went on with what it knew, sessions of
the coordination server never ended, a worker trained on without its agent, a checkpoint was never
complete, a replica loaded nothing any more.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from holdfast.agent.keeper import Cold, Keeper
from holdfast.cli.run.runner import JobObserver
from holdfast.client.futures import Futures
from holdfast.control.decide.facts import ObservedState
from holdfast.control.shell import housekeeping
from holdfast.serve.gateway.watching import PlaneWatcher
from holdfast.serve.predictions import PredictionLog
from holdfast.serve.replica.aside import Aside
from holdfast.system import tasks
from holdfast.system.retries import Retries
from holdfast.train.members.member import LivenessWatch
from holdfast.train.members.mesh import Mesh
from holdfast.train.modes.asynchronous.shares import ShareWriter
from holdfast.wire.errors import BugError, HoldfastError
from holdfast.worker.agent_client import AgentClient
from tests.credentials import credentials

WAIT_S = 30.0


def _bug(*_: object, **__: object) -> NoReturn:
    raise ValueError("a bug")


@pytest.fixture
def told_to_end() -> Iterator[threading.Event]:
    """Set when the main of this process is told to end."""
    event = threading.Event()
    with tasks.main_ended_by(event.set):
        yield event


def _ends_because_of(part: str, told_to_end: threading.Event) -> None:
    assert told_to_end.wait(WAIT_S), "nobody has noticed"
    found = tasks.death()
    assert found is not None
    assert part in found.what
    assert "a bug" in str(found)


def test_a_gateway_whose_watch_over_services_dies_ends(told_to_end: threading.Event) -> None:
    watching = PlaneWatcher(_bug, lambda: None)
    watching.start()
    _ends_because_of("watching", told_to_end)
    watching.close()


def test_a_replica_whose_thread_for_loading_dies_ends(told_to_end: threading.Event) -> None:
    async def run() -> None:
        aside = Aside(_bug)
        call = tasks.start_task(aside.call(lambda: None), "call", tasks.WAITED)
        await asyncio.to_thread(_ends_because_of, "aside", told_to_end)
        await tasks.end(call)

    asyncio.run(run())


def test_a_replica_goes_on_after_a_prediction_that_cannot_be_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter([_bug, lambda: b"{}\n"])
    monkeypatch.setattr("holdfast.serve.predictions.line_of", lambda *_given: next(lines)())
    log = PredictionLog(tmp_path, flush_s=0.0)
    nothing: Any = SimpleNamespace(inputs={}, outputs={})
    log.note(nothing, nothing, 0.1)
    log.note(nothing, nothing, 0.1)
    log.close()
    assert (log.dropped, log.written) == (1, 1)


def test_a_coordinator_whose_sweep_of_the_store_always_fails_ends_in_the_end(
    told_to_end: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "Retries", partial(Retries, most=3, pause_s=0.001))
    nothing: Any = None
    keeping = housekeeping.Housekeeping(
        nothing, nothing, lambda: ObservedState({}), lambda: True, every_s=0.001
    )
    tries: list[int] = []

    def step() -> NoReturn:
        tries.append(1)
        _bug()

    monkeypatch.setattr(keeping, "_sweeper", SimpleNamespace(step=step))
    with keeping:
        _ends_because_of("housekeeping", told_to_end)
    assert len(tries) == 3, "it was tried again, with a bound"


SERVER = """
import sys
from holdfast.coordination.embedded import __main__ as embedded
from holdfast.coordination.embedded.server import CoordinationServer

def sweep(self):
    raise ValueError("a bug")

CoordinationServer.sweep = sweep
sys.argv[1:] = ["--data", {data!r}, "--listen", "127.0.0.1:0"]
sys.exit(embedded.main())
"""


def test_a_coordination_server_that_ends_no_sessions_any_more_ends(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVER.format(data=str(tmp_path / "data"))],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == BugError.exit_code
    assert "a bug" in done.stderr


def test_a_worker_that_has_lost_its_line_to_the_agent_is_told(tmp_path: Path) -> None:
    died: list[BaseException] = []
    agent = AgentClient(tmp_path, "job", 0, died=died.append)
    with pytest.raises(BugError, match="a thread of this worker has ended unexpectedly"):
        agent.listen(_bug)  # whatever it is that kills its thread
        agent.view()
    with pytest.raises(BugError):
        agent.step(1)
    with pytest.raises(BugError):
        agent.ready()
    assert [str(each) for each in died] == ["a bug"]
    agent.close()


def test_a_worker_whose_watch_over_its_peers_dies_is_told(tmp_path: Path) -> None:
    agent = AgentClient(tmp_path, "job", 0)

    class Late(Mesh):
        def waiting(self) -> NoReturn:
            _bug()

    watch = LivenessWatch(credentials(), 0, lambda _waits: None, agent.fail)
    watch.over(Late(0, 1, 0, {}), {})
    with pytest.raises(BugError, match="a thread of this worker"):
        agent.view()
    watch.close()
    agent.close()


def test_a_share_of_an_asynchronous_checkpoint_that_cannot_be_written_is_told() -> None:
    died: list[BaseException] = []
    agent = SimpleNamespace(
        shares=lambda: [SimpleNamespace(share=1, attempt=SimpleNamespace(number=4, step=1, view=1))]
    )
    home = SimpleNamespace(view=SimpleNamespace(number=1), mine=True, frozen=(4, object()))
    given: Any = (agent, SimpleNamespace(), home, SimpleNamespace(), died.append)
    shares = ShareWriter(*given)
    shares._write = _bug  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.train.modes.asynchronous.shares.parts_of", lambda _frozen: [])
        shares.answer(1)
    shares.close()
    assert [str(each) for each in died] == ["a bug"]


def test_a_zygote_that_cannot_be_started_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        keeper, tries, twice = Keeper(tmp_path, 1.0), [], asyncio.Event()

        def no_room() -> NoReturn:
            tries.append(1)
            if len(tries) == 2:
                twice.set()
            raise BlockingIOError("Resource temporarily unavailable")

        monkeypatch.setattr(keeper, "_execute", no_room)
        with pytest.raises(Cold, match="Resource temporarily unavailable"):
            await keeper.ready()
        await asyncio.wait_for(twice.wait(), WAIT_S)
        await keeper.close()

    asyncio.run(run())


def test_a_run_whose_look_at_its_job_dies_is_interrupted(told_to_end: threading.Event) -> None:
    plane: Any = SimpleNamespace(job=_bug)
    job: Any = SimpleNamespace(name="job")
    with JobObserver(plane, job, [], lambda: None):
        _ends_because_of("observer", told_to_end)


def test_who_waits_for_a_future_of_a_client_whose_thread_dies_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.client.futures._look", _bug)
    futures = Futures()
    wait: Any = SimpleNamespace(check=lambda: None, every_s=0.01)
    future = futures.add(wait, lambda found: found)
    with pytest.raises(HoldfastError, match="the thread of the client's futures"):
        future.result(WAIT_S)
    futures.close()
