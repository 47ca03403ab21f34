"""The user's loop, without a cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load
from torch import nn
from torch.nn import functional

from holdfast.train import Run, Sharded, fit, launch, turns
from holdfast.train.modes.run_state import RunState
from holdfast.train.states.memory import weights
from holdfast.wire.errors import Usage
from tests.unit.train_torch.alone import Rows, alone


def digest(held: RunState) -> str:
    return held.state().digest()


def simple(run: Run, data: Any, **options: Any) -> nn.Module:
    """A model, and a loop over the data."""
    model = nn.Linear(3, 2)
    run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    for batch in run.batches(data, **{"lane_batch": 4, **options}):
        run.step(functional.cross_entropy(model(batch.x), batch.y))
    return model


def test_a_step_is_the_mean_over_all_samples_of_all_lanes_also_the_smaller_last_one() -> None:
    data = Rows(22)
    made: list[nn.Module] = []
    beginning: list[dict[str, torch.Tensor]] = []

    def look(run: Run) -> None:
        first = nn.Linear(3, 2)
        beginning.append({name: value.clone() for name, value in first.state_dict().items()})

    alone(lambda run: made.append(simple(run, data, shuffle=False)), lanes=4)
    alone(look)
    # The same two steps by hand, from the same beginning.
    model = nn.Linear(3, 2)
    model.load_state_dict(beginning[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for rows in (slice(0, 16), slice(16, 22)):
        optimizer.zero_grad()
        functional.cross_entropy(model(data.x[rows]), data.y[rows]).backward()
        optimizer.step()
    for ours, theirs in zip(made[0].parameters(), model.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_accumulating_parts_is_the_same_mean_in_less_memory() -> None:
    data = Rows(64)
    models: list[nn.Module] = []

    def main(parts: int, lane_batch: int) -> Any:
        def script(run: Run) -> None:
            run.accumulate(parts)
            models.append(simple(run, data, lane_batch=lane_batch, shuffle=False))
            assert run.completed == 2

        return script

    alone(main(1, 8))
    alone(main(4, 2))
    for whole, in_parts in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.allclose(whole, in_parts, atol=1e-6)


def test_a_run_started_again_from_its_folder_ends_with_the_same_state(tmp_path: Path) -> None:
    def main(stop_at: int | None) -> Any:
        def script(run: Run) -> None:
            if stop_at is not None:
                run.every(stop_at, lambda run: run.stop_early())
            simple(run, Rows(50), epochs=4)

        return script

    whole = alone(main(None))
    half = alone(main(6), folder=tmp_path)
    assert half.member.step == 6
    # Started again: it is told to stop at once, since that is part of what was saved.
    assert alone(main(None), folder=tmp_path).member.step == 6
    assert whole.member.step == 16


def test_a_run_killed_in_the_middle_goes_on_from_its_folder_to_the_same_bits(
    tmp_path: Path,
) -> None:
    class Dies(Exception):
        pass

    def main(dies_at: int | None) -> Any:
        def script(run: Run) -> None:
            def look(run: Run) -> None:
                if run.completed == dies_at:
                    raise Dies

            run.every(1, look)
            simple(run, Rows(50), epochs=4)

        return script

    whole = alone(main(None))
    with pytest.raises(Dies):
        alone(main(7), folder=tmp_path)
    again = alone(main(None), folder=tmp_path)
    assert digest(again) == digest(whole)


def test_two_loops_one_after_the_other_are_gone_through_once_each_also_after_a_restart(
    tmp_path: Path,
) -> None:
    seen: list[tuple[int, int]] = []

    def script(run: Run) -> None:
        model = nn.Linear(3, 2)
        run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        for number in range(2):
            for batch in run.batches(Rows(16), lane_batch=4, epochs=2):
                seen.append((number, run.completed))
                run.step(functional.cross_entropy(model(batch.x), batch.y))

    alone(script, folder=tmp_path)
    assert seen == [(0, 0)] * 4 + [(0, 1)] * 4 + [(1, 2)] * 4 + [(1, 3)] * 4
    seen.clear()
    assert alone(script, folder=tmp_path).member.step == 4
    assert seen == []


def test_an_evaluation_is_exact_leaves_the_modes_alone_and_draws_the_same_numbers() -> None:
    found = []

    def script(run: Run) -> None:
        model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))
        run.track(model=model)
        model[1].eval()
        result = run.evaluate(lambda batch: {"sum": batch.x.sum(), "rows": len(batch)}, Rows(50))
        assert [module.training for module in model] == [True, False]
        assert (result.samples, result["rows"], result.totals["rows"]) == (50, 1.0, 50.0)
        found.append(result["sum"])

    alone(script, lanes=1)
    alone(script, lanes=1)
    assert found[0] == found[1]


def test_a_scheduler_is_stepped_per_step_or_per_epoch_or_by_the_script() -> None:
    rates = {}

    def script(run: Run) -> None:
        models = {name: nn.Linear(3, 2) for name in ("step", "epoch", "never")}
        for name, model in models.items():
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            run.track(
                every=name,  # type: ignore[arg-type]
                **{
                    name: model,
                    f"{name}_optimizer": optimizer,
                    f"{name}_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
                },
            )
            rates[name] = optimizer
        for batch in run.batches(Rows(32), lane_batch=4, epochs=2):
            run.step(*(functional.cross_entropy(m(batch.x), batch.y) for m in models.values()))

    alone(script)
    found = {name: optimizer.param_groups[0]["lr"] for name, optimizer in rates.items()}
    assert found == {"step": 0.5**4, "epoch": 0.5**2, "never": 1.0}


def test_only_one_of_two_optimizers_steps_when_the_script_says_so() -> None:
    one, two = nn.Linear(3, 2), nn.Linear(3, 2)
    before = two.weight.detach().clone()

    def script(run: Run) -> None:
        first, second = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (one, two))
        run.track(one=one, two=two, first=first, second=second)
        for batch in run.batches(Rows(32), lane_batch=4):
            losses = [functional.cross_entropy(m(batch.x), batch.y) for m in (one, two)]
            run.step(*losses, only=first)

    alone(script)
    assert torch.equal(two.weight, before)


def test_half_precision_with_a_tracked_scaler_skips_what_overflows_and_remembers_its_scale() -> (
    None
):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=10_000)

    def script(run: Run) -> None:
        model = nn.Linear(3, 2)
        run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), scaler=scaler)
        for batch in run.batches(Rows(64), lane_batch=4, epochs=4):
            with torch.autocast("cpu", torch.float16):
                loss = functional.cross_entropy(model(batch.x), batch.y)
            run.step(loss)

    held = alone(script)
    assert scaler.get_scale() < 2.0**40
    notes = held.state().notes["objects"]["scaler"]
    assert ["scale", {"float": scaler.get_scale().hex()}] in notes["map"]


def test_files_over_lanes_are_read_once_an_epoch_and_the_epoch_ends_with_the_longest() -> None:
    seen: list[int] = []

    def read(file: int) -> list[tuple[torch.Tensor, int, int]]:
        return [(torch.full((3,), float(file)), n % 2, file * 100 + n) for n in range(3 + file)]

    def script(run: Run) -> None:
        model = nn.Linear(3, 2)
        run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        for x, y, name in run.batches(Sharded(range(5), read), lane_batch=2, epochs=2):
            seen.extend(name.tolist())
            run.step(functional.cross_entropy(model(x), y))
        assert run.epoch == 2

    alone(script, lanes=2)
    once = [file * 100 + n for file in range(5) for n in range(3 + file)]
    assert sorted(seen) == sorted(once * 2)


def test_loader_processes_give_the_same_bits() -> None:
    class Noisy(Rows):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            return self.x[index] + torch.randn(3), self.y[index]

    plain = alone(lambda run: simple(run, Noisy(50), epochs=2))
    ahead = alone(lambda run: simple(run, Noisy(50), epochs=2, loader_workers=2))
    assert digest(ahead) == digest(plain)


def test_what_is_published_is_read_by_plain_safetensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))

    def script(run: Run) -> None:
        run.track(model=model)
        assert run.publish(model, "it").key == "it.safetensors"

    alone(script)
    found = load((tmp_path / "it.safetensors").read_bytes())
    assert found.keys() == model.state_dict().keys()
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())
    assert weights(model) == (tmp_path / "it.safetensors").read_bytes()


def test_a_batch_without_a_step_and_a_step_without_a_batch_are_told() -> None:
    def tracked(run: Run, model: nn.Module) -> None:
        run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))

    def forgets(run: Run) -> None:
        tracked(run, nn.Linear(3, 2))
        for _ in run.batches(Rows(32), lane_batch=4):
            pass

    def twice(run: Run) -> None:
        model = nn.Linear(3, 2)
        tracked(run, model)
        for batch in run.batches(Rows(32), lane_batch=4):
            for _ in range(2):
                run.step(functional.cross_entropy(model(batch.x), batch.y))

    def in_the_body(run: Run) -> None:
        tracked(run, nn.Linear(3, 2))
        for _ in run.batches(Rows(32), lane_batch=4):
            run.evaluate(lambda _: 0.0, Rows(4))

    with pytest.raises(Usage, match=r"run\.step was not called"):
        alone(forgets)
    with pytest.raises(Usage, match="twice for one"):
        alone(twice)
    with pytest.raises(Usage, match="in the loop's body"):
        alone(in_the_body)


def test_importing_train_does_not_import_torch() -> None:
    code = "import sys; from holdfast import train; assert 'torch' not in sys.modules; train.Run"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_loop_of_its_own_gets_turns_and_a_lightning_like_module_is_fitted() -> None:
    seen: list[tuple[int, int]] = []

    def script(run: Run) -> None:
        model = nn.Linear(3, 2)
        run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        for turn in turns(run, steps=3):
            seen.append((turn.step, turn.lane))
            run.step(model(torch.ones(1, 3)).sum())

    assert alone(script, lanes=2).member.step == 3
    assert seen == [(step, lane) for step in range(3) for lane in range(2)]

    class Module(nn.Linear):
        epochs = 0

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
            return {"optimizer": optimizer, "lr_scheduler": scheduler}

        def training_step(self, batch: Any, index: int) -> dict[str, torch.Tensor]:
            x, y = batch
            return {"loss": functional.cross_entropy(self(x), y)}

        def on_train_epoch_end(self) -> None:
            self.epochs += 1

    module = Module(3, 2)
    held = alone(lambda run: fit(run, module, Rows(32), lane_batch=4, epochs=3))
    assert (held.member.step, module.epochs) == (6, 3)
    assert held.tracked.optimizers["optimizer0"].param_groups[0]["lr"] == 0.125


def test_a_job_that_divides_a_step_otherwise_than_its_script_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOLDFAST_LANES", "2")
    assert launch(lambda run: run.lanes, lanes=2) == 2
    assert "other bits" not in caplog.text
    assert launch(lambda run: run.lanes, lanes=3) == 2
    assert "lanes=2 and train.launch says lanes=3" in caplog.text
