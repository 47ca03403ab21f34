"""Waiting until one of some files can be read, or has ended."""

from __future__ import annotations

import math
import select
from collections.abc import Iterable


def await_readable(files: Iterable[int], timeout_s: float | None = None) -> list[int]:
    """Those that can be read now, or whose other end is gone; none: the time is over. Not
    `select.select`, which takes no file above 1,023: a program may have opened that many."""
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    # Rounded up: a wait of less than a millisecond is not a busy loop.
    timeout_ms = None if timeout_s is None else math.ceil(max(0.0, timeout_s) * 1000)
    return [file for file, _ in poll.poll(timeout_ms)]
