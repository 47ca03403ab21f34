"""What a test of a broker's folder leaves open is closed after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.topics.test_store import Disk


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    Disk.end_all()
