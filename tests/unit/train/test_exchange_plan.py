"""Which way the members of a view take, and what never depends on it."""

from __future__ import annotations

import random

import pytest

from holdfast.train.sums import exchange_plan, tree
from holdfast.train.sums.exchange_plan import MemberPlace, Way

HERE = MemberPlace("boot a", "cpu")


def dealt(members: int, lanes: int, seed: int) -> dict[int, list[int]]:
    """Every lane to somebody, everybody a lane."""
    chance = random.Random(seed)
    owners = list(range(members)) + [chance.randrange(members) for _ in range(lanes - members)]
    chance.shuffle(owners)
    return {
        worker: [lane for lane, owner in enumerate(owners) if owner == worker]
        for worker in range(members)
    }


@pytest.mark.parametrize(
    ("places", "way", "why"),
    [
        ([HERE, HERE], Way.SHARED, "all members are on one machine"),
        (
            [HERE, MemberPlace("boot b", "cpu")],
            Way.TCP,
            "workers 0 and 1 are on different machines",
        ),
        (
            [HERE, MemberPlace("boot b", "cpu"), HERE],
            Way.LEVELS,
            "workers 0 and 1 are on different machines, and some are on the same",
        ),
        (
            [
                MemberPlace("boot a", "cuda 1", nccl="22809"),
                MemberPlace("boot b", "cuda 9", nccl="22809"),
            ],
            Way.NCCL,
            "workers 0 and 1 are on different machines, and the network is declared to be trusted",
        ),
        (
            [
                MemberPlace("boot a", "cuda 1", nccl="22809"),
                MemberPlace("boot b", "cuda 9", nccl="22100"),
            ],
            Way.TCP,
            "workers 0 and 1 are on different machines",
        ),
        (
            [MemberPlace("boot a", "cuda 1"), MemberPlace("boot a", "cuda 1")],
            Way.SHARED,
            "all members are on one device, cuda 1",
        ),
        (
            [MemberPlace("boot a", "cuda 1"), MemberPlace("boot a", "cuda 2")],
            Way.TCP,
            "workers 0 and 1 are on different devices",
        ),
        (
            [HERE, MemberPlace("boot a", "cpu", "it is told so"), HERE],
            Way.TCP,
            "worker 1 shares nothing: it is told so",
        ),
    ],
)
def test_members_share_memory_where_all_are_at_one_place(
    places: list[MemberPlace], way: Way, why: str
) -> None:
    assert exchange_plan.choose(dict(enumerate(places)), {}) == (way, why)
    assert [MemberPlace.of(place.body()) for place in places] == places


def test_nobody_shares_memory_if_one_member_cannot_open_it() -> None:
    choice = exchange_plan.choose({0: HERE, 1: HERE, 2: HERE}, {0: "", 1: "no such file", 2: ""})
    assert choice.way is Way.TCP
    assert choice.why == "worker 1 cannot open what the others share: no such file"


def test_the_order_of_the_sum_is_that_of_the_lanes_whoever_holds_them() -> None:
    for lanes in range(1, 17):
        for members in range(1, min(lanes, 8) + 1):
            plan = exchange_plan.plan(dealt(members, lanes, seed=lanes * members), lanes)
            text = {
                piece: _written(piece, lanes) for each in plan.brought.values() for piece in each
            }
            for step in plan.combines:
                text[step.into] = f"({text.pop(step.left)}+{text.pop(step.right)})"
            assert list(text.values()) == [_written(tree.root(lanes), lanes)]


def test_two_levels_make_the_sum_that_one_makes_and_every_chunk_has_an_agent_in_each_group() -> (
    None
):
    for lanes in range(2, 17):
        for members in range(2, min(lanes, 8) + 1):
            plan = exchange_plan.plan(dealt(members, lanes, seed=lanes * members), lanes)
            split = 1 + lanes % (members - 1) if members > 2 else 1
            groups = [range(split), range(split, members)]
            for alone in (False, True):
                found = exchange_plan.levels(plan, groups, one_carrier=alone)
                text: dict[tree.PartialSum, str] = {}
                for group in found.groups:
                    made = {piece: _written(piece, lanes) for piece in group.brought}
                    for step in group.combines:
                        made[step.into] = f"({made.pop(step.left)}+{made.pop(step.right)})"
                    text |= {leaf: made.pop(holder) for leaf, holder in group.leaves.items()}
                    assert not made
                    for owner in found.owners:
                        agent = found.agent(group, owner)
                        assert agent in group.carriers
                        assert owner not in group.members or agent == owner
                for step in found.combines:
                    text[step.into] = f"({text.pop(step.left)}+{text.pop(step.right)})"
                assert list(text.values()) == [_written(tree.root(lanes), lanes)]


def _written(piece: tree.PartialSum, lanes: int) -> str:
    """The sum that this subtree is."""
    if piece.size == 1:
        return str(piece.first)
    half = piece.size // 2
    left = _written(tree.PartialSum(piece.first, half), lanes)
    if piece.first + half >= lanes:
        return left
    return f"({left}+{_written(tree.PartialSum(piece.first + half, half), lanes)})"


def test_chunks_are_every_element_of_a_bucket_once() -> None:
    for size in (0, 16, 48, 1_000, 4_096):
        found = exchange_plan.chunks(size, [3, 5, 8], block=16)
        assert [each for part in found.values() for each in range(size)[part]] == list(range(size))


def test_stages_are_all_buckets_in_their_order_and_large_enough() -> None:
    assert exchange_plan.stages([], 10) == []
    assert exchange_plan.stages([4, 4, 4, 20, 3], 8) == [range(2), range(2, 4), range(4, 5)]
