"""Registers are linearizable, also over kill -9, and the check that says so can say no."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import require_service
from tests.proofs.linearizability import by_zxid, search
from tests.proofs.linearizability.broken import BREAKAGES, Honest, Proxy
from tests.proofs.linearizability.invent import FAULTS, invent
from tests.proofs.linearizability.run import watch_registers
from tests.servers import EmbeddedServer, ServerProcess, ZooKeeperServer, zookeeper_missing

pytestmark = pytest.mark.engines

SEED = 20_240_117
CLIENTS = 6


def test_whatever_the_zxid_check_accepts_a_search_of_all_orders_accepts_too() -> None:
    verdicts: Counter[tuple[str, bool, bool]] = Counter()
    for seed in range(300):
        for fault in FAULTS:
            history = invent(random.Random(seed), fault)
            accepted, exists = not by_zxid.check(history), search.linearizable(history)
            story = "\n".join(str(op) for op in history)
            assert exists or not accepted, f"seed {seed}, fault {fault}:\n{story}"
            verdicts[fault, accepted, exists] += 1
    assert verdicts["none", True, True] == 300, "a true register was refused"
    for fault in ("stale", "lost", "blind", "refuses", "late"):
        assert verdicts[fault, False, False] > 30, f"{fault} histories show nothing"


def test_a_read_of_an_older_value_under_the_current_zxid_is_refused() -> None:
    history = invent(random.Random(3), "none")
    writes = [op for op in history if op.kind == "write" and op.outcome == "ok"]
    late = writes[-1]._replace(
        kind="read", value=b"v0", invoked=1e6, returned=2e6, mzxid=1, version=0
    )
    assert not by_zxid.check(history)
    assert by_zxid.check([*history, late])
    assert not search.linearizable([*history, late])


def check(server: ServerProcess, kills: bool, seconds: float) -> None:
    print(f"seed {SEED}")
    verdict = watch_registers(
        server, seconds=seconds, seed=SEED, clients=CLIENTS, operations=1_500, kills=kills
    )
    print(verdict.summary())
    assert not verdict.problems, "\n".join(verdict.problems[:5])
    assert verdict.kills > 0 or not kills


def test_registers_of_the_embedded_server_are_linearizable_over_kills(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        check(server, kills=True, seconds=3)


def test_registers_of_a_real_zookeeper_are_linearizable(tmp_path: Path) -> None:
    require_service(zookeeper_missing())
    with ZooKeeperServer(tmp_path) as server:
        check(server, kills=False, seconds=1)


def through_proxy(server: ServerProcess, breakage: Honest) -> list[str]:
    print(f"seed {SEED}")
    with Proxy(server.port, breakage) as proxy:
        verdict = watch_registers(
            server, seconds=0.5, seed=SEED, clients=CLIENTS, operations=1_500, port=proxy.port
        )
    print(verdict.summary(), f"struck {breakage.struck} times")
    return verdict.problems


def test_an_honest_proxy_is_not_blamed(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        assert through_proxy(server, Honest(SEED)) == []


@pytest.mark.parametrize("name", BREAKAGES)
def test_a_broken_server_is_caught(tmp_path: Path, name: str) -> None:
    with EmbeddedServer(tmp_path) as server:
        assert through_proxy(server, BREAKAGES[name](SEED)), f"{name} went unnoticed"


def test_a_server_that_forgets_what_it_acknowledged_is_caught(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    with EmbeddedServer(tmp_path) as server:
        verdict = watch_registers(server, seconds=0.1, seed=SEED, clients=CLIENTS, forget=True)
    print(verdict.summary())
    assert verdict.problems, "a server that lost acknowledged writes went unnoticed"
