"""Several updates on a batch, and what a script does around an update."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from holdfast.train import Batch, Run, Sharded, turns
from holdfast.train.chance import seed_everything
from holdfast.train.members.solo import Solo
from holdfast.train.modes.asynchronous.loop import AsyncLoop
from holdfast.train.modes.local import LocalLoop, LocalState
from holdfast.train.modes.training_loop import TrainingLoop
from holdfast.train.settings import Settings
from holdfast.wire.errors import Usage
from tests.faults.step_scenarios import SAM
from tests.unit.train_torch.alone import Rows, alone

Seen = list[tuple[int, int, int, tuple[float, ...]]]


def simple(run: Run, **options: Any) -> tuple[nn.Linear, Seen]:
    """A loop; its model, and what its body has seen."""
    model, seen = nn.Linear(3, 2), Seen()
    run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    data = options.pop("data", Rows(20))
    for batch in run.batches(data, **{"lane_batch": 4, **options}):
        seen.append((run.completed, batch.lane, batch.update, tuple(batch.x[:, 0].tolist())))
        assert batch.update == run.update_index
        run.step(functional.cross_entropy(model(batch.x), batch.y))
    return model, seen


class Noisy(Rows):
    """Samples with an augmentation."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index] + torch.randn(3), self.y[index]


@pytest.mark.parametrize("loader_workers", [0, 1])
def test_every_batch_is_given_once_for_each_update_all_lanes_first(loader_workers: int) -> None:
    found: list[Seen] = []

    def script(run: Run) -> None:
        options = {"data": Noisy(20), "epochs": 2, "loader_workers": loader_workers}
        found.append(simple(run, updates=3, **options)[1])
        assert (run.completed, run.epoch, run.update_index) == (18, 2, 0)

    alone(script, lanes=2)
    rows = found[0]
    assert [(lane, update) for _, lane, update, _ in rows[:6]] == [
        (lane, update) for update in range(3) for lane in range(2)
    ]
    batches = {(step // 3, lane): set[tuple[float, ...]]() for step, lane, _, _ in rows}
    for step, lane, _, values in rows:
        batches[step // 3, lane].add(values)
    assert all(len(each) == 1 for each in batches.values()), "the samples are the same, drawn once"
    assert len(set.union(*batches.values())) == len(batches)


def test_files_are_read_once_for_all_updates_on_their_samples() -> None:
    found: list[Seen] = []
    read: list[int] = []

    def rows(file: int) -> list[tuple[torch.Tensor, int]]:
        read.append(file)
        return [(torch.full((3,), float(file * 100 + n)), n % 2) for n in range(5)]

    def script(run: Run) -> None:
        found.append(simple(run, data=Sharded(range(4), rows), lane_batch=2, updates=2)[1])

    alone(script, lanes=2)
    # One file is begun once more: does entering it give what reading on gives?
    assert sorted(read) == [0, 0, 1, 2, 3]
    for update in (0, 1):
        values = [value for _, _, each, row in found[0] for value in row if each == update]
        assert sorted(values) == [file * 100 + n for file in range(4) for n in range(5)]


def test_schedulers_step_and_loops_stop_with_the_last_update_of_a_batch() -> None:
    def script(run: Run) -> None:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        run.track(model=model, optimizer=optimizer, scheduler=scheduler)
        run.every(3, lambda run: run.stop_early())
        for batch in run.batches(Rows(64), lane_batch=4, epochs=9, updates=2):
            run.step(functional.cross_entropy(model(batch.x), batch.y))
        assert run.completed == 4, "it was stopped after three, in the middle of a batch"
        assert optimizer.param_groups[0]["lr"] == 0.25

    alone(script)


def test_a_run_that_ends_between_two_updates_goes_on_with_the_second_one(tmp_path: Path) -> None:
    class Dies(Exception):
        pass

    def main(dies_at: int | None) -> Callable[[Run], None]:
        def script(run: Run) -> None:
            def look(run: Run) -> None:
                if run.completed == dies_at:
                    raise Dies

            run.every(1, look)
            model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 2))
            sam = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
            run.track(model=model, sam=sam, base=sam.base)
            run.update_with(
                lambda run: sam.first_step() if run.update_index == 0 else sam.second_step()
            )
            for batch in run.batches(Rows(50), lane_batch=4, epochs=2, updates=2):
                run.step(functional.cross_entropy(model(batch.x), batch.y))

        return script

    whole = alone(main(None))
    with pytest.raises(Dies):
        alone(main(8), folder=tmp_path)  # the last checkpoint is of step 7
    again = alone(main(None), folder=tmp_path)
    assert again.state().digest() == whole.state().digest()


def test_sam_is_the_sam_of_a_plain_loop() -> None:
    data, models = Rows(16), list[nn.Module]()

    def script(run: Run) -> None:
        model = nn.Linear(3, 2)
        sam = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
        run.track(model=model, sam=sam, base=sam.base)
        run.update_with(lambda run: (sam.first_step, sam.second_step)[run.update_index]())
        options: dict[str, Any] = {"lane_batch": 4, "epochs": 3, "updates": 2, "shuffle": False}
        for batch in run.batches(data, **options):
            run.step(functional.cross_entropy(model(batch.x), batch.y))
        models.append(model)

    def look(run: Run) -> None:
        models.append(nn.Linear(3, 2))

    alone(script)
    alone(look)
    ours, plain = models
    sam = SAM(plain.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    for _ in range(3):
        for step in (sam.first_step, sam.second_step):
            plain.zero_grad()
            functional.cross_entropy(plain(data.x), data.y).backward()
            step()
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_a_hook_before_the_update_sees_the_mean_gradient_unscaled_and_changes_it() -> None:
    seen: list[torch.Tensor] = []
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def script(run: Run) -> None:
        model = nn.Linear(3, 1, bias=False)
        nn.init.zeros_(model.weight)
        unused = nn.Linear(1, 1)
        optimizer = torch.optim.SGD([*model.parameters(), *unused.parameters()], lr=1.0)
        run.track(model=model, unused=unused, optimizer=optimizer, scaler=scaler)

        @run.before_update
        def first(run: Run) -> None:
            assert unused.weight.grad is None
            assert model.weight.grad is not None
            seen.append(model.weight.grad.clone())
            model.weight.grad.clamp_(max=0.25)

        run.before_update(lambda run: model.weight.grad.mul_(2))  # type: ignore[union-attr]
        for batch in run.batches(Rows(16), lane_batch=4, shuffle=False):
            run.step(model(batch.x).mean())
        assert torch.equal(model.weight, torch.full((1, 3), -0.5))

    alone(script)
    assert torch.allclose(seen[0], Rows(16).x.mean(0, keepdim=True))


def test_hooks_before_the_update_draw_the_same_numbers_whatever_the_lanes_drew() -> None:
    drawn: list[list[float]] = []

    def main(draws: int) -> Callable[[Run], None]:
        def script(run: Run) -> None:
            drawn.append([])
            for _ in range(2):
                run.before_update(lambda run: drawn[-1].append(float(torch.rand(()))))
            model = nn.Linear(3, 2)
            run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
            for batch in run.batches(Rows(32), lane_batch=4):
                torch.rand(draws)
                run.step(functional.cross_entropy(model(batch.x), batch.y))

        return script

    alone(main(1))
    alone(main(7))
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 4, "each hook of each step has numbers of its own"


def test_nothing_can_be_asked_of_all_workers_before_an_update() -> None:
    def script(run: Run) -> None:
        run.before_update(lambda run: run.once(lambda: 1))
        simple(run)

    with pytest.raises(Usage, match=r"asked for in run\.before_update"):
        alone(script)


def test_lanes_that_name_different_optimizers_in_one_step_are_refused() -> None:
    def script(run: Run, choose: Callable[[Batch], int]) -> None:
        model = nn.Linear(3, 2)
        both = [torch.optim.SGD(model.parameters(), lr=rate) for rate in (0.1, 0.2)]
        run.track(model=model, one=both[0], two=both[1])
        run.accumulate(2)
        for batch in run.batches(Rows(32), lane_batch=2):
            loss = functional.cross_entropy(model(batch.x), batch.y)
            run.step(loss, only=both[choose(batch)])

    turns = itertools.count()
    for choose in (lambda batch: batch.lane % 2, lambda _batch: next(turns) % 2):
        with pytest.raises(Usage, match="named different optimizers"):
            alone(lambda run, choose=choose: script(run, choose))  # type: ignore[misc]


def test_turns_in_parts_are_as_many_steps_as_were_asked_for() -> None:
    seen = []

    def script(run: Run) -> None:
        model = nn.Linear(3, 2)
        run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        run.accumulate(4)
        for turn in turns(run, steps=20):
            seen.append(tuple(turn))
            run.step(model(torch.ones(1, 3)).sum())

    assert alone(script, lanes=2).member.step == 20
    assert seen == [(s, lane, part) for s in range(20) for lane in range(2) for part in range(4)]


@pytest.mark.parametrize("kind", [LocalLoop, AsyncLoop])
@pytest.mark.parametrize(
    "ask",
    [
        lambda run: run.batches(Rows(8), lane_batch=1, updates=2),
        lambda run: run.update_with(lambda run: None),
        lambda run: run.before_update(lambda run: None),
    ],
)
def test_modes_without_an_update_of_all_lanes_refuse_what_belongs_to_one(
    kind: type[TrainingLoop], ask: Callable[[Run], object]
) -> None:
    seed_everything(0)
    device = torch.device("cpu")
    held = LocalState(lanes=2, seed=0, settings=Settings(), texts={}, device=device)
    held.member = Solo(held, 2)
    with pytest.raises(Usage, match=r"in the mode '(local|async)'"):
        ask(Run(kind(held)))
