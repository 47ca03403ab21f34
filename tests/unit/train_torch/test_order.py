"""Which lane sees which sample when."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.train.chance import seed_of, shuffled
from holdfast.train.data.order import Order, Size, cut, spread
from holdfast.train.data.sharded import By, Sharded
from holdfast.train.data.streams import StreamPlace, Streams
from holdfast.wire.errors import Usage


def samples(order: Order, epoch: int, *sizes: Size) -> list[int]:
    """All samples of an epoch whose steps have these sizes; the last one goes on to the end."""
    at, index = 0, 0
    found: list[int] = []
    while True:
        size = sizes[min(index, len(sizes) - 1)]
        for lane in range(order.lanes):
            for ticket in order.tickets(epoch, index, at, lane, size):
                found += ticket.samples
        at, index = at + size.samples, index + 1
        if not order.more(epoch, at, size):
            return found


@given(size=st.integers(1, 3000), seed=st.integers(0, 2**62))
def test_a_shuffle_has_every_place_once(size: int, seed: int) -> None:
    assert sorted(shuffled(torch.arange(size), size, seed).tolist()) == list(range(size))


def test_a_place_of_a_shuffle_is_the_same_alone_and_among_all() -> None:
    whole = shuffled(torch.arange(1000), 1000, 5)
    assert shuffled(torch.tensor([17, 3, 999]), 1000, 5).tolist() == whole[[17, 3, 999]].tolist()


def test_two_seeds_and_two_epochs_shuffle_differently() -> None:
    order, other = Order(500, 4, seed=1), Order(500, 4, seed=2)
    orders = [samples(order, 0, Size(8)), samples(order, 1, Size(8)), samples(other, 0, Size(8))]
    assert len({tuple(each) for each in orders}) == 3


some_sizes = st.builds(Size, st.integers(1, 20), st.integers(1, 3))


@given(
    size=st.integers(1, 500),
    lanes=st.integers(1, 9),
    sizes=st.lists(some_sizes, min_size=1, max_size=5),
    shuffle=st.booleans(),
)
def test_every_sample_of_an_epoch_is_in_one_lane_of_one_step_also_when_steps_change_their_size(
    size: int, lanes: int, sizes: list[Size], shuffle: bool
) -> None:
    order = Order(size, lanes, shuffle)
    assert Counter(samples(order, 3, *sizes)) == Counter(range(size))


@given(count=st.integers(0, 200), lanes=st.integers(1, 9), size=some_sizes)
def test_what_is_left_is_spread_so_that_no_batch_has_one_sample_where_that_can_be_helped(
    count: int, lanes: int, size: Size
) -> None:
    count = min(count, lanes * size.samples)
    counts = spread(count, lanes, size)
    assert sum(counts) == count and len(counts) == lanes
    assert max(counts) <= size.samples
    parts = [part for each in counts for part in cut(each, size)]
    assert sum(parts) == count and all(0 < part <= size.lane_batch for part in parts)
    alone = parts.count(1)
    if size.lane_batch == 1:
        assert alone == count
    elif size.lane_batch == 2:
        assert alone == count % 2, "two fit into a batch, so only the odd one is alone"
    else:
        assert alone == (count == 1)
    if alone == 0 and count >= 2 * lanes and size.lane_batch > 2:
        assert max(counts) - min(counts) <= 1


def test_nine_samples_over_eight_lanes_are_four_batches_of_two_and_three() -> None:
    assert spread(9, 8, Size(4)) == (2, 2, 2, 3, 0, 0, 0, 0)
    assert spread(16, 8, Size(4)) == (2,) * 8
    assert spread(1, 8, Size(4)) == (1, *(0,) * 7)


def test_a_step_that_is_dropped_is_the_last_and_smaller_one() -> None:
    order = Order(100, 4, drop_last=True, shuffle=False)
    assert order.left(0, Size(8)) == 3
    assert samples(order, 0, Size(8)) == list(range(96))


def test_a_step_that_became_larger_than_what_is_left_still_takes_it() -> None:
    order = Order(100, 4, drop_last=True, shuffle=False)
    # After two steps of 32 there are 36 left: one more of 32, but none of 64.
    assert samples(order, 0, Size(8), Size(8), Size(16)) == list(range(100))


def test_an_order_without_a_step_says_why() -> None:
    with pytest.raises(Usage, match="not enough for one step"):
        Order(10, 4, drop_last=True).check(Size(8))


def test_a_seed_depends_on_every_part_and_on_their_order() -> None:
    assert len({seed_of(1, 2), seed_of(2, 1), seed_of(12), seed_of("1", 2, ""), seed_of(1)}) == 5


@pytest.mark.parametrize("by", ["range", "hash", "ring"])
def test_every_file_belongs_to_one_lane(by: By) -> None:
    data = Sharded([f"file-{number}" for number in range(200)], read=lambda _: [], by=by)
    owners = Counter(file for lane in range(7) for file in data.files_of(lane, 7))
    assert owners == Counter(data.files)


def test_a_new_file_moves_no_other_by_hash_and_another_lane_moves_few_on_the_ring() -> None:
    files = [f"file-{number}" for number in range(400)]

    def owner(by: By, names: list[str], lanes: int) -> dict[str, int]:
        data = Sharded(names, read=lambda _: [], by=by)
        return {file: lane for lane in range(lanes) for file in data.files_of(lane, lanes)}

    before, after = owner("hash", files, 4), owner("hash", [*files, "new"], 4)
    assert all(after[file] == lane for file, lane in before.items())
    before, after = owner("ring", files, 7), owner("ring", files, 8)
    moved = sum(after[file] != lane for file, lane in before.items())
    assert moved < 400 * 0.3, f"{moved} files moved"


def place(index: int, size: int = 2) -> StreamPlace:
    return StreamPlace(0, index, index * size, Size(size))


def test_a_stream_gives_the_same_samples_to_whoever_begins_in_the_middle() -> None:
    data = Sharded([0, 1, 2], read=lambda file: range(file * 100, file * 100 + 7 + file))
    through = Streams(data, 2, 0)
    mark = None
    for index in range(3):
        before, expected = mark, through.read(place(index), 1, mark)
        mark = expected.mark
    assert Streams(data, 2, 0).read(place(2), 1, None) == expected
    assert Streams(data, 2, 0).read(place(2), 1, before) == expected
    assert [item for read in expected.reads for item in read.items] == [104, 105]
    assert expected.more
