"""A history that many threads write."""

from __future__ import annotations

import threading
from collections import Counter

from simulation.topics.history import Fate, History, Owned, Place, SeenRecord, Sent


class Notes:
    """The history of a run, and how often what happened."""

    def __init__(self) -> None:
        self.history = History()
        self.tally: Counter[str] = Counter()
        self._lock = threading.Lock()

    def send(self, one: Sent) -> None:
        with self._lock:
            self.history.sent.append(one)

    def acknowledge(self, value: str, offset: int) -> None:
        with self._lock:
            self.history.acknowledged[value] = offset

    def begin(self, transaction: str) -> None:
        with self._lock:
            self.history.begin(transaction)

    def end(self, transaction: str, fate: Fate) -> None:
        with self._lock:
            self.history.fates[transaction] = fate

    def see(self, one: SeenRecord) -> None:
        with self._lock:
            self.history.seen.append(one)

    def own(self, one: Owned) -> None:
        with self._lock:
            self.history.owned.append(one)

    def keep(self, group: str, place: Place, offset: int) -> None:
        with self._lock:
            self.history.keep(group, place, offset)

    def count(self, what: str) -> None:
        with self._lock:
            self.tally[what] += 1

    @property
    def acknowledged(self) -> int:
        return len(self.history.acknowledged)

    @property
    def ended(self) -> int:
        """Transactions of which the end is known."""
        return self.tally["transactions committed"] + self.tally["transactions aborted"]
