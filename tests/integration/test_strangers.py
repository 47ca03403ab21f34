"""Strangers against every socket of a running cluster: another user of the machine, and a host
without credentials.

The sockets are found in the tables of the system, by the processes that hold them: one that is new
is found too, and has to be in the table of docs/security.md.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

from holdfast.cluster import processes
from holdfast.launch import joining
from holdfast.wire import rpc
from holdfast.wire.limits import WORKER_PORT_FIRST, WORKER_PORT_LAST
from holdfast.wire.proto import cluster_pb2 as pb
from tests.conftest import require_service
from tests.grpc_calls import unary
from tests.integration.clusters import Home, holdfast, running
from tests.integration.person import WAIT_S, Person
from tests.integration.test_serve_command import PREDICT, ask, publish
from tests.servers import free_port
from tests.servers.envoy import envoy_missing

pytestmark = pytest.mark.timeout(900)  # their own waits are bounded; the machine may be busy

ROOT = Path(__file__).parents[2]
ANOTHER_USER = 65_534
NO_CREDENTIALS = -1
ASYNCHRONOUS = "asynchronous.py"  # a job's script, whose workers listen as parameter servers
NEEDS_ROOT = "only root can become another user: run this test as root"

# 127.0.0.1, ::1, and 127.0.0.1 as IPv6 writes it, in the words of the tables.
LOOPBACK = ("0100007F", "0" * 24 + "01000000", "0" * 16 + "FFFF0000" + "0100007F")

_MAPPED = "0" * 16 + "FFFF0000"

COORDINATION = "coordination server"
AGENTS = "coordinator, agents' port"
JOIN = "coordinator, join endpoint"
LOGS = "agent, log service"
WORKER_SOCKET = "agent, socket of a worker"
PREFORK = "agent, prefork server"
MESH = "worker, mesh"
PARAMETERS = "worker, parameter server"
REPLICA = "replica, HTTP and gRPC"
PUBLIC = "gateway, data path and health"
ADMIN = "gateway, admin"


class Found(NamedTuple):
    """A socket that listens: a path, or host and port; and the command of who holds it."""

    kind: str  # "tcp" or "unix"
    where: str
    command: str


class Scene(NamedTuple):
    """A cluster that trains and serves, and what of it listens, by its name in the table."""

    home: Home
    url: str
    sockets: dict[str, list[Found]]


# --- what listens ---------------------------------------------------------------------------------


def listening(folder: Path) -> list[Found]:
    """Every socket on which a process of this cluster listens."""
    rows = _tcp() | _unix()
    found = set()
    for pid, command in running(folder).items():
        for inode in _inodes(pid):
            if inode in rows:
                kind, where = rows[inode]
                found.add(Found(kind, where or _path_of(pid, inode), command))
    return sorted(found)


def _inodes(pid: int) -> set[str]:
    found = set()
    try:
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            match = re.fullmatch(r"socket:\[(\d+)\]", str(handle.readlink()))
            if match:
                found.add(match[1])
    except OSError:
        return found  # it has just ended
    return found


def _tcp() -> dict[str, tuple[str, str]]:
    found = {}
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = row.split()
            if fields[3] == "0A":
                host, _, port = fields[1].partition(":")
                found[fields[9]] = ("tcp", f"{_host(host)}:{int(port, 16)}")
    return found


def _host(text: str) -> str:
    """An address as people write it, where it is one of IPv4; in whatever family it is bound."""
    if text in LOOPBACK:
        return "127.0.0.1"
    word = text.removeprefix(_MAPPED)
    return socket.inet_ntoa(struct.pack("<I", int(word, 16))) if len(word) == 8 else text


def _unix() -> dict[str, tuple[str, str]]:
    """Those of them that accept connections; a path may be missing, or relative to a handle."""
    found = {}
    for row in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = row.split(maxsplit=7)
        if int(fields[3], 16) & 0x10000:
            found[fields[6]] = ("unix", fields[7] if len(fields) > 7 else "")
    return found


def _path_of(pid: int, inode: str) -> str:
    return f"(no name) of {pid}: {inode}"


def named(found: Found, scene_ports: dict[str, str]) -> str:
    """Which row of the table it is. `KeyError`: none that we know."""
    if found.kind == "unix":
        name = Path(found.where).name
        return {"agent.sock": WORKER_SOCKET, "zygote.sock": PREFORK, "admin.sock": ADMIN}[name]
    if found.where in scene_ports:
        return scene_ports[found.where]
    port = int(found.where.rpartition(":")[2])
    if WORKER_PORT_FIRST <= port <= WORKER_PORT_LAST:
        if "holdfast.serve.replica" in found.command:
            return REPLICA
        return PARAMETERS if ASYNCHRONOUS in found.command else MESH
    raise KeyError(found)


def known_ports(home: Home) -> dict[str, str]:
    """What the processes say of themselves."""
    kinds = {"server": COORDINATION, "coordinator": AGENTS, "agent": LOGS}
    found = {}
    for one in [home.process("server"), *processes(home.cluster)]:
        if one.kind in kinds:
            found[str(one.facts["address"])] = kinds[one.kind]
        if one.kind == "coordinator":
            found[str(one.facts["join_address"])] = JOIN
        if one.kind in ("gateway", "envoy") and "address" in one.facts:
            found[str(one.facts["address"]).removeprefix("http://")] = PUBLIC
    return found


# --- the scene ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A cluster with a job of two workers and a service behind a gateway."""
    require_service(envoy_missing())
    folder = tmp_path_factory.mktemp("strangers")
    home = Home(folder / "cluster")
    try:
        home.up()
        with home.control() as control:
            person = Person(home, control, folder)
            shutil.copy(ROOT / "examples" / "counter.py", folder / "code")
            more = {"command": "python counter.py --steps 1000000 --step-ms 20", "workers": "2"}
            more |= {"lanes": "4", "checkpoint": "{every: 1s, keep: 2}"}
            person.does("submit", person.file("counting", **more))
            person.until_logged("counting", "step ", times=2)
            publish(person, "two", PREDICT % 2)
            told = person.sees("serve", "two", "--gateway", f"127.0.0.1:{free_port()}")
            ports = known_ports(home)
            sockets: dict[str, list[Found]] = {}
            for found in listening(home.cluster.folder):
                sockets.setdefault(named(found, ports), []).append(found)
        yield Scene(home, told["url"], sockets)
    finally:
        home.end()


def does(user: int, deed: str, *words: str, within: str = "") -> dict[str, str]:
    """What a stranger tries, and what comes of it. `within`: the network namespace he is in."""
    if user >= 0 and os.getuid() != 0:
        pytest.skip(NEEDS_ROOT)
    done = subprocess.run(
        [
            *(("ip", "netns", "exec", within) if within else ()),
            *(sys.executable, "-m", "tests.integration.stranger", str(user), deed, *words),
        ],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["tried"]: row["came"] for row in rows}


@pytest.fixture(params=[ANOTHER_USER, NO_CREDENTIALS], ids=["another user", "no credentials"])
def user(request: pytest.FixtureRequest) -> int:
    return int(request.param)


# --- the tests ------------------------------------------------------------------------------------


def test_every_socket_that_listens_is_in_the_table_of_the_documents(scene: Scene) -> None:
    text = (ROOT / "docs" / "security.md").read_text()
    table = re.search(r"\| socket \|.*?\n\n", text, re.DOTALL)
    assert table is not None
    listed = {row.split("|")[1].strip() for row in table[0].splitlines()[2:] if row.strip()}
    assert set(scene.sockets) <= listed
    # Those that this cluster surely has: otherwise the search has found too little.
    for name in (COORDINATION, AGENTS, JOIN, LOGS, WORKER_SOCKET, MESH, REPLICA, PUBLIC, ADMIN):
        assert name in scene.sockets, f"{name} was not found: {scene.sockets}"


def test_all_of_it_listens_on_loopback_only(scene: Scene) -> None:
    for name, several in scene.sockets.items():
        for found in several:
            if found.kind == "tcp":
                assert found.where.startswith("127.0.0.1:"), (name, found)


def test_a_stranger_at_the_coordination_plane_gets_nothing_and_submits_nothing(
    scene: Scene, user: int
) -> None:
    (found,) = scene.sockets[COORDINATION]
    came = does(user, "plane", *found.where.split(":"))
    assert len(came) > 30
    assert came["submit a job"] == "Refused"
    for tried, what in came.items():
        assert what in ("NoAuthError", "BadArgumentsError", "Refused", "refused"), (tried, what)
    with scene.home.control() as control:
        assert "evil" not in control.jobs()


@pytest.mark.parametrize("name", [AGENTS, LOGS])
def test_a_stranger_is_not_spoken_with_where_certificates_are_shown(
    scene: Scene, user: int, name: str
) -> None:
    for found in scene.sockets[name]:
        came = does(user, "tls", *found.where.split(":"))
        assert "done" not in came.values(), (found, came)
        assert len(came) == 2


def test_a_stranger_at_the_join_endpoint_gets_no_certificate_and_no_authority(
    scene: Scene,
) -> None:
    # He may even know whom to trust: that is no secret.
    trust_pem = scene.home.cluster.authority().trust_pem
    (found,) = scene.sockets[JOIN]
    credentials = grpc.ssl_channel_credentials(trust_pem)
    with grpc.secure_channel(found.where, credentials) as channel:
        for method in (rpc.JOIN, rpc.STAND, rpc.RENEW, rpc.ATTACH, rpc.OBSERVE, rpc.NODES):
            call = unary(channel, method)
            for body in (b"", pb.StandRequest(protocol=rpc.PROTOCOL).SerializeToString()):
                with pytest.raises(grpc.RpcError) as refused:
                    call(body, timeout=WAIT_S)
                assert refused.value.code() in (
                    grpc.StatusCode.UNAUTHENTICATED,
                    grpc.StatusCode.INVALID_ARGUMENT,
                    grpc.StatusCode.FAILED_PRECONDITION,
                    grpc.StatusCode.UNIMPLEMENTED,
                ), (method, refused.value)


def test_another_user_cannot_enter_a_folder_with_a_socket(scene: Scene) -> None:
    folder = scene.home.cluster.folder
    # They are bound by a short name of an open folder: look for the files themselves.
    paths = [path for path in folder.rglob("*") if path.is_socket()]
    assert {"agent.sock", "admin.sock"} <= {path.name for path in paths}
    for path in paths:
        assert does(ANOTHER_USER, "unix", str(path)) == {f"connect to {path}": "PermissionError"}


def test_the_public_port_answers_what_is_public_and_nothing_of_envoys_own(scene: Scene) -> None:
    assert ask(scene.url, "two") == (200, {"y": [[2.0, 4.0]]}, "1")
    for path, status in (
        ("/v2/health/live", 200),
        ("/v2/health/ready", 200),
        ("/config_dump", 404),
        ("/clusters", 404),
        ("/stats", 404),
        ("/quitquitquit", 404),
        ("/holdfast/stats", 404),
    ):
        for method in ("GET", "POST"):
            link = http.client.HTTPConnection(scene.url.removeprefix("http://"), timeout=WAIT_S)
            try:
                link.request(method, path)
                found = link.getresponse().status
            finally:
                link.close()
            assert found == status or (method == "POST" and found in (404, 405)), (method, path)


def test_another_user_reads_nothing_of_the_folder(scene: Scene, tmp_path: Path) -> None:
    folder = scene.home.cluster.folder
    assert does(ANOTHER_USER, "walk", str(folder)) == {f"list {folder}": "PermissionError"}
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(files) > 30
    listing = Path(tmp_path.parent / "listing")
    listing.write_text("\n".join(map(str, files)))
    for above in (listing, *listing.parents):
        if above.stat().st_uid == os.getuid() and str(above).startswith(("/tmp/", "/dev/shm/")):
            above.chmod(above.stat().st_mode | 0o055 if above.is_dir() else 0o644)
    came = does(ANOTHER_USER, "open_files", str(listing))
    assert set(came.values()) == {"PermissionError"}, came


def test_nothing_in_the_folder_is_meant_for_others(scene: Scene) -> None:
    """Each file by itself, not only by the folder above it."""
    loose = []
    for path in scene.home.cluster.folder.rglob("*"):
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue  # it went while we looked
        if not stat.S_ISLNK(mode) and not stat.S_ISSOCK(mode) and mode & 0o077:
            loose.append(f"{stat.filemode(mode)} {path.relative_to(scene.home.cluster.folder)}")
    assert not loose, "\n".join(loose)


def test_no_command_line_or_environment_shows_a_secret(scene: Scene) -> None:
    found = scene.home.cluster.access()
    assert found is not None
    hidden = [found.secret.encode(), found.for_workers().secret.encode()]
    for pid in running(scene.home.cluster.folder):
        for name in ("cmdline", "environ"):
            try:
                text = Path(f"/proc/{pid}/{name}").read_bytes()
            except OSError:
                continue  # it has just ended
            assert not any(secret in text for secret in hidden), (pid, name)
    assert hidden[0] not in (scene.home.cluster.folder / "cluster.json").read_bytes()
    token = joining.token(scene.home.cluster)
    shown = holdfast("status", "--json", "--cluster", str(scene.home.cluster.folder)).stdout
    assert found.secret not in token + shown


def test_a_worker_gets_a_lesser_credential_in_a_file(scene: Scene) -> None:
    folder = scene.home.cluster.folder
    found = set()
    for pid in running(folder):
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        found |= {one for one in variables if one.startswith(b"HOLDFAST_COORDINATION=")}
    assert found
    for variable in found:
        assert b"secret_file=" in variable
        path = Path(variable.rpartition(b"secret_file=")[2].decode())
        assert json.loads(path.read_text())["user"] == "holdfast-worker"


def test_a_port_that_nobody_listens_on_is_not_in_the_list(scene: Scene) -> None:
    """The search itself: what it finds can be connected to."""
    for several in scene.sockets.values():
        for found in several:
            if found.kind == "tcp":
                host, _, port = found.where.rpartition(":")
                with socket.create_connection((host, int(port)), timeout=WAIT_S):
                    pass
