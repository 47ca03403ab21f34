"""Rounds of the local mode, without a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from holdfast.train import Run, launch
from holdfast.train.chance import seed_everything, seed_of
from holdfast.train.members.solo import Solo
from holdfast.train.modes.local import LocalLoop, LocalState, Outer
from holdfast.train.settings import Settings
from holdfast.wire.errors import Usage
from tests.unit.train_torch.alone import Rows


def locally(
    main: Callable[[Run], Any],
    settings: Mapping[str, str],
    *,
    lanes: int = 4,
    folder: Path | None = None,
) -> LocalState:
    torch.set_num_threads(1)
    values = Settings()
    values.take(settings)
    held = LocalState(
        lanes=lanes, seed=0, settings=values, texts=dict(settings), device=torch.device("cpu")
    )
    held.member = Solo(held, lanes, settings=settings, folder=folder, every_steps=1)
    seed_everything(seed_of(0, "fresh"))
    loop = LocalLoop(held)
    main(Run(loop))
    loop.finish()
    return held


def script(model: nn.Module, data: Any, **options: Any) -> Callable[[Run], None]:
    def main(run: Run) -> None:
        run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        for batch in run.batches(data, **{"lane_batch": 4, **options}):
            run.step(functional.cross_entropy(model(batch.x), batch.y))

    return main


def test_a_round_moves_the_weights_by_the_mean_of_what_its_lanes_found() -> None:
    """By hand: two lanes, three steps each, a plain mean (outer lr 1, no momentum)."""
    data, model = Rows(24), nn.Linear(3, 2)
    beginning = {name: value.clone() for name, value in model.state_dict().items()}
    settings = {"local_steps": "3", "outer_lr": "1.0", "outer_momentum": "0.0"}
    held = locally(script(model, data, shuffle=False), settings, lanes=2)
    assert held.member.step == 1
    found = []
    for lane in range(2):
        mine = nn.Linear(3, 2)
        mine.load_state_dict(beginning)
        optimizer = torch.optim.SGD(mine.parameters(), lr=0.1, momentum=0.9)
        for step in range(3):
            rows = slice(step * 8 + lane * 4, step * 8 + lane * 4 + 4)
            optimizer.zero_grad()
            functional.cross_entropy(mine(data.x[rows]), data.y[rows]).backward()
            optimizer.step()
        found.append(mine.state_dict())
    for name, value in model.state_dict().items():
        assert torch.allclose(value, (found[0][name] + found[1][name]) / 2, atol=1e-6)


def test_the_outer_optimizer_is_sgd_with_nesterov_momentum() -> None:
    ours, theirs = nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(5))
    outer = Outer()
    reference = torch.optim.SGD([theirs], lr=0.7, momentum=0.9, nesterov=True)
    chance = torch.Generator().manual_seed(1)
    for _ in range(6):
        difference = torch.randn(5, generator=chance)
        outer.step({"ours": ours}, [difference], set(), lr=0.7, momentum=0.9)
        theirs.grad = difference.clone()
        reference.step()
        assert torch.allclose(ours, theirs)


def test_an_epoch_has_every_sample_once_and_its_last_round_is_shorter() -> None:
    seen: list[tuple[int, int]] = []

    def main(run: Run) -> None:
        model = nn.Linear(3, 2)
        run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        for batch in run.batches(Rows(75), lane_batch=4, epochs=2):
            seen.extend((batch.epoch, round(float(row[0]) * 75)) for row in batch.x)
            run.step(functional.cross_entropy(model(batch.x), batch.y))
        assert (run.completed, run.epoch) == (4, 2), "5 steps of data are 2 rounds"

    locally(main, {"local_steps": "3"})
    assert Counter(seen) == Counter((epoch, row) for epoch in range(2) for row in range(75))


def test_a_run_killed_between_rounds_goes_on_from_its_folder_to_the_same_bits(
    tmp_path: Path,
) -> None:
    class Dies(Exception):
        pass

    def main(dies_at: int | None) -> Callable[[Run], None]:
        def inner(run: Run) -> None:
            model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.2))
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            run.track(model=model, optimizer=optimizer)
            run.track(scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20))

            def look(run: Run) -> None:
                if run.completed == dies_at:
                    raise Dies

            run.every(1, look)
            for batch in run.batches(Rows(64), lane_batch=4, epochs=4):
                run.step(functional.cross_entropy(model(batch.x), batch.y))

        return inner

    settings = {"local_steps": "2"}
    whole = locally(main(None), settings)
    with pytest.raises(Dies):
        locally(main(5), settings, folder=tmp_path)
    again = locally(main(None), settings, folder=tmp_path)
    assert whole.member.step == 8
    assert again.state().digest() == whole.state().digest()
    assert any(entry.name.startswith("/outer/") for entry in whole.state().entries)
    with pytest.raises(Usage, match="local steps a round"):
        locally(main(None), {"local_steps": "4"}, folder=tmp_path)


def test_a_mode_that_is_not_known_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_MODE", "loco")
    with pytest.raises(Usage, match="there is no mode 'loco'"):
        launch(lambda run: None)
