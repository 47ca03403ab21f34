"""The fuzzing proof in short; `python -m tests.proofs.fuzz --megabytes 10` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.coordination.embedded import protocol
from tests.proofs import seed_of, wire
from tests.proofs.fuzz.campaign import fuzz
from tests.proofs.fuzz.guard import Guard, Harmed
from tests.servers import EmbeddedServer

pytestmark = pytest.mark.engines

BYTES = 300_000


def test_wrong_bytes_neither_end_the_server_nor_harm_its_state_nor_leak(tmp_path: Path) -> None:
    seed = seed_of(1)
    print(f"seed {seed}")
    tally = fuzz(tmp_path, size=BYTES, seed=seed, say=print)
    print(dict(tally.replies))
    assert tally.bytes >= BYTES
    assert tally.replies[protocol.OK] > 0
    assert tally.replies[protocol.UNIMPLEMENTED] > 0


def test_the_guard_sees_a_changed_control_subtree(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        guard = Guard(server)
        guard.check()
        guard.link.call(1, protocol.DELETE, wire.versioned_body("/control/node-3"))
        with pytest.raises(Harmed):
            guard.check()


def test_the_guard_sees_a_connection_and_a_watch_that_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.proofs.fuzz.guard.SETTLE_S", 1.0)
    with EmbeddedServer(tmp_path) as server:
        guard = Guard(server)
        with wire.Link(server.port) as link:
            link.connect()
            link.call(1, protocol.GET_DATA, wire.read_body("/control", watch=True))
            with pytest.raises(Harmed, match="did not come back"):
                guard.check()
        guard.check()


def test_the_guard_sees_a_traceback_and_a_dead_server(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        guard = Guard(server)
        output = tmp_path / "output.log"
        output.write_text(output.read_text() + "\nTraceback (most recent call last):\n")
        with pytest.raises(Harmed, match="unexpected output"):
            guard.check()
        assert server.process is not None
        server.process.kill()
        server.process.wait()
        with pytest.raises(Harmed, match="the server ended"):
            guard.check()
