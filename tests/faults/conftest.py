"""Fixtures that several of these tests use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import require_service
from tests.integration.gateway_world import World
from tests.servers.envoy import envoy_missing


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    require_service(envoy_missing())
    made = World(tmp_path)
    try:
        yield made
    finally:
        made.close()
