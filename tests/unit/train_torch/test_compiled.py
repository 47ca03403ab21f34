"""What torch.compile makes of a model depends on a batch's shape alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from holdfast.train import Run
from tests.unit.train_torch.alone import Rows, alone


def test_a_second_size_of_batches_gets_a_graph_of_its_own_not_one_for_all_sizes() -> None:
    symbolic: list[bool] = []

    def backend(graph: Any, inputs: list[Any]) -> Any:
        symbolic.append(any(isinstance(each, torch.SymInt) for each in inputs))
        return graph

    def script(run: Run) -> None:
        model = nn.Linear(3, 2)
        run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        fast = torch.compile(model, backend=backend)
        for batch in run.batches(Rows(28), lane_batch=4, epochs=2):  # lanes of 4, then of 3
            run.step(functional.cross_entropy(fast(batch.x), batch.y))

    torch._dynamo.reset()
    alone(script)
    assert symbolic == [False, False]


def test_an_update_may_be_compiled() -> None:
    found: list[torch.Tensor] = []

    def script(run: Run, *, compiled: bool) -> None:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        run.track(model=model, optimizer=optimizer)
        if compiled:
            step = torch.compile(optimizer.step, backend="eager")
            run.update_with(lambda run: step())
        for batch in run.batches(Rows(32), lane_batch=4):
            run.step(functional.cross_entropy(model(batch.x), batch.y))
        found.append(model.weight.detach().clone())

    for compiled in (True, False):
        alone(lambda run, compiled=compiled: script(run, compiled=compiled))  # type: ignore[misc]
    assert torch.allclose(found[0], found[1], atol=1e-3)  # it computes the same by other formulas
