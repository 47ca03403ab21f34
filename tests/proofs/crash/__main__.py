"""`python -m tests.proofs.crash`: kill the server many times and check every promise."""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.proofs.crash import sabotage
from tests.proofs.crash.model import Violation
from tests.proofs.crash.torture import Torture


def say(line: str) -> None:
    print(line, flush=True)


def run(options: argparse.Namespace, torn: bool) -> int:
    """One run over a folder of its own, which is kept if a promise was broken."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-crash-"))
    tails = "torn" if torn else "clean"
    say(f"{options.kills} kills with {tails} tails, seed {options.seed}, data in {folder}")
    begun = time.monotonic()
    torture = Torture(
        folder,
        seed=options.seed,
        kills=options.kills,
        writer_count=options.writers,
        torn=torn,
        sabotaged=options.sabotage,
        say=say,
    )
    try:
        torture.run()
    except Violation as violation:
        say(f"VIOLATION after {torture.tally['kills']} kills: {violation}")
        say(torture.summary())
        say(f"seed {options.seed}; the data folder is kept in {folder}")
        return 1
    say(torture.summary())
    for what, count in sorted(torture.tally.items()):
        say(f"  {what}: {count}")
    say(f"every promise held, in {time.monotonic() - begun:.0f} s")
    shutil.rmtree(folder)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="of each kind")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--writers", type=int, default=5)
    parser.add_argument(
        "--tails",
        choices=("clean", "torn", "both"),
        default="both",
        help="leave the log as the kill left it, or tear its tail; a run for each",
    )
    parser.add_argument(
        "--sabotage", choices=sabotage.EVERY, default="", help="lose something on purpose"
    )
    options = parser.parse_args()
    kinds = {"clean": [False], "torn": [True], "both": [False, True]}[options.tails]
    return max(run(options, torn) for torn in kinds)


if __name__ == "__main__":
    sys.exit(main())
