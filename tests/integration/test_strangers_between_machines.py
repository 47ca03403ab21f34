"""A host without credentials against every socket of a cluster that others may join (`--listen`).

The host is a network namespace with a cable to this machine. What listens is found in the tables of
the system, as in `test_strangers`.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import require_service
from tests.integration.clusters import Home, running
from tests.integration.person import WAIT_S, Person
from tests.integration.test_serve_command import PREDICT, ask, publish
from tests.integration.test_strangers import (
    ADMIN,
    AGENTS,
    ASYNCHRONOUS,
    COORDINATION,
    JOIN,
    LOGS,
    NO_CREDENTIALS,
    PARAMETERS,
    PUBLIC,
    REPLICA,
    Found,
    does,
    known_ports,
    listening,
    named,
)
from tests.servers import free_port
from tests.servers.envoy import envoy_missing
from tests.waiting import eventually

pytestmark = [pytest.mark.timeout(900), pytest.mark.engines]

NUMBER = os.getpid() % 250
HERE, THERE = f"10.79.{NUMBER}.1", f"10.79.{NUMBER}.2"
SCRIPT = """
import time
import torch
from holdfast import train

def main(run):
    model = torch.nn.Linear(4, 1)
    run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01))
    data = torch.utils.data.TensorDataset(torch.zeros(64, 4), torch.zeros(64, 1))
    for number, (x, y) in enumerate(run.batches(data, lane_batch=2, epochs=1_000_000)):
        time.sleep(0.02)
        run.step(((model(x) - y) ** 2).mean())
        if number % 20 == 0:
            print("batch", number, flush=True)

train.launch(main)
"""


class Scene(NamedTuple):
    """A cluster that trains asynchronously and serves, what listens, and the host of a stranger."""

    home: Home
    person: Person
    url: str
    sockets: dict[str, list[Found]]
    host: str


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], capture_output=True, text=True, check=True)


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    """Another machine: `HERE` is this one's address on the cable between them."""
    name, made = f"hfs{os.getpid()}", False
    try:
        try:
            _ip("netns", "add", name)
            made = True
            _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("addr", "add", f"{HERE}/24", "dev", name)
            _ip("link", "set", name, "up")
            _ip("-n", name, "addr", "add", f"{THERE}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            require_service(f"no network namespaces here: {error}")
        yield name
    finally:
        if made:
            _ip("netns", "del", name)  # the cable goes with it


@pytest.fixture(scope="module")
def scene(host: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    require_service(envoy_missing())
    folder = tmp_path_factory.mktemp("distance")
    plane = f"embedded:coordination?timeout_s=20&listen={HERE}:{free_port()}"
    home = Home(folder / "cluster", plane, listen=HERE)
    try:
        home.up()
        with home.control() as control:
            person = Person(home, control, folder)
            (folder / "code" / ASYNCHRONOUS).write_text(SCRIPT)
            more = {"command": f"python {ASYNCHRONOUS}", "workers": "2", "lanes": "2"}
            person.does("submit", person.file("learning", mode="async", **more))
            person.until_logged("learning", "batch 20", times=1)
            publish(person, "two", PREDICT % 2)
            told = person.sees("serve", "two", "--gateway", f"{HERE}:{free_port()}")
            ports = known_ports(home)
            sockets: dict[str, list[Found]] = {}
            for found in listening(home.cluster.folder):
                sockets.setdefault(named(found, ports), []).append(found)
            yield Scene(home, person, told["url"], sockets, host)
    finally:
        home.end()


def test_every_socket_is_in_the_table_and_listens_where_it_was_told_to(scene: Scene) -> None:
    text = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    table = re.search(r"\| socket \|.*?\n\n", text, re.DOTALL)
    assert table is not None
    listed = {row.split("|")[1].strip() for row in table[0].splitlines()[2:] if row.strip()}
    assert set(scene.sockets) <= listed
    for name in (COORDINATION, AGENTS, JOIN, LOGS, PARAMETERS, REPLICA, PUBLIC, ADMIN):
        assert name in scene.sockets, f"{name} was not found: {scene.sockets}"
    for name, several in scene.sockets.items():
        for found in several:
            if found.kind == "tcp":
                assert found.where.startswith(f"{HERE}:"), (name, found)


def test_the_plane_says_nothing_to_another_host_and_takes_nothing(scene: Scene) -> None:
    (found,) = scene.sockets[COORDINATION]
    came = does(NO_CREDENTIALS, "closed_plane", *found.where.split(":"), within=scene.host)
    assert len(came) == 9
    assert "done" not in came.values(), came
    with scene.home.control() as control:
        assert "evil" not in control.jobs()


@pytest.mark.parametrize("name", [AGENTS, LOGS])
def test_another_host_is_not_spoken_with_where_certificates_are_shown(
    scene: Scene, name: str
) -> None:
    for found in scene.sockets[name]:
        came = does(NO_CREDENTIALS, "tls", *found.where.split(":"), within=scene.host)
        assert "done" not in came.values(), (found, came)


def test_a_parameter_server_answers_no_stranger_allocates_nothing_and_goes_on(scene: Scene) -> None:
    before = _resident_bytes(scene)
    for found in scene.sockets[PARAMETERS]:
        came = does(NO_CREDENTIALS, "member", *found.where.split(":"), within=scene.host)
        assert len(came) == 6
        assert "done" not in came.values(), (found, came)
    for pid, used in _resident_bytes(scene).items():
        assert used < before.get(pid, used) + 2**28, "it made room for what was announced"
    logs = list(scene.home.cluster.nodes_folder.glob("*/logs/learning.*/out.log"))
    seen = [log.stat().st_size for log in logs]
    eventually(
        lambda: any(log.stat().st_size > size for log, size in zip(logs, seen, strict=True)),
        "the job goes on",
        WAIT_S,
    )


def test_a_replica_gives_another_host_nothing_and_its_gateway_does(scene: Scene) -> None:
    for found in scene.sockets[REPLICA]:
        came = does(NO_CREDENTIALS, "replica", *found.where.split(":"), within=scene.host)
        assert len(came) == 8
        assert "done" not in came.values(), (found, came)
    assert ask(scene.url, "two") == (200, {"y": [[2.0, 4.0]]}, "1")


def _resident_bytes(scene: Scene) -> dict[int, int]:
    """Of each worker of the job."""
    found = {}
    for pid, command in running(scene.home.cluster.folder).items():
        if ASYNCHRONOUS in command:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            found[pid] = pages * os.sysconf("SC_PAGESIZE")
    assert found
    return found
