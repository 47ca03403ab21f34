"""A short run of the long proof of serving: `make proof-serving`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proofs.serving.bodies import Bodies
from tests.proofs.serving.campaign import Campaign, Plan
from tests.proofs.serving.envoys import Envoys
from tests.proofs.serving.overload import Overload

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


def test_large_bodies_are_answered_and_leave_nobody_larger(tmp_path: Path) -> None:
    campaign = Bodies(tmp_path, print, size=100_000_000, times=1, rate=20.0, patient=False)
    campaign.run()
    assert campaign.total.sent, campaign.table()


def test_ten_times_the_capacity_fails_nothing_that_was_accepted(tmp_path: Path) -> None:
    Overload(tmp_path, print, seconds=2.0).run()


def test_of_two_gateways_at_one_address_an_envoys_death_costs_what_was_on_its_way(
    tmp_path: Path,
) -> None:
    campaign = Envoys(tmp_path, print, kills=1, rate=50.0)
    campaign.run()
    assert set(campaign.lost) == {1, 2}, campaign.table()
