"""A short run of the long proof of serving: `make proof-serving`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proofs.serving.campaign import Campaign, Plan

pytestmark = pytest.mark.engines


def test_no_request_fails_while_replicas_die_and_versions_come_and_go(tmp_path: Path) -> None:
    kinds = ("server", "gateway", "supervisor")
    plan = Plan(seed=5, requests=4_000, rate=100.0, rollouts=2, rollbacks=1, kinds=kinds)
    print(plan.command())
    campaign = Campaign(plan, tmp_path, print)
    campaign.run()
    assert campaign.total.failed == 0
    assert campaign.tally["replicas killed"] > 0, campaign.table()


@pytest.mark.engines
def test_every_process_that_is_killed_comes_back_and_no_request_fails_but_those_of_envoy(
    tmp_path: Path,
) -> None:
    plan = Plan(seed=6, requests=4_000, rate=50.0, rollouts=2, rollbacks=1)
    print(plan.command())
    campaign = Campaign(plan, tmp_path, print)
    campaign.run()
    assert campaign.total.failed == campaign.cost, campaign.table()
    assert campaign.tally["kill several at once"] == 1, campaign.table()
