"""`holdfast.Client` over a cluster of real processes: jobs that are submitted, watched, changed,
awaited, followed and ended, from a thread and from a loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import AsyncClient, Client
from holdfast.client import AsyncJob, JobFailed
from holdfast.wire.errors import Cancelled, Missing, TimedOut, Unavailable, Usage
from tests.integration.clusters import PATIENT, Home
from tests.waiting import eventually

WAIT_S = 240.0
SCRIPT = """
import pathlib, sys, time
print("begun", *sys.argv[2:], flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
print("released", file=sys.stderr, flush=True)
if "fail" in sys.argv:
    raise ValueError("the loss is not a number")
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    made = Home(tmp_path_factory.mktemp("client") / "cluster", PATIENT)
    try:
        made.up()
        yield made
    finally:
        made.end()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "code" / "waits.py"
    path.parent.mkdir()
    path.write_text(SCRIPT)
    return path


def own_threads() -> list[str]:
    """Those that clients of this process have started."""
    names = [one.name for one in threading.enumerate()]
    return [name for name in names if name.startswith("holdfast-client")]


def test_jobs_are_submitted_watched_changed_followed_awaited_and_removed(
    home: Home, script: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    with Client(home.cluster.folder) as client:
        job = client.submit(script, go, "x", name="first", workers=1, lanes=4)
        assert (job.name, client.job("first").facts().spec.workers_max) == ("first", 4)
        with pytest.raises(Missing, match="frist"):
            client.job("frist")
        statuses = job.watch()
        assert next(statuses).name == "first"
        lines = job.logs(follow=True)
        assert next(lines).text == "begun x", "a follower has it while the job runs"
        futures = [job.future() for _ in range(20)]
        assert not any(future.done() for future in futures)
        assert len(own_threads()) == 1, "one thread looks for all of them"
        with pytest.raises(TimedOut, match="first ends"):
            job.wait(timeout_s=0.0)
        job.scale(2)
        eventually(lambda: job.status().workers == 2, "it has two workers", WAIT_S)
        with pytest.raises(Usage, match="cannot have 9"):
            job.scale(9)
        job.set(lr=0.5, at_step=7)
        assert [(one.name, one.value, one.at_step) for one in job.facts().settings] == [
            ("lr", "0.5", 7)
        ]
        go.touch()
        assert "released" in [line.text for line in lines], "to the end, from every worker"
        assert job.result(WAIT_S).succeeded
        assert {future.result(WAIT_S).phase for future in futures} == {"succeeded"}
        seen = list(statuses)
        assert seen[-1].ended and len(set(seen)) == len(seen), "each change once, the end last"
        assert "first" in client.jobs()
        job.remove()
        assert "first" not in client.jobs()
        again = client.submit(script, go, "y", name="first", workers=1)
        assert again.result(WAIT_S).succeeded
        assert {line.text for line in again.logs()} == {"begun y", "released"}, "its own, only"
        for ask in (job.status, job.result, job.cancel, job.remove):
            with pytest.raises(Missing, match="was removed"):
                ask()


def test_a_job_that_fails_says_so_with_its_own_traceback_and_one_that_is_cancelled_ends(
    home: Home, script: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    go.touch()
    with Client(home.cluster.folder) as client:
        once = {"name": "failing", "command": f"python waits.py {go} fail"}
        failing = client.submit(
            {**once, "bundle": str(script.parent), "restart": {"failures_max": 1}}
        )
        waiting = client.submit(script, tmp_path / "never", name="waiting")
        with pytest.raises(JobFailed, match="failing has failed") as failed:
            failing.result(WAIT_S)
        assert "ValueError: the loss is not a number" in failed.value.why
        assert any("Traceback" in line for line in failed.value.story)
        errors = [line.text for line in failing.logs(stdout=False)]
        assert "ValueError: the loss is not a number" in errors
        assert "begun fail" not in errors
        future = waiting.future()
        stopped = waiting.cancel(now=True, wait=True, timeout_s=WAIT_S)
        assert stopped is not None and not stopped.placements
        with pytest.raises(JobFailed, match="was stopped"):
            future.result(WAIT_S)
        left = client.submit(script, tmp_path / "never", name="left").future()
    with pytest.raises(Cancelled, match="client is closed"):
        left.result(WAIT_S)
    with pytest.raises(Cancelled, match="client is closed"):
        client.jobs()
    assert own_threads() == []


async def cancelled_in_the_middle(job: AsyncJob) -> None:
    """A follower that waits for the next line is cancelled: its reading ends, quietly."""
    for _ in range(5):
        lines = job.logs(follow=True)
        await anext(lines)
        waiting = asyncio.create_task(anext(lines))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await lines.aclose()


def test_a_loop_does_the_same_and_is_never_blocked(
    home: Home, script: Path, tmp_path: Path
) -> None:
    go = tmp_path / "go"

    async def ticks(counted: list[int]) -> None:
        while True:
            counted.append(1)
            await asyncio.sleep(0.01)

    async def main() -> None:
        counted: list[int] = []
        beside = asyncio.create_task(ticks(counted))
        async with AsyncClient(home.cluster.folder) as client:
            job = await client.submit(script, go, name="looped", workers=1, lanes=2)
            lines = job.logs(follow=True)
            assert (await anext(lines)).text == "begun"
            await cancelled_in_the_middle(job)
            follower = asyncio.create_task(anext(lines))
            results = [asyncio.create_task(job.result(WAIT_S)) for _ in range(50)]
            before = len(counted)
            await job.scale(2)
            async for status in job.watch():
                if status.workers == 2:
                    break
            assert len(counted) > before
            with pytest.raises(TimedOut):
                await job.wait(timeout_s=0.0)
            go.touch()
            assert all(one.succeeded for one in await asyncio.gather(*results))
            assert (await follower).text in ("begun", "released")
            await lines.aclose()
            seen = [status async for status in job.watch()]
            assert [status.phase for status in seen] == ["succeeded"]
            again = await client.job("looped")
            await again.remove()
            assert "looped" not in await client.jobs()
        beside.cancel()

    asyncio.run(main())


def test_a_cluster_that_is_down_is_read_if_that_is_enough(home: Home, script: Path) -> None:
    with Client(home.cluster.folder) as client:
        submitted = client.submit(script, "never", name="kept").facts().spec
    home.end()
    with pytest.raises(Unavailable, match="is not up"):
        Client(home.cluster.folder)
    notes: list[str] = []
    with Client(home.cluster.folder, reads=True, note=notes.append) as client:
        assert client.down
        assert client.job("kept").facts().spec == submitted
        assert "is down; as it was left" in notes[0]
