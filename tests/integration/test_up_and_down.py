"""After `down` nothing of a cluster lives on this machine, whatever was going on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.cluster import processes as registered
from holdfast.coordination import SessionState
from holdfast.launch import local, serving, wanted
from holdfast.wire.errors import Unavailable
from holdfast.wire.limits import RECONNECT_DELAY_S_MAX
from tests.integration.clusters import Home, running
from tests.waiting import eventually

WAIT_S = 240.0


def test_a_client_that_stays_connected_does_not_bring_the_server_back_before_up(
    home: Home,
) -> None:
    home.up()
    with home.cluster.session(operation_timeout_s=5.0) as session, home.control() as control:
        assert "server" in {one.kind for one in local.down(home.cluster).stopped}
        eventually(
            lambda: session.state is not SessionState.CONNECTED, "the client sees that it is gone"
        )
        # Longer than a client waits until it looks for the server again.
        threading.Event().wait(3 * RECONNECT_DELAY_S_MAX)
        assert home.left() == []
        with pytest.raises(Unavailable, match="was ended") as refused:
            home.cluster.session()
        assert refused.value.fix == f"holdfast up --cluster {home.cluster.folder}"
        home.up()
        eventually(lambda: session.state is SessionState.CONNECTED, "the client is connected again")
        assert control.jobs() == {}


def test_two_downs_at_once_end_what_was_being_started_again_after_kills(home: Home) -> None:
    home.up(coordinators=2)
    home.submit()
    home.started()
    with home.cluster.session():
        home.kill("coordinator", "coordinator-1")
        home.kill("server")  # the others start it again, this very moment
        words = [sys.executable, "-m", "holdfast", "down", "--json", "--cluster"]
        both = [
            subprocess.Popen(
                [*words, str(home.cluster.folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            for _ in range(2)
        ]
        said = [one.communicate(timeout=WAIT_S) for one in both]
        assert [one.returncode for one in both] == [0, 0], said
        assert home.left() == []
    ended = [json.loads(out)["workers"] for out, _ in said]
    assert sorted(ended) == [0, 1]


@contextmanager
def going_up(home: Home) -> Iterator[subprocess.Popen[str]]:
    """`holdfast up`, at the moment when it has started something that has no record yet."""
    words = [sys.executable, "-m", "holdfast", "up", "--cluster", str(home.cluster.folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as up:
        try:
            eventually(lambda: nameless(home), "a part is started that has no record", WAIT_S)
            yield up
        finally:
            up.kill()


def nameless(home: Home) -> list[int]:
    """Coordinators and agents that run and have not said who they are."""
    known = {one.pid for one in registered(home.cluster)}
    parts = ("-m holdfast.control ", "-m holdfast.agent ")
    return [
        pid
        for pid, command in running(home.cluster.folder).items()
        if pid not in known and any(part in command for part in parts)
    ]


def test_down_ends_what_an_up_that_was_killed_had_only_just_started(home: Home) -> None:
    with going_up(home) as up:
        up.send_signal(signal.SIGKILL)
        up.wait(WAIT_S)
        local.down(home.cluster)
        assert home.left() == []
    assert home.up().leader


def test_down_during_up_ends_everything_and_up_says_why_it_failed(home: Home) -> None:
    with going_up(home) as up:
        local.down(home.cluster)
        _, said = up.communicate(timeout=WAIT_S)
        assert up.returncode == Unavailable.exit_code, said
        assert "was ended" in said
        assert f"holdfast up --cluster {home.cluster.folder}" in said.replace("\n", " ")
        assert home.left() == []


def test_who_waited_for_its_turn_behind_down_starts_no_gateway_any_more(home: Home) -> None:
    with home.cluster.session() as session:
        wanted.ends(home.cluster)
        with pytest.raises(Unavailable, match="was ended"):
            serving.ensure(home.cluster, session)
    assert not registered(home.cluster)
    assert not serving.places(home.cluster)


def test_a_worker_waits_for_the_server_of_its_cluster_and_does_not_start_it(home: Home) -> None:
    script = (
        "import sys\n"
        "from holdfast.coordination.address import parse\n"
        "from holdfast.coordination.launch import ensure\n"
        "ensure(parse(sys.argv[1]), 1.0)\n"
    )
    plane = str(home.cluster.coordination)
    done = subprocess.run(
        [sys.executable, "-c", script, plane],
        env={"HOLDFAST_COORDINATION": plane, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert "no coordination server" in done.stderr, done
    assert home.left() == []
