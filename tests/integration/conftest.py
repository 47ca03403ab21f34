"""Clusters of real processes, ended after each test whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cluster import opened
from holdfast.launch.ending import down
from tests.integration.clusters import PATIENT, Home


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path / "cluster")
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Home]:
    """One in which no session ends while something is started again."""
    made = Home(tmp_path / "cluster", PATIENT)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Path]:
    """The folder of another machine; what runs there is ended."""
    folder = tmp_path / "there"
    yield folder
    if (folder / "cluster.json").exists():
        down(opened(folder), force=True)
