"""`python -m tests.proofs.topics`: kill brokers under writers, transactions and groups."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import tempfile
from pathlib import Path

from tests.proofs.running import Words, conducted, hear_signals, say
from tests.proofs.topics.campaign import Campaign, Plan, Violation
from tests.proofs.topics.engines import Engine, ForgetfulBroker, RealNodes


def run(plan: Plan, *, as_json: bool) -> int:
    """One run over a folder of its own, which is kept if a promise was broken."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-topics-"))

    def quietly(line: str) -> None:
        print(line, file=sys.stderr if as_json else sys.stdout, flush=True)

    what = "three real nodes" if plan.kafka else "our broker"
    quietly(f"{plan.kills} kills of {what}, seed {plan.seed}, data in {folder}")
    quietly(f"again: {plan.command()}")
    engine: Engine = RealNodes(folder) if plan.kafka else ForgetfulBroker(folder, torn=plan.torn)
    campaign = Campaign(plan, engine, quietly)
    held = "nothing is lost, doubled, reordered, aborted and seen, or owned by two"
    words = Words(campaign.told, plan.command(), held)
    status = conducted(campaign.run, folder, words, Violation, quietly)
    if as_json:
        say(json.dumps(campaign.as_json()))
    return status


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proofs.topics", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--kills", type=int, default=Plan.kills)
    parser.add_argument("--kafka", action="store_true", help="three nodes of a real Kafka")
    parser.add_argument("--clean", action="store_true", help="kill only: no power cuts, no tears")
    parser.add_argument("--json", action="store_true", help="for programs; the story is on stderr")
    given = parser.parse_args()
    hear_signals()
    plan = Plan(given.seed, given.kills, given.kafka, not given.clean)
    return run(plan, as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
