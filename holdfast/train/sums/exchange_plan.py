"""How the members of a view combine: over what, who owns which chunk, in which order. Pure.

What is summed in which order never depends on the way (see `tree`): only the bytes take another
path. Owners of chunks are the same on every way too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from holdfast.train.sums import tree
from holdfast.train.sums.tree import Combine, Piece


class Way(Enum):
    """What gradients travel over."""

    SHARED = "shared memory"  # of one machine, or of the one device that all members use
    TCP = "TCP"


class Place(NamedTuple):
    """Where a member is: the boot of its machine, and the device that has its gradients (`cpu`, or
    what names one GPU everywhere). `refuses`: why it shares nothing, if so."""

    machine: str
    device: str
    refuses: str = ""

    def body(self) -> list[str]:
        return list(self)

    @classmethod
    def of(cls, body: Any) -> Place:
        machine, device, refuses = map(str, body)
        return cls(machine, device, refuses)


class Choice(NamedTuple):
    """The way that all members take, and why."""

    way: Way
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Who is there, what each brings, and how that becomes the sum."""

    lanes: int
    members: tuple[int, ...]  # ascending: the owners of chunks, in their order
    brought: Mapping[int, tuple[Piece, ...]]
    combines: tuple[Combine, ...]
    first: Piece  # it has the sum where nothing is to be combined
    between: int  # the most sums that are neither brought nor the last, at one time


def plan(held: Mapping[int, Sequence[int]], lanes: int) -> Plan:
    """For the lanes that each member holds."""
    brought = {worker: tuple(tree.pieces(sorted(has), lanes)) for worker, has in held.items()}
    every = [piece for each in brought.values() for piece in each]
    combines = tuple(tree.plan(every, lanes))
    made: set[Piece] = set()
    between = 0
    for step in combines[:-1]:
        made = made - {step.left, step.right} | {step.into}
        between = max(between, len(made))
    return Plan(lanes, tuple(sorted(held)), brought, combines, min(every), between)


def chunks(size: int, members: Sequence[int], block: int) -> dict[int, slice]:
    """Each member's part of a bucket: equal ones, as far as whole blocks of elements go."""
    groups, count = size // block, len(members)
    bounds = [number * groups // count * block for number in range(count)] + [size]
    return {
        worker: slice(bounds[number], bounds[number + 1]) for number, worker in enumerate(members)
    }


def stages(bucket_bytes: Sequence[int], stage_bytes: int) -> list[range]:
    """The buckets in groups of at least so many bytes (the last may have fewer), in their order:
    members wait for one another once a group."""
    found, begin, size = [], 0, 0
    for number, each in enumerate(bucket_bytes):
        size += each
        if size >= stage_bytes:
            found.append(range(begin, number + 1))
            begin, size = number + 1, 0
    if begin < len(bucket_bytes):
        found.append(range(begin, len(bucket_bytes)))
    return found


def may_share(places: Mapping[int, Place]) -> Choice:
    """Whether it is worth trying to open one another's memory, from where all say that they are.
    Everyone hears the same of everyone, so all conclude the same."""
    for worker, place in sorted(places.items()):
        if place.refuses:
            return Choice(Way.TCP, f"worker {worker} shares nothing: {place.refuses}")
    for what in ("machine", "device"):
        seen: dict[str, int] = {}
        for worker, place in sorted(places.items()):
            seen.setdefault(getattr(place, what), worker)
        if len(seen) > 1:
            one, other, *_ = seen.values()
            return Choice(Way.TCP, f"workers {one} and {other} are on different {what}s")
    device = next(iter(places.values())).device
    same = "one machine" if device == "cpu" else f"one device, {device}"
    return Choice(Way.SHARED, f"all members are on {same}")


def choose(places: Mapping[int, Place], failures: Mapping[int, str]) -> Choice:
    """The way of all. `failures`: for each member why it could not open another's memory, or
    nothing. Opening it is the proof that they share a machine: what they say of it is not."""
    found = may_share(places)
    for worker, why in sorted(failures.items()):
        if found.way is Way.SHARED and why:
            return Choice(Way.TCP, f"worker {worker} cannot open what the others share: {why}")
    return found
