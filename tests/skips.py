"""What a run of `.ci/run` may skip: what is not there and what nobody installs. All else must run.

With `HOLDFAST_REQUIRE_SERVICES=1` a test that is skipped for a reason that is not listed fails.
"""

from __future__ import annotations

import os
import re
from typing import Final

import pytest

# The beginnings of reasons, and why nobody can demand what is missing.
MAY_BE_ABSENT: Final = {
    r"this machine has no NVIDIA GPU": "make test-gpu runs them where there is one",
    r"MinIO('s part| is not beside) ": "it lies beside the checkout, and is built for amd64 only",
    r"needs the package (transformers|mlflow)": "gigabytes that make setup does not install",
}


def strict() -> bool:
    """Whether whatever can be there must be there."""
    return os.environ.get("HOLDFAST_REQUIRE_SERVICES") == "1"


def may_skip(reason: str) -> bool:
    return any(re.match(known, reason) for known in MAY_BE_ABSENT)


def judge(report: pytest.TestReport) -> None:
    """A skip of what must be there is a failure."""
    if not report.skipped or hasattr(report, "wasxfail") or not strict():
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    if not may_skip(reason):
        report.outcome = "failed"
        report.longrepr = f"HOLDFAST_REQUIRE_SERVICES=1, but this test was skipped: {reason}"
