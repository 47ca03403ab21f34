"""Ctrl-C and SIGTERM in the demos: remembered where they come, heeded where nothing is half done.

A KeyboardInterrupt may be raised anywhere: in a library that takes it for something else and goes
on, or between a lock and its block, so that the lock is held for ever. So the first one is only
remembered, and `check` and `pause` raise it; a demo comes by one of them again and again. The
second one is of somebody who has waited long enough: it is raised wherever it comes.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

_came: list[int] = []


@contextmanager
def taken() -> Iterator[None]:
    """Until the end of the block both are ours, also if whoever started us has them ignored."""
    _came.clear()
    before = {one: signal.signal(one, _comes) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def check() -> None:
    """KeyboardInterrupt, if one has come. Not for what ends a demo: that goes on to its end."""
    if _came:
        raise KeyboardInterrupt


def pause(pause_s: float) -> None:
    """Sleep for a moment; KeyboardInterrupt, if one has come."""
    time.sleep(pause_s)
    check()


def _comes(number: int, _frame: object) -> None:
    # No lock is taken here: the main thread may be interrupted while it holds it.
    _came.append(number)
    if len(_came) > 1:
        raise KeyboardInterrupt
