"""Which row of a history was the newest one known at a time: the rule, on arrays. Pure.

A row of a key is known from the time of its event on, or, where it is asked what had arrived by
then, from the later of event and arrival. Of the rows that are known the one with the highest
version counts: by the time of the event, then by writer and sequence. So a correction of the same
event wins once it has arrived, and what comes late never wins over what is newer. What a row says
(that it is deleted, that its time to live is over) is the caller's to look at, since an older row
does not come back for that.

Keys are numbers from 0 on (`code`). Rows may come in parts, by the time of their events: what a
part leaves behind for those after it is `remaining`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]

# What one int64 holds of a key's number and a time together.
_PRODUCT_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class HistoryRows:
    """Rows of a history as arrays. `writer` and `sequence` are ordered as the unsigned numbers are.
    `known_us`: from when on a row is known; None: from the time of its event on."""

    code: Array
    at_us: Array
    writer: Array
    sequence: Array
    known_us: Array | None = None

    def __len__(self) -> int:
        return len(self.code)


class Timeline:
    """The rows of keys in the order in which they are known. `codes`: how many keys there are."""

    def __init__(self, rows: HistoryRows, codes: int) -> None:
        known = rows.at_us if rows.known_us is None else np.maximum(rows.at_us, rows.known_us)
        self._by_version = self._order = _by_version(rows)
        self._best: Array | None = None  # of each place the rank of the newest until there
        if rows.known_us is not None:
            self._order = _order(rows.code, known)
            rank = np.empty(len(rows), np.int64)
            rank[self._by_version] = np.arange(len(rows))
            # Ranks grow with the code: the highest so far is this key's, from its first row on.
            self._best = np.maximum.accumulate(rank[self._order]) if len(rows) else rank
        self._known = known[self._order]
        self._code = rows.code[self._order]
        counts = np.bincount(rows.code, minlength=codes)
        self._starts = np.concatenate(([0], np.cumsum(counts)))

    def newest(self, code: Array, at_us: Array) -> Array:
        """Of each asked (key, time) the number of the newest row that was known then; -1: none."""
        found = np.full(len(code), -1, np.int64)
        if not len(self._known):
            return found
        begin = self._starts[code]
        place = self._last_until(code, begin, at_us)
        hit = np.flatnonzero(place >= begin)
        place = place[hit]
        found[hit] = (
            self._order[place] if self._best is None else self._by_version[self._best[place]]
        )
        return found

    def _last_until(self, code: Array, begin: Array, at_us: Array) -> Array:
        """The last place of each key whose row is known at the time; one before the key's first
        place if there is none."""
        joining = _Joining.of(code, self._code, self._known)
        if joining is None:
            return _halved(self._known, begin, self._starts[code + 1], at_us)
        asked = joining.numbers(code, np.clip(at_us, joining.first - 1, joining.last))
        order = np.argsort(asked)  # one after the other they are found several times as fast
        place = np.empty(len(code), np.int64)
        rows = joining.numbers(self._code, self._known)
        place[order] = np.searchsorted(rows, asked[order], side="right") - 1
        return place

    def remaining(self, until_us: int) -> Array:
        """The numbers of the rows that can still be the newest at `until_us` or later, for whoever
        goes on with rows whose events are not before `until_us`."""
        ends = self._starts[1:][np.diff(self._starts) > 0]
        if self._best is None:
            last: Array = self._order[ends - 1]
            return last
        own = self._by_version[self._best] == self._order  # newer than all that was known before
        places = np.flatnonzero(own)
        early = self._known[places] < until_us
        # Of those that are known before, the last one of a key is enough: its successor is of
        # another key, or is known later.
        key = np.searchsorted(ends, places, side="right")
        is_last = np.ones(len(places), bool)
        is_last[:-1] = (key[1:] != key[:-1]) | ~early[1:]
        return self._order[places[~early | is_last]]


def _by_version(rows: HistoryRows) -> Array:
    """The order by key and version."""
    order = _order(rows.code, rows.at_us)
    code, at = rows.code[order], rows.at_us[order]
    same = (code[1:] == code[:-1]) & (at[1:] == at[:-1])
    if not same.any():
        return order
    # Only those that share an event's time are looked at once more: there are few.
    tied = np.zeros(len(order), bool)
    tied[1:] |= same
    tied[:-1] |= same
    places = np.flatnonzero(tied)
    rank = np.concatenate(([0], np.cumsum(~same)))[places]
    among = order[places]
    order[places] = among[np.lexsort((rows.sequence[among], rows.writer[among], rank))]
    return order


@dataclass(frozen=True, slots=True)
class _Joining:
    """How a key's number and a time become one number of the same order: it is sorted and found
    several times as fast as two."""

    first: int
    last: int

    @classmethod
    def of(cls, code: Array, codes: Array, times: Array) -> _Joining | None:
        """None: one number does not hold both."""
        first, last = int(times.min()), int(times.max())
        most = max(int(codes.max()), int(code.max(initial=0)))
        return cls(first, last) if (most + 1) * (last - first + 1) <= _PRODUCT_MAX else None

    def numbers(self, code: Array, at_us: Array) -> Array:
        """A time before `first` becomes the last one of the key before."""
        found: Array = code.astype(np.int64) * (self.last - self.first + 1)
        found += at_us - self.first
        return found


def _order(code: Array, at_us: Array) -> Array:
    """The order by code, then by time; of equal ones any."""
    if not len(code):
        return np.zeros(0, np.int64)
    joining = _Joining.of(code, code, at_us)
    if joining is None:
        return np.lexsort((at_us, code))
    return np.argsort(joining.numbers(code, at_us))


def _halved(known: Array, begin: Array, end: Array, at_us: Array) -> Array:
    """The last place of each range, in which `known` grows, that is not after the time; one before
    the range if there is none. All ranges are halved at once, as often as the longest one needs."""
    low, high = begin.copy(), end.copy()
    for _ in range(int((end - begin).max(initial=0)).bit_length()):
        middle = (low + high) >> 1
        is_open = low < high
        is_known = known[np.minimum(middle, len(known) - 1)] <= at_us
        low = np.where(is_open & is_known, middle + 1, low)
        high = np.where(is_open & ~is_known, middle, high)
    return low - 1
