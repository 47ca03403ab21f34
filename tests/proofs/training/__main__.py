"""`python -m tests.proofs.training`: train while everything is killed, and compare the bits."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

from tests.proofs.running import Words, conducted, hear_signals, say
from tests.proofs.training.campaign import Campaign, Plan
from tests.proofs.training.judging import Violation
from tests.proofs.training.schedules import MODELS, SIZES


def run(plan: Plan) -> int:
    """One run over a folder of its own, which is kept if a promise was broken."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-training-"))
    say(f"{plan.schedules} schedules, seed {plan.seed}, data in {folder}")
    say(f"again: {plan.command()}")
    campaign = Campaign(plan, folder, say)
    words = Words(campaign.told, plan.command(), "every run ended with the same bits")
    return conducted(campaign.run, folder, words, Violation)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=30)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--epochs", type=int, default=20, help="six steps each")
    parser.add_argument("--no-sizes", action="store_true", help="only the schedules")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--nodes", type=int, choices=(1, 2, 4), default=2)
    options = parser.parse_args()
    hear_signals()
    sizes = () if options.no_sizes else SIZES
    plan = Plan(
        options.seed, options.schedules, options.epochs, options.models, sizes, options.nodes
    )
    return run(plan)


if __name__ == "__main__":
    sys.exit(main())
