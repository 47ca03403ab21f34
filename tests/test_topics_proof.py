"""The proof of topics in short; `python -m tests.proofs.topics --kills 200` is the long one.

Mutants of the broker (tests/mutants/brokers.py) are to be found by this.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proofs import seed_of
from tests.proofs.topics.campaign import Campaign, Plan
from tests.proofs.topics.engines import ForgetfulBroker

pytestmark = pytest.mark.engines

KILLS = 5


def test_clients_of_a_broker_that_is_killed_lose_double_reorder_or_see_what_was_aborted(
    tmp_path: Path,
) -> None:
    plan = Plan(seed_of(1), KILLS)
    print(f"again: {plan.command()}")
    campaign = Campaign(plan, ForgetfulBroker(tmp_path), print)
    campaign.run()
    print(campaign.told())
    assert campaign.kills == KILLS
    assert campaign.notes.tally["transactions committed"] > 0
    assert campaign.notes.tally["transactions aborted"] > 0
    assert campaign.notes.tally["zombies fenced"] > 0
