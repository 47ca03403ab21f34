"""Each kind of bad version is taken back by itself, over real processes and under a load."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import require_service
from tests.proofs.serving.bad_versions import BAD, BadVersions
from tests.servers.envoy import envoy_missing


def test_each_bad_version_is_taken_back_by_itself_and_costs_no_request(tmp_path: Path) -> None:
    require_service(envoy_missing())
    campaign = BadVersions(tmp_path, print, rate=150.0)
    campaign.run()
    assert campaign.tally == dict.fromkeys(BAD, 1), campaign.table()
    assert campaign.total.failed == 0
