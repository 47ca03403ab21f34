"""The one order in which what lanes contribute is combined. Pure.

Lanes are the leaves of a fixed binary tree: that of the next power of two. A leaf that is absent is
skipped, and so is a subtree without leaves. A node is a `PartialSum`: its first lane and its width.
The value of a node is `combine(left, right)`, or the left one alone if there is no right one. So
the value of the root does not depend on who computed which lanes: whoever holds all leaves of a
subtree computes its value, and the rest is combined in tree order.

    partial_sums(held, lanes)   what a worker brings: the largest subtrees that it has all of
    merges(held, lanes)   how it gets them with a stack, lane by lane, in ascending order
    plan(brought, lanes)   how everyone's partial sums become the root
    fold(values, lanes, combine)   that, carried out
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from holdfast.wire.errors import BugError

T = TypeVar("T")


class PartialSum(NamedTuple):
    """A subtree: the lanes from `first`, `size` of them; `size` is a power of two that divides
    `first`. Of the lanes those at or beyond the job's number are absent."""

    first: int
    size: int


class Combine(NamedTuple):
    """`into` is left and right combined, in this order; `into.first` is `left.first`."""

    left: PartialSum
    right: PartialSum
    into: PartialSum


def root(lanes: int) -> PartialSum:
    """The whole tree."""
    size = 1
    while size < lanes:
        size *= 2
    return PartialSum(0, size)


def partial_sums(held: Sequence[int], lanes: int | None = None) -> list[PartialSum]:
    """The largest subtrees of which ascending `held` has all leaves that exist, in ascending order.

    With `lanes` a leaf at or beyond it is absent: whoever holds all lanes has one piece, the root.
    Without it nothing is known to be absent.
    """
    stack: list[PartialSum] = []
    for lane in held:
        _push(stack, lane, lanes)
    return stack


def merges(held: Sequence[int], lanes: int) -> tuple[int, ...]:
    """For each lane of ascending `held`: how often the two topmost values of a stack become one
    (the lower combined with the upper), after that lane's value was put on it. What the stack holds
    at the end are the values of `partial_sums`."""
    stack: list[PartialSum] = []
    return tuple(_push(stack, lane, lanes) for lane in held)


def _push(stack: list[PartialSum], lane: int, lanes: int | None) -> int:
    """Put a leaf on the stack and let it grow; how many it was combined with."""
    top = root(lanes).size if lanes is not None else None
    piece, joined = PartialSum(lane, 1), 0
    while piece.size != top:
        size = 2 * piece.size
        if piece.first % size:  # a right child: its left sibling has to be there
            if not stack or stack[-1] != (piece.first - piece.size, piece.size):
                break
            piece = PartialSum(stack.pop().first, size)
            joined += 1
        elif lanes is not None and piece.first + piece.size >= lanes:
            piece = PartialSum(piece.first, size)  # it has no right sibling
        else:
            break
    stack.append(piece)
    return joined


def plan(brought: Iterable[PartialSum], lanes: int) -> list[Combine]:
    """The steps from these partial sums to the root, to be carried out in this order.

    The partial sums must have every lane exactly once (`BugError` otherwise). The first piece
    becomes the root: with sums in place, each step is `left += right`.
    """
    there = set(brought)
    steps: list[Combine] = []
    _make(root(lanes), there, lanes, steps)
    if there:
        raise _wrong(f"these are brought twice, or are no subtrees: {sorted(there)}")
    return steps


def plan_part(
    brought: Iterable[PartialSum], lanes: int
) -> tuple[list[Combine], dict[PartialSum, PartialSum]]:
    """The same for partial sums that have only some of the lanes: the steps to the largest subtrees
    that they have all leaves of, and for each of those the one that holds its value then."""
    there, steps = set(brought), list[Combine]()
    held = {lane for piece in there for lane in range(piece.first, min(sum(piece), lanes))}
    holders: dict[PartialSum, PartialSum] = {}
    for top in partial_sums(sorted(held), lanes):
        holder = _make(top, there, lanes, steps)
        assert holder is not None, "it has a lane"
        holders[top] = holder
    return steps, holders


def _make(
    node: PartialSum, there: set[PartialSum], lanes: int, steps: list[Combine]
) -> PartialSum | None:
    """See to it that the node's value is there; None: it has no leaves. What is returned is the
    piece that holds it: the node, or what it has on its left."""
    if node in there:
        there.discard(node)
        return node
    if node.first >= lanes:
        return None
    if node.size == 1:
        raise _wrong(f"nobody brings lane {node.first}")
    half = node.size // 2
    left = _make(PartialSum(node.first, half), there, lanes, steps)
    right = _make(PartialSum(node.first + half, half), there, lanes, steps)
    if left is None or right is None:
        return left
    steps.append(Combine(left, right, node))
    return node


def fold(values: Mapping[PartialSum, T], lanes: int, combine: Callable[[T, T], T]) -> T:
    """The value of the root, from the values of partial sums that have every lane exactly once."""
    made = dict(values)
    first = min(made)
    for step in plan(values, lanes):
        first = step.into
        made[first] = combine(made.pop(step.left), made.pop(step.right))
    return made[first]


def _wrong(why: str) -> BugError:
    return BugError("the partial sums of a step are not the lanes of the job", why=why)
