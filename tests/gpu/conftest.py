"""Without a GPU these tests are skipped. The tests' own process never calls CUDA: it forks."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="session")
def _gpu() -> None:
    if not Path("/dev/nvidia0").exists():
        pytest.skip("this machine has no NVIDIA GPU")
