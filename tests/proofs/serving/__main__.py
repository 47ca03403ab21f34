"""`python -m tests.proofs.serving`: a steady load while everything behind it dies and changes."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

from tests.proofs.running import Words, conducted, hear_signals, say
from tests.proofs.serving.campaign import Campaign, Plan
from tests.proofs.serving.cluster import Violation


def run(plan: Plan) -> int:
    """One run over a folder of its own, which is kept if a promise was broken."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-serving-"))
    say(f"{plan.requests:,} requests, seed {plan.seed}, data in {folder}")
    say(f"again: {plan.command()}")
    campaign = Campaign(plan, folder, say)
    words = Words(campaign.table, plan.command(), "no request failed")
    return conducted(campaign.run, folder, words, Violation)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--requests", type=int, default=Plan.requests)
    parser.add_argument("--rate", type=float, default=Plan.rate)
    parser.add_argument("--rollouts", type=int, default=Plan.rollouts)
    parser.add_argument("--rollbacks", type=int, default=Plan.rollbacks)
    given = parser.parse_args()
    hear_signals()
    return run(Plan(given.seed, given.requests, given.rate, given.rollouts, given.rollbacks))


if __name__ == "__main__":
    sys.exit(main())
