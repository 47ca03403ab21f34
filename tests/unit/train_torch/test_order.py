"""Which lane sees which sample when."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.train.chance import seed_of, shuffled
from holdfast.train.data.order import Order
from holdfast.train.data.sharded import By, Sharded, Streams
from holdfast.wire.errors import Usage


def samples(order: Order, epoch: int) -> list[int]:
    return [
        sample
        for index in range(order.steps)
        for lane in range(order.lanes)
        for ticket in order.tickets(epoch, index, lane)
        for sample in ticket.samples
    ]


@given(size=st.integers(1, 3000), seed=st.integers(0, 2**62))
def test_a_shuffle_has_every_place_once(size: int, seed: int) -> None:
    assert sorted(shuffled(torch.arange(size), size, seed).tolist()) == list(range(size))


def test_a_place_of_a_shuffle_is_the_same_alone_and_among_all() -> None:
    whole = shuffled(torch.arange(1000), 1000, 5)
    assert shuffled(torch.tensor([17, 3, 999]), 1000, 5).tolist() == whole[[17, 3, 999]].tolist()


def test_two_seeds_and_two_epochs_shuffle_differently() -> None:
    order, other = Order(500, 4, 8, seed=1), Order(500, 4, 8, seed=2)
    found = {tuple(samples(order, 0)), tuple(samples(order, 1)), tuple(samples(other, 0))}
    assert len(found) == 3


@given(
    size=st.integers(1, 500),
    lanes=st.integers(1, 9),
    lane_batch=st.integers(1, 20),
    parts=st.integers(1, 3),
    shuffle=st.booleans(),
)
def test_every_sample_of_an_epoch_is_in_one_lane_of_one_step(
    size: int, lanes: int, lane_batch: int, parts: int, shuffle: bool
) -> None:
    order = Order(size, lanes, lane_batch, parts, shuffle)
    assert Counter(samples(order, 3)) == Counter(range(size))
    for index in range(order.steps):
        counts = [len(order.places(index, lane)) for lane in range(lanes)]
        assert max(counts) - min(counts) <= 1
        assert max(counts) <= lane_batch * parts


def test_a_step_that_is_dropped_is_the_last_and_smaller_one() -> None:
    order = Order(100, 4, 8, drop_last=True, shuffle=False)
    assert order.steps == 3
    assert samples(order, 0) == list(range(96))


def test_an_order_without_a_step_says_why() -> None:
    with pytest.raises(Usage, match="not enough for one step"):
        Order(10, 4, 8, drop_last=True)


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


def test_a_stream_gives_the_same_samples_to_whoever_begins_in_the_middle() -> None:
    data = Sharded([0, 1, 2], read=lambda file: range(file * 100, file * 100 + 7 + file))
    through = Streams(data, 2, 2, 1, 0)
    for index in range(3):
        expected = through.tickets(0, index, 1)
    assert Streams(data, 2, 2, 1, 0).tickets(0, 2, 1) == expected
    assert [item for ticket in expected for item in ticket.items] == [104, 105]
    assert through.more(1)
