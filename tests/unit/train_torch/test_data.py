"""What is read: other data than before, data that rots, samplers, what is no data at all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset, default_collate

from holdfast import train
from holdfast.train import Run, Sharded, WeightedSampler, checked, digests_of
from holdfast.train.data.digests import Damaged, sample_digest
from holdfast.train.data.fetching import Fetcher
from holdfast.train.data.order import Ticket
from holdfast.train.settings import Settings
from holdfast.wire.errors import Usage
from tests.unit.train_torch.alone import Rows, alone


class Dies(Exception):
    pass


def script(data: Any, *, dies_at: int = 0, seen: list[int] | None = None, **options: Any) -> Any:
    """A loop over the data; samples say their number in their first value."""

    def main(run: Run) -> None:
        model = nn.Linear(3, 2)
        run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        run.accumulate(options.get("parts", 1))
        chosen = {name: value for name, value in options.items() if name != "parts"}
        if "batch_sampler" not in chosen:
            chosen = {"lane_batch": 4, **chosen}

        def look(run: Run) -> None:
            if run.completed == dies_at:
                raise Dies

        run.every(1, look)
        for batch in run.batches(data, **chosen):
            if seen is not None:
                seen.extend(round(float(each)) for each in batch.x[:, 0] * chosen_size(data))
            run.step(functional.cross_entropy(model(batch.x), batch.y))

    return main


def chosen_size(data: Any) -> int:
    return len(data) if hasattr(data, "__len__") else 1


# --- going on with other data -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ({}, {"lane_batch": 2}, "lane_batch: 4 -> 2"),
        ({}, {"parts": 2}, "accumulate: 1 -> 2"),
        ({}, {"shuffle": False}, "shuffle: True -> False"),
        ({}, {"drop_last": True}, "drop_last: False -> True"),
        ({}, {"sampler": lambda epoch, seed: range(50)}, "sampler: none -> "),
        (
            {"sampler": WeightedSampler([1.0] * 50)},
            {"sampler": WeightedSampler([1.0] * 49 + [2.0])},
            "weights",
        ),
    ],
)
def test_a_run_does_not_go_on_from_its_folder_with_other_data(
    before: dict[str, Any], after: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(Dies):
        alone(script(Rows(50), dies_at=3, epochs=2, **before), folder=tmp_path)
    with pytest.raises(Usage, match="reads other data than it did until step") as told:
        alone(script(Rows(50), epochs=2, **after), folder=tmp_path)
    assert says in told.value.why
    assert "HOLDFAST_CHECKPOINTS" in told.value.fix
    alone(script(Rows(50), epochs=3, **before), folder=tmp_path)  # more epochs are no other data


def test_a_longer_data_set_another_seed_and_other_files_are_noticed(tmp_path: Path) -> None:
    with pytest.raises(Dies):
        alone(script(Rows(50), dies_at=3, epochs=2), folder=tmp_path / "a")
    with pytest.raises(Usage, match="other data") as told:
        alone(script(Rows(52), epochs=2), folder=tmp_path / "a")
    assert told.value.why == "samples: 50 -> 52"
    with pytest.raises(Usage, match="other data") as told:
        alone(script(Rows(50), epochs=2), folder=tmp_path / "a", seed=7)
    assert told.value.why == "seed: 0 -> 7"

    def files(*names: str) -> Sharded:
        return Sharded(names, read=lambda file: [(torch.ones(3), 0)] * 20)

    with pytest.raises(Dies):
        alone(script(files("x/a", "x/b"), dies_at=2), lanes=2, folder=tmp_path / "b")
    with pytest.raises(Usage, match="other data") as told:
        alone(script(files("y/a", "y/c")), lanes=2, folder=tmp_path / "b")
    assert told.value.why == "names of the files have changed"
    alone(script(files("y/a", "y/b")), lanes=2, folder=tmp_path / "b")  # a folder may move


def test_a_setting_of_the_job_has_the_last_word_over_the_argument() -> None:
    held = alone(script(Rows(48)), settings={"lane_batch": "6", "accumulate": "2"})
    assert held.member.step == 1
    with pytest.raises(Usage, match="lane_batch='many'"):
        alone(script(Rows(48)), settings={"lane_batch": "many"})


def test_turns_are_turns_whatever_the_size_of_a_step_is_set_to() -> None:
    def main(run: Run) -> None:
        model = nn.Linear(3, 2)
        run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in train.turns(run, steps=3):
            run.step(model(torch.ones(1, 3)).sum())

    assert alone(main, settings={"lane_batch": "4"}).member.step == 3


def test_a_setting_that_nothing_reads_after_it_was_changed_is_not_taken() -> None:
    settings = Settings({"epochs": 3})
    settings.take({"epochs": "3", "noise": "0.1"})
    assert settings.epochs == 3 and settings.noise == 0.1
    assert settings.metrics() == {}
    settings.take({"epochs": "9", "noise": "0.2"})
    assert settings.metrics() == {"setting epochs": 0.0, "setting noise": 0.0}
    assert settings.noise == 0.2
    assert settings.metrics() == {"setting epochs": 0.0, "setting noise": 1.0}
    settings.take({"epochs": "9", "noise": "0.3"})
    assert settings.metrics()["setting noise"] == 0.0


# --- data that rots -----------------------------------------------------------------------------


def test_a_sample_that_is_not_what_it_was_is_named_and_stops_the_run() -> None:
    data = Rows(40)
    sums = digests_of(data)
    alone(script(checked(data, sums)))
    data.x[17, 2] += 1e-4
    found = sample_digest(data[17])
    with pytest.raises(Damaged, match="sample 17 of 40") as told:
        alone(script(checked(data, sums)))
    assert told.value.why == f"its digest is {found}, and {sums[17]} was expected"
    # torch raises it anew from a loader process, with what it said there.
    with pytest.raises(Damaged, match="sample 17 of 40"):
        alone(script(checked(data, sums), loader_workers=1))
    with pytest.raises(Usage, match="39 digests for 40 samples"):
        checked(data, sums[1:])


def test_two_samples_have_one_digest_only_if_they_are_the_same() -> None:
    some = [
        torch.zeros(2), torch.zeros(2, 1), torch.zeros(2, dtype=torch.int32), torch.zeros(3),
        (1, 2), (12,), [(1,), 2], "12", b"12", 12, 12.0, None, True, {"a": 1}, {"a": "1"},
        {"a": 1, "b": 2}, torch.tensor(0.0), torch.ones(2).bfloat16(),
    ]  # fmt: skip
    assert len({sample_digest(each) for each in some}) == len(some)
    assert sample_digest(torch.zeros(2)) == sample_digest(torch.zeros(2).numpy())
    assert sample_digest({"b": 1, "a": 2}) == sample_digest({"a": 2, "b": 1})
    with pytest.raises(Usage, match="has no digest"):
        sample_digest(object())


def lines(path: Path) -> Iterator[tuple[torch.Tensor, int]]:
    for line in path.read_text().splitlines():
        number = json.loads(line)
        yield torch.full((3,), float(number)), number % 2


@pytest.fixture
def folder(tmp_path: Path) -> list[Path]:
    for file in range(4):
        numbers = range(file * 10, file * 10 + 10)
        (tmp_path / f"{file}.jsonl").write_text("".join(f"{n}\n" for n in numbers))
    return sorted(tmp_path.glob("*.jsonl"))


@pytest.mark.parametrize("loader_workers", [0, 2])
def test_a_file_that_is_not_what_it_was_is_named_and_stops_the_run(
    folder: list[Path], loader_workers: int
) -> None:
    sums = digests_of(Sharded(folder, read=lines))
    assert sums[str(folder[0])] == f"sha256:{hashlib.sha256(folder[0].read_bytes()).hexdigest()}"
    data = Sharded(folder, read=lines, digests=sums)
    alone(script(data, loader_workers=loader_workers), lanes=2)
    folder[3].write_text(folder[3].read_text().replace("35", "36"))
    with pytest.raises(Damaged, match=r"3\.jsonl is not what it was") as told:
        alone(script(data, loader_workers=loader_workers), lanes=2)
    assert sums[str(folder[3])] in told.value.why
    with pytest.raises(Usage, match="1 of 4 files have no digest"):
        Sharded(folder, read=lines, digests=dict.fromkeys(folder[1:], "sha256:x"))


@pytest.mark.parametrize("length", [9, 11])
def test_a_file_with_another_number_of_samples_than_was_said_is_named(
    folder: list[Path], length: int
) -> None:
    alone(script(Sharded(folder, read=lines, lengths=[10] * 4)), lanes=2)
    with pytest.raises(Damaged, match=r"1\.jsonl has") as told:
        alone(script(Sharded(folder, read=lines, lengths=[10, length, 10, 10])), lanes=2)
    assert told.value.why == f"lengths= says that it has {length}"


def test_lengths_let_a_lane_be_entered_without_opening_the_files_before(folder: list[Path]) -> None:
    opened: list[tuple[str, int]] = []

    def read(path: Path, start: int) -> Iterator[Any]:
        opened.append((path.name, start))
        return iter(list(lines(path))[start:])

    for lengths in ([10] * 4, lambda _path: 10):
        opened.clear()
        data = Sharded(folder, read=read, lengths=lengths)
        found = [int(item[0][0]) for item, _ in data.enter(0, 1, 0, 0, at=25)]
        assert found == list(range(25, 40))
        assert opened == [("2.jsonl", 5), ("3.jsonl", 0)]
    opened.clear()
    bare = Sharded(folder, read=read)
    assert [int(item[0][0]) for item, _ in bare.enter(0, 1, 0, 0, at=25)] == list(range(25, 40))
    assert [int(item[0][0]) for item, _ in bare.enter(0, 1, 0, 0, at=25, mark=(2, 20))] == list(
        range(25, 40)
    )
    assert opened[-2:] == [("2.jsonl", 5), ("3.jsonl", 0)]
    with pytest.raises(Damaged, match=r"2\.jsonl has 10 samples"):
        list(Sharded(folder, read=lines).enter(0, 1, 0, 0, at=35, mark=(2, 20)))


def test_a_second_argument_with_a_default_is_not_taken_for_the_start(folder: list[Path]) -> None:
    def read(path: Path, encoding: str = "utf-8") -> Iterator[Any]:
        assert encoding == "utf-8"
        return lines(path)

    data = Sharded(folder, read=read)
    assert len(list(data.enter(0, 1, 0, 0, at=25, mark=(2, 20)))) == 15


def test_rows_of_tensors_are_fetched_in_one_go_with_the_values_that_they_have_one_by_one() -> None:
    data = TensorDataset(torch.randn(9, 3), torch.arange(9), torch.randn(9, 2, 2).double())
    ticket = Ticket(0, 0, 0, 0, (7, 2, 2, 8), seed=1)
    whole = Fetcher(data, lambda first: iter((first,))).get(ticket)
    singly = default_collate([data[sample] for sample in ticket.samples])
    assert [each.dtype for each in whole] == [each.dtype for each in singly]
    assert all(map(torch.equal, whole, singly))
