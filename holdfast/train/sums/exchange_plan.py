"""How the members of a view combine: over what, who owns which chunk, in which order. Pure.

What is summed in which order never depends on the way (see `tree`): only the bytes take another
path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

from holdfast.train.sums import tree
from holdfast.train.sums.tree import Combine, PartialSum
from holdfast.wire.limits import BUCKET_BYTES

# But each member's part of a bucket has at least so much, where a job may have many: a message
# costs a member some 50 microseconds, and so many bytes on a line of 10 Gb/s twice that.
CHUNK_BYTES_MIN: Final = 64 * 1024
# Up to this: buckets take memory, and what is not yet computed cannot travel.
BUCKET_BYTES_MAX: Final = 64 * 1024 * 1024


def bucket_bytes(lanes: int) -> int:
    """For a job of so many lanes, and so of as many workers at most.

    Every member owns a chunk of each bucket, and each chunk is a message to and from every other
    one. With many members the chunks of a small bucket would cost more as messages than as bytes.
    It depends on the lanes, which never change: so all members of all views agree on it.
    """
    return min(max(BUCKET_BYTES, lanes * CHUNK_BYTES_MIN), BUCKET_BYTES_MAX)


class Way(Enum):
    """What gradients travel over."""

    SHARED = "shared memory"  # of one machine, or of the one device that all members use
    LEVELS = "shared memory, and TCP between machines"
    NCCL = "shared memory, and NCCL between GPUs"
    TCP = "TCP"


class MemberPlace(NamedTuple):
    """Where a member is: the boot of its machine, and the device that has its gradients (`cpu`, or
    what names one GPU everywhere). `refuses`: why it shares nothing, if so. `nccl`: the version
    that it may speak with others; none: it has none, or the network is not declared trusted."""

    machine: str
    device: str
    refuses: str = ""
    nccl: str = ""

    def body(self) -> list[str]:
        return list(self)

    @classmethod
    def of(cls, body: Any) -> MemberPlace:
        machine, device, refuses, nccl = map(str, body)
        return cls(machine, device, refuses, nccl)


class WayChoice(NamedTuple):
    """The way that all members take, and why."""

    way: Way
    why: str


@dataclass(frozen=True, slots=True)
class ExchangePlan:
    """Who is there, what each brings, and how that becomes the sum."""

    lanes: int
    members: tuple[int, ...]  # ascending: the owners of chunks, in their order
    brought: Mapping[int, tuple[PartialSum, ...]]
    combines: tuple[Combine, ...]
    first: PartialSum  # it has the sum where nothing is to be combined
    between: int  # the most sums that are neither brought nor the last, at one time


def plan(held: Mapping[int, Sequence[int]], lanes: int) -> ExchangePlan:
    """For the lanes that each member holds."""
    brought = {worker: tuple(tree.partial_sums(sorted(has), lanes)) for worker, has in held.items()}
    every = [piece for each in brought.values() for piece in each]
    combines = tuple(tree.plan(every, lanes))
    made: set[PartialSum] = set()
    between = 0
    for step in combines[:-1]:
        made = made - {step.left, step.right} | {step.into}
        between = max(between, len(made))
    return ExchangePlan(lanes, tuple(sorted(held)), brought, combines, min(every), between)


def chunks(size: int, members: Sequence[int], block: int) -> dict[int, slice]:
    """Each member's part of a bucket: equal ones, as far as whole blocks of elements go."""
    groups, count = size // block, len(members)
    bounds = [number * groups // count * block for number in range(count)] + [size]
    return {
        worker: slice(bounds[number], bounds[number + 1]) for number, worker in enumerate(members)
    }


def blocks(chunk: slice, size: int) -> Iterator[slice]:
    """A chunk in parts of at most so many elements."""
    for begin in range(chunk.start, chunk.stop, size):
        yield slice(begin, min(begin + size, chunk.stop))


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


def groups_of(places: Mapping[int, MemberPlace]) -> tuple[tuple[int, ...], ...]:
    """The members that can open one another's memory, by the lowest number of each group."""
    found: dict[tuple[str, str], list[int]] = {}
    for worker, place in sorted(places.items()):
        found.setdefault((place.machine, place.device), []).append(worker)
    return tuple(map(tuple, found.values()))


def may_share(places: Mapping[int, MemberPlace]) -> WayChoice:
    """Whether it is worth trying to open one another's memory, from where all say that they are.
    Everyone hears the same of everyone, so all conclude the same."""
    for worker, place in sorted(places.items()):
        if place.refuses:
            return WayChoice(Way.TCP, f"worker {worker} shares nothing: {place.refuses}")
    groups = groups_of(places)
    everywhere = list(places.values())
    device = everywhere[0].device
    if len(groups) == 1:
        same = "one machine" if device == "cpu" else f"one device, {device}"
        return WayChoice(Way.SHARED, f"all members are on {same}")
    one, other = groups[0][0], groups[1][0]
    apart = "machines" if places[one].machine != places[other].machine else "devices"
    why = f"workers {one} and {other} are on different {apart}"
    if all(place.nccl and place.nccl == everywhere[0].nccl for place in everywhere):
        return WayChoice(Way.NCCL, f"{why}, and the network is declared to be trusted")
    if all(place.device == "cpu" for place in everywhere) and len(groups) < len(places):
        return WayChoice(Way.LEVELS, f"{why}, and some are on the same")
    return WayChoice(Way.TCP, why)


def choose(places: Mapping[int, MemberPlace], failures: Mapping[int, str]) -> WayChoice:
    """The way of all. `failures`: for each member why it could not open another's memory, or
    nothing. Opening it is the proof that they share a machine: what they say of it is not."""
    found = may_share(places)
    for worker, why in sorted(failures.items()):
        if found.way is not Way.TCP and why:
            return WayChoice(Way.TCP, f"worker {worker} cannot open what the others share: {why}")
    return found


@dataclass(frozen=True, slots=True)
class ExchangeLevel:
    """What a group makes of its members' partial sums before anything leaves it."""

    members: tuple[int, ...]
    carriers: tuple[int, ...]  # those of them that speak with other groups
    brought: tuple[PartialSum, ...]
    combines: tuple[Combine, ...]
    leaves: Mapping[PartialSum, PartialSum]  # what leaves it, and what holds that then


@dataclass(frozen=True, slots=True)
class Levels:
    """Two levels in one tree: first within groups, then between them.

    Every carrier owns a chunk. In each group one member, the agent of a chunk, combines the group's
    partial sums of it and sends what they have become to the owner; and hears the sum from there.
    So each byte leaves a group once, however many members it has.
    """

    groups: tuple[ExchangeLevel, ...]
    owners: tuple[int, ...]  # ascending
    combines: tuple[Combine, ...]  # of what leaves the groups

    def agent(self, group: ExchangeLevel, owner: int) -> int:
        if owner in group.members:
            return owner
        return group.carriers[self.owners.index(owner) % len(group.carriers)]

    def group_of(self, worker: int) -> ExchangeLevel:
        return next(group for group in self.groups if worker in group.members)


def levels(plan: ExchangePlan, groups: Sequence[Sequence[int]], *, one_carrier: bool) -> Levels:
    """`one_carrier`: only the first of a group speaks with others (NCCL takes one rank a GPU)."""
    made = []
    for members in groups:
        brought = tuple(piece for worker in members for piece in plan.brought[worker])
        steps, leaves = tree.plan_part(brought, plan.lanes)
        carriers = tuple(members[:1] if one_carrier else members)
        made.append(ExchangeLevel(tuple(members), carriers, brought, tuple(steps), leaves))
    owners = tuple(sorted(worker for group in made for worker in group.carriers))
    upper = tree.plan((piece for group in made for piece in group.leaves), plan.lanes)
    return Levels(tuple(made), owners, tuple(upper))
