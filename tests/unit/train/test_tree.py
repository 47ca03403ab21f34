"""The tree: the same root, whoever held which lanes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.control.decide import views
from holdfast.train.sums import tree
from holdfast.train.sums.tree import PartialSum
from holdfast.wire.errors import BugError

splits = st.integers(1, 40).flatmap(
    lambda lanes: st.lists(st.integers(0, 7), min_size=lanes, max_size=lanes)
)


def combine(left: str, right: str) -> str:
    return f"({left} {right})"


def alone(lanes: int) -> str:
    return tree.fold({PartialSum(lane, 1): str(lane) for lane in range(lanes)}, lanes, combine)


def held_by(owners: list[int]) -> dict[int, list[int]]:
    held: dict[int, list[int]] = {}
    for lane, owner in enumerate(owners):
        held.setdefault(owner, []).append(lane)
    return held


def values_of(held: list[int], lanes: int) -> dict[PartialSum, str]:
    """What a worker brings, made as `merges` says."""
    stack: list[str] = []
    for lane, joins in zip(held, tree.merges(held, lanes), strict=True):
        stack.append(str(lane))
        for _ in range(joins):
            right = stack.pop()
            stack.append(combine(stack.pop(), right))
    return dict(zip(tree.partial_sums(held, lanes), stack, strict=True))


@given(splits)
def test_every_split_of_the_lanes_gives_the_same_root(owners: list[int]) -> None:
    lanes = len(owners)
    brought: dict[PartialSum, str] = {}
    for held in held_by(owners).values():
        brought |= values_of(held, lanes)
    assert tree.fold(brought, lanes, combine) == alone(lanes)


@given(splits)
def test_pieces_are_the_largest_subtrees_of_what_is_held(owners: list[int]) -> None:
    lanes = len(owners)
    for held in held_by(owners).values():
        found = tree.partial_sums(held, lanes)
        covered = [lane for first, size in found for lane in range(first, min(first + size, lanes))]
        assert covered == held
        for first, size in found:
            assert first % size == 0
            parent = first - first % (2 * size)
            whole = range(parent, min(parent + 2 * size, lanes))
            at_the_top = size == tree.root(lanes).size
            assert at_the_top or not set(whole) <= set(held), "a larger subtree is held"


@given(splits)
def test_pieces_without_a_number_of_lanes_are_those_of_the_control_plane(owners: list[int]) -> None:
    for held in held_by(owners).values():
        assert tree.partial_sums(held) == views.partial_sums(held)


@pytest.mark.parametrize("lanes", range(1, 20))
def test_whoever_holds_all_lanes_has_one_piece(lanes: int) -> None:
    assert tree.partial_sums(range(lanes), lanes) == [tree.root(lanes)]
    assert sum(tree.merges(range(lanes), lanes)) == lanes - 1


def test_the_tree_of_five_lanes_is_that_of_eight_without_the_absent_ones() -> None:
    assert alone(5) == "(((0 1) (2 3)) 4)"
    assert alone(7) == "(((0 1) (2 3)) ((4 5) 6))"


def test_steps_in_place_end_in_the_first_piece() -> None:
    brought = [PartialSum(0, 2), PartialSum(2, 1), PartialSum(3, 1), PartialSum(4, 4)]
    left = {piece.first: str(piece.first) for piece in brought}
    for step in tree.plan(brought, 8):
        assert step.into.first == step.left.first
        left[step.left.first] += left.pop(step.right.first)
    assert list(left) == [0]


@pytest.mark.parametrize(
    "brought",
    [
        [PartialSum(0, 2)],
        [PartialSum(0, 4), PartialSum(0, 2)],
        [PartialSum(0, 2), PartialSum(2, 2), PartialSum(3, 1)],
        [PartialSum(1, 2), PartialSum(0, 1), PartialSum(3, 1)],
    ],
    ids=["a lane is missing", "lanes twice", "a lane twice", "not a subtree"],
)
def test_pieces_that_are_not_all_lanes_once_are_refused(brought: list[PartialSum]) -> None:
    with pytest.raises(BugError):
        tree.plan(brought, 4)
