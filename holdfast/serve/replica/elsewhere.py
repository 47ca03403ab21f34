"""How often a full replica lets a gateway try another one. Pure.

Where one replica is full another may have room; where all are, each further try is work for nothing
that keeps them full. So such tries are bought by answers: a tenth of them. Under ten times the load
that replicas can carry that is a hundredth of the requests.
"""

from __future__ import annotations

from typing import Final

# A full replica lets a gateway try another one, but only for so many requests as are this share of
# those that it has answered, and for so many at once after a quiet time: where all are full, each
# such try is work for nothing.
ELSEWHERE_SHARE: Final = 0.1
ELSEWHERE_MAX: Final = 10.0


_FIRST = "1"


class RetryBudget:
    """Of one replica."""

    def __init__(self, share: float = ELSEWHERE_SHARE, most: float = ELSEWHERE_MAX) -> None:
        self._share, self._most = share, most
        self._left = most
        self._answered = 0

    def spend(self, answered: int, attempt: str | None) -> bool:
        """Whether this request may be tried elsewhere: it was not before (`attempt` is as the
        gateway counts), and enough were answered (`answered`: since the start)."""
        earned = self._share * max(0, answered - self._answered)
        self._answered = answered
        self._left = min(self._most, self._left + earned)
        if attempt not in (None, _FIRST) or self._left < 1:
            return False
        self._left -= 1
        return True
