"""The embedded server answers as a real ZooKeeper does, and the comparison can tell if not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.coordination.embedded import protocol as p
from tests.conftest import require_service
from tests.proofs import wire
from tests.proofs.differential.pair import Pair, Side
from tests.proofs.differential.run import (
    Start,
    compare,
    describe,
    fresh_pair,
    shrink,
    start_embedded,
    start_real,
)
from tests.proofs.linearizability.broken import Honest, Proxy, Seen
from tests.servers import zookeeper_missing

pytestmark = pytest.mark.engines

CLIENTS = 4


@pytest.mark.parametrize(
    ("right", "operations", "seed"),
    [(start_real, 600, 1), (start_embedded, 1_500, 2), (start_embedded, 1_500, 3)],
    ids=["a second real one", "ours, seed 2", "ours, seed 3"],
)
def test_the_same_operations_get_the_same_answers_as_from_a_real_zookeeper(
    tmp_path: Path, right: Start, operations: int, seed: int
) -> None:
    require_service(zookeeper_missing())
    with fresh_pair(tmp_path, start_real, right) as pair:
        result = compare(pair, operations, seed, CLIENTS)
    print(f"seed {seed}: {result.operations} operations, {result.events} events")
    assert result.failure is None, describe(result.failure, seed, operations, CLIENTS)
    assert result.events > 20, "the run shows nothing about watches"
    assert len(result.by_error) > 8, "the run shows nothing about errors"


class CountsTwice(Honest):
    """Shows a version that is one too high after a setData."""

    def reply(self, seen: Seen, reply: wire.Reply) -> wire.Reply:
        if seen.op != p.SET_DATA or reply.error:
            return reply
        stat = wire.Reader(reply.body).stat()
        return reply._replace(body=wire.STAT.pack(*stat._replace(version=stat.version + 1)))


def test_a_server_that_differs_is_caught_and_the_steps_to_it_are_few(tmp_path: Path) -> None:
    def fresh() -> Iterator[Pair]:
        with (
            fresh_pair(tmp_path, start_embedded, start_embedded) as pair,
            Proxy(pair.right.port, CountsTwice(1)) as proxy,
        ):
            yield Pair(pair.left, Side("tampered", proxy.port), every_step=True)

    for pair in fresh():
        result = compare(pair, 1_000, 5, CLIENTS)
    assert result.failure is not None, "a wrong version went unnoticed"
    smaller = shrink(result.failure, fresh, budget_s=20)
    story = describe(smaller, 5, 1_000, CLIENTS)
    print(story)
    assert "set_data" in str(smaller.steps[-1])
    assert len(smaller.steps) < len(result.failure.steps)
    assert "--seed 5" in story
