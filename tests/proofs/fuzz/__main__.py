"""`python -m tests.proofs.fuzz`: send millions of wrong bytes to a live server."""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.proofs.fuzz.campaign import fuzz
from tests.proofs.fuzz.guard import Harmed


def say(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-fuzz-"))
    say(f"seed {options.seed}, data in {folder}")
    begun = time.monotonic()
    try:
        size = int(options.megabytes * 1_000_000)
        tally = fuzz(folder, size=size, seed=options.seed, say=say)
    except Harmed as harm:
        say(f"HARMED: {harm}\nseed {options.seed}; the data folder is kept in {folder}")
        return 1
    say(f"{tally.bytes} bytes on {tally.connections} connections,")
    say(f"{tally.closed_by_server} closed by the server; replies by error code:")
    for code, count in sorted(tally.replies.items(), key=lambda item: -item[1]):
        say(f"  {code:>16}: {count}")
    say(f"the server is well after {time.monotonic() - begun:.0f} s")
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
