"""Capacity of machines, as the planner counts it: whole numbers, indexed by how many workers fit.

There are two kinds. *Free* capacity is nobody's: a worker may start there now. *Soon* capacity is
still that of a worker that is leaving: it may be promised, but not used before its process is gone.

Packing: a job's workers go where the job already has some, else onto as few machines as possible:
the tightest machine that takes all of them, or, if none does, the one that takes the most. Replicas
of a service are spread instead: a machine that dies shall take as few of them as possible.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from heapq import heapify, heappop, heappush

from holdfast.control.decide.spec import Resources

# Thousandths of a core, bytes of memory, whole GPUs, bytes of disk.
Amounts = tuple[int, int, int, int]

EMPTY: Amounts = (0, 0, 0, 0)
DISK = 3  # where disk stands in them
# What "any number" is for a worker that needs nothing.
SLOTS_MAX = 1_000_000
# Needs that are indexed at once; an index costs a pass over the machines to make again.
INDEXES_MAX = 32


def amounts_of(resources: Resources) -> Amounts:
    return (
        round(resources.cpu * 1_000),
        resources.memory_bytes,
        resources.gpu,
        resources.disk_bytes,
    )


def plus(a: Amounts, b: Amounts) -> Amounts:
    return (a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3])


def minus(a: Amounts, b: Amounts) -> Amounts:
    return (a[0] - b[0], a[1] - b[1], a[2] - b[2], a[3] - b[3])


def times(a: Amounts, count: int) -> Amounts:
    return (a[0] * count, a[1] * count, a[2] * count, a[3] * count)


def within(a: Amounts, b: Amounts) -> bool:
    return a[0] <= b[0] and a[1] <= b[1] and a[2] <= b[2] and a[3] <= b[3]


def above(a: Amounts) -> Amounts:
    """The amounts with what is missing counted as nothing."""
    return (max(0, a[0]), max(0, a[1]), max(0, a[2]), max(0, a[3]))


def slots(need: Amounts, free: Amounts) -> int:
    """How many workers of `need` fit into `free`. None if it is overdrawn in any part."""
    count = SLOTS_MAX
    for part, there in zip(need, free, strict=True):
        if there < 0:
            return 0
        if part:
            count = min(count, there // part)
    return count


class _CapacityIndex:
    """The machines by how many workers of one need fit there. Old entries are skipped when met."""

    def __init__(self, need: Amounts, free: Mapping[str, Amounts]) -> None:
        self.need = need
        self.slots: dict[str, int] = {}
        self.by_count: dict[int, list[str]] = {}
        for node, there in free.items():
            self.set(node, there)

    def set(self, node: str, free: Amounts) -> None:
        count = slots(self.need, free)
        if self.slots.get(node) == count:
            return
        self.slots[node] = count
        if count:
            heappush(self.by_count.setdefault(count, []), node)

    def best(self, wanted: int) -> str | None:
        """The tightest machine that takes `wanted`, else the one that takes the most."""
        for count in sorted(self.by_count, key=lambda count: (count < wanted, abs(count - wanted))):
            names = self.by_count[count]
            while names and self.slots[names[0]] != count:
                heappop(names)
            if names:
                return names[0]
            del self.by_count[count]
        return None


class Capacity:
    """Free and soon capacity of the machines that may be given work. Changes can be taken back."""

    def __init__(self, free: Mapping[str, Amounts], soon: Mapping[str, Amounts]) -> None:
        self.free = dict(free)
        self.soon = dict(soon)
        self._indexes: dict[Amounts, _CapacityIndex] = {}
        self._undo: list[tuple[str, Amounts, Amounts]] = []

    def mark(self) -> int:
        """A point to come back to with `back_to`."""
        return len(self._undo)

    def back_to(self, mark: int) -> None:
        while len(self._undo) > mark:
            node, free, soon = self._undo.pop()
            self._set(node, free, soon)

    def pack(self, need: Amounts, count: int, near: Iterable[str]) -> list[str]:
        """Take free capacity for up to `count` workers; a node for each that found some."""
        index = self._index(need)
        found: list[str] = []
        for node in near:
            fits = min(count - len(found), index.slots.get(node, 0))
            if fits:
                self._take_free(node, need, fits)
                found += [node] * fits
        while len(found) < count:
            node_found = index.best(count - len(found))
            if node_found is None:
                break
            fits = min(count - len(found), index.slots[node_found])
            self._take_free(node_found, need, fits)
            found += [node_found] * fits
        return found

    def spread(
        self,
        need: Amounts,
        count: int,
        has: Mapping[str, int],
        barred: Container[str] | None = None,
    ) -> list[str]:
        """As `pack`, but each goes where there are the fewest so far (`has`, by node); among those
        to the machine that takes the most. `barred`: not there, and one on each machine alone."""
        index = self._index(need)
        order = [
            (has.get(node, 0), -fits, node)
            for node, fits in index.slots.items()
            if fits and not (barred is not None and node in barred)
        ]
        heapify(order)
        found: list[str] = []
        while order and len(found) < count:
            there, _, node = heappop(order)
            self._take_free(node, need, 1)
            found.append(node)
            if index.slots[node] and barred is None:
                heappush(order, (there + 1, -index.slots[node], node))
        return found

    def promise(self, need: Amounts, count: int) -> list[str]:
        """Take capacity for up to `count` workers where free and soon capacity together suffice."""
        found: list[str] = []
        fitting = {
            node: slots(need, plus(self.free[node], soon))
            for node, soon in self.soon.items()
            if soon != EMPTY and node in self.free
        }
        order = sorted((node for node in fitting if fitting[node]), key=lambda n: (-fitting[n], n))
        for node in order:
            fits = min(count - len(found), fitting[node])
            self.promise_at(node, need, fits)
            found += [node] * fits
            if len(found) == count:
                break
        return found

    def promise_at(self, node: str, need: Amounts, count: int) -> None:
        """Take capacity on one machine: free capacity first, the rest of what is soon free."""
        wanted = times(need, count)
        free = self.free[node]
        lacking = above(minus(wanted, above(free)))
        soon = minus(self.soon.get(node, EMPTY), lacking)
        self._change(node, minus(free, minus(wanted, lacking)), soon)

    def leave(self, node: str, need: Amounts) -> None:
        """A worker on this machine is told to leave: its capacity is free soon."""
        if node in self.free:
            self._change(node, self.free[node], plus(self.soon.get(node, EMPTY), need))

    def stay(self, node: str, need: Amounts) -> None:
        """A worker on this machine may stay after all. What it lacks then is missing in `free`."""
        soon = minus(self.soon[node], need)
        lacking = above(minus(EMPTY, soon))
        self._change(node, minus(self.free[node], lacking), plus(soon, lacking))

    def fits_at(self, node: str, need: Amounts) -> int:
        """How many would fit here with what is free now or soon."""
        if node not in self.free:
            return 0
        return slots(need, plus(self.free[node], self.soon.get(node, EMPTY)))

    def count(self, need: Amounts) -> int:
        """How many workers of this need fit into what is free."""
        return sum(self._index(need).slots.values())

    def _take_free(self, node: str, need: Amounts, count: int) -> None:
        free = minus(self.free[node], times(need, count))
        self._change(node, free, self.soon.get(node, EMPTY))

    def _change(self, node: str, free: Amounts, soon: Amounts) -> None:
        self._undo.append((node, self.free[node], self.soon.get(node, EMPTY)))
        self._set(node, free, soon)

    def _set(self, node: str, free: Amounts, soon: Amounts) -> None:
        if self.free[node] != free:
            self.free[node] = free
            for index in self._indexes.values():
                index.set(node, free)
        self.soon[node] = soon

    def _index(self, need: Amounts) -> _CapacityIndex:
        index = self._indexes.get(need)
        if index is None:
            if len(self._indexes) >= INDEXES_MAX:
                del self._indexes[next(iter(self._indexes))]
            index = self._indexes[need] = _CapacityIndex(need, self.free)
        return index
