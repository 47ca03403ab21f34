"""The embedded server starts when it is needed, once, and ends when nobody needs it."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.coordination import Config, SessionState, connect, launch
from holdfast.coordination.address import EmbeddedAddress
from holdfast.wire.errors import Unavailable, Usage
from tests.contract.actors import Actor
from tests.waiting import eventually


def _server(folder: Path) -> int:
    return int(json.loads((folder / "server.json").read_text())["pid"])


def test_a_race_of_starters_ends_with_one_server_for_all(tmp_path: Path) -> None:
    folder = tmp_path / "plane"
    address = f"embedded:{folder}?timeout_s=8&linger_s=0.5"
    with ExitStack() as stack:
        actors = [stack.enter_context(Actor(address)) for _ in range(3)]
        with ThreadPoolExecutor() as pool:
            sessions = list(pool.map(connect, [address] * 3))
        for session in sessions:
            stack.enter_context(session)
        actors[0].do("count_up", "/count", 1)
        pid = _server(folder)
        assert [Config(session, "/count").get().value for session in sessions] == [{"n": 1}] * 3
        # The server dies; whoever notices first starts it again, and all follow it.
        os.kill(pid, signal.SIGKILL)
        for actor in actors:
            actor.do("count_up", "/count", 1)
        assert [Config(session, "/count").get().value for session in sessions] == [{"n": 4}] * 3
        assert _server(folder) != pid
        for actor in actors:
            actor.kill()
    eventually(lambda: not (folder / "server.json").exists(), "the server ends by itself")
    with connect(address) as session:
        assert Config(session, "/count").get().value == {"n": 4}
        assert session.state is SessionState.CONNECTED


def test_a_record_of_a_dead_server_is_not_believed(tmp_path: Path) -> None:
    record = {"address": "127.0.0.1:1", "pid": os.getpid()}
    (tmp_path / "server.json").write_text(json.dumps(record))
    assert launch.find(tmp_path) is None
    (tmp_path / "lock").write_text(f"{os.getpid()}\n")
    assert launch.find(tmp_path) is None
    (tmp_path / "server.json").write_text("torn {")
    assert launch.find(tmp_path) is None


def test_a_folder_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Usage, match="cannot hold a coordination server"):
        launch.ensure(EmbeddedAddress(tmp_path / "file"))


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"not a secret")
    with pytest.raises(Unavailable) as unavailable:
        connect(f"embedded:{tmp_path}")
    assert "secret" in str(unavailable.value)
