"""A captured lane comes to the bits of a plain call; what cannot be captured goes on without.

No pytest here: a machine with a GPU may have none (`python -m tests.gpu`).
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from holdfast.train import Batch, Run
from holdfast.train.capture.lane import LaneFunction
from holdfast.train.launching import make_deterministic
from tests.unit.train_torch.alone import Rows, alone

Body = Callable[[nn.Module, Run, Batch], Any]


class Net(nn.Module):
    """Dropout, a batch norm, a buffer of its own, and a weight that is not used."""

    counter: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(16, 64), nn.BatchNorm1d(64)
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(64, 2)
        self.unused = nn.Parameter(torch.ones(5))
        self.register_buffer("counter", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.counter += 1
        hidden = self.drop(functional.relu(self.norm(self.first(x))))
        found: torch.Tensor = self.last(hidden) * (1 + self.counter / 100)
        return found


@dataclass
class Found:
    digest: str
    losses: list[float] = field(default_factory=list)
    replays: int = 0
    said: list[str] = field(default_factory=list)


def plain(model: nn.Module, _run: Run, batch: Batch) -> torch.Tensor:
    return functional.cross_entropy(model(batch.x), batch.y)


def trained(
    body: Body = plain,
    *,
    capture: bool,
    parts: int = 1,
    samples: int = 8 * 4 * 6,
    prepare: Callable[[Run, Net], None] = lambda run, model: None,
    scaler: bool = False,
) -> Found:
    found, said = Found(""), Said()
    made: list[LaneFunction] = []

    def script(run: Run) -> None:
        torch.manual_seed(5)
        model = Net().to(run.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
        run.track(model=model, optimizer=optimizer)
        if scaler:
            run.track(scaler=torch.amp.GradScaler("cuda", growth_interval=3))
        run.accumulate(parts)
        run.clip(1.0)
        prepare(run, model)
        lane = run.lane(capture=capture)(lambda batch: body(model, run, batch))
        made.append(lane)
        run.every(1, lambda run: found.losses.append(run.metrics["loss"]))
        for batch in run.batches(Rows(samples, 16), lane_batch=8, epochs=3):
            result = lane(batch)
            run.step(result[0] if isinstance(result, tuple) else result)
        parts_of = (each.detach().cpu().numpy().tobytes() for each in model.state_dict().values())
        found.digest = hashlib.sha256(b"".join(parts_of)).hexdigest()

    make_deterministic()
    logger = logging.getLogger("holdfast")
    logger.addHandler(said)
    try:
        alone(script, lanes=4, device="cuda")
    finally:
        logger.removeHandler(said)
    found.replays = sum(graph.replays for graph in made[0]._graphs.values())
    found.said = said.lines
    return found


class Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def same(body: Body = plain, **options: Any) -> Found:
    """What a captured run came to; it must be what a plain one comes to."""
    eager, captured = (
        trained(body, capture=False, **options),
        trained(body, capture=True, **options),
    )
    assert eager.losses == captured.losses, (eager.losses[:5], captured.losses[:5], captured.said)
    assert eager.digest == captured.digest, captured.said
    assert not eager.replays
    return captured


def test_with_dropout_and_batch_norm_a_captured_lane_comes_to_the_bits_of_a_plain_call() -> None:
    found = same()
    assert found.replays > 60, found
    assert not found.said, found.said


def test_a_ragged_last_step_runs_without_a_graph_and_the_bits_stay() -> None:
    found = same(samples=8 * 4 * 3 + 13)
    assert found.replays > 20, found
    assert ["the last of an epoch" in each for each in found.said] == [True], found.said


def test_parts_of_a_lane_are_added_up_in_their_order() -> None:
    assert same(parts=3).replays > 60


def test_a_scaler_scales_inside_of_the_graph() -> None:
    def half(model: nn.Module, _run: Run, batch: Batch) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.float16):
            logits = model(batch.x)
        return functional.cross_entropy(logits.float(), batch.y)

    assert same(half, scaler=True).replays > 60


def test_several_values_come_out_of_a_graph() -> None:
    def several(model: nn.Module, _run: Run, batch: Batch) -> Any:
        logits = model(batch.x)
        return functional.cross_entropy(logits, batch.y), logits.argmax(1)

    assert same(several).replays > 60


def test_a_value_that_is_read_on_the_host_is_named_and_the_call_stays_plain() -> None:
    def reads(model: nn.Module, _run: Run, batch: Batch) -> torch.Tensor:
        loss = functional.cross_entropy(model(batch.x), batch.y)
        return loss * 2 if loss.item() > 0.5 else loss

    found = same(reads)
    assert not found.replays
    assert len(found.said) == 1 and "it waits for the GPU" in found.said[0], found.said
    assert "test_capture.py:" in found.said[0], found.said


def test_a_capture_that_fails_in_the_middle_leaves_dropout_and_bits_as_they_were() -> None:
    def waits(model: nn.Module, _run: Run, batch: Batch) -> torch.Tensor:
        loss = functional.cross_entropy(model(batch.x), batch.y)
        torch.cuda.synchronize()  # the trial does not notice this one
        return loss

    found = same(waits)
    assert not found.replays
    assert len(found.said) == 1, found.said
    assert same().replays > 60  # and another run in the same process is captured as ever


def test_random_numbers_of_the_host_are_noticed() -> None:
    def draws(model: nn.Module, _run: Run, batch: Batch) -> torch.Tensor:
        return functional.cross_entropy(model(batch.x), batch.y) * (1 + random.random())

    found = same(draws)
    assert not found.replays and "random numbers on the host" in found.said[0], found


def test_what_changes_from_step_to_step_is_noticed() -> None:
    def counts(model: nn.Module, run: Run, batch: Batch) -> torch.Tensor:
        return functional.cross_entropy(model(batch.x), batch.y) * (1 + run.completed)

    found = same(counts)
    assert not found.replays and "run.completed" in found.said[0], found


def test_a_number_that_a_hook_sets_in_a_module_gets_a_graph_of_its_own() -> None:
    def prepare(run: Run, model: Net) -> None:
        @run.every(6)
        def calmer(_run: Run) -> None:
            model.drop.p = 0.1

    assert same(prepare=prepare).replays > 50


def test_a_hook_of_the_script_keeps_the_call_plain() -> None:
    def prepare(_run: Run, model: Net) -> None:
        model.first.weight.register_hook(lambda gradient: gradient * 0.5)

    found = same(prepare=prepare)
    assert not found.replays and "has a hook" in found.said[0], found
