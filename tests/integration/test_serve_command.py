"""From a published model to answered requests, as a person does it, over real processes."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from holdfast.cluster import processes
from holdfast.serve.services import Services
from tests.conftest import require_service
from tests.integration.clusters import Home, running
from tests.integration.person import WAIT_S, Person
from tests.servers import free_port
from tests.servers.envoy import envoy_missing
from tests.waiting import eventually

EXAMPLE = '{"x": [[1.0, 2.0], [3.0, 4.0]]}'


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    require_service(envoy_missing())
    made = Home(tmp_path_factory.mktemp("serving") / "cluster")
    try:
        made.up()
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def gateway() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
def person(home: Home, tmp_path: Path) -> Iterator[Person]:
    with home.control() as control:
        yield Person(home, control, tmp_path)


PREDICT = "def predict(inputs):\n    return {'y': inputs['x'] * %d}\n"


def publish(person: Person, name: str, text: str) -> None:
    """Another version of a function model, as `holdfast models publish` does it."""
    code = person.folder / f"code-{name}"
    code.mkdir(exist_ok=True)
    (code / "model.py").write_text(text)
    words = ("--kind", "function", "--entry", "model:predict", "--example", EXAMPLE)
    person.does("models", "publish", name, "--code", str(code), *words)


def ask(url: str, name: str, **headers: str) -> tuple[int, object, str]:
    """What one request brings: status, answer, and the version that gave it."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60.0)
    try:
        connection.request("POST", f"/predict/{name}", '{"x": [[1.0, 2.0]]}', headers)
        answer = connection.getresponse()
        body = answer.read()
        version = answer.getheader("x-holdfast-version") or ""
        return answer.status, json.loads(body), version
    finally:
        connection.close()


def replica_pid(home: Home, job: str, worker: int) -> int:
    """The process that serves: the oldest of those that carry the worker's mark."""
    mark = f"HOLDFAST_WORKER={worker}".encode()
    found = []
    for pid, command in running(home.cluster.folder).items():
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark in variables and f"HOLDFAST_JOB={job}".encode() in variables:
            found += [pid] if "holdfast.serve.replica" in command else []
    return min(found)


class Load:
    """Requests without a pause, from another thread, until it is told to end."""

    def __init__(self, url: str, name: str) -> None:
        self._stop = threading.Event()
        self.answers: list[tuple[int, object, str]] = []
        self._thread = threading.Thread(target=self._run, args=(url, name))
        self._thread.start()

    def _run(self, url: str, name: str) -> None:
        while not self._stop.is_set():
            self.answers.append(ask(url, name))
            self._stop.wait(0.005)

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()


def test_a_model_is_served_rolled_out_rolled_back_and_ended(
    home: Home, person: Person, gateway: str
) -> None:
    publish(person, "times", PREDICT % 2)
    publish(person, "times", PREDICT % 3)
    told = person.sees(
        *("serve", "times@1", "--replicas", "2", "--gateway", gateway),
        *("--canary", "50", "--hold", "100ms"),
    )
    assert (told["version"], told["url"]) == (1, f"http://{gateway}")
    url = told["url"]
    said = subprocess.run(told["curl"], shell=True, capture_output=True, text=True, check=True)
    assert json.loads(said.stdout) == {"y": [[2.0, 4.0]]}
    assert "'{\"x\": [[1.0, 2.0]]}'" in told["curl"]
    (row,) = person.sees("services")["services"]
    assert (row["name"], row["stage"], row["ready"]) == ("times", "steady", 2)
    assert "on 2 replicas" in person.does("jobs")
    with Load(url, "times") as load:
        assert "serves version 2" in person.does("rollout", "times", "2", "--watch")
        assert ask(url, "times") == (200, {"y": [[3.0, 6.0]]}, "2")
        victim = min(row["worker"] for row in person.sees("services", "times")["replicas"])
        os.kill(replica_pid(home, "serve.times", victim), signal.SIGKILL)
        assert "serves version 1 again" in person.does("rollback", "times")
        assert ask(url, "times") == (200, {"y": [[2.0, 4.0]]}, "1")
        assert "roll back to version 1" in person.does("why", "times")
        person.until(lambda: replaced(person, victim), "the killed replica is replaced")
        assert "SIGKILL" in person.does("why", "serve.times")
        person.does("scale", "times", "3")
        person.until(lambda: len(ready(person)) == 3, "there are three replicas")
    wrong = {answer for answer in map(str, load.answers) if answer not in RIGHT}
    assert not wrong, (len(load.answers), wrong)
    assert "a replica listens" in person.does("logs", "times")
    assert json.loads(person.does("predict", "times", "[[1, 2]]")) == {"y": [[2.0, 4.0]]}
    assert "is not served any more" in person.does("unserve", "times")
    assert person.sees("services")["services"] == []
    assert "serve.times" not in person.control.jobs()


RIGHT = {str((200, {"y": [[2.0, 4.0]]}, "1")), str((200, {"y": [[3.0, 6.0]]}, "2"))}


def ready(person: Person) -> list[int]:
    """Workers whose replica is ready for version 1."""
    with person.home.cluster.session() as session:
        found = Services(session).replicas("times")
    return [
        worker
        for worker, one in found.items()
        if 1 in one.versions and one.versions[1].state.value == "ready"
    ]


def replaced(person: Person, victim: int) -> bool:
    numbers = ready(person)
    return len(numbers) >= 2 and max(numbers) > victim + 1


def test_what_is_wrong_is_said_with_the_command_that_helps(person: Person, gateway: str) -> None:
    publish(person, "plain", PREDICT % 5)
    for words, expected in (
        (("serve", "plan"), "did you mean plain?"),
        (("serve", "plain", "--replicas", "2", "--max", "3"), "give one or the other"),
        (("serve", "plain", "--canary", "50,5", "--gateway", gateway), "--canary 5,25,50"),
        (("rollout", "plain"), "there is no service plain"),
        (("why", "nobody"), "there is no job nobody"),
    ):
        said = person.says(*words)
        assert said.returncode in (1, 2), (words, said.stdout, said.stderr)
        assert expected in said.stderr, (words, said.stderr)


def test_a_version_that_fails_is_taken_back_and_the_command_says_why(
    person: Person, gateway: str
) -> None:
    publish(person, "frail", PREDICT % 7)
    told = person.sees("serve", "frail", "--gateway", gateway, "--hold", "100ms", "--key")
    url, key = told["url"], {"x-api-key": told["key"]}
    assert ask(url, "frail")[0] == 401
    assert ask(url, "frail", **key) == (200, {"y": [[7.0, 14.0]]}, "1")
    # Well where it is published, and broken where it is served.
    broken = "import os\nassert 'HOLDFAST_JOB' not in os.environ, 'it needs a GPU'\n"
    publish(person, "frail", broken + PREDICT % 1)
    said = person.says("rollout", "frail", "2", "--watch")
    assert said.returncode == 1, said
    assert "version 2 of frail was taken back; version 1 is served" in said.stderr
    assert "it needs a GPU" in said.stderr
    assert ask(url, "frail", **key) == (200, {"y": [[7.0, 14.0]]}, "1")
    # A setting is changed while it runs; which version is served is another matter.
    said = person.says("serve", "frail", "--body-max", "10B", "--guard-range", "y=0:1")
    assert said.returncode == 0, said
    assert "to try it again: holdfast rollout frail" in said.stdout + said.stderr
    eventually(lambda: ask(url, "frail", **key)[0] == 413, "the body is too large now", WAIT_S)
    shown = person.sees("services", "frail")
    assert shown["settings"]["limits"]["body_bytes_max"] == 10
    assert shown["settings"]["guards"]["ranges"] == {"y": [0.0, 1.0]}
    assert (shown["version"], shown["wanted"]) == (1, 2)
    assert "closed" in person.does("services", "frail")
    refused = person.says("stop", "serve.frail")
    assert refused.returncode == 1 and "holdfast unserve frail" in refused.stderr
    person.does("unserve", "frail")


def test_services_come_back_with_the_cluster_at_the_same_address(
    home: Home, person: Person, gateway: str
) -> None:
    """All the while `person` has a session of its own: it must not bring the server back."""
    publish(person, "again", PREDICT % 4)
    url = person.sees("serve", "again", "--gateway", gateway)["url"]
    assert ask(url, "again")[0] == 200
    # In the middle of a rollout, and with an Envoy that has to be started again.
    publish(person, "again", PREDICT % 5)
    person.does("rollout", "again", "2")
    (envoy,) = [one for one in processes(home.cluster) if one.kind == "envoy"]
    envoy.send(signal.SIGKILL)
    person.does("down")
    assert not home.left()
    assert not processes(home.cluster)
    person.does("up", "--cpu", "8", "--region", "north")
    with home.cluster.session() as session:
        services = Services(session)

        def regions() -> list[str]:
            return [one.region for one in services.replicas("again").values()]

        # One that had no time to say farewell is there until its session ends.
        eventually(lambda: regions() == ["north"], "a replica is there, in the north", WAIT_S)
    eventually(lambda: answers(url), "the gateway answers again", WAIT_S)
    assert person.sees("nodes")["nodes"][0]["region"] == "north"
    person.does("rollout", "again", "2", "--watch")
    assert ask(url, "again") == (200, {"y": [[5.0, 10.0]]}, "2")


def answers(url: str) -> bool:
    try:
        return ask(url, "again")[0] == 200
    except OSError:
        return False
