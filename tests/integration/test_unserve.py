"""The last `holdfast unserve` ends what `holdfast serve` had started, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cluster import processes
from holdfast.launch import serving
from tests.conftest import require_service
from tests.integration.clusters import Home
from tests.integration.person import WAIT_S, Person
from tests.integration.test_serve_command import PREDICT, ask, publish
from tests.servers import free_port
from tests.servers.envoy import envoy_missing
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(900)  # their own waits are bounded; the machine may be busy

SERVING = ("controller", "gateway", "envoy")


@pytest.fixture(autouse=True)
def envoy() -> None:
    require_service(envoy_missing())


def serves(home: Home) -> set[str]:
    """The names of the processes that are there for services."""
    return {one.name for one in processes(home.cluster) if one.kind in SERVING}


def envoys(home: Home) -> list[str]:
    """Every Envoy of this cluster that runs, known or not."""
    return [command for command in home.left() if Path(command.split()[0]).name == "envoy"]


def test_the_last_unserve_ends_gateway_and_controller_and_the_next_serve_starts_them(
    home: Home, tmp_path: Path
) -> None:
    home.up()
    gateway = f"127.0.0.1:{free_port()}"
    with home.control() as control:
        person = Person(home, control, tmp_path)
        publish(person, "two", PREDICT % 2)
        person.does("serve", "two", "--gateway", gateway)
        person.does("serve", "two", "--service", "more", "--no-wait")
        said = person.does("unserve", "more")
        assert "nothing is served" not in said
        assert serves(home) == {"controller-1", "gateway-1", "gateway-1.envoy"}
        assert len(envoys(home)) == 1
        said = person.does("unserve", "two")
        assert "two is not served any more" in said
        assert "gateway-1, controller-1 ended" in said
        assert serves(home) == set()
        assert not envoys(home)
        again = person.says("unserve", "two")
        assert again.returncode == 1 and "there is no service two" in again.stderr
        assert not [one for one in home.up().started if one.split()[0] in SERVING]
        url = person.sees("serve", "two", "--gateway", gateway)["url"]
        assert ask(url, "two") == (200, {"y": [[2.0, 4.0]]}, "1")


def mine(home: Home) -> list[tuple[str, int]]:
    """What was started by hand, and what that has started."""
    found = [one for one in processes(home.cluster) if one.name.startswith("mine")]
    return [(one.kind, one.pid) for one in found]


@pytest.fixture
def by_hand(home: Home) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A controller and a gateway that somebody has started without `holdfast serve`."""
    home.up(agents=0)
    words = ["--cluster", str(home.cluster.folder), "--name", "mine"]
    listen = ["--listen", f"127.0.0.1:{free_port()}"]
    parts = {"controller": [], "gateway": listen}
    started = [
        subprocess.Popen([sys.executable, "-m", f"holdfast.serve.{part}", *words, *more])
        for part, more in parts.items()
    ]
    try:
        eventually(lambda: len(mine(home)) == 3, "they run, and an Envoy", WAIT_S)
        yield started
    finally:
        for one in started:
            one.kill()
            one.wait()


def test_what_somebody_has_started_by_hand_goes_on(
    home: Home, by_hand: list[subprocess.Popen[bytes]]
) -> None:
    before = mine(home)
    with home.cluster.session() as session:
        serving.ensure(home.cluster, session, listen=f"127.0.0.1:{free_port()}")
        assert serves(home) == {
            "mine",
            "mine.envoy",
            "controller-1",
            "gateway-1",
            "gateway-1.envoy",
        }
        assert serving.end(home.cluster, session, lambda: True) == [], "something is served"
        ended = serving.end(home.cluster, session, lambda: False)
        assert {one.name for one in ended} == {"controller-1", "gateway-1"}
        assert serving.end(home.cluster, session, lambda: False) == []
        assert mine(home) == before
        assert [one.poll() for one in by_hand] == [None, None]
        assert serving.places(home.cluster) == {}


def test_the_envoy_of_a_gateway_that_was_killed_ends_too_and_a_new_gateway_is_started(
    home: Home,
) -> None:
    home.up(agents=0)
    listen = f"127.0.0.1:{free_port()}"
    with home.cluster.session() as session:
        serving.ensure(home.cluster, session, listen=listen, supervised=False)
        home.kill("gateway")
        assert "gateway-1.envoy" in serves(home)
        ended = serving.end(home.cluster, session, lambda: False)
        assert {one.name for one in ended} == {"controller-1", "gateway-1.envoy"}
        assert serves(home) == set()
        assert not envoys(home)
        # The killed one is not taken for a gateway of another machine.
        assert serving.ensure(home.cluster, session).keys() == {"gateway-1"}
        assert serves(home) == {"controller-1", "gateway-1", "gateway-1.envoy"}
