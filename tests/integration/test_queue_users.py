"""Queues with a user of their own: what a worker of one can read of another's, and that it trains,
is killed and is stopped as ever. With real users, so as root."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.wire.errors import Corrupt
from tests.conftest import require_service
from tests.integration.clusters import Home, running
from tests.integration.person import WAIT_S, Person
from tests.servers import free_port
from tests.servers.envoy import envoy_missing
from tests.waiting import eventually

pytestmark = [pytest.mark.timeout(900), pytest.mark.engines]

ROOT = Path(__file__).parents[2]
NEEDS_ROOT = "only root can start workers of other users: run this test as root"
OWNER, SPY = "daemon", "nobody"  # users that every machine has
SECRET = "what-only-queue-a-knows"
KEEPS = """
import os, pathlib, sys, time
secret = sys.argv[1]
os.environ["TOKEN"] = secret
pathlib.Path("/tmp/kept").write_text(secret)
pathlib.Path(os.environ["HOLDFAST_SCRATCH"], "tmp", "kept").write_text(secret)
print("uid", os.getuid(), os.getgid(), sorted(os.getgroups()), os.environ["HOME"], flush=True)
while True:
    time.sleep(0.1)
"""
SPIES = """
import json, os, pathlib, sys
from holdfast.coordination import Config, Facts, Membership, connect
from holdfast.wire.errors import Refused

def tried(act):
    try:
        return act() or "done"
    except Exception as error:
        return type(error).__name__

secret, found = sys.argv[1].encode(), {}
def in_environment():
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            for name in ("environ", "mem", "cwd/x", "root/tmp/kept"):
                try:
                    with (entry / name).open("rb") as file:
                        if secret in file.read(100_000):
                            return f"{entry}/{name}"
                except OSError:
                    continue
    return "nothing"

found["processes"] = in_environment()
found["tmp"] = sorted(os.listdir("/tmp"))
for path in json.loads(sys.argv[2]):
    found[path] = tried(lambda: pathlib.Path(path).read_bytes() and "")
mine = pathlib.Path(os.environ["HOLDFAST_SCRATCH"])
for name in ("claim", "exit", "launch.json", "new"):
    found[f"write {name}"] = tried(lambda: (mine / name).write_text("{}") and "")
with connect(os.environ["HOLDFAST_COORDINATION"]) as session:
    Config(session, "/holdfast/models/spied").put(1)
    found["publish"] = "done"
    found["submit"] = tried(lambda: Config(session, "/holdfast/jobs/evil").put({}))
    service, facts = "/holdfast/services/digits", Facts(session)
    for path in (service, f"{service}/plan"):
        found[f"see {path}"] = tried(lambda: facts.read(path, fresh=True))
        change = lambda: facts.transaction(lambda: False).replace(path, b"{}").commit()
        found[f"change {path}"] = tried(change)
    join = lambda: Membership(session, f"{service}/replicas").join("99", {})
    found["pass for a replica"] = tried(join)
    found["list services"] = tried(lambda: facts.names("/holdfast/services", fresh=True))
pathlib.Path("beside").write_text("in the code's own folder")
store = pathlib.Path(os.environ["HOLDFAST_STORE"].removeprefix("file:"))
for name, target in json.loads(sys.argv[3]).items():
    (store / name).parent.mkdir(parents=True, exist_ok=True)
    (store / name).symlink_to(target)
os.mkfifo(store / "planted" / "pipe")
for target in ("/etc/passwd", str(mine / "access")):
    found[f"hard link to {target}"] = tried(lambda: os.link(target, store / "planted" / "hard"))
print("found", json.dumps(found), flush=True)
"""

# A package whose building says who builds it. It needs nothing to be built.
BUILDS = """
import os, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "built-1.0-py3-none-any.whl"
    files = {
        "built.py": f"BY = {os.getuid()}",
        "built-1.0.dist-info/METADATA": "Metadata-Version: 2.1\\nName: built\\nVersion: 1.0\\n",
        "built-1.0.dist-info/WHEEL":
            "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    files["built-1.0.dist-info/RECORD"] = "".join(f"{one},,\\n" for one in files)
    with zipfile.ZipFile(os.path.join(folder, name), "w") as archive:
        for one, text in files.items():
            archive.writestr(one, text)
    return name
"""
PYPROJECT = """
[build-system]
requires = []
build-backend = "builds"
backend-path = ["."]
[project]
name = "built"
version = "1.0"
"""
IMPORTS = """
import os, sys, built
print("built by", built.BY, "run by", os.getuid(), "in", sys.prefix, flush=True)
"""


class Scene(NamedTuple):
    home: Home
    person: Person


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A cluster with a queue for each user. It is not in /tmp: its folder is covered."""
    if os.getuid() != 0:
        pytest.skip(NEEDS_ROOT)
    require_service(envoy_missing())
    top = Path(tempfile.mkdtemp(prefix="holdfast-users-", dir="/var/lib"))
    home = Home(top / "cluster")
    try:
        home.up()
        with home.control() as control:
            person = Person(home, control, tmp_path_factory.mktemp("person"))
            shutil.copy(ROOT / "examples" / "counter.py", person.folder / "code")
            (person.folder / "code" / "keeps.py").write_text(KEEPS)
            (person.folder / "code" / "spies.py").write_text(SPIES)
            person.does("queue", "set", "a", "--user", OWNER)
            person.does("queue", "set", "b", "--user", SPY)
            person.does("queue", "set", "c", "--user", "holdfast-no-such-user")
            person.does("queue", "set", "b", "--cpu", "1")  # the user stays
            yield Scene(home, person)
    finally:
        home.end()
        shutil.rmtree(top, ignore_errors=True)


def workers_of(scene: Scene, job: str) -> dict[int, int]:
    """The processes of a job's workers, and whose they are."""
    mark = f"HOLDFAST_JOB={job}".encode()
    found = {}
    for pid in running(scene.home.cluster.folder):
        try:
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found[pid] = Path(f"/proc/{pid}").stat().st_uid
        except OSError:
            continue
    return found


def test_a_worker_of_one_queue_reads_nothing_of_anothers_nor_of_the_cluster(scene: Scene) -> None:
    home, person = scene
    owner, spy = pwd.getpwnam(OWNER), pwd.getpwnam(SPY)
    command = f"python keeps.py {SECRET}"
    person.does("submit", person.file("keeping", command=command, queue="a"))
    person.until_logged("keeping", "uid ")
    assert set(workers_of(scene, "keeping").values()) == {owner.pw_uid}
    cluster = home.cluster.folder
    (folder,) = cluster.glob("nodes/*/workers/keeping.*")
    (log,) = cluster.glob("nodes/*/logs/keeping.*/out.log")
    groups = sorted(os.getgrouplist(OWNER, owner.pw_gid))
    assert log.read_text() == f"uid {owner.pw_uid} {owner.pw_gid} {groups} {owner.pw_dir}\n"
    wanted = [log, *(path for path in cluster.rglob("*") if path.is_file())]
    assert folder / "tmp" / "kept" in wanted
    assert cluster / "authority" / "authority.key" in wanted
    listing = json.dumps([str(path) for path in wanted if "/store/" not in str(path)])
    person.does("models", "publish", "digits", *_doubling(person.folder))
    person.does("serve", "digits", "--queue", "a", "--gateway", f"127.0.0.1:{free_port()}")
    outside = person.folder / "outside"
    outside.mkdir()
    (outside / "secret").write_text(SECRET)
    links = {"planted/file": str(outside / "secret"), "planted/folder": str(outside)}
    words = ["python", "spies.py", SECRET, listing, json.dumps(links)]
    job = {"name": "spying", "command": words, "queue": "b", "bundle": "./code"}
    (person.folder / "spying.yaml").write_text(json.dumps(job))
    person.does("submit", "spying.yaml")
    person.until_ended("spying")
    said = person.does("logs", "spying")  # the owner's command reads them
    line = next(line for line in said.splitlines() if "found " in line)
    found = json.loads(line.partition("found ")[2])
    assert found.pop("processes") == "nothing"
    assert "kept" not in found.pop("tmp")
    assert found.pop("publish") == "done"
    assert found.pop("submit") == "Refused"
    plane = {what for what in found if "service" in what or "replica" in what}
    assert {found.pop(what) for what in plane} == {"Refused"} and len(plane) == 6
    hard = [found.pop(what) for what in list(found) if what.startswith("hard link")]
    assert set(hard) <= {"OSError", "PermissionError"} and len(hard) == 2
    check_that_nothing_is_followed(home, outside)
    person.does("unserve", "digits")
    assert set(found.values()) <= {"PermissionError", "FileNotFoundError"}, found
    assert spy.pw_uid != owner.pw_uid
    person.does("stop", "keeping")
    person.until(lambda: not workers_of(scene, "keeping"), "its worker has ended")


def _doubling(folder: Path) -> list[str]:
    """A model, as `holdfast models publish` takes it."""
    (folder / "double").mkdir()
    double = "def predict(inputs):\n    return {'y': inputs['x'] * 2}\n"
    (folder / "double" / "model.py").write_text(double)
    more = ["--kind", "function", "--entry", "model:predict", "--example", '{"x": [[1.0, 2.0]]}']
    return ["--code", str(folder / "double"), *more]


def check_that_nothing_is_followed(home: Home, outside: Path) -> None:
    """What the spy has put into the store leads root's processes nowhere."""
    blobs = home.cluster.blobs()
    for key in ("planted/file", "planted/pipe", "planted/folder/secret"):
        with pytest.raises(Corrupt, match=r"planted/\w+ is a (symbolic link|pipe)"):
            blobs.get(key)
    with pytest.raises(Corrupt, match="planted/folder is a symbolic link"):
        blobs.put("planted/folder/new", b"mine")
    assert not [row.key for row in blobs.list("planted")]
    assert [path.name for path in outside.iterdir()] == ["secret"]
    blobs.delete("planted/file")
    assert (outside / "secret").read_text() == SECRET


def test_a_job_of_a_queue_with_a_user_trains_and_is_killed_and_goes_on(scene: Scene) -> None:
    home, person = scene
    more = {"command": "python counter.py --steps 400 --step-ms 10", "workers": "2", "lanes": "4"}
    more |= {"checkpoint": "{every: 1s, keep: 2}", "queue": "a"}
    person.does("submit", person.file("counting", **more))
    person.until_logged("counting", "step ", times=2)
    before = workers_of(scene, "counting")
    assert set(before.values()) == {pwd.getpwnam(OWNER).pw_uid}
    os.kill(next(iter(before)), signal.SIGKILL)
    eventually(lambda: workers_of(scene, "counting").keys() - before.keys(), "another", WAIT_S)
    person.until_ended("counting")
    # What it has written is the cluster's, as if root had.
    store = home.cluster.folder / "store"
    assert {path.stat().st_uid for path in store.rglob("*") if path.is_file()} == {0}


def test_a_machine_that_has_no_such_user_says_what_to_do(scene: Scene) -> None:
    _, person = scene
    person.does("submit", person.file("nobody", command="python waiting.py x", queue="c"))
    person.until(lambda: "useradd" in person.says("why", "nobody").stdout, "it says what to do")


def test_what_a_job_wants_installed_is_built_by_its_own_user_and_cannot_be_changed_by_it(
    scene: Scene,
) -> None:
    home, person = scene
    code = person.folder / "code"
    (code / "package").mkdir()
    (code / "package" / "builds.py").write_text(BUILDS)
    (code / "package" / "pyproject.toml").write_text(PYPROJECT)
    (code / "imports.py").write_text(IMPORTS)
    more = {"command": "python imports.py", "requirements": "[--no-index, ./package]"}
    person.does("submit", person.file("installing", queue="a", **more))
    person.until_ended("installing")
    uid = pwd.getpwnam(OWNER).pw_uid
    (made,) = home.cluster.folder.glob("nodes/*/environments/*")
    said = person.does("logs", "installing")
    assert f"built by {uid} run by {uid} in {made}" in said, said
    assert {path.lstat().st_uid for path in (made, *made.rglob("*"))} == {0}
