"""Rows that a process keeps for a while, for tables that allow an age. Pure: time is an argument.

The age of a row counts from the start of the read that filled it: what it says of the store was
true at that moment or later, so a read is never older than it tells.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from holdfast.features.online.store import Found

# Of all tables of a process together; a model's memory is its own.
CACHE_BYTES_MAX: Final = 64 * 1024 * 1024
# What an entry takes beside its key and its row, roughly.
_ENTRY_BYTES: Final = 200
# A key that was asked so often since it was read is read again before it is too old.
HOT_READS: Final = 2
# When: this part of its age has passed.
AHEAD: Final = 0.8


class _Kept(NamedTuple):
    found: Found
    filled_s: float
    reads: list[int]  # one number, which changes


class Looked(NamedTuple):
    """What a look at the cache gives. `missing`: places of keys that have to be read; `oldest_s`:
    when the oldest row was read; `ahead`: keys that are asked often, and soon too old."""

    found: list[Found]
    missing: list[int]
    oldest_s: float
    ahead: list[bytes]


class RowCache:
    """The rows that were read last, within a number of bytes. One thread at a time."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: OrderedDict[tuple[str, bytes], _Kept] = OrderedDict()
        # What was changed since then is not put in by a read that began before.
        self._dropped: dict[tuple[str, bytes], float] = {}
        self._dropped_all_s = float("-inf")

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def look(self, table: str, keys: Sequence[bytes], age_max_s: float, now_s: float) -> Looked:
        """Which of these rows are here, none of them older than said."""
        found: list[Found] = []
        missing: list[int] = []
        ahead: list[bytes] = []
        oldest_s = now_s
        for place, key in enumerate(keys):
            kept = self._kept.get((table, key))
            age_s = now_s - kept.filled_s if kept is not None else 0.0
            if kept is None or age_s > age_max_s:
                missing.append(place)
                found.append(None)
                continue
            kept.reads[0] += 1
            if kept.reads[0] >= HOT_READS and age_s > AHEAD * age_max_s:
                ahead.append(key)
                kept.reads[0] = 0  # asked for once
            oldest_s = min(oldest_s, kept.filled_s)
            self._kept.move_to_end((table, key))
            found.append(kept.found)
        return Looked(found, missing, oldest_s, ahead)

    def fill(
        self, table: str, keys: Sequence[bytes], found: Sequence[Found], began_s: float
    ) -> None:
        """What a read gave that began then. What is known to have changed since is left out."""
        for key, each in zip(keys, found, strict=True):
            place = (table, key)
            if began_s <= max(self._dropped_all_s, self._dropped.get(place, self._dropped_all_s)):
                continue
            before = self._kept.get(place)
            if before is not None and before.filled_s >= began_s:
                continue
            self._forget(place)
            self._kept[place] = _Kept(each, began_s, [0])
            self._bytes += _size(key, each)
        while self._bytes > self._bytes_max and self._kept:
            self._forget(next(iter(self._kept)))

    def drop(self, table: str, keys: Sequence[bytes], now_s: float) -> None:
        """These rows have changed; a read under way may still bring what was there before."""
        for key in keys:
            self._forget((table, key))
            self._dropped[table, key] = now_s
        if len(self._dropped) > _DROPPED_MAX:
            self._dropped_all_s = now_s
            self._dropped.clear()

    def _forget(self, place: tuple[str, bytes]) -> None:
        kept = self._kept.pop(place, None)
        if kept is not None:
            self._bytes -= _size(place[1], kept.found)


# Beyond it every read that is under way fills nothing, which costs one more read of each.
_DROPPED_MAX: Final = 100_000


def _size(key: bytes, found: Found) -> int:
    return _ENTRY_BYTES + len(key) + len(found or b"")
