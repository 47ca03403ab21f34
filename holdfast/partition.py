"""Who has a key: by range, by hash, by consistent hashing. Pure.

    even_ranges, Ranges   neighbours stay together: chunks of an array, keys in order
    kafka_partition       which partition of a topic a record is for, as Kafka's Java client says
    stable_hash, bucket   a key's number, the same in every process; one of so many buckets
    Ring                  nodes come and go, and few keys move; `Ring.place` bounds each node's load

Python's own `hash` of a text is salted: two processes disagree. Nothing here depends on it, nor on
the order in which nodes or keys are given. docs/decisions/0031 says why these hashes.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, Generic, TypeVar

from holdfast.wire.errors import Usage

# Points of a node on its ring: the fullest of 16 nodes has a quarter more keys than its even share.
# More points are more even, and a ring takes longer to make (bench/partition.py).
RING_POINTS: Final = 64
# With bounded load no node has more than this many times its even share.
LOAD_BOUND: Final = 1.25

_WORD: Final = 0xFFFFFFFF
_MIX: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C

Node = TypeVar("Node", bound=Hashable)


# --- ranges --------------------------------------------------------------------------------------


def even_ranges(count: int, parts: int) -> tuple[range, ...]:
    """`0 ... count` in so many ranges, in order; their lengths differ by one at most."""
    if parts < 1 or count < 0:
        raise Usage(
            f"{count} in {parts} parts", fix="give at least one part, and no negative count"
        )
    bounds = [part * count // parts for part in range(parts + 1)]
    return tuple(range(first, last) for first, last in pairwise(bounds))


class Ranges:
    """Keys in order, cut at these places: part 0 has the keys before the first, and so on. A key
    that is equal to a cut is in the part that begins there."""

    def __init__(self, cuts: Sequence[Any]) -> None:
        if any(not first < second for first, second in pairwise(cuts)):
            raise Usage("the cuts of a range are not in order", fix="sort them, each once")
        self.cuts = tuple(cuts)

    @property
    def parts(self) -> int:
        return len(self.cuts) + 1

    def part(self, key: Any) -> int:
        return bisect_right(self.cuts, key)


# --- hashes --------------------------------------------------------------------------------------


def stable_hash(key: str | bytes) -> int:
    """64 bits of SHA-256: the same everywhere and for ever. A text is its UTF-8."""
    data = key.encode() if isinstance(key, str) else key
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big")


def bucket(key: str | bytes, count: int) -> int:
    """One of so many buckets. When `count` changes, nearly every key moves: for nodes that come and
    go there is `Ring`."""
    if count < 1:
        raise Usage(f"{count} buckets", fix="give at least one")
    return stable_hash(key) * count >> 64


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit hash of a record's key, as an unsigned number."""
    mixed = _SEED ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MIX & _WORD
        word = (word ^ word >> 24) * _MIX & _WORD
        mixed = mixed * _MIX & _WORD ^ word
    if whole < len(data):
        mixed = (mixed ^ int.from_bytes(data[whole:], "little")) * _MIX & _WORD
    mixed = (mixed ^ mixed >> 13) * _MIX & _WORD
    return mixed ^ mixed >> 15


def kafka_partition(key: bytes, partitions: int) -> int:
    """The partition that Kafka's Java client chooses for a record with this key."""
    if partitions < 1:
        raise Usage(f"{partitions} partitions", fix="give at least one")
    return (murmur2(key) & 0x7FFFFFFF) % partitions


# --- consistent hashing --------------------------------------------------------------------------


class Ring(Generic[Node]):
    """Each node has many points on a ring; a key belongs to the node of the next point. A node that
    comes takes keys from all others, a little from each; one that goes leaves its keys to all
    others; no other key moves. Nodes are told apart by `str`."""

    def __init__(self, nodes: Iterable[Node], points: int = RING_POINTS) -> None:
        named = {str(node): node for node in nodes}
        if not named or points < 1:
            raise Usage("a ring without a point", fix="give it at least one node, and a point each")
        self.nodes: tuple[Node, ...] = tuple(named[name] for name in sorted(named))
        found = sorted(
            (stable_hash(f"{name} point {number}"), name)
            for name in named
            for number in range(points)
        )
        self._places = [place for place, _ in found]
        self._owners = [named[name] for _, name in found]

    def owner(self, key: str | bytes) -> Node:
        """The node that has this key."""
        return self._owners[self._after(key) % len(self._owners)]

    def owners(self, key: str | bytes) -> Iterator[Node]:
        """All nodes, in the order in which they would have this key if those before were gone."""
        seen: set[Node] = set()
        first = self._after(key)
        for step in range(len(self._owners)):
            node = self._owners[(first + step) % len(self._owners)]
            if node not in seen:
                seen.add(node)
                yield node

    def place(self, weights: Mapping[str, float], bound: float = LOAD_BOUND) -> dict[str, Node]:
        """A node for each key, none with more than `bound` times its even share of the weight,
        except for what a single key weighs. A key goes to the first of its owners that has room,
        the heavy ones first: so what is moved aside, and moves again when nodes change, is light.
        """
        if bound < 1 or any(weight < 0 for weight in weights.values()):
            raise Usage(f"a bound of {bound}", fix="give 1 or more, and no negative weight")
        most = bound * sum(weights.values()) / len(self.nodes)
        load: dict[Node, float] = dict.fromkeys(self.nodes, 0.0)
        placed: dict[str, Node] = {}
        for key in sorted(weights, key=lambda key: (-weights[key], stable_hash(key), key)):
            weight = weights[key]
            order = self.owners(key)
            fits = next((node for node in order if load[node] + weight <= most), None)
            # It fits nowhere: the emptiest, and of those the first that would own it.
            node = min(self.owners(key), key=load.__getitem__) if fits is None else fits
            load[node] += weight
            placed[key] = node
        return placed

    def _after(self, key: str | bytes) -> int:
        return bisect_right(self._places, stable_hash(key))
