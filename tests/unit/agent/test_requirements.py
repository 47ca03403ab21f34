"""What a job's requirements mean, which environments stay, and how a worker waits for its own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent import environments, requirements
from holdfast.agent.environments import Environments, Making
from holdfast.agent.events import Ending, Event, Preparing, Timer
from holdfast.agent.exits import classify
from holdfast.agent.requirements import (
    ENVIRONMENT_UNUSED_S,
    ENVIRONMENTS_BYTES_MAX,
    ENVIRONMENTS_KEPT,
    CannotPrepare,
    Made,
    RequirementsLock,
    is_local,
    lock_of,
    surplus,
)
from holdfast.cli.jobs import phrases
from holdfast.wire.causes import cause_of
from holdfast.wire.orders import StartWorker
from holdfast.wire.reports import ExitKind
from holdfast.wire.resources import Resources
from tests.unit.agent.driving import KEY, NODE, Driven, start
from tests.waiting import eventually

DOING = "preparing the environment: pip install numpy"


def order(*lines: str, **more: Any) -> StartWorker:
    bundle = more.pop("bundle", "sha256:one")
    return StartWorker(
        NODE, "job", 1, bundle, ("python",), Resources(1.0), requirements=lines, **more
    )


def test_comments_blanks_and_the_file_that_names_them_make_no_other_environment(
    tmp_path: Path,
) -> None:
    (tmp_path / "requirements.txt").write_text("# ours\n\nnumpy==2.1  # fast\n-r more/also.txt\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "also.txt").write_text("einops \\\n  >=0.8\n-c bounds.txt\n")
    (tmp_path / "more" / "bounds.txt").write_text("packaging<25\n")
    lock = lock_of(order("-r requirements.txt"), tmp_path)
    assert lock.lines == ("numpy==2.1", "einops >=0.8")
    assert lock.constraints == ("packaging<25",) and not lock.local
    (tmp_path / "same.txt").write_text("packaging<25")
    same = lock_of(order("numpy==2.1", "einops  >=0.8", "-c same.txt", bundle="other"), tmp_path)
    assert same.key == lock.key
    assert lock.doing == "preparing the environment: pip install numpy==2.1 einops >=0.8"


def test_a_folder_of_links_is_beside_the_file_that_names_it_as_for_pip(tmp_path: Path) -> None:
    for name in ("wheels", "sub"):
        (tmp_path / name).mkdir()
    (tmp_path / "sub" / "r.txt").write_text("--no-index\n--find-links ../wheels\nours\n")
    lock = lock_of(order("-r sub/r.txt"), tmp_path)
    assert lock.lines == ("--no-index", "--find-links ./wheels", "ours") and lock.local
    assert lock_of(order("--find-links=wheels", "ours"), tmp_path).local
    kept = ("--find-links https://host/x", "-f /opt/wheels", "-f ../elsewhere", "-f missing")
    assert lock_of(order(*kept), tmp_path).lines == kept


def test_what_may_be_installed_otherwise_is_another_environment(tmp_path: Path) -> None:
    orders = [
        order("numpy"),
        order("numpy==2.1"),
        order("numpy", user="daemon"),
        order("numpy", environment={"PIP_INDEX_URL": "https://index.example/simple"}),
        order("./wheels/own.whl"),
        order("./wheels/own.whl", bundle="sha256:two"),
    ]
    assert len({lock_of(each, tmp_path).key for each in orders}) == len(orders)
    plain = order("numpy", environment={"STAGE": "test"}, bundle="sha256:two")
    assert lock_of(plain, tmp_path).key == lock_of(orders[0], tmp_path).key


@pytest.mark.parametrize(
    ("line", "local"),
    [
        ("numpy==2.1", False),
        ("numpy @ https://example.org/numpy.whl", False),
        ("git+https://example.org/a/b", False),
        ("--index-url https://example.org/simple", False),
        ("--no-index", False),
        ("-f https://example.org/wheels/", False),
        ("-f ./wheels", True),
        ("--find-links=wheels/", True),
        ("./package", True),
        ("folder/package", True),
        ("own-1.0-py3-none-any.whl", True),
        ("own @ file:///somewhere/own.whl", True),
        (".", True),
    ],
)
def test_what_lies_in_the_jobs_own_folder_is_seen(line: str, local: bool) -> None:
    assert is_local(line) is local


@pytest.mark.parametrize("name", ["nowhere.txt", "../outside.txt", "/etc/hostname"])
def test_a_file_that_is_not_in_the_bundle_is_the_jobs_cause(tmp_path: Path, name: str) -> None:
    (tmp_path / "outside.txt").touch()
    (tmp_path / "code").mkdir()
    with pytest.raises(CannotPrepare) as refused:
        lock_of(order(f"-r {name}"), tmp_path / "code")
    assert f"{name}, which `requirements` names, is not in the job's bundle" in refused.value.what


def test_files_that_name_each_other_come_to_an_end(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("-r a.txt\n")
    with pytest.raises(CannotPrepare, match="do they name each other"):
        lock_of(order("-r a.txt"), tmp_path)


def test_what_nobody_used_for_long_goes_and_beyond_the_bounds_the_longest_unused() -> None:
    now_s = 10 * ENVIRONMENT_UNUSED_S
    recent = [Made(f"{number:03}", now_s - 100 - number, 1) for number in range(ENVIRONMENTS_KEPT)]
    assert surplus(recent, (), now_s) == []
    old = Made("old", now_s - ENVIRONMENT_UNUSED_S - 1, 1)
    assert surplus([*recent[1:], old], (), now_s) == ["old"]
    assert surplus([*recent[1:], old], {"old"}, now_s) == [], "a worker has it"
    more = Made("more", now_s - 99, 1)
    assert surplus([*recent, more], (), now_s) == [recent[-1].key], "one too many"
    large = Made("large", now_s - 5_000, ENVIRONMENTS_BYTES_MAX)
    assert surplus([*recent[:3], large], (), now_s) == ["large"], "too much together"
    assert surplus([large._replace(used_s=now_s)], (), now_s) == [], "it was given just now"


def test_while_its_environment_is_made_a_worker_has_not_hung_and_says_since_when() -> None:
    agent = Driven()
    agent.order(start(1, silence_s=5.0, requirements=("numpy",)))
    agent.handle(Preparing(KEY, DOING, 1_000.0))
    agent.now_s = 3.0
    assert phrases.preparing(agent.known(), 1_012.0) == f"{DOING}, since 12s"
    agent.now_s = 6.0  # a timer that comes much later would not count anyway
    assert agent.handle(Timer()) == [] and agent.machine.wake_s is None
    agent.handle(Preparing(KEY, "", 1_500.0))
    assert not agent.known().preparing and phrases.preparing(agent.known()) == ""
    agent.now_s = 10.0
    assert agent.handle(Timer()) == [], "it counts from when that was over"
    agent.now_s = 12.0
    assert agent.handle(Timer()), "and then again"


def test_what_pip_said_last_is_the_cause_and_nobody_tries_again() -> None:
    lines = "Looking in links: x\nERROR: No matching distribution for y\n\n[notice] z"
    said = environments._failure_text(environments._CreationFailed(lines))
    end = classify(Ending(fault=said, final=True), stopping=False, hung=False, introduced=False)
    assert end.kind is ExitKind.REFUSED
    cause = f"{requirements.FAILED}: pip install: ERROR: No matching distribution for y"
    assert cause_of(end.detail).text == cause and "Looking in links: x" in end.detail


def test_an_environment_that_nobody_waits_for_any_more_is_not_made_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    """Two wait; one is called off, and it goes on; the other too, and pip is ended."""
    told: list[Event] = []
    home, logged = tmp_path / "environments", tmp_path / "log" / "out.log"
    # A build that never ends, of a package that needs nothing.
    source = tmp_path / "code" / "slow"
    source.mkdir(parents=True)
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "slow"\nbackend-path = ["."]\n'
    )
    (source / "slow.py").write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\n"
        "time.sleep(1000)\n"
    )
    lock = RequirementsLock(("./slow",), (), True, "key")

    async def story() -> None:
        made = Environments(home, told.append, tuple)
        keys = [KEY, KEY._replace(worker=2)]
        waits = [
            asyncio.create_task(made.get(Making(key, lock, _plain(), tmp_path / "code", logged)))
            for key in keys
        ]
        async with asyncio.timeout(60):
            while not (tmp_path / "pid").exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.02)
        waits[0].cancel()
        await asyncio.wait([waits[0]])
        assert list(home.iterdir()), "it goes on for the other"
        waits[1].cancel()
        await asyncio.wait([waits[1]])
        await made.close()

    asyncio.run(story())
    pid = int((tmp_path / "pid").read_text())
    eventually(lambda: not _lives(pid), "what pip had started has ended")
    assert list(home.iterdir()) == []
    begun = [event for event in told if isinstance(event, Preparing) and event.doing]
    assert [event.doing for event in begun] == [lock.doing] * 2


def test_an_environment_that_is_there_is_given_at_once_and_a_torn_one_is_not(
    tmp_path: Path,
) -> None:
    """Torn as after a power cut: a file that is there, and was never written."""
    told: list[Event] = []
    home = tmp_path / "environments"
    lock = RequirementsLock(("numpy",), (), False, "key")

    def lay_out() -> Path:
        (home / "key" / "bin").mkdir(parents=True)
        (home / "key" / "bin" / "python").symlink_to(sys.executable)
        (home / "key" / "module.py").write_text("WORD = 1")
        counted = dict(zip(("files", "bytes"), environments._counted(home / "key"), strict=True))
        (home / "key" / environments.MARKER).write_text(json.dumps(counted))
        return home / "key"

    async def story() -> None:
        made = Environments(home, told.append, tuple)
        making = Making(KEY, lock, _plain(), None, tmp_path / "out.log")
        folder = lay_out()
        long_ago_s = 1_000_000.0
        os.utime(folder / environments.MARKER, (long_ago_s, long_ago_s))
        assert await made.get(making) == folder and told == []
        (folder / "__pycache__").mkdir()
        (folder / "__pycache__" / "module.pyc").touch()
        assert await made.get(making) == folder, "what Python adds is no damage"
        await made.tidy()
        assert folder.is_dir(), "it was used just now"
        made.forget(KEY)
        os.utime(folder / environments.MARKER, (long_ago_s, long_ago_s))
        await made.tidy()
        assert list(home.iterdir()) == [], "nobody has used it for long"
        (lay_out() / "module.py").write_bytes(b"")
        assert made._found("key") is None and not folder.exists(), "it is to be made anew"
        await made.tidy()
        assert list(home.iterdir()) == []
        await made.close()

    asyncio.run(story())


def _plain() -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin"}


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
