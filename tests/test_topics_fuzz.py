"""The broker under wrong bytes, in short: HOLDFAST_FUZZ_BYTES=10000000 for ten million of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.proofs import seed_of
from tests.proofs.topics.fuzz import Guard, Harmed, fuzz
from tests.servers.broker import BrokerServer

BYTES = int(os.environ.get("HOLDFAST_FUZZ_BYTES", "300000"))


def test_wrong_bytes_end_the_broker_or_keep_others_waiting_or_leak(tmp_path: Path) -> None:
    seed = seed_of(1)
    print(f"seed {seed}")
    attacker = fuzz(tmp_path, size=BYTES, number=seed, say=print)
    assert attacker.bytes >= BYTES
    assert attacker.tally["closed by the broker"] > 0


def test_the_guard_of_a_broker_does_not_see_that_it_has_ended(tmp_path: Path) -> None:
    with BrokerServer(tmp_path) as server:
        guard = Guard(server)
        guard.check()
        guard.records += 1
        with pytest.raises(Harmed, match="was answered with"):
            guard.check()
        assert server.process is not None
        server.process.kill()
        server.process.wait()
        with pytest.raises(Harmed, match="the broker ended"):
            guard.check()
