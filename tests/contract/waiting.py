"""Waiting for a condition, generously: a test says what must come, not when."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 120.0
# What comes soon is seen soon. Who waits for seconds asks less often: a question is often a read of
# the plane, and a hundred a second take a quarter of a core from what is waited for.
PAUSE_S = 0.01
PAUSE_S_MAX = 0.05


def eventually(condition: Callable[[], T], what: str, timeout_s: float = PATIENCE_S) -> T:
    """The first true answer of `condition`."""
    deadline_s = time.monotonic() + timeout_s
    pause_s = PAUSE_S
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.2, PAUSE_S_MAX)
