"""What cannot work is refused by name, before the first step, with what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from holdfast.train import Run
from holdfast.wire.errors import Usage
from tests.faults.step_scenarios import OPTIMIZERS, SAM
from tests.unit.train_torch.alone import Rows, alone


def tracked(make: Callable[[], dict[str, Any]], *, update: Any = None) -> None:
    """A script that tracks these, and comes to its first loop."""

    def script(run: Run) -> None:
        run.track(**make())
        if update is not None:
            run.update_with(update)
        for _ in run.batches(Rows(32), lane_batch=4):
            raise AssertionError("a batch was given")

    alone(script)


def sgd(model: nn.Module) -> dict[str, Any]:
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}


def optimized(optimizer: Callable[..., torch.optim.Optimizer], **options: Any) -> dict[str, Any]:
    model = nn.Linear(3, 2)
    return {"model": model, "optimizer": optimizer(model.parameters(), **options)}


def bare(cls: type) -> dict[str, Any]:
    """An object of a class that needs process groups to be made."""
    model = nn.Module()
    model.__class__ = cls
    return {"model": model}


class Closing(torch.optim.SGD):
    """An optimizer whose step takes a closure, always."""

    def step(self, closure: Any) -> Any:  # type: ignore[override]
        return super().step(closure)


def quantized() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 2))
    model.qconfig = torch.ao.quantization.get_default_qat_qconfig("qnnpack")
    found: nn.Module = torch.ao.quantization.prepare_qat(model.train())
    return found


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: optimized(torch.optim.SparseAdam), "SparseAdam.*use Adam"),
        (lambda: optimized(torch.optim.LBFGS), "LBFGS.*closure"),
        (lambda: optimized(Closing), r"Closing, whose step\(\) needs an argument"),
        (lambda: optimized(torch.optim.Adam, differentiable=True), "differentiable=True"),
        (lambda: sgd(nn.Sequential(nn.Linear(3, 3), nn.SyncBatchNorm(3))), "model.1 is a SyncB"),
        (lambda: sgd(DataParallel(nn.Linear(3, 2))), "DataParallel.*track the plain model"),
        (lambda: bare(DistributedDataParallel), "DistributedDataParallel.*track the plain model"),
        (lambda: sgd(nn.Embedding(3, 2, sparse=True)), "Embedding with sparse=True"),
        (lambda: sgd(nn.EmbeddingBag(3, 2, sparse=True, mode="sum")), "EmbeddingBag with sparse"),
        (lambda: sgd(nn.Embedding(3, 2, max_norm=1.0)), "max_norm.*changes the weights"),
        (lambda: {"model": nn.Sequential(nn.LazyLinear(2))}, "model/0.weight has no shape yet"),
        (lambda: sgd(nn.Linear(3, 2, device="meta")), "model/weight is on the device 'meta'"),
        (lambda: sgd(quantized()), "FakeQuantizeBase.*quantize after training"),
        (
            lambda: {
                "model": (it := nn.Linear(3, 2)),
                "sam": SAM(it.parameters(), torch.optim.SGD),
            },
            "sam keeps a SGD in its attribute base, which is not tracked",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_batch(
    make: Callable[[], dict[str, Any]], said: str
) -> None:
    with pytest.raises(Usage, match=f"(?s){said}"):
        tracked(make)


def test_an_optimizer_that_divides_its_state_over_processes_is_refused() -> None:
    def make() -> dict[str, Any]:
        # Not above: it takes three seconds, and each process that runs tests would import it.
        from torch.distributed.optim import ZeroRedundancyOptimizer

        found = optimized(torch.optim.SGD)
        found["optimizer"].__class__ = ZeroRedundancyOptimizer
        return found

    with pytest.raises(Usage, match="ZeroRedundancyOptimizer"):
        tracked(make)


def test_every_optimizer_of_torch_is_either_refused_or_tried_on_several_workers() -> None:
    known = {
        name
        for name, it in vars(torch.optim).items()
        if isinstance(it, type) and issubclass(it, torch.optim.Optimizer)
    }
    assert known - {"Optimizer", "SparseAdam", "LBFGS"} == OPTIMIZERS.keys()


def test_an_update_of_its_own_beside_a_scaler_is_refused() -> None:
    def make() -> dict[str, Any]:
        return {**sgd(nn.Linear(3, 2)), "scaler": torch.amp.GradScaler("cpu")}

    with pytest.raises(Usage, match="update_with beside a GradScaler"):
        tracked(make, update=lambda run: None)


def test_an_optimizer_that_takes_a_closure_may_be_called_by_an_update_of_ones_own() -> None:
    def script(run: Run) -> None:
        model = nn.Linear(3, 2)
        optimizer = Closing(model.parameters(), lr=0.1)
        run.track(model=model, optimizer=optimizer)
        run.update_with(lambda run: optimizer.step(None))
        for batch in run.batches(Rows(32), lane_batch=4):
            run.step(functional.cross_entropy(model(batch.x), batch.y))

    alone(script)


def test_an_optimizer_that_keeps_a_gradient_without_a_copy_is_refused() -> None:
    class Last(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for each in group["params"]:
                    self.state[each]["last"] = each.grad
            return super().step(closure)

    def script(run: Run) -> None:
        model = nn.Linear(3, 2)
        run.track(model=model, optimizer=Last(model.parameters(), lr=0.1))
        for batch in run.batches(Rows(32), lane_batch=4):
            run.step(functional.cross_entropy(model(batch.x), batch.y))

    with pytest.raises(Usage, match="keeps a gradient as its state 'last', without a copy"):
        alone(script)


def test_a_weight_in_two_reentrant_checkpoints_is_refused_and_in_the_other_form_is_right() -> None:
    weights: list[torch.Tensor] = []

    def script(form: dict[str, Any] | None) -> Callable[[Run], None]:
        def main(run: Run) -> None:
            model = nn.Linear(3, 3)
            run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
            for batch in run.batches(Rows(32), lane_batch=4, shuffle=False):
                x = batch.x.clone().requires_grad_()
                for _ in range(2):
                    x = model(x) if form is None else checkpoint(model, x, **form)
                run.step(x.square().mean())
            weights.append(model.weight.detach().clone())

        return main

    with pytest.raises(Usage, match="use_reentrant=False"):
        alone(script({"use_reentrant": True}))
    alone(script({"use_reentrant": False}))
    alone(script(None))
    assert torch.equal(weights[0], weights[1])
