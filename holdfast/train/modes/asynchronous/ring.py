"""Which member serves a name: consistent hashing. Pure.

Each server has many points on a ring; a name belongs to the server of the next point. A server that
comes takes names from all others, a little from each; one that goes leaves its names to all others;
no other name moves.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

# One member in so many also serves: it spends about as much on their pushes as on its own batches.
ASYNC_WORKERS_PER_SERVER: Final = 4
# Points of a server on the ring: names are spread evenly to about a tenth.
ASYNC_RING_POINTS: Final = 64


def servers_of(members: Iterable[int], wanted: int = 0) -> tuple[int, ...]:
    """The members that serve: the first ones, which have been there longest. `wanted` of them, or
    one for every few members where nobody said how many; at least one."""
    ordered = sorted(members)
    count = wanted or len(ordered) // ASYNC_WORKERS_PER_SERVER
    return tuple(ordered[: max(1, count)])


class Ring:
    """The places of these servers."""

    def __init__(self, servers: Iterable[int]) -> None:
        self.servers = tuple(sorted(servers))
        points = [
            (_place(f"server {server} point {number}"), server)
            for server in self.servers
            for number in range(ASYNC_RING_POINTS)
        ]
        points.sort()
        self._places = [place for place, _ in points]
        self._owners = [server for _, server in points]

    def owner(self, name: str) -> int:
        """The server that holds this name."""
        at = bisect_right(self._places, _place(name))
        return self._owners[at % len(self._owners)]


def _place(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
