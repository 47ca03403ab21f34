"""Rings: how even they are, and what moves when nodes come and go, beside a modulo and a peer.

    python -m bench.partition [--keys 100000] [--no-peer]

The peer is `uhashring` (ketama, Python), where it is installed. Each figure is a count, so the load
of the machine changes only the microseconds. A key that moves although its node stayed is wrong for
a ring: it ends the command with 1.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec

from holdfast.partition import LOAD_BOUND, RING_POINTS, Ring, stable_hash

NODES = (2, 4, 8, 16, 64)
Owner = Callable[[str], str]


def modulo(nodes: Sequence[str]) -> Owner:
    return lambda key: nodes[stable_hash(key) % len(nodes)]


def ring(points: int) -> Callable[[Sequence[str]], Owner]:
    return lambda nodes: Ring(nodes, points).owner


def uhashring(nodes: Sequence[str]) -> Owner:
    owner: Owner = importlib.import_module("uhashring").HashRing(list(nodes)).get_node
    return owner


def fullest(owners: Mapping[str, str], weights: Mapping[str, int], nodes: int) -> float:
    """The fullest node's share, in even shares."""
    load = Counter[str]()
    for key, node in owners.items():
        load[node] += weights[key]
    return max(load.values()) * nodes / sum(weights.values())


def moved(before: Mapping[str, str], after: Mapping[str, str], weights: Mapping[str, int]) -> float:
    """The share of the weight that has another node."""
    there = sum(weight for key, weight in weights.items() if before[key] != after[key])
    return there / sum(weights.values())


def of_keys(keys: Sequence[str], make: Callable[[Sequence[str]], Owner], count: int) -> list[str]:
    """A row: the fullest node, what moves when one comes and when one goes, the time of a key."""
    nodes = [f"node-{number}" for number in range(count + 1)]
    weights = dict.fromkeys(keys, 1)
    started_s = time.perf_counter()
    owner = make(nodes[:count])
    made_s = time.perf_counter() - started_s
    started_s = time.perf_counter()
    now = {key: owner(key) for key in keys}
    each_us = (time.perf_counter() - started_s) / len(keys) * 1e6
    more, fewer = make(nodes), make(nodes[1:count])
    come = moved(now, {key: more(key) for key in keys}, weights)
    gone = moved(now, {key: fewer(key) for key in keys}, weights)
    return [
        f"{fullest(now, weights, count):.2f}",
        f"{come:.1%} ({1 / (count + 1):.1%})",
        f"{gone:.1%} ({1 / count:.1%})",
        f"{each_us:.1f}",
        f"{made_s * 1e3:.1f}",
    ]


def network(layers: int, width: int) -> dict[str, int]:
    """The tensors of a transformer and their bytes."""
    square = 4 * width * width
    sizes = {"embedding": 50_257 * width * 4, "positions": 1_024 * width * 4}
    for layer in range(layers):
        parts = {"qkv": 3 * square, "out": square, "up": 4 * square, "down": 4 * square}
        parts |= {f"bias.{number}": 4 * width for number in range(6)}
        sizes.update((f"layer.{layer}.{part}", size) for part, size in parts.items())
    return sizes


def of_tensors(sizes: dict[str, int], bound: float, count: int) -> list[str]:
    now = Ring(range(count)).place(sizes, bound)
    after = Ring(range(count + 1)).place(sizes, bound)
    names = {key: str(node) for key, node in now.items()}
    then = {key: str(node) for key, node in after.items()}
    return [
        f"{fullest(names, sizes, count):.2f}",
        f"{moved(names, then, sizes):.1%} ({1 / (count + 1):.1%})",
    ]


def astray(keys: Sequence[str], count: int) -> int:
    """Keys of nodes that stayed which another node's coming or going has moved: none, of a ring."""
    now, more = Ring(range(count)), Ring(range(count + 1))
    return sum(more.owner(key) not in (now.owner(key), count) for key in keys)


def show(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(f"\n{title}\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--no-peer", action="store_true")
    given = parser.parse_args()
    keys = [f"user-{number}" for number in range(given.keys)]
    ways: dict[str, Callable[[Sequence[str]], Owner]] = {
        "modulo": modulo,
        f"Ring, {RING_POINTS} points": ring(RING_POINTS),
        "Ring, 512 points": ring(512),
    }
    if not given.no_peer and find_spec("uhashring") is not None:
        ways["uhashring"] = uhashring
    rows = [
        [name, str(count), *of_keys(keys, make, count)]
        for count in NODES
        for name, make in ways.items()
    ]
    head = [
        "",
        "nodes",
        "fullest",
        "moves: one comes (least)",
        "one goes (least)",
        "us a key",
        "ms to make",
    ]
    show(f"{len(keys):,} keys", head, rows)
    bounds = {
        "no bound": 1e9,
        "bound 1.5": 1.5,
        f"bound {LOAD_BOUND}": LOAD_BOUND,
        "bound 1.1": 1.1,
    }
    for layers, width in ((12, 768), (48, 1_600)):
        sizes = network(layers, width)
        rows = [
            [name, str(count), *of_tensors(sizes, bound, count)]
            for count in NODES[:3]
            for name, bound in bounds.items()
        ]
        title = f"Tensors of a transformer: {layers} layers, {width} wide, {len(sizes)} names"
        show(
            title, ["Ring.place", "servers", "fullest, in bytes", "moves: one comes (least)"], rows
        )
    wrong = sum(astray(keys, count) for count in NODES)
    print(f"\nkeys that moved although their node stayed: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
