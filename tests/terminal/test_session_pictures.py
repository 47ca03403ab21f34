"""A session of a newcomer: jobs that run, wait, fail and end, a model that is served, rolled out
and rolled back, and a process that is killed; each screen in a small and in a large terminal."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.launch import local
from tests.conftest import require_service
from tests.integration.clusters import PATIENT, Home
from tests.integration.person import Person
from tests.integration.run_world import COUNTER
from tests.servers import free_port
from tests.servers.envoy import envoy_missing
from tests.terminal.capturing import SIZES, SMALL, Size, check, picture, pictures, place

pytestmark = pytest.mark.engines

# What the pictures name, whatever the machine has.
AGENT_SIZE = local.AgentSize(cpu=4.0, memory_bytes=2**34, gpu=0)
PREDICT = "def predict(inputs):\n    return {'y': inputs['x'] * %d}\n"
# It makes three steps, and then none for an hour: so it is the same in every picture.
STEADY = """
import time
import counter

made = counter.contribution


def contribution(chain, seed, step, lane, settings):
    if step > 3:
        time.sleep(3_600)
    return made(chain, seed, step, lane, settings)


counter.contribution = contribution
raise SystemExit(counter.main(["--steps", "8", "--step-ms", "1"]))
"""


class Session:
    """Somebody at a terminal, in the folder of a cluster."""

    def __init__(self, folder: Path, home: Home, person: Person) -> None:
        self.folder, self.home, self.person = folder, home, person

    def looks(self, name: str, *words: str) -> None:
        """What the command shows is as in its pictures; it changes nothing, so at once in both."""
        for size, text in pictures(
            ["holdfast", *words], SIZES, self.folder, names=self.pids
        ).items():
            check(name, size, text)

    def does(self, size: Size, name: str, *words: str) -> None:
        """What the command does is told as in its picture."""
        check(name, size, picture(["holdfast", *words], size, self.folder, names=self.pids))

    @property
    def pids(self) -> dict[str, str]:
        return {f"{one.pid:>7}": "    PID" for one in local.processes(self.home.cluster)}

    def publishes(self, factor: int) -> None:
        """Another version of the model."""
        code = self.folder / "model"
        code.mkdir(exist_ok=True)
        (code / "model.py").write_text(PREDICT % factor)
        words = ("--kind", "function", "--entry", "model:predict", "--example", '{"x": [[1.0]]}')
        self.person.does("models", "publish", "times", "--code", str(code), *words)


@pytest.fixture
def session() -> Iterator[Session]:
    require_service(envoy_missing())
    with place() as folder:
        home = Home(folder / ".holdfast", PATIENT)
        try:
            local.up(home.cluster, size=AGENT_SIZE)
            with home.control() as control:
                yield Session(folder, home, Person(home, control, folder))
        finally:
            home.end()


def test_each_screen_of_a_session_reads_well_in_a_small_and_in_a_large_terminal(
    session: Session,
) -> None:
    person = session.person
    jobs_of_all_kinds(person)
    session.looks("jobs", "jobs")
    session.looks("why_waiting", "why", "big")
    session.looks("why_failed", "why", "broken")
    session.publishes(2)
    session.publishes(3)
    gateway = ("--gateway", f"127.0.0.1:{free_port()}")
    for size in SIZES:
        session.does(size, "serve", "serve", "times@1", *gateway, "--hold", "100ms")
        session.does(size, "rollout", "rollout", "times", "2", "--watch")
        if size is SMALL:
            session.looks("services", "services")
            session.looks("services_one", "services", "times")
        session.does(size, "rollback", "rollback", "times")
    session.looks("why_service", "why", "times", "-n", "5")
    session.home.process("supervisor").send(signal.SIGSTOP)  # so that it stays dead
    session.home.kill("coordinator")
    person.until(lambda: session.home.process("agent").facts["trouble"], "its agent noticed it")
    session.looks("status_dead", "status")


def jobs_of_all_kinds(person: Person) -> None:
    """One that has ended, one that has failed, one that runs, and one that waits for its place."""
    shutil.copy(COUNTER, person.folder / "code")
    submit(person, "count", "python counter.py --steps 8 --step-ms 1")
    person.until_ended("count")
    submit(person, "broken", "python failing.py")
    person.until_ended("broken", "failed")
    (person.folder / "code" / "steady.py").write_text(STEADY)
    submit(person, "steady", "python steady.py", resources="{cpu: 3}", checkpoint="{every: 1h}")
    person.until(lambda: person.sees("jobs", "steady")["step"] == 3, "it is at its third step")
    submit(person, "big", "python counter.py", resources="{cpu: 2}")
    person.until(lambda: "steady" in person.control.job("big").status.reason, "it waits for room")


def submit(person: Person, name: str, command: str, **more: str) -> None:
    person.does("submit", person.file(name, command=command, **more))
