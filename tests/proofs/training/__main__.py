"""`python -m tests.proofs.training`: train while everything is killed, and compare the bits."""

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

from tests.proofs.training.campaign import Campaign, Plan
from tests.proofs.training.judging import Violation
from tests.proofs.training.schedules import MODELS, SIZES


def say(line: str) -> None:
    print(line, flush=True)


def run(plan: Plan) -> int:
    """One run over a folder of its own, which is kept if a promise was broken."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-training-"))
    say(f"{plan.schedules} schedules, seed {plan.seed}, data in {folder}")
    say(f"again: {plan.command()}")
    campaign, began_s = Campaign(plan, folder, say), time.monotonic()
    try:
        campaign.run()
    except KeyboardInterrupt:
        say(campaign.table())
        say(f"interrupted; nothing is left running; data in {folder}")
        return 130
    except (Violation, AssertionError) as broken:
        if not isinstance(broken, Violation):
            traceback.print_exc()
        say(campaign.table())
        say(f"VIOLATION: {broken}")
        say(f"everything is kept in {folder}")
        return 1
    say(campaign.table())
    for what, count in sorted(campaign.tally.items()):
        say(f"  {what}: {count}")
    say(f"the same bits, {len(campaign.rows)} runs, in {time.monotonic() - began_s:.0f} s")
    shutil.rmtree(folder)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=30)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--epochs", type=int, default=20, help="six steps each")
    parser.add_argument("--no-sizes", action="store_true", help="only the schedules")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--nodes", type=int, choices=(1, 2, 4), default=2)
    options = parser.parse_args()
    # A polite end from outside is an end, too: what was started is ended.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    sizes = () if options.no_sizes else SIZES
    plan = Plan(
        options.seed, options.schedules, options.epochs, options.models, sizes, options.nodes
    )
    return run(plan)


if __name__ == "__main__":
    sys.exit(main())
