"""`python -m tests.proofs.serving`: a steady load while everything behind it dies and changes."""

from __future__ import annotations

import argparse
import secrets
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.proofs.serving.campaign import Campaign, Plan, Violation


def say(line: str) -> None:
    print(line, flush=True)


def run(plan: Plan) -> int:
    """One run over a folder of its own, which is kept if a promise was broken."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-serving-"))
    say(f"{plan.requests:,} requests, seed {plan.seed}, data in {folder}")
    say(f"again: {plan.command()}")
    campaign, began_s = Campaign(plan, folder, say), time.monotonic()
    try:
        campaign.run()
    except KeyboardInterrupt:
        say(f"interrupted; nothing is left running; data in {folder}")
        return 130
    except AssertionError as broken:
        if not isinstance(broken, Violation):
            traceback.print_exc()
        say(campaign.table())
        say(f"VIOLATION: {broken}")
        say(f"everything is kept in {folder}")
        return 1
    say(campaign.table())
    say(f"no request failed, in {time.monotonic() - began_s:.0f} s")
    shutil.rmtree(folder)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--requests", type=int, default=Plan.requests)
    parser.add_argument("--rate", type=float, default=Plan.rate)
    parser.add_argument("--rollouts", type=int, default=Plan.rollouts)
    parser.add_argument("--rollbacks", type=int, default=Plan.rollbacks)
    given = parser.parse_args()
    # A polite end from outside is an end, too: what was started is ended.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    return run(Plan(given.seed, given.requests, given.rate, given.rollouts, given.rollbacks))


if __name__ == "__main__":
    sys.exit(main())
