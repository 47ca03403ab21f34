"""`python -m tests.proofs.differential --operations 20000 --seed N --clients 4`"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.proofs.differential.pair import Pair
from tests.proofs.differential.run import (
    compare,
    describe,
    fresh_pair,
    shrink,
    start_embedded,
    start_real,
)
from tests.proofs.differential.steps import NAMES
from tests.servers import zookeeper_missing


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.proofs.differential",
        description="Random operations to a real ZooKeeper and to the embedded server: "
        "the same answers, or the first difference.",
    )
    parser.add_argument("--operations", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, printed")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument(
        "--shrink-s", type=float, default=60.0, help="time to simplify a difference"
    )
    parser.add_argument(
        "--real", action="store_true", help="two real ZooKeepers: shows that the test is fair"
    )
    parser.add_argument(
        "--without", nargs="*", default=[], metavar="OPERATION", help="to look past a difference"
    )
    options = parser.parse_args()
    if unknown := set(options.without) - set(NAMES.values()):
        parser.error(f"no such operation: {', '.join(unknown)}; known: {', '.join(NAMES.values())}")
    if missing := zookeeper_missing():
        print(missing, file=sys.stderr)
        return 1
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    right = start_real if options.real else start_embedded
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-differential-") as folder:

        def fresh() -> Iterator[Pair]:
            with fresh_pair(Path(folder), start_real, right) as pair:
                yield pair

        with fresh_pair(Path(folder), start_real, right) as pair:
            result = compare(
                pair, options.operations, seed, options.clients, frozenset(options.without)
            )
        seconds = time.monotonic() - began
        print(f"{result.operations} operations, {result.events} events in {seconds:.1f} s")
        print("by operation:", dict(result.by_operation.most_common()))
        print("by error code:", dict(result.by_error.most_common()))
        if result.failure is None:
            print("no difference")
            return 0
        print(describe(result.failure, seed, options.operations, options.clients), flush=True)
        if options.shrink_s > 0:
            smaller = shrink(result.failure, fresh, options.shrink_s)
            print(f"\nshrunk to {len(smaller.steps)} steps:")
            print(describe(smaller, seed, options.operations, options.clients))
    return 1


if __name__ == "__main__":
    sys.exit(main())
