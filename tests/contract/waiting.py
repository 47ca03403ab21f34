"""Waiting for a condition, generously: a test says what must come, not when."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 120.0


def eventually(condition: Callable[[], T], what: str, timeout_s: float = PATIENCE_S) -> T:
    """The first true answer of `condition`."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(0.01)
