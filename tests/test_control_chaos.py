"""The proof of the control plane in short, and the proof that its checks see what they are for.

`make proof-control KILLS=300` is the long one.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.conftest import require_service
from tests.proofs import seed_of
from tests.proofs.control import breakages, checks, events, specimen
from tests.proofs.control.campaign import Campaign, Plan
from tests.proofs.control.faults import KILLS, strikes
from tests.servers import zookeeper_missing

pytestmark = pytest.mark.engines

SHORT = 12
SEED = 12  # kills nearly everything there is, and once all of it


@pytest.mark.parametrize(("plane", "store"), [("embedded", "folder"), ("ensemble", "moto")])
def test_jobs_end_with_the_right_answer_though_everything_is_killed(
    tmp_path: Path, plane: str, store: str
) -> None:
    if plane == "ensemble":
        require_service(zookeeper_missing())
    plan = Plan(seed_of(SEED), SHORT, plane, store, steps=150)
    print(plan.command)
    campaign = Campaign(plan, tmp_path, print)
    try:
        campaign.run()
    except BaseException:
        if campaign.watcher is not None:
            print(campaign.story())
        raise
    print(campaign.figures())
    assert campaign.tally["kills"] == SHORT
    assert campaign.tally["jobs succeeded"] >= 2


def test_the_checks_have_nothing_against_a_history_in_which_all_is_well() -> None:
    checks.check(specimen.history(), specimen.GROUND)


@pytest.mark.parametrize("name", breakages.EVERY)
def test_the_checks_see_what_was_broken_on_purpose(name: str) -> None:
    print(breakages.seen(name, specimen.history(), specimen.GROUND))


def test_every_check_has_a_breakage_that_it_sees() -> None:
    assert {check for _, check in breakages.EVERY.values()} == set(checks.EVERY)


def test_a_seed_always_gives_the_same_faults_and_all_kinds_come() -> None:
    some = list(itertools.islice(strikes(7), 500))
    assert some == list(itertools.islice(strikes(7), 500))
    assert {strike.kind for strike in some if strike.kill} == set(KILLS)


def test_a_history_is_the_same_after_it_was_written_down(tmp_path: Path) -> None:
    events.write(tmp_path / "history", specimen.history())
    assert events.read(tmp_path / "history") == specimen.history()
