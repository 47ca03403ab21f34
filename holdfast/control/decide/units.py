"""Durations and sizes as people write them: `90s`, `1h30m`, `4GiB`. A number without a unit is
refused, since half of the readers would guess it wrong."""

from __future__ import annotations

import re
from typing import Final

_DURATIONS: Final = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_SIZES: Final = {
    "TiB": 1024**4,
    "GiB": 1024**3,
    "MiB": 1024**2,
    "KiB": 1024,
    "TB": 10**12,
    "GB": 10**9,
    "MB": 10**6,
    "KB": 10**3,
    "B": 1,
}
_NUMBER = r"[0-9]{1,18}(?:\.[0-9]{1,22})?"
_DURATION_PART = re.compile(rf"({_NUMBER})(ms|[dhms])", re.ASCII)
_DURATION = re.compile(rf"(?:{_NUMBER}(?:ms|[dhms]))+", re.ASCII)
_SIZE = re.compile(rf"({_NUMBER}) ?({'|'.join(_SIZES)})", re.ASCII)

# The same, for the schema of a job file.
DURATION_PATTERN: Final = f"^{_DURATION.pattern}$"
DURATION_SCHEMA: Final = {"type": "string", "pattern": DURATION_PATTERN}
SIZE_PATTERN: Final = f"^{_SIZE.pattern}$"
DURATION_EXAMPLE: Final = "a duration, such as 90s, 5m or 1h30m"
SIZE_EXAMPLE: Final = "a size, such as 512MiB or 4GiB"


def seconds_of(text: str) -> float | None:
    """`1h30m` -> 5400.0; None if it is not a duration."""
    if not _DURATION.fullmatch(text):
        return None
    return sum(float(number) * _DURATIONS[unit] for number, unit in _DURATION_PART.findall(text))


def duration_of(seconds: float) -> str:
    """The shortest text that `seconds_of` reads back as the same number."""
    for unit in ("d", "h", "m", "s"):
        count = int(seconds / _DURATIONS[unit])
        if count >= 1 and count * _DURATIONS[unit] == seconds:
            return f"{count}{unit}"
    return f"{seconds!r}s"


def bytes_of(text: str) -> int | None:
    """`4GiB` -> 4294967296; None if it is not a size, or not a whole number of bytes."""
    found = _SIZE.fullmatch(text)
    if not found:
        return None
    whole, _, part = found[1].partition(".")
    size, scale = _SIZES[found[2]], 10 ** len(part)
    count = int(whole + part) * size
    return count // scale if count % scale == 0 else None


def size_of(count: int) -> str:
    """The shortest text that `bytes_of` reads back as the same number."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if count and count % _SIZES[unit] == 0:
            return f"{count // _SIZES[unit]}{unit}"
    return f"{count}B"
