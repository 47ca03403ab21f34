"""Asking a coordination plane whose servers are being killed, until it answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from holdfast.wire.errors import HoldfastError, Missing, RetryError

T = TypeVar("T")
PATIENCE_S: Final = 300.0
LOOK_S: Final = 0.1


def patiently(
    ask: Callable[[], T],
    patience_s: float = PATIENCE_S,
    wrong: tuple[type[HoldfastError], ...] = (RetryError, Missing),
) -> T:
    """Its answer; what it raises is raised if it is not one of `wrong`, or still so at the end."""
    until_s = time.monotonic() + patience_s
    while True:
        try:
            return ask()
        except wrong:
            if time.monotonic() > until_s:
                raise
            time.sleep(LOOK_S)  # pause: between two questions
