"""Waiting for a condition, generously: a test says what must come, not when.

A machine with strangers on it may stop for seconds. So the bound of a wait is that of something
that never comes, and is the same everywhere unless the thing itself takes minutes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Final, Literal, TypeVar

T = TypeVar("T")

PATIENCE_S: Final = 120.0
# What comes soon is seen soon. Who waits for seconds asks less often: a question is often a read of
# the plane, and a hundred a second take a quarter of a core from what is waited for.
PAUSE_S: Final = 0.01
PAUSE_S_MAX: Final = 0.05


def eventually(
    condition: Callable[[], T | Literal[False] | None],
    what: str,
    timeout_s: float = PATIENCE_S,
    *,
    pause_s: float = PAUSE_S,
) -> T:
    """The first true answer of `condition`."""
    for each_s in _pauses(timeout_s, pause_s):
        if answer := condition():
            return answer
        time.sleep(each_s)  # pause: between two looks
    raise AssertionError(f"not within {timeout_s} s: {what}")


async def soon(
    condition: Callable[[], T | Literal[False] | None], what: str, timeout_s: float = PATIENCE_S
) -> T:
    """`eventually`, where an event loop has other things to do meanwhile."""
    for pause_s in _pauses(timeout_s):
        if answer := condition():
            return answer
        await asyncio.sleep(pause_s)
    raise AssertionError(f"not within {timeout_s} s: {what}")


def _pauses(timeout_s: float, pause_s: float = PAUSE_S) -> Iterator[float]:
    """How long to pause after each look, until one was made when the time was over."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        is_last = time.monotonic() > deadline_s
        yield pause_s
        if is_last:
            return
        pause_s = min(pause_s * 1.2, PAUSE_S_MAX)
