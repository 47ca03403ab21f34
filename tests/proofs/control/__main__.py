"""`python -m tests.proofs.control`: kill a cluster everywhere, and check its history."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

from tests.proofs.control import sabotage
from tests.proofs.control.campaign import Campaign, Plan
from tests.proofs.control.checks import Violation
from tests.proofs.control.engines import PLANES, STORES
from tests.proofs.running import Words, conducted, hear_signals, say


def run(plan: Plan) -> int:
    """One run over a folder of its own, which is kept if a promise was broken."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-control-"))
    where = f"{plan.plane} plane, {plan.store} store"
    say(f"{plan.kills} kills, seed {plan.seed}, {where}, data in {folder}")
    campaign = Campaign(plan, folder, say)
    words = Words(campaign.told, plan.command, story=campaign.story)
    return conducted(campaign.run, folder, words, Violation)


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
    hear_signals()
    return run(Plan(**vars(options)))


if __name__ == "__main__":
    sys.exit(main())
