"""A second coordinator on another machine; here, over another folder."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import pytest

from holdfast.cluster import opened
from holdfast.launch import joining, local, standby
from holdfast.launch.ending import down
from holdfast.wire.errors import Missing, Refused
from holdfast.wire.tokens import TokenKind
from tests.integration.clusters import Home, holdfast
from tests.waiting import eventually

WAIT_S = 240.0


class Standing:
    """`holdfast standby --json` over a folder, and what it says."""

    def __init__(self, folder: Path, text: str = "") -> None:
        words = ["standby", *(["-"] if text else []), "--json", "--name", "other"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *words, "--cluster", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.close()
        self._said: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._reading = Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.put(json.loads(line))

    def until(self, event: str) -> dict[str, Any]:
        """What it says when this has come."""
        while True:
            said = self._said.get(timeout=WAIT_S)
            if said["event"] == event:
                return said

    def ends(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reading.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """One in which nobody is taken for dead because the machine is busy."""
    made = Home(tmp_path / "cluster", "embedded:coordination?timeout_s=20&tick_ms=1000")
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def standing(home: Home, there: Path) -> Iterator[Standing]:
    home.up()
    made = Standing(there, joining.token(home.cluster, kind=TokenKind.STANDBY))
    try:
        yield made
    finally:
        made.close()


@pytest.mark.timeout(900)  # its own waits are bounded; the machine may be busy
def test_when_the_first_coordinator_is_killed_the_standby_leads_and_the_job_goes_on(
    home: Home, there: Path, standing: Standing
) -> None:
    first = standing.until("stands by")
    assert (first["leader"], first["term"]) == ("coordinator-1", 0)
    home.submit()
    worker = home.started()
    home.kill("coordinator", "coordinator-1")
    leads = standing.until("leads")
    assert leads["leader"] == "other"
    assert leads["term"] > 1
    agent = home.process("agent")
    eventually(
        lambda: home.process("agent").facts.get("leader") == leads["address"],
        "the agent speaks to the standby",
        WAIT_S,
    )
    assert home.process("agent").pid == agent.pid
    home.release()
    assert home.ended().status.phase.value == "succeeded"
    assert home.starts() == [worker], "its worker was not started again"
    # The first one comes back, and stands by; it leads again when the standby goes.
    assert home.up().leader.name == "other"
    assert standing.ends(signal.SIGINT) == 0
    standing.until("ended")
    home.submit("after")
    home.release("after")
    assert home.ended("after").status.phase.value == "succeeded"


@pytest.mark.timeout(900)
def test_a_machine_that_stood_by_needs_no_token_again_and_lets_machines_in(
    home: Home, there: Path, standing: Standing, tmp_path: Path
) -> None:
    standing.until("stands by")
    assert standing.ends(signal.SIGTERM) == 0
    again = Standing(there)
    try:
        again.until("stands by")
        shown = holdfast("status", "--cluster", str(there))
        assert "other" in shown.stdout and "stands by" in shown.stdout
        home.kill("coordinator")
        # No token of the first one is needed any more: its machine may be gone.
        text = joining.token(opened(there))
        joined = joining.join(tmp_path / "third", text, "third")
        assert joined.cluster.coordination == home.cluster.coordination
        again.until("leads")
        seen = holdfast("nodes", "--json", "--cluster", str(there))
        assert seen.returncode == 0, seen.stderr
        ended = holdfast("down", "--cluster", str(there))
        assert "other" in ended.stdout
        assert again.process.wait(WAIT_S) == 0
    finally:
        again.close()


def test_what_a_token_is_for_is_what_it_opens(home: Home, there: Path) -> None:
    home.up(agents=0)
    with pytest.raises(Refused, match="not a token to stand by with") as refused:
        standby.lent(there, joining.token(home.cluster), "other")
    assert "holdfast token --standby" in refused.value.fix
    with pytest.raises(Refused, match="not a token to join with"):
        joining.join(there, joining.token(home.cluster, kind=TokenKind.STANDBY), "other")
    with pytest.raises(Refused) as another:
        named = joining.token(home.cluster, kind=TokenKind.STANDBY, node="one")
        standby.lent(there, named, "other")
    assert "'one'" in another.value.why
    with pytest.raises(Refused) as late:
        ended = joining.token(home.cluster, kind=TokenKind.STANDBY, life_s=0.001)
        standby.lent(there, ended, "other")
    assert "ended" in late.value.why
    assert not there.exists()


def test_a_machine_that_has_only_joined_is_told_how_it_may_stand_by(
    home: Home, there: Path
) -> None:
    home.up(agents=0)
    joining.join(there, joining.token(home.cluster), "other")
    said = holdfast("standby", "--cluster", str(there))
    assert said.returncode == Missing.exit_code
    assert "holdfast token --standby" in said.stderr
    # With the token it keeps its node, and gets the authority.
    text = holdfast("token", "--standby", "--cluster", str(home.cluster.folder)).stdout
    found = standby.lent(there, text, "other")
    assert found.has_authority and not found.is_home
    assert standby.ready(there) == found
    mode = (found.lent_folder / "authority.key").stat().st_mode
    assert mode & 0o077 == 0
    assert local.up(found, supervised=False).started == ("agent other",)


def test_a_store_that_the_machine_does_not_see_is_refused(home: Home, there: Path) -> None:
    home.up(agents=0)
    text = joining.token(home.cluster, kind=TokenKind.STANDBY)
    store = home.cluster.folder / "store"
    store.rename(home.cluster.folder / "elsewhere")
    with pytest.raises(Missing, match="does not see the store"):
        standby.lent(there, text, "other")
    assert not there.exists()


def test_a_cluster_that_was_ended_here_has_no_standby_here(home: Home) -> None:
    home.up(agents=0)
    down(home.cluster)
    said = holdfast("standby", "--cluster", str(home.cluster.folder))
    assert "was ended" in said.stderr
    assert home.left() == []
