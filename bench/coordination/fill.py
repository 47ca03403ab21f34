"""Many nodes: load them into a server, and see afterwards that they are all there."""

from __future__ import annotations

import random
import time
from typing import Final

from bench.coordination import wire
from bench.coordination.clients import DATA_BYTES
from bench.coordination.wire import Link

ROOT: Final = b"/bench/many"
PER_PARENT: Final = 1_000
IN_FLIGHT: Final = 256
SAMPLE: Final = 1_000


def path_of(index: int) -> bytes:
    return ROOT + b"/p%04d/n%06d" % (index // PER_PARENT, index)


def data_of(index: int) -> bytes:
    return b"%010d" % index * (DATA_BYTES // 10)


def fill(link: Link, count: int) -> tuple[float, int]:
    """Create `count` nodes of 100 bytes; seconds, and wrong answers."""
    started = time.perf_counter()
    for parent in range(-(-count // PER_PARENT)):
        wire.make_path(link, ROOT + b"/p%04d" % parent)
    _, wrong = link.pipeline(
        wire.CREATE,
        lambda index: wire.create_body(path_of(index), data_of(index)),
        lambda index, answer: answer == wire.text(path_of(index)),
        IN_FLIGHT,
        count,
    )
    return time.perf_counter() - started, wrong


def missing(link: Link, count: int, seed: int) -> int:
    """How many nodes of those that were loaded are not there, or not with their bytes.

    Names are counted in every parent; bytes are read from a sample.
    """
    lost = count
    for parent in range(-(-count // PER_PARENT)):
        body = wire.get_body(ROOT + b"/p%04d" % parent)
        lost -= int.from_bytes(link.expect(wire.GET_CHILDREN, body)[:4], "big")
    chosen = random.Random(seed).sample(range(count), min(SAMPLE, count))
    _, wrong = link.pipeline(
        wire.GET_DATA,
        lambda index: wire.get_body(path_of(chosen[index])),
        lambda index, answer: answer.startswith(wire.text(data_of(chosen[index]))),
        IN_FLIGHT,
        len(chosen),
    )
    return abs(lost) + wrong
