"""Each worker has a /tmp of its own: what one job leaves or removes there is no other's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent import privacy, sandbox
from holdfast.agent.privacy import Keep, Privacy
from tests.faults.agent_process import AgentProcess, until

ALLOWED = privacy.found()
pytestmark = pytest.mark.skipif(not ALLOWED.kind, reason=f"no namespaces: {ALLOWED.reason}")
NOBODY = 65_534


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder that does lie in /tmp, wherever those of other tests are."""
    with tempfile.TemporaryDirectory(prefix="holdfast-test-", dir="/tmp") as made:
        yield Path(made)


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder that does not lie in /tmp."""
    made = Path(tempfile.mkdtemp(prefix=".holdfast-test-", dir=Path.home()))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def sentinel() -> Iterator[Path]:
    """Somebody else's file in the machine's own /tmp."""
    path = Path("/tmp") / f"holdfast-sentinel-{uuid.uuid4().hex}"
    path.write_text("not yours")
    yield path
    path.unlink(missing_ok=True)


def agent_in(folder: Path, *, warm: bool) -> AgentProcess:
    made = AgentProcess(folder / "agent", warm=warm, light=True)
    made.environment = {"TEST_PRIVATE": "1"}
    return made


def ended(agent: AgentProcess, worker: int) -> dict[str, str]:
    found: dict[str, str] = agent.until(lambda now: now[str(worker)]["exit"])[str(worker)]
    return found


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_removing_all_of_tmp_hurts_neither_another_worker_nor_the_machine(
    elsewhere: Path, sentinel: Path, warm: bool
) -> None:
    notes = elsewhere / "notes"
    notes.mkdir()
    (notes / "keeps.py").write_text(
        "import pathlib, sys, time\n"
        "notes = pathlib.Path(sys.argv[1])\n"
        "for place in ('/tmp', '/var/tmp'):\n"
        "    pathlib.Path(place, 'mine').write_text('precious')\n"
        "(notes / 'kept').touch()\n"
        "while not (notes / 'go').exists():\n"
        "    time.sleep(0.01)\n"
        "for place in ('/tmp', '/var/tmp'):\n"
        "    assert pathlib.Path(place, 'mine').read_text() == 'precious'\n"
    )
    (notes / "wipes.py").write_text(
        "import glob, os, subprocess, sys\n"
        "open('/tmp/mine', 'w').write('other')\n"
        "subprocess.run('rm -rf /tmp/* /var/tmp/*', shell=True, check=True)\n"
        "assert os.listdir('/tmp') == [] and os.listdir('/var/tmp') == []\n"
    )
    with agent_in(elsewhere, warm=warm) as agent:
        agent.start()
        agent.ask(
            "start", worker=1, job="a", command=["python", str(notes / "keeps.py"), str(notes)]
        )
        until((notes / "kept").exists, bool)
        agent.ask("start", worker=2, job="b", command=["python", str(notes / "wipes.py")])
        assert ended(agent, 2)["exit"] == "done", ended(agent, 2)
        (notes / "go").touch()
        assert ended(agent, 1)["exit"] == "done", ended(agent, 1)
        until(lambda: list((elsewhere / "agent" / "workers").iterdir()), lambda left: not left)
    assert sentinel.read_text() == "not yours"


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_a_worker_whose_agent_lies_in_tmp_talks_to_it_and_finds_what_its_command_names(
    tmp_path: Path, sentinel: Path, warm: bool
) -> None:
    code = f"import os; os.path.exists({str(sentinel)!r}) and open('/tmp/out', 'w')"
    with agent_in(tmp_path, warm=warm) as agent:
        agent.start()
        command = ["python", "-m", "tests.faults.agent_worker", str(tmp_path), "20"]
        agent.ask("start", worker=1, command=command)
        assert ended(agent, 1)["exit"] == "done", ended(agent, 1)
        assert (tmp_path / "starts.1").exists()
        # A file that it names is there for it, too; what it makes beside it is its own.
        agent.ask("start", worker=2, command=["python", "-c", code])
        assert ended(agent, 2)["exit"] == "done", ended(agent, 2)
    assert not Path("/tmp/out").exists()


def test_a_job_may_ask_for_the_machines_own_tmp(elsewhere: Path, sentinel: Path) -> None:
    with agent_in(elsewhere, warm=False) as agent:
        agent.start()
        name = sentinel.name
        script = f"test -e $PLACE/{name} && touch $PLACE/{name}.seen"
        for worker, how in ((1, "private"), (2, "shared")):
            environment = {"HOLDFAST_TMP": how, "PLACE": "/tmp"}
            line = ["sh", "-c", script]
            agent.ask("start", worker=worker, command=line, environment=environment)
        assert ended(agent, 1)["exit"] != "done"
        assert ended(agent, 2)["exit"] == "done", ended(agent, 2)
    seen = sentinel.with_name(f"{name}.seen")
    assert seen.exists()
    seen.unlink()


def tried(code: str) -> subprocess.CompletedProcess[str]:
    """Run it with `sandbox` imported, in a process of its own."""
    path = Path(sandbox.__file__).parent
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(path)!r})\n{code}"],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )


def test_when_something_cannot_be_laid_back_the_tmp_of_the_machine_stays(sentinel: Path) -> None:
    done = tried(
        f"""
import os, sandbox
real = sandbox._mount
def fails(libc, source, target, flags):
    if target == {str(sentinel)!r}:
        raise OSError(22, "it cannot be")
    real(libc, source, target, flags)
sandbox._mount = fails
os.mkdir({str(sentinel) + ".d"!r})
try:
    own, kept = [{str(sentinel) + ".d"!r}] * 2, [{str(sentinel)!r}]
    sandbox.enter(sandbox.Plan({ALLOWED.kind!r}, own, kept))
except OSError as error:
    print("refused", error.strerror)
print(open({str(sentinel)!r}).read())
"""
    )
    shutil.rmtree(f"{sentinel}.d")
    assert done.stdout.splitlines() == ["refused it cannot be", "not yours"], done.stderr


def test_a_user_who_is_not_root_has_a_tmp_of_its_own_too(sentinel: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    place = Path(f"{sentinel}.nobody")
    place.mkdir()
    os.chown(place, NOBODY, NOBODY)
    done = tried(
        f"""
import os, sandbox
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
kind = sandbox.try_out()
print(kind)
if kind:
    sandbox.enter(sandbox.Plan(kind, [{str(place)!r}] * 2, []))
    open("/tmp/mine", "w").write("x")
    print(os.listdir("/tmp"), os.getuid(), open("/proc/self/environ").read() is not None)
"""
    )
    try:
        if "user" not in done.stdout.splitlines():
            pytest.skip(f"this system does not allow it: {done.stdout} {done.stderr}")
        assert done.stdout.splitlines()[-2:] == ["user", f"['mine'] {NOBODY} True"], done.stderr
        assert (place / "mine").read_text() == "x"
    finally:
        shutil.rmtree(place)


def test_a_folder_that_is_tmp_itself_leaves_it_shared(tmp_path: Path) -> None:
    keep = Keep(("/tmp",))
    assert privacy.plan(Privacy("mount"), tmp_path, keep) is None
    assert privacy.plan(Privacy(""), tmp_path, Keep()) is None


def test_what_a_job_names_in_tmp_is_kept_or_the_folder_where_it_would_be(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "a.txt").touch()
    named = privacy.named(
        [
            f"--data={tmp_path}/data",
            f'{{"out": "{tmp_path}/none/model.pt", "x": 1}}',
            f"cat {tmp_path}/a.txt;true",
            "/tmp/nothing-of-this-name-is-there",
            "/tmp/../etc/passwd",
        ]
    )
    assert named == {str(tmp_path / "data"), str(tmp_path), str(tmp_path / "a.txt"), "/etc/passwd"}
    plan = privacy.plan(Privacy("mount"), tmp_path / "data", Keep((), tuple(named)))
    assert plan is not None
    assert "/etc/passwd" not in plan["keep"]
