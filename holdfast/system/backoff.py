"""Pauses between tries of what fails: each twice as long as the one before, up to a longest."""

from __future__ import annotations

_DOUBLINGS_MAX = 64  # beyond it only the longest is left, and numbers would overflow


def pause_s(failures: int, first_s: float, longest_s: float) -> float:
    """The pause after so many failures in a row; none: no pause."""
    if failures <= 0:
        return 0.0
    return min(first_s * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), longest_s)


def spread(pause_s: float, part: float) -> float:
    """The pause, shortened by up to a half: those who failed together do not come back together.
    `part`: from 0 to 1, by chance or of each its own."""
    return pause_s * (0.5 + part / 2)


class Backoff:
    """Pauses of one thing that is tried again and again. `at_once`: after its first failure it is
    tried without a pause."""

    __slots__ = ("_at_once", "_failures", "_first_s", "_longest_s")

    def __init__(self, first_s: float, longest_s: float, *, at_once: bool = False) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._at_once = at_once
        self._failures = 0

    def failed(self) -> float:
        """It has failed once more: the pause until it is tried again."""
        self._failures += 1
        return pause_s(self._failures - self._at_once, self._first_s, self._longest_s)

    def succeeded(self) -> None:
        self._failures = 0
