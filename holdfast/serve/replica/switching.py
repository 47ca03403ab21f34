"""How often Python changes threads: often only while that helps somebody.

A thread that computes or loads in Python's own code keeps the event loop waiting until Python
changes threads. So it changes often while there is one. Else it need not: threads that only wait
for something short (gRPC's) would interrupt small requests for nothing.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# Python changes threads so often while one computes: a request waits no longer for a loading one.
SWITCH_INTERVAL_S: Final = 0.0005


_lock: Final = threading.Lock()
_before: list[float] = []  # one for each that is inside: what the first of them has found


@contextmanager
def changing_often() -> Iterator[None]:
    """While a thread does something in this process that is not the event loop's."""
    with _lock:
        _before.append(_before[0] if _before else sys.getswitchinterval())
        sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        with _lock:
            before = _before.pop()
            if not _before:
                sys.setswitchinterval(before)
