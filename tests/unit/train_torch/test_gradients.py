"""Sums of lanes, in the one order."""

from __future__ import annotations

import random
from collections.abc import Iterable

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from holdfast.train.sums import tree
from holdfast.train.sums.gradients import GradientSums, Layout
from holdfast.train.sums.tree import PartialSum

SHAPES = [(3, 5), (7,), (2, 2, 2), (1,)]


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(shape)) for shape in SHAPES]


def gradients(lane: int) -> list[torch.Tensor]:
    chance = torch.Generator().manual_seed(lane)
    return [torch.randn(shape, generator=chance) * 10**lane for shape in SHAPES]


def compute(sums: GradientSums, lanes: Iterable[int]) -> None:
    for lane in lanes:
        sums.begin(lane)
        for number, gradient in reversed(list(enumerate(gradients(lane)))):
            sums.take(number, gradient)
        sums.end()


def flat(layout: Layout, value: list[torch.Tensor]) -> list[float]:
    return [x for n in range(len(SHAPES)) for x in layout.view(value, n).flatten().tolist()]


def expected(piece: PartialSum, lanes: int) -> list[float]:
    held = range(piece.first, min(sum(piece), lanes))
    values = {
        PartialSum(lane - piece.first, 1): torch.cat([g.flatten() for g in gradients(lane)])
        for lane in held
    }
    found: torch.Tensor = tree.fold(values, len(held), torch.add)
    listed: list[float] = found.tolist()
    return listed


@given(lanes=st.integers(1, 12), seed=st.integers(0, 10**6), gathers=st.booleans())
def test_pieces_are_the_sums_of_the_tree_in_whatever_order_lanes_come(
    lanes: int, seed: int, gathers: bool
) -> None:
    chance = random.Random(seed)
    held = sorted(chance.sample(range(lanes), chance.randint(1, lanes)))
    order = chance.sample(held, len(held))
    layout = Layout(parameters(), bucket_bytes=64)
    sums = GradientSums(layout, lanes)
    sums.gathers = gathers  # as on a device
    compute(sums, order)
    assert sorted(sums.partials) == tree.partial_sums(held, lanes)
    for piece, value in sums.partials.items():
        assert flat(layout, value) == expected(piece, lanes)


@given(lanes=st.integers(1, 9), seed=st.integers(0, 10**6))
def test_gradients_of_a_whole_lane_at_once_come_to_the_bits_of_one_after_the_other(
    lanes: int, seed: int
) -> None:
    chance = random.Random(seed)
    order = chance.sample(range(lanes), lanes)
    found = []
    for at_once in (True, False):
        sums = GradientSums(Layout(parameters(), bucket_bytes=64), lanes)
        sums.gathers = at_once  # as on a device
        for lane in order:
            absent = random.Random(seed + lane).randrange(len(SHAPES))
            given = [None if n == absent else -0.0 * g for n, g in enumerate(gradients(lane))]
            sums.begin(lane)
            if at_once:
                sums.take_all(given)
            else:
                for number, gradient in enumerate(given):
                    if gradient is not None:
                        sums.take(number, gradient)
            assert sums.end() == set(range(len(SHAPES))) - {absent}
        assert not sums.missing(range(lanes))
        (root,) = sums.partials.values()
        # As bytes: a negative zero is another number than a positive one.
        found.append([each.numpy().tobytes() for each in root])
    assert found[0] == found[1]


def test_the_buckets_of_one_type_lie_in_one_piece_of_memory_in_their_order() -> None:
    layout = Layout(parameters(), bucket_bytes=64)
    flat = layout.allocate()
    (whole,) = layout.wholes(flat)
    assert len(flat) == 4 and whole.numel() == sum(layout.sizes)
    for number, bucket in enumerate(flat):
        bucket.fill_(number)
    assert torch.equal(whole, torch.cat(flat))


def test_lanes_that_are_lost_take_their_pieces_with_them_and_no_others() -> None:
    sums = GradientSums(Layout(parameters()), 8)
    compute(sums, [0, 1, 2, 3, 6])
    sums.keep([0, 1, 2, 6, 7])
    assert sorted(sums.partials) == [PartialSum(6, 1)]
    assert sums.missing([0, 1, 2, 6, 7]) == [0, 1, 2, 7]


def test_a_parameter_without_a_gradient_counts_as_zero() -> None:
    layout = Layout(parameters())
    sums = GradientSums(layout, 2)
    sums.begin(0)
    sums.take(1, -torch.zeros(7))
    assert sums.end() == {1}
    sums.begin(1)
    assert sums.end() == set()
    (value,) = sums.partials.values()
    assert flat(layout, value) == [0.0] * sum(p.numel() for p in parameters())
    assert not torch.signbit(layout.view(value, 1)).any(), "zero was added, so no zero is negative"


def test_no_buffer_is_made_after_the_first_step() -> None:
    sums = GradientSums(Layout(parameters()), 8)
    compute(sums, range(8))
    sums.clear()
    before = {flat[0].data_ptr() for flat in sums._free}
    for _ in range(3):
        compute(sums, range(8))
        sums.clear()
    assert {flat[0].data_ptr() for flat in sums._free} == before
    assert len(before) == 3, "as many as the tree is deep"


def test_the_layout_depends_on_the_parameters_alone_and_keeps_types_apart() -> None:
    mixed = [nn.Parameter(torch.zeros(40)), nn.Parameter(torch.zeros(8, dtype=torch.bfloat16))]
    layout = Layout(mixed, bucket_bytes=10**6)
    assert layout.dtypes == [torch.bfloat16, torch.float32]
    assert len(Layout(parameters(), bucket_bytes=64).sizes) == 4
    assert len(Layout(parameters(), bucket_bytes=10**6).sizes) == 1
