"""`python -m tests.proofs.linearizability --seconds N --seed S --clients K --kills`"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.proofs.linearizability.broken import BREAKAGES, Proxy
from tests.proofs.linearizability.run import watch_registers
from tests.servers import EmbeddedServer, ServerProcess, ZooKeeperServer, zookeeper_missing

PROBLEMS_SHOWN = 5


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.proofs.linearizability",
        description="Concurrent clients on a few registers; every answer must fit the order of "
        "zxids and real time.",
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, printed")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--kills", action="store_true", help="kill -9 the server now and then")
    parser.add_argument("--real", action="store_true", help="a real ZooKeeper instead of ours")
    parser.add_argument(
        "--broken", choices=[*BREAKAGES, "forgets"], help="break it on purpose, to see it caught"
    )
    options = parser.parse_args()
    if options.real and (missing := zookeeper_missing()):
        print(missing, file=sys.stderr)
        return 1
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-")))
        kind = ZooKeeperServer if options.real else EmbeddedServer
        server: ServerProcess = stack.enter_context(kind(folder / "server"))
        port = None
        if options.broken in BREAKAGES:
            breakage = BREAKAGES[options.broken](seed)
            port = stack.enter_context(Proxy(server.port, breakage)).port
        verdict = watch_registers(
            server,
            seconds=options.seconds,
            seed=seed,
            clients=options.clients,
            kills=options.kills,
            forget=options.broken == "forgets",
            port=port,
        )
    print(verdict.summary())
    for problem in verdict.problems[:PROBLEMS_SHOWN]:
        print(problem)
    if verdict.problems:
        print(f"NOT linearizable: {len(verdict.problems)} problems")
        return 1
    print("linearizable")
    return 0


if __name__ == "__main__":
    sys.exit(main())
