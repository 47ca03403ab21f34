"""Times, sizes, counts and first lines as people say them."""

from __future__ import annotations

import time
from typing import Final

_SIZES: Final = ((1024**4, "TiB"), (1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"))


def span(seconds: float) -> str:
    """`2d3h`, `1h05m`, `3m12s`, `8s`: two units are enough for anybody."""
    whole = max(0, round(seconds))
    if whole >= 86_400:
        return f"{whole // 86_400}d{whole % 86_400 // 3_600}h"
    if whole >= 3_600:
        return f"{whole // 3_600}h{whole % 3_600 // 60:02}m"
    if whole >= 60:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole}s"


def ago(then_s: float, now_s: float | None = None) -> str:
    """How long ago a moment of the wall clock was. A clock that is ahead of ours is `0s`."""
    return span((time.time() if now_s is None else now_s) - then_s)


def clock(at_s: float) -> str:
    """The time of day, here."""
    return time.strftime("%H:%M:%S", time.localtime(at_s))


def day(at_s: float) -> str:
    return time.strftime("%a %d %b %Y", time.localtime(at_s))


def size(count: int) -> str:
    """`1.5 GiB`, for reading only."""
    for unit, name in _SIZES:
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count} B"


def many(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def one_line(words: str) -> str:
    """The first line that says something."""
    return next((line.strip() for line in words.splitlines() if line.strip()), "")
