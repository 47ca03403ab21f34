"""What is left over from a loop without Holdfast is noticed, and named by its line."""

from __future__ import annotations

import logging
import pickle
import re
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import lr_scheduler

from holdfast.train import Run
from holdfast.train.calling import calling_line
from holdfast.wire.errors import Usage
from tests.unit.train_torch.alone import Rows, alone


class Kit(NamedTuple):
    """What a body may reach for."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: lr_scheduler.LRScheduler
    scaler: torch.amp.GradScaler
    loss: torch.Tensor


def trained(leftover: Callable[[Kit], object], *, parts: int = 1, behind: bool = False) -> None:
    """A loop whose body does this before it calls `run.step`, or behind it."""

    def script(run: Run) -> None:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        run.track(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler)
        run.accumulate(parts)
        for batch in run.batches(Rows(32), lane_batch=4):
            loss = functional.cross_entropy(model(batch.x), batch.y)
            kit = Kit(model, optimizer, scheduler, scaler, loss)
            if not behind:
                leftover(kit)
            run.step(loss)
            if behind:
                leftover(kit)

    alone(script)


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize(
    ("leftover", "named"),
    [
        (lambda kit: kit.optimizer.zero_grad(), "optimizer.zero_grad()"),
        (lambda kit: kit.optimizer.step(), "optimizer.step()"),
        (lambda kit: kit.scheduler.step(), "scheduler.step()"),
        (lambda kit: kit.scaler.step(kit.optimizer), "scaler.step()"),
        (lambda kit: kit.scaler.scale(kit.loss), "scaler.scale()"),
        (lambda kit: kit.scaler.unscale_(kit.optimizer), "scaler.unscale_()"),
        (lambda kit: kit.scaler.update(), "scaler.update()"),
        (lambda kit: kit.loss.backward(retain_graph=True), "backward()"),
        (lambda kit: clip_grad_norm_(kit.model.parameters(), 1.0), "clip_grad_norm_()"),
        (lambda kit: clip_grad_value_(kit.model.weight, 1.0), "clip_grad_value_()"),
    ],
)
def test_a_line_left_over_from_a_plain_loop_is_refused_with_its_place(
    leftover: Callable[[Kit], object], named: str, *, behind: bool
) -> None:
    if behind and named == "backward()":
        leftover = _backward_of_another_loss
    with pytest.raises(Usage, match=re.escape(named) + " was called in the loop's body") as found:
        trained(leftover, behind=behind)
    here = Path(__file__)
    (line,) = re.findall(rf"\({re.escape(str(here))}:(\d+)\)", str(found.value))
    assert named.strip("()").split(".")[-1] in here.read_text().splitlines()[int(line) - 1]
    assert "remove that line" in str(found.value)


def test_a_call_from_a_thread_of_torch_is_named_by_the_line_of_the_script_that_waits_for_it() -> (
    None
):
    # On a GPU the backward pass, with all hooks, runs in such a thread: no line of ours is in it.
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(calling_line).result()
    path, line = found.rsplit(":", 1)
    assert path == __file__
    assert "pool.submit(calling_line)" in Path(path).read_text().splitlines()[int(line) - 1]


def _backward_of_another_loss(kit: Kit) -> None:
    kit.model(torch.ones(1, 3)).sum().backward()


@pytest.mark.parametrize("behind", [False, True])
def test_a_body_that_changes_a_weight_in_place_is_refused_and_the_weight_is_named(
    *, behind: bool
) -> None:
    def clamp(kit: Kit) -> None:
        with torch.no_grad():
            kit.model.bias.clamp_(-1, 1)  # type: ignore[operator]

    with pytest.raises(Usage, match="changed the weight model/bias"):
        trained(clamp, behind=behind)


def test_a_body_that_replaces_the_data_of_a_weight_is_refused() -> None:
    def replace(kit: Kit) -> None:
        kit.model.weight.data = torch.zeros(2, 3)

    with pytest.raises(Usage, match="changed the weight model/weight"):
        trained(replace)


def test_an_optimizer_that_is_not_tracked_may_not_step_tracked_weights_in_the_body() -> None:
    others: list[torch.optim.Optimizer] = []

    def step(kit: Kit) -> None:
        others.append(torch.optim.SGD(kit.model.parameters(), lr=0.1))
        gradients = torch.autograd.grad(kit.loss, list(kit.model.parameters()), retain_graph=True)
        kept = [each.grad for each in kit.model.parameters()]
        for each, gradient in zip(kit.model.parameters(), gradients, strict=True):
            each.grad = gradient
        others[-1].step()
        for each, before in zip(kit.model.parameters(), kept, strict=True):
            each.grad = before

    with pytest.raises(Usage, match="changed the weight model/weight"):
        trained(step)


def test_a_body_that_freezes_a_weight_is_refused() -> None:
    for behind in (False, True):
        with pytest.raises(Usage, match="changed requires_grad of model/weight"):
            trained(lambda kit: kit.model.requires_grad_(False), behind=behind)


def test_a_body_that_sets_the_rate_is_refused_since_not_every_worker_runs_it() -> None:
    with pytest.raises(Usage, match=r"changed what an optimizer keeps for its groups"):
        trained(lambda kit: kit.optimizer.param_groups[0].update(lr=0.5))
    trained(lambda kit: kit.optimizer.param_groups[0].update(kit.optimizer.param_groups[0]))


def test_a_body_that_drops_the_gradient_of_the_part_before_is_refused() -> None:
    with pytest.raises(Usage, match=r"the gradient of model/weight was removed"):
        trained(lambda kit: kit.model.zero_grad(), parts=2)
    trained(lambda kit: kit.model.zero_grad())  # nothing is there, so nothing is lost


def test_an_optimizer_that_steps_in_the_backward_pass_is_refused() -> None:
    def script(run: Run) -> None:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        other = torch.optim.SGD(model.parameters(), lr=0.1)
        run.track(model=model, optimizer=optimizer)
        for each in model.parameters():
            each.register_post_accumulate_grad_hook(lambda _: other.step())
        for batch in run.batches(Rows(32), lane_batch=4):
            run.step(functional.cross_entropy(model(batch.x), batch.y))

    with pytest.raises(Usage, match=r"model/\w+ was changed while run\.step computed gradients"):
        alone(script)


def test_a_buffer_that_is_written_through_data_is_refused() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(2))
            self.head = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.data.mul_(0.9).add_(x.mean())  # type: ignore[operator]
            found: torch.Tensor = self.head(x)
            return found

    def script(run: Run) -> None:
        model = Counts()
        run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        for batch in run.batches(Rows(32), lane_batch=4):
            run.step(functional.cross_entropy(model(batch.x), batch.y))

    with pytest.raises(Usage, match="the buffer model/seen was changed without torch counting it"):
        alone(script)


def test_what_is_refused_in_the_body_is_allowed_in_hooks_and_outside_of_loops() -> None:
    def hooks(run: Run) -> None:
        model, other = nn.Linear(3, 2), nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        run.track(model=model, optimizer=optimizer)
        run.track(every="never", plateau=plateau)
        others = torch.optim.SGD(other.parameters(), lr=0.1)

        def after(run: Run) -> None:
            plateau.step(run.metrics["loss"])
            optimizer.zero_grad()
            with torch.no_grad():
                model.bias.clamp_(-1, 1)

        run.every(1, after)
        run.before_update(lambda run: clip_grad_value_(model.parameters(), 0.1))
        run.update_with(lambda run: optimizer.step())
        for batch in run.batches(Rows(32), lane_batch=4):
            # A model that is trained beside, and is not tracked, is the script's own business.
            functional.cross_entropy(other(batch.x), batch.y).backward()
            clip_grad_norm_(other.parameters(), 1.0)
            others.step()
            others.zero_grad()
            run.step(functional.cross_entropy(model(batch.x), batch.y))
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()

    alone(hooks)


def test_a_watched_optimizer_scheduler_and_scaler_are_pickled_and_saved_as_before() -> None:
    kits: list[Kit] = []

    def keep(kit: Kit) -> None:
        kits.append(kit)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(keep)
    kit = kits[0]
    assert pickle.loads(pickle.dumps(kit.optimizer)).param_groups[0]["lr"] < 0.1
    assert all(not callable(each) for each in kit.scheduler.state_dict().values())
    assert pickle.loads(pickle.dumps(kit.scaler)).get_scale() == kit.scaler.get_scale()


@pytest.mark.parametrize(
    "make",
    [
        lambda it: lr_scheduler.OneCycleLR(it, 0.1, total_steps=20),
        lambda it: lr_scheduler.ChainedScheduler(
            [lr_scheduler.ConstantLR(it), lr_scheduler.ExponentialLR(it, 0.9)]
        ),
        lambda it: lr_scheduler.SequentialLR(
            it, [lr_scheduler.LinearLR(it), lr_scheduler.StepLR(it, 1)], milestones=[1]
        ),
        lambda it: torch.optim.swa_utils.SWALR(it, swa_lr=0.01),
        lambda it: lr_scheduler.CyclicLR(it, 0.01, 0.1),
    ],
)
def test_schedulers_of_every_kind_step_as_they_do_without_holdfast(
    make: Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler],
) -> None:
    rates = []

    def script(run: Run) -> None:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        run.track(model=model, optimizer=optimizer, scheduler=make(optimizer))
        for batch in run.batches(Rows(32), lane_batch=4, epochs=2):
            run.step(functional.cross_entropy(model(batch.x), batch.y))
        rates.append(optimizer.param_groups[0]["lr"])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*epoch parameter.*")
        alone(script)
        optimizer = torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=0.1, momentum=0.9)
        scheduler = make(optimizer)
        for _ in range(4):
            optimizer.step()
            scheduler.step()
    assert rates == [optimizer.param_groups[0]["lr"]]


def test_a_number_that_a_module_counts_up_is_told_once_and_not_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Counting(nn.Linear):
        calls = 0
        temperature = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.training = True
            return super().forward(x)

    def script(run: Run) -> None:
        counting = Counting(3, 2)
        counting.calls = 0
        model = nn.Sequential(counting, nn.Dropout(0.1))
        run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        for batch in run.batches(Rows(32), lane_batch=4):
            run.step(functional.cross_entropy(model(batch.x), batch.y))

    with caplog.at_level(logging.WARNING):
        alone(script)
    (told,) = [each for each in map(str, caplog.messages) if "number that is kept" in each]
    assert "Counting.calls of model.0: from 0 to 1" in told
    assert "run.completed" in told
