"""Any program is a job: nginx and Redis as they are, three replicas each, updated and killed."""

from __future__ import annotations

import http.client
import itertools
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.options import opened
from holdfast.client.credentials import credentials_of
from holdfast.control.rpc.observer import nodes
from holdfast.control.store.plane import ControlPlane
from tests.conftest import require_service
from tests.integration.clusters import PATIENT, Home
from tests.integration.person import Person

pytestmark = pytest.mark.engines

# Debian puts it where only root's PATH leads.
PROGRAM = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") or ""

NGINX = """
daemon off;
pid nginx.pid;
error_log stderr;
events {}
http {
    access_log off;
    server {
        listen PORT;
        location = /ready { return HEALTH "ready"; }
        location / { return 200 "SAYS"; }
    }
}
"""
WEB = """
name: web
mode: serve
command:
  - sh
  - -c
  - sed "s/PORT/$HOLDFAST_PORT_HTTP/" nginx.conf > $TMPDIR/nginx.conf &&
    exec PROGRAM -p $TMPDIR -c nginx.conf
bundle: ./nginx
workers: {min: 1, max: 3}
resources: {cpu: 0.1}
ports: [http]
ready: {http: /ready, every: 200ms, within: 20s}
"""
CACHE = """
name: cache
mode: serve
command: redis-server --port {port.redis} --save ""
workers: 3
resources: {cpu: 0.1}
ports: [redis]
ready: {tcp: redis, every: 200ms}
live: {exec: "redis-cli -p {port.redis} ping", every: 300ms, timeout: 2s, failures: 2}
"""


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    there = PROGRAM and all(map(shutil.which, ("redis-server", "redis-cli")))
    require_service("" if there else "nginx or Redis is not installed; as root: sh .ci/services")
    made = Home(tmp_path_factory.mktemp("programs") / "cluster", PATIENT)
    try:
        made.up()
        yield made
    finally:
        made.end()


@pytest.fixture
def control(home: Home) -> Iterator[ControlPlane]:
    with home.control() as found:
        yield found


@pytest.fixture
def person(home: Home, control: ControlPlane, tmp_path: Path) -> Person:
    return Person(home, control, tmp_path)


def writes_nginx(person: Person, says: str, health: int = 200) -> None:
    folder = person.folder / "nginx"
    folder.mkdir(exist_ok=True)
    text = NGINX.replace("SAYS", says).replace("HEALTH", str(health))
    (folder / "nginx.conf").write_text(text)
    (person.folder / "web.yaml").write_text(WEB.replace("PROGRAM", PROGRAM))


def rows(person: Person, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = person.sees("jobs", job)["workers"]
    return found


def ready(person: Person, job: str, count: int) -> list[dict[str, Any]]:
    """The rows of its workers once exactly so many are, all ready and none leaving."""
    found: list[dict[str, Any]] = []

    def are() -> bool:
        found[:] = rows(person, job)
        good = [row for row in found if row["ready"] and not row["leaving"]]
        return len(found) == len(good) == count

    person.until(are, f"{count} workers of {job} are ready")
    return found


def got(address: str) -> str:
    host, _, port = address.rpartition(":")
    line = http.client.HTTPConnection(host, int(port), timeout=30)
    try:
        line.request("GET", "/")
        return line.getresponse().read().decode()
    finally:
        line.close()


class Client(threading.Thread):
    """Goes round the addresses that are ready, as a small balancer would: where nobody listens any
    more it asks the next."""

    def __init__(self, home: Home, job: str) -> None:
        super().__init__()
        self._home, self._job = home, job
        self._over = threading.Event()
        self.answers: list[str] = []
        self.cut = 0  # in flight when the replica was ended
        self.failed: list[str] = []
        self.crash: BaseException | None = None

    def run(self) -> None:
        try:
            self._ask_until_over()
        except BaseException as error:
            self.crash = error

    def _ask_until_over(self) -> None:
        with opened(self._home.cluster.folder) as found:
            credentials = credentials_of(found.cluster)
            for turn in itertools.count():
                if turn % 5 == 0:
                    there = [
                        worker.endpoints["http"]
                        for node in nodes(found.session, credentials, 30.0)
                        if node.facts is not None
                        for worker in node.facts.workers
                        if worker.job == self._job and worker.phase.value == "ready"
                    ]
                if self._over.is_set():
                    return
                self._ask([there[(turn + at) % len(there)] for at in range(len(there))])

    def _ask(self, addresses: list[str]) -> None:
        for address in addresses:
            try:
                self.answers.append(got(address))
            except ConnectionRefusedError:
                continue
            except (OSError, http.client.HTTPException):
                self.cut += 1
            return
        self.failed.append(f"nobody answered at {addresses}")

    def finish(self) -> None:
        self._over.set()
        self.join(60)
        assert self.crash is None, self.crash


def test_nginx_is_updated_under_requests_killed_and_a_bad_update_stops(
    person: Person, home: Home
) -> None:
    writes_nginx(person, "one")
    person.does("submit", "web.yaml")
    before = ready(person, "web", 3)
    addresses = {row["addresses"]["http"] for row in before}
    assert len(addresses) == 3
    assert {got(address) for address in addresses} == {"one"}
    assert min(addresses) in person.does("jobs", "web")

    client = Client(home, "web")
    client.start()
    person.until(lambda: len(client.answers) > 20, "the client is answered")
    writes_nginx(person, "two")
    assert "web is updated" in person.does("update", "web.yaml", "--wait")
    after = ready(person, "web", 3)
    person.until(lambda: client.answers[-6:] == ["two"] * 6, "all answers are of the new version")
    assert not {row["worker"] for row in before} & {row["worker"] for row in after}
    assert not client.failed
    assert client.cut <= len(before), "only what was in flight to those that were ended"

    killed = after[0]
    for pid in _listeners(killed["addresses"]["http"]):
        os.kill(pid, signal.SIGKILL)
    person.until(
        lambda: killed["worker"] not in {row["worker"] for row in rows(person, "web")},
        "the killed one is replaced",
    )
    ready(person, "web", 3)

    writes_nginx(person, "three", health=500)
    refused = person.says("update", "web.yaml", "--wait")
    assert refused.returncode != 0
    assert "the update of web was stopped" in refused.stderr
    assert "status 500" in refused.stderr
    still = ready(person, "web", 3)
    assert {got(row["addresses"]["http"]) for row in still} == {"two"}
    assert "its update was stopped: worker" in person.does("why", "web")
    client.finish()
    assert not client.failed
    assert set(client.answers) == {"one", "two"}

    writes_nginx(person, "two")
    person.does("update", "web.yaml", "--wait")
    assert {row["worker"] for row in ready(person, "web", 3)} == {row["worker"] for row in still}
    person.does("scale", "web", "2")
    ready(person, "web", 2)
    person.does("logs", "web")
    person.does("stop", "web", "--wait")
    assert not _listeners(still[0]["addresses"]["http"])


def test_redis_that_does_not_answer_is_ended_and_replaced_also_by_the_next_agent(
    person: Person, home: Home
) -> None:
    (person.folder / "cache.yaml").write_text(CACHE)
    person.does("submit", "cache.yaml")
    first = ready(person, "cache", 3)
    port = first[0]["addresses"]["redis"].rpartition(":")[2]
    said = subprocess.run(["redis-cli", "-p", port, "ping"], capture_output=True, check=True)
    assert said.stdout.strip() == b"PONG"
    _stops_answering(person, first[0])
    second = ready(person, "cache", 3)
    assert "its `live` probe failed 2 times in a row: live: redis-cli" in person.does(
        "why", "cache"
    )

    home.kill("agent")
    home.up()
    again = ready(person, "cache", 3)
    assert {row["worker"] for row in again} == {row["worker"] for row in second}
    _stops_answering(person, again[0])
    ready(person, "cache", 3)
    person.does("stop", "cache", "--wait")


def _stops_answering(person: Person, row: dict[str, Any]) -> None:
    (pid,) = _listeners(row["addresses"]["redis"])
    os.kill(pid, signal.SIGSTOP)
    person.until(
        lambda: row["worker"] not in {each["worker"] for each in rows(person, "cache")},
        "the one that does not answer is replaced",
    )


def _listeners(address: str) -> list[int]:
    """The processes that listen at this port."""
    port = int(address.rpartition(":")[2])
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == "0A":
                inodes.add(f"socket:[{fields[9]}]")
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                links = {str(link.readlink()) for link in (entry / "fd").iterdir()}
            except OSError:
                continue
            if links & inodes:
                found.append(int(entry.name))
    return found
