"""Proofs: long, seeded runs against real servers. Each has a short version in `make test`."""

from __future__ import annotations

import os

import pytest

from tests.servers import zookeeper_missing


def require_zookeeper() -> None:
    """Skip with the command that installs ZooKeeper; fail where services are required."""
    missing = zookeeper_missing()
    if not missing:
        return
    if os.environ.get("HOLDFAST_REQUIRE_SERVICES") == "1":
        pytest.fail(missing)
    pytest.skip(missing)
