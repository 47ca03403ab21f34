"""Proofs: long, seeded runs against real servers. Each has a short version in `make test`."""

from __future__ import annotations

import os
import secrets

import pytest

from tests.servers import zookeeper_missing


def seed_of(number: int) -> int:
    """The seed of a short proof: the same in every run, so that a change is judged by itself; with
    HOLDFAST_EXPLORE=1 another one each time."""
    return secrets.randbits(32) if os.environ.get("HOLDFAST_EXPLORE") else number


def require_zookeeper() -> None:
    """Skip with the command that installs ZooKeeper; fail where services are required."""
    missing = zookeeper_missing()
    if not missing:
        return
    if os.environ.get("HOLDFAST_REQUIRE_SERVICES") == "1":
        pytest.fail(missing)
    pytest.skip(missing)
