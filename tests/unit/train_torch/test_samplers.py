"""Orders of samples, and what is no data at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from holdfast import train
from holdfast.train import LengthBuckets, Run, WeightedSampler
from holdfast.train.data.order import Lists, Size
from holdfast.wire.errors import Usage
from tests.unit.train_torch.alone import Rows, alone
from tests.unit.train_torch.test_data import script

# --- samplers -----------------------------------------------------------------------------------


def test_a_weighted_sampler_draws_by_weight_and_the_same_everywhere() -> None:
    sampler = WeightedSampler([0.0, 1.0, 3.0], 4_000)
    found = Counter(sampler(0, 5).tolist())
    assert found[0] == 0 and abs(found[2] / found[1] - 3) < 0.4
    assert sampler(0, 5).tolist() == WeightedSampler([0.0, 1.0, 3.0], 4_000)(0, 5).tolist()
    assert sampler(1, 5).tolist() != sampler(0, 5).tolist() != sampler(0, 6).tolist()
    once = WeightedSampler([1.0, 0.0, 2.0, 5.0], 3, replacement=False)
    assert all(sorted(once(epoch, 1).tolist()) == [0, 2, 3] for epoch in range(20))
    with pytest.raises(Usage, match="4 out of 3"):
        WeightedSampler([1.0, 0.0, 2.0, 5.0], replacement=False)
    with pytest.raises(Usage, match="no weights"):
        WeightedSampler([0.0, 0.0])


def test_buckets_have_every_sample_once_and_lists_of_like_lengths() -> None:
    lengths = [(n * 37) % 100 for n in range(211)]
    lists = LengthBuckets(lengths, 10, lane_batch=6)(3, 9)
    assert Counter(n for each in lists for n in each) == Counter(range(211))
    assert all(2 <= len(each) <= 6 for each in lists)
    spans = [max(lengths[n] for n in each) - min(lengths[n] for n in each) for each in lists]
    assert sum(span <= 12 for span in spans) >= len(spans) * 0.8
    assert LengthBuckets(lengths, 10, lane_batch=6)(4, 9) != lists


@pytest.mark.parametrize(
    "sampler",
    [
        lambda: WeightedRandomSampler([1.0, 2.0] * 20, 30),
        lambda: SubsetRandomSampler(range(10, 40)),
        lambda: RandomSampler(Rows(40)),
    ],
    ids=["weighted", "subset", "random"],
)
def test_torchs_own_samplers_are_seeded_by_the_epoch_and_give_the_same_in_two_runs(
    sampler: Any,
) -> None:
    one: list[int] = []
    two: list[int] = []
    torch.manual_seed(1)
    alone(script(Rows(40), sampler=sampler(), seen=one, epochs=2))
    torch.manual_seed(2)
    alone(script(Rows(40), sampler=sampler(), seen=two, epochs=2))
    assert one == two
    assert one[: len(one) // 2] != one[len(one) // 2 :]


def test_lists_of_a_batch_sampler_go_to_consecutive_lanes_and_count_by_their_samples() -> None:
    lists = [[0, 1, 2], [3], [4, 5], [6, 7, 8, 9], [10, 11]]
    order = Lists(12, 2, lambda epoch, seed: lists)
    steps = [
        [ticket.samples for lane in range(2) for ticket in order.tickets(0, n, n, lane, Size(1))]
        for n in range(3)
    ]
    assert steps == [[(0, 1, 2), (3,)], [(4, 5), (6, 7, 8, 9)], [(10, 11)]]
    made: list[nn.Module] = []
    data = Rows(12)

    def main(run: Run) -> None:
        model = nn.Linear(3, 2)
        made.append(model)
        run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))
        for batch in run.batches(data, batch_sampler=lambda epoch, seed: lists):
            run.step(functional.cross_entropy(model(batch.x), batch.y))

    alone(main, lanes=2)
    begun: list[nn.Module] = []
    alone(lambda run: begun.append(nn.Linear(3, 2)), lanes=2)
    model, optimizer = begun[0], torch.optim.SGD(begun[0].parameters(), lr=0.5)
    for rows in ([0, 1, 2, 3], [4, 5, 6, 7, 8, 9], [10, 11]):
        optimizer.zero_grad()
        functional.cross_entropy(model(data.x[rows]), data.y[rows]).backward()
        optimizer.step()
    for ours, theirs in zip(made[0].parameters(), model.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6), "the mean is over the step's samples"


def test_what_cannot_be_an_order_is_refused_by_name() -> None:
    data: Any = Rows(40)
    torch.manual_seed(0)
    for sampler, says in [
        (DistributedSampler(data, num_replicas=2, rank=0), "DistributedSampler"),
        (lambda epoch, seed: torch.randperm(40).tolist(), "two orders for one epoch"),
        (lambda epoch, seed: [40], "sample 40 for epoch 0"),
        (lambda epoch, seed: list(range(10 + epoch)), "for epoch 1"),
        (BatchSampler(RandomSampler(data), 4, drop_last=False), "BatchSampler"),
        ([1, 2, 3], "a list as sampler="),
    ]:
        with pytest.raises(Usage, match=says):
            alone(script(data, sampler=sampler, epochs=2))
    alone(script(data, batch_sampler=BatchSampler(RandomSampler(data), 4, drop_last=False)))
    with pytest.raises(Usage, match="lane_batch=, or batch_sampler="):
        alone(lambda run: run.batches(data))
    with pytest.raises(Usage, match="empty list"):
        alone(script(data, batch_sampler=lambda epoch, seed: [[1], []]))


# --- what is no data ----------------------------------------------------------------------------


def test_a_data_loader_is_told_its_options() -> None:
    def pad(rows: list[Any]) -> Any:
        return rows

    rows: Any = Rows(40)  # torch takes whatever has a length and items
    loader: DataLoader[Any] = DataLoader(
        rows, batch_size=8, shuffle=True, drop_last=True, num_workers=3, collate_fn=pad
    )
    with pytest.raises(Usage, match="a DataLoader is no data set") as told:
        alone(script(loader))
    assert told.value.fix == (
        "give its dataset, and these options: run.batches(loader.dataset, lane_batch=8, "
        "shuffle=True, drop_last=True, loader_workers=3, collate=loader.collate_fn)"
    )
    spread: DistributedSampler[Any] = DistributedSampler(
        rows, num_replicas=2, rank=0, shuffle=False
    )
    with pytest.raises(Usage) as told:
        alone(script(DataLoader(rows, batch_size=8, sampler=spread)))
    assert "run.batches(loader.dataset, lane_batch=8, shuffle=False)" in told.value.fix
    with pytest.raises(Usage, match="a DataLoader is no data set"):
        alone(lambda run: run.evaluate(lambda _batch: 0.0, loader))


def test_generators_and_data_that_cannot_be_entered_are_refused_by_name() -> None:
    class Endless(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(())

    rows: Any = Rows(4)
    for data, says in [
        ((n for n in range(3)), "a generator is no data set"),
        (iter([1, 2]), "a list_iterator is no data set"),
        (Endless(), "IterableDataset Endless cannot be entered"),
        (DistributedSampler(rows, num_replicas=1, rank=0), "DistributedSampler is no data set"),
        (7, "a int is no data set"),
    ]:
        with pytest.raises(Usage, match=says):
            alone(script(data))


def test_an_iterable_data_set_with_start_is_trained_on_and_evaluated_once() -> None:
    class Numbers(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return self.start(0, 1, 0, 0)

        def start(self, lane: int, lanes: int, epoch: int, at: int) -> Iterator[Any]:
            for number in range(lane, 30, lanes)[at:]:
                yield torch.full((3,), float(number)), number % 2

    for loader_workers in (0, 2):
        seen: list[int] = []
        alone(script(Numbers(), seen=seen, epochs=2, loader_workers=loader_workers))
        assert Counter(seen) == Counter([*range(30)] * 2)

    def look(run: Run) -> None:
        found = run.evaluate(lambda batch: {"sum": batch.x[:, 0].sum()}, Numbers())
        assert (found.samples, found.totals["sum"]) == (30, sum(range(30)))

    alone(look)


def test_a_batch_of_one_that_cannot_be_helped_says_drop_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOLDFAST_LANES", "4")

    def main(samples: int) -> Any:
        def script(run: Run) -> None:
            model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
            run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
            for x, y in run.batches(Rows(samples), lane_batch=4):
                run.step(functional.cross_entropy(model(x), y))

        return script

    for samples in (16 + 5, 16 + 2, 16 + 9):
        train.launch(main(samples))
    with pytest.raises(Usage, match="a batch of one sample") as told:
        train.launch(main(16 + 1))
    assert "drop_last=True" in told.value.fix
