"""Lanes: each held once, in balance, few moved, few partial sums."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.control.decide.views import assign, moved, partial_sums, partial_sums_of

LANES = st.integers(1, 64)
MEMBERS = st.sets(st.integers(1, 40), min_size=1, max_size=20)


def least_moves(lanes: int, members: set[int], previous: dict[int, tuple[int, ...]]) -> int:
    """Lanes of survivors that balance takes from them: nobody can move fewer."""
    base, extra = divmod(lanes, len(members))
    taken = 0
    for held in sorted((len(previous.get(worker, ())) for worker in members), reverse=True):
        quota = base + (1 if extra > 0 else 0)
        extra -= 1
        taken += max(0, held - quota)
    return taken


@given(LANES, MEMBERS, MEMBERS, st.booleans())
def test_every_lane_is_held_exactly_once_and_in_balance(
    lanes: int, before: set[int], after: set[int], settle: bool
) -> None:
    assigned = assign(lanes, after, assign(lanes, before, {}), settle=settle)
    assert set(assigned) == after
    assert sorted(lane for held in assigned.values() for lane in held) == list(range(lanes))
    sizes = {len(held) for held in assigned.values()}
    assert max(sizes) - min(sizes) <= 1
    assert all(list(held) == sorted(held) for held in assigned.values())


@given(LANES, MEMBERS, MEMBERS)
def test_a_survivor_gives_up_only_what_balance_needs(
    lanes: int, before: set[int], after: set[int]
) -> None:
    previous = assign(lanes, before, {})
    survived = {worker: held for worker, held in previous.items() if worker in after}
    assigned = assign(lanes, after, survived)
    assert moved(assigned, survived) == least_moves(lanes, after, survived)


@given(LANES, MEMBERS, MEMBERS)
def test_settling_never_leaves_more_pieces(lanes: int, before: set[int], after: set[int]) -> None:
    previous = assign(lanes, before, {})
    settled = assign(lanes, after, previous, settle=True)
    assert partial_sums_of(settled) <= partial_sums_of(assign(lanes, after, previous))
    assert partial_sums_of(settled) <= partial_sums_of(assign(lanes, after, {}))


@given(LANES, MEMBERS)
def test_nothing_moves_when_nothing_changes(lanes: int, members: set[int]) -> None:
    assigned = assign(lanes, members, {})
    assert assign(lanes, members, assigned) == assigned
    assert assign(lanes, members, assigned, settle=True) == assigned


@given(st.integers(0, 6), st.integers(0, 6))
def test_powers_of_two_give_one_subtree_to_each(lanes_log: int, members_log: int) -> None:
    lanes, members = 2 ** max(lanes_log, members_log), 2 ** min(lanes_log, members_log)
    assert partial_sums_of(assign(lanes, range(1, members + 1), {})) == members


@given(st.sets(st.integers(0, 63)))
def test_pieces_cover_what_is_held_with_aligned_subtrees(held: set[int]) -> None:
    found = partial_sums(sorted(held))
    assert sorted(lane for first, size in found for lane in range(first, first + size)) == sorted(
        held
    )
    for first, size in found:
        assert size & (size - 1) == 0 and first % size == 0
        sibling = first ^ size
        assert (sibling, size) not in found, "two siblings are one larger subtree"


def test_after_a_death_only_the_lanes_of_the_dead_move() -> None:
    four = assign(8, [1, 2, 3, 4], {})
    three = assign(8, [1, 3, 4], {w: four[w] for w in (1, 3, 4)})
    for worker in (1, 3, 4):
        assert set(four[worker]) <= set(three[worker])


def test_halving_and_doubling_give_whole_subtrees() -> None:
    two = assign(8, [1, 2], {})
    four = assign(8, [1, 2, 3, 4], two, settle=True)
    assert partial_sums_of(four) == 4
    assert moved(four, two) == 4
    assert assign(8, [1, 2], four, settle=True) == two


def test_more_members_than_lanes_leaves_some_without() -> None:
    assert assign(2, [1, 2, 3], {}) == {1: (0,), 2: (1,), 3: ()}


def test_nobody_holds_nothing() -> None:
    assert assign(4, [], {}) == {}
