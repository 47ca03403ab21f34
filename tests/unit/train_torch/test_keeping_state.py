"""Tracked objects as a state and back; what a checkpoint can hold."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.train.settings import Settings
from holdfast.train.states.skeleton import decode, encode
from holdfast.train.states.state import TrainingState
from holdfast.train.states.tracked import Tracked
from holdfast.train.sums.buffers import Buffers
from holdfast.wire.errors import Usage


def trained(seed: int, steps: int) -> Tracked:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).sum().backward()
        optimizer.step()
        scheduler.step()
    tracked = Tracked()
    for name, thing in (("model", model), ("optimizer", optimizer), ("scheduler", scheduler)):
        tracked.add(name, thing)
    return tracked


def state_of(tracked: Tracked) -> TrainingState:
    entries, skeletons = tracked.entries()
    return TrainingState.of(0, entries, skeletons)


@pytest.mark.parametrize("steps", [0, 3])
def test_a_state_read_back_makes_other_objects_the_same(steps: int) -> None:
    one, other = trained(1, 5), trained(2, steps)
    spelled = b"".join(state_of(one).buffers())
    state = TrainingState.read(memoryview(spelled))
    other.adopt(state, state.notes)
    assert state_of(other).digest() == state_of(one).digest()


def test_a_state_of_step_zero_takes_an_optimizers_memory_away() -> None:
    fresh, used = trained(1, 0), trained(2, 3)
    used.adopt(state_of(fresh), state_of(fresh).notes)
    assert state_of(used).digest() == state_of(fresh).digest()


def test_values_are_kept_exactly() -> None:
    value: dict[str, Any] = {
        "a": [1, 2.5, (math.inf, None)],
        "b": {3: True, "x": b"\0"},
        "c": Counter({4: 2}),
        "d": torch.tensor(0.1),
    }
    tensors: dict[str, torch.Tensor] = {}
    found = decode(encode(value, "it", tensors), tensors.__getitem__)
    assert found == value
    assert type(found["c"]) is Counter
    assert list(tensors) == ["it.d"]


def test_what_cannot_be_read_back_safely_is_refused_by_name() -> None:
    with pytest.raises(Usage, match=r"'it\.deep' is a function"):
        encode({"deep": test_values_are_kept_exactly}, "it", {})


def test_a_model_of_another_shape_is_refused_with_both_shapes() -> None:
    one, other = Tracked(), Tracked()
    one.add("model", nn.Linear(3, 4))
    other.add("model", nn.Linear(3, 5))
    with pytest.raises(Usage, match=r"\[4\].*\[5\]|\[4, 3\].*\[5, 3\]"):
        other.adopt(state_of(one), state_of(one).notes)


def test_what_an_optimizer_updates_must_belong_to_a_tracked_model() -> None:
    tracked = Tracked()
    tracked.add("optimizer", torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1))
    with pytest.raises(Usage, match="belongs to no tracked model"):
        tracked.parameters()


def test_lane_zero_decides_what_buffers_become_and_other_lanes_leave_no_trace() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2))
    buffers = Buffers({"model": model})
    begin = [buffer.clone() for buffer in model.buffers()]

    def lane(number: int) -> None:
        buffers.before_lane()
        for buffer, right in zip(model.buffers(), begin, strict=True):
            assert torch.equal(buffer, right)
        model(torch.full((4, 2), float(number)) + torch.arange(4.0).unsqueeze(1))
        buffers.after_lane(number)

    lane(0)
    after = [buffer.clone() for buffer in model.buffers()]
    lane(1)
    outcome = buffers.outcome()
    assert outcome
    buffers.take(outcome)
    for buffer, right in zip(model.buffers(), after, strict=True):
        assert torch.equal(buffer, right)


def test_a_setting_has_the_type_of_its_default() -> None:
    settings = Settings({"lr": 0.1, "name": "a", "deep": False})
    settings.take({"lr": "1", "name": "3", "deep": "true", "other": "1e-3"})
    assert (settings.lr, settings.name, settings.deep, settings.other) == (1.0, "3", True, 1e-3)
    assert settings.get("width", 64) == 64
    with pytest.raises(Usage, match=r"has no setting 'lrs'.*it has 'lr'"):
        _ = settings.lrs
    settings.take({"lr": "fast"})
    with pytest.raises(Usage, match="is not a float"):
        _ = settings.lr
