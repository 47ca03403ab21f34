"""The loop: steps until the count is reached or the servers differ; then the report."""

from __future__ import annotations

import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from holdfast.coordination.embedded import protocol as p
from tests.proofs.differential import steps as s
from tests.proofs.differential import unswept
from tests.proofs.differential.answers import Record
from tests.proofs.differential.generate import Generator
from tests.proofs.differential.pair import Difference, Pair, Side
from tests.servers import EmbeddedServer, ServerProcess, ZooKeeperServer

STORY_STEPS = 15

Start = Callable[[Path], ServerProcess]


def start_real(folder: Path) -> ServerProcess:
    """A ZooKeeper that does not wait for the disk, nor sweep containers: only answers matter."""
    properties = {
        "zookeeper.forceSync": "no",
        "znode.container.checkIntervalMs": int(unswept.NEVER_S * 1000),
    }
    return ZooKeeperServer(folder, options={"reconfigEnabled": "true"}, properties=properties)


class UnsweptServer(EmbeddedServer):
    """Ours, without the sweep of containers."""

    def command(self) -> Sequence[str]:
        return [
            part.replace("holdfast.coordination.embedded", unswept.__name__)
            for part in super().command()
        ]


def start_embedded(folder: Path) -> ServerProcess:
    return UnsweptServer(folder)


@contextmanager
def fresh_pair(folder: Path, left: Start, right: Start) -> Iterator[Pair]:
    """Two new servers over empty folders, and nothing of them left afterwards."""
    with tempfile.TemporaryDirectory(dir=folder) as here:
        servers = left(Path(here) / "left"), right(Path(here) / "right")
        try:
            for server in servers:
                server.launch()
            for server in servers:
                server.wait_ready()
            pair = Pair(Side("left", servers[0].port), Side("right", servers[1].port))
            try:
                yield pair
            finally:
                pair.drop_all()
        finally:
            for server in servers:
                server.kill()


class Failure(NamedTuple):
    """Where two servers parted."""

    at: int
    steps: list[s.Step]
    difference: Difference


class Result(NamedTuple):
    """What a run came to. `failure` is None when both servers agreed to the end."""

    operations: int
    events: int
    by_operation: Counter[str]
    by_error: Counter[int]
    failure: Failure | None


def compare(
    pair: Pair, operations: int, seed: int, clients: int, without: frozenset[str] = frozenset()
) -> Result:
    """Take random steps on both servers until so many requests are compared, or one differs."""
    generator = Generator(seed, clients, without)
    steps: list[s.Step] = []
    by_operation: Counter[str] = Counter()
    by_error: Counter[int] = Counter()
    count = 0
    failure: Failure | None = None
    while count < operations and failure is None:
        step = generator.next()
        steps.append(step)
        difference = pair.take(step)
        count += s.requests_in(step)
        for call, reply in pair.left.replies:
            if call.op != p.PING or call.body or call.text == "":
                by_operation[s.NAMES.get(call.op, "unknown")] += 1
                by_error[reply.error] += 1
        if not isinstance(step, s.Talk):
            by_operation[type(step).__name__.lower()] += 1
        if difference is not None:
            failure = Failure(len(steps), steps, difference)
        generator.observe(step, pair.left.replies, set(pair.left.links))
    return Result(count, pair.events, by_operation, by_error, failure)


def replay(pair: Pair, steps: Sequence[s.Step]) -> Failure | None:
    """Take these steps; a step whose ground is missing is passed over."""
    for at, step in enumerate(steps, start=1):
        if not pair.possible(step):
            continue
        difference = pair.take(step)
        if difference is not None:
            return Failure(at, list(steps[:at]), difference)
    return None


def shrink(failure: Failure, fresh: Callable[[], Iterator[Pair]], budget_s: float) -> Failure:
    """Leave out steps while two fresh servers still differ, until the time is used up.

    First the shortest end of the story that shows it, then piece by piece without what is left.
    """
    deadline = time.monotonic() + budget_s
    best = _shortest_end(failure, fresh)
    piece = max(1, len(best.steps) // 2)
    while piece >= 1 and time.monotonic() < deadline:
        start = 0
        while start < len(best.steps) - 1 and time.monotonic() < deadline:
            steps = best.steps[:start] + best.steps[min(start + piece, len(best.steps) - 1) :]
            smaller = _replay_fresh(fresh, steps)
            if smaller is None:
                start += piece
            else:
                best = smaller
        piece //= 2
    return best


def _shortest_end(failure: Failure, fresh: Callable[[], Iterator[Pair]]) -> Failure:
    """The last steps alone, after an opening for each client, if they still show a difference.
    A few tries, whatever time they take."""
    clients = {step.client for step in failure.steps if isinstance(step, s.Open)}
    openings: list[s.Step] = [s.Open(client, 30_000, False) for client in sorted(clients)]
    size = 1
    while size < len(failure.steps):
        smaller = _replay_fresh(fresh, openings + failure.steps[-size:])
        if smaller is not None:
            return smaller
        size *= 4
    return failure


def _replay_fresh(fresh: Callable[[], Iterator[Pair]], steps: Sequence[s.Step]) -> Failure | None:
    with contextmanager(fresh)() as pair:
        return replay(pair, steps)


def describe(failure: Failure, seed: int, operations: int, clients: int) -> str:
    """A difference for people: where, the last steps, both answers, how to see it again."""
    lines = [f"the servers differ at step {failure.at} (seed {seed})", "the last steps:"]
    recent = deque(enumerate(failure.steps, start=1), maxlen=STORY_STEPS)
    lines += [f"  {number}. {step}" for number, step in recent]
    difference = failure.difference
    lines.append(f"client {difference.client} received")
    lines += _side_by_side(difference.left, difference.right)
    lines.append(
        "again: python -m tests.proofs.differential "
        f"--seed {seed} --operations {operations} --clients {clients}"
    )
    return "\n".join(lines)


def _side_by_side(left: list[Record], right: list[Record]) -> list[str]:
    lines = []
    for number in range(max(len(left), len(right))):
        here = left[number] if number < len(left) else ("nothing",)
        there = right[number] if number < len(right) else ("nothing",)
        mark = " " if here == there else "!"
        lines.append(f" {mark} left:  {here}")
        if here != there:
            lines.append(f" {mark} right: {there}")
    return lines
