"""Sources of chance, each with a name."""

from __future__ import annotations

import hashlib
from random import Random


def source(name: str) -> Random:
    """The same draws as `Random(name)`. PyPy computes that one's digest in Python, which was more
    than half of the time of a schedule."""
    raw = name.encode()
    return Random(int.from_bytes(raw + hashlib.sha512(raw).digest(), "big"))  # noqa: S311 - no secret
