"""Which worker holds which lanes. Pure.

Three goals, in this order:

1. Balance: the numbers of lanes differ by at most one, unless somebody is slower than the others
   (`pace`): then they are as was said.
2. Few lanes move. After a death the lanes of the dead are spread and nothing else moves, except
   what balance needs: the survivors' lane sums of the broken step stay valid.
3. Few partial sums. Lane gradients are the leaves of a fixed binary tree, and a worker sums the
   largest aligned subtrees that it holds. Every further partial sum is traffic in every step.

A change that nobody's death forced comes at a step boundary, when no lane sums are pending. Then
a lane moves cheaply, and `settle=True` puts the third goal before the second.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

Lanes = dict[int, tuple[int, ...]]


def assign(
    lanes: int,
    members: Iterable[int],
    previous: Mapping[int, Sequence[int]],
    *,
    settle: bool = False,
    counts: Mapping[int, int] | None = None,
) -> Lanes:
    """The lanes of each member: every lane exactly once, in ascending order. `counts`: how many
    each should have, all together; otherwise as many as the others."""
    workers = sorted(set(members))
    if not workers:
        return {}
    kept = {worker: _valid(previous.get(worker, ()), lanes) for worker in workers}
    near = _spread(lanes, workers, kept, counts)
    if settle and any(kept.values()):
        tidy = _spread(lanes, workers, {}, counts)
        if counts is None:
            tidy = _matched(tidy, kept)
        if partial_sums_of(tidy) < partial_sums_of(near):
            return tidy
    return near


def partial_sums(held: Sequence[int]) -> list[tuple[int, int]]:
    """The largest aligned subtrees in ascending `held`, as (first lane, number of lanes)."""
    stack: list[tuple[int, int]] = []
    for lane in held:
        first, size = lane, 1
        # A left subtree that is complete joins its right sibling; what results may join again.
        while stack and stack[-1] == (first - size, size) and stack[-1][0] % (2 * size) == 0:
            first, size = stack.pop()[0], 2 * size
        stack.append((first, size))
    return stack


def partial_sums_of(assigned: Mapping[int, Sequence[int]]) -> int:
    """How many partial sums all members together bring to a step."""
    return sum(len(partial_sums(held)) for held in assigned.values())


def moved(assigned: Mapping[int, Sequence[int]], previous: Mapping[int, Sequence[int]]) -> int:
    """How many lanes are held by another worker than before."""
    before = {lane: worker for worker, held in previous.items() for lane in held}
    return sum(
        1
        for worker, held in assigned.items()
        for lane in held
        if before.get(lane, worker) != worker
    )


def _valid(held: Sequence[int], lanes: int) -> tuple[int, ...]:
    return tuple(sorted(lane for lane in held if 0 <= lane < lanes))


def _spread(
    lanes: int,
    workers: Sequence[int],
    kept: Mapping[int, Sequence[int]],
    counts: Mapping[int, int] | None = None,
) -> Lanes:
    """Everyone keeps what balance allows; the rest is handed out in the largest pieces."""
    base, extra = divmod(lanes, len(workers))
    # Whoever holds most keeps most: each extra lane given to another would be one more move.
    by_size = sorted(workers, key=lambda worker: (-len(kept.get(worker, ())), worker))
    quota = {worker: base + (place < extra) for place, worker in enumerate(by_size)}
    quota.update(counts or {})
    owner: list[int | None] = [None] * lanes
    need: dict[int, int] = {}
    for worker in workers:
        stay = _best_end(kept.get(worker, ()), quota[worker])
        for lane in stay:
            owner[lane] = worker
        need[worker] = quota[worker] - len(stay)
    _hand_out(owner, need)
    held: dict[int, list[int]] = {worker: [] for worker in workers}
    for lane, worker_or_none in enumerate(owner):
        assert worker_or_none is not None, f"lane {lane} was handed to nobody"
        held[worker_or_none].append(lane)
    return {worker: tuple(found) for worker, found in held.items()}


def _best_end(held: Sequence[int], quota: int) -> Sequence[int]:
    """At most `quota` of them: the first or the last, whichever are fewer partial sums."""
    if len(held) <= quota:
        return held
    first, last = held[:quota], held[len(held) - quota :]
    return first if len(partial_sums(first)) <= len(partial_sums(last)) else last


def _hand_out(owner: list[int | None], need: dict[int, int]) -> None:
    """Give the free lanes to those who need some: largest pieces first, siblings together."""
    free = [lane for lane, worker in enumerate(owner) if worker is None]
    line = [(-size, first) for first, size in partial_sums(free)]
    heapq.heapify(line)
    neediest = [(-count, worker) for worker, count in need.items() if count]
    heapq.heapify(neediest)
    while line:
        size, first = -line[0][0], line[0][1]
        heapq.heappop(line)
        worker = _sibling_owner(owner, first, size)
        if worker is None or need[worker] < size:
            while -neediest[0][0] != need[neediest[0][1]]:  # an entry from before a gift
                heapq.heappop(neediest)
            worker = neediest[0][1]
        if need[worker] < size:
            half = size // 2
            heapq.heappush(line, (-half, first))
            heapq.heappush(line, (-half, first + half))
            continue
        owner[first : first + size] = [worker] * size
        need[worker] -= size
        if need[worker]:
            heapq.heappush(neediest, (-need[worker], worker))


def _sibling_owner(owner: Sequence[int | None], first: int, size: int) -> int | None:
    """Who holds the whole subtree with which this one would form a larger one."""
    sibling = first ^ size
    if sibling + size > len(owner):
        return None
    found = owner[sibling]
    if found is None or any(worker != found for worker in owner[sibling : sibling + size]):
        return None
    return found


def _matched(blocks: Lanes, kept: Mapping[int, Sequence[int]]) -> Lanes:
    """The same blocks, each given to the member that holds most of it already."""
    before = {lane: worker for worker, held in kept.items() for lane in held}
    shared: dict[tuple[int, int], int] = {}
    for block, held in blocks.items():
        for lane in held:
            if lane in before:
                pair = (block, before[lane])
                shared[pair] = shared.get(pair, 0) + 1
    block_of: dict[int, int] = {}
    taken: set[int] = set()
    for (block, worker), _ in sorted(shared.items(), key=lambda item: (-item[1], item[0])):
        if worker not in block_of and block not in taken:
            block_of[worker] = block
            taken.add(block)
    left = iter(sorted(set(blocks) - taken))
    for worker in sorted(blocks):
        if worker not in block_of:
            block_of[worker] = next(left)
    return {worker: blocks[block_of[worker]] for worker in sorted(blocks)}
