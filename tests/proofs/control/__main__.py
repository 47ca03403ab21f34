"""`python -m tests.proofs.control`: kill a cluster everywhere, and check its history."""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

from tests.proofs.control import sabotage
from tests.proofs.control.campaign import Campaign, Plan
from tests.proofs.control.checks import Violation
from tests.proofs.control.engines import PLANES, STORES


def say(line: str) -> None:
    print(line, flush=True)


def run(plan: Plan) -> int:
    """One run over a folder of its own, which is kept if a promise was broken."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-control-"))
    where = f"{plan.plane} plane, {plan.store} store"
    say(f"{plan.kills} kills, seed {plan.seed}, {where}, data in {folder}")
    campaign = Campaign(plan, folder, say)
    try:
        campaign.run()
    except (Violation, AssertionError) as broken:
        if not isinstance(broken, Violation):
            traceback.print_exc()
        say(f"VIOLATION after {campaign.tally['kills']} kills: {broken}")
        if campaign.watcher is not None:
            say(campaign.story())
            for what, count in campaign.figures().items():
                say(f"  {what}: {count}")
        say(f"everything is kept in {folder}")
        say(f"the same faults again: {plan.command}")
        return 1
    for what, count in campaign.figures().items():
        say(f"  {what}: {count}")
    say(f"every promise held, in {campaign.took_s:.0f} s")
    shutil.rmtree(folder)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--plane", choices=PLANES, default="embedded")
    parser.add_argument("--store", choices=STORES, default="folder")
    parser.add_argument("--steps", type=int, default=400, help="of the larger job of a round")
    parser.add_argument("--step-ms", type=int, default=15, help="what a step takes, at least")
    parser.add_argument(
        "--sabotage", choices=sabotage.EVERY, default="", help="break it on purpose"
    )
    options = parser.parse_args()
    return run(Plan(**vars(options)))


if __name__ == "__main__":
    sys.exit(main())
