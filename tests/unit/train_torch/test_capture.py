"""The loop's body as a function: what it may be captured from, and what it is without a graph."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from holdfast.train import Batch, Run
from holdfast.train.capture.deciding import (
    CAPTURED_GRAPHS_MAX,
    CaptureFacts,
    Uncapturable,
    after_trial,
    decide,
    signature,
)
from holdfast.train.capture.lane import WatchedBatch
from holdfast.wire.errors import Usage
from tests.unit.train_torch.alone import Rows, alone

LOSS = torch.zeros(())


def net() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 2)
    )


def trained(form: str, *, parts: int = 1) -> list[torch.Tensor]:
    """The weights and buffers that a loop comes to whose body is written so."""
    found: list[torch.Tensor] = []

    def script(run: Run) -> None:
        model = net()
        run.track(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.1))
        run.accumulate(parts)

        def body(batch: Batch) -> Any:
            logits = model(batch.x)
            loss = functional.cross_entropy(logits, batch.y)
            return (loss, logits.sum()) if form == "several" else loss

        lane = run.lane(body)
        for batch in run.batches(Rows(45), lane_batch=4, epochs=2):
            if form == "plain":
                run.step(body(batch))
            elif form == "several":
                loss, total = lane(batch)
                run.log("total", total)
                run.step(loss)
            else:
                loss = lane(batch)
                assert not loss.requires_grad
                run.step(loss)
        assert set(run.metrics) >= {"loss"}
        found.extend(each.detach().clone() for each in model.state_dict().values())

    alone(script)
    return found


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("form", ["lane", "several"])
def test_a_body_as_a_function_comes_to_the_bits_of_the_body_itself(form: str, parts: int) -> None:
    assert all(map(torch.equal, trained(form, parts=parts), trained("plain", parts=parts)))


def test_on_a_cpu_it_is_a_plain_call_and_says_why_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        trained("lane")
    said = [each.getMessage() for each in caplog.records if "run.lane" in each.getMessage()]
    assert len(said) == 1
    assert "not captured: it runs on the CPU: only a GPU has graphs" in said[0]


def test_what_was_asked_not_to_be_captured_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def script(run: Run) -> None:
        model = nn.Linear(3, 2)
        run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))

        @run.lane(capture=False)
        def body(batch: Batch) -> torch.Tensor:
            return functional.cross_entropy(model(batch.x), batch.y)

        for batch in run.batches(Rows(16), lane_batch=4):
            run.step(body(batch))

    with caplog.at_level(logging.WARNING):
        alone(script)
    assert not caplog.records


@pytest.mark.parametrize("wrong", ["changed", "twice", "other", "nothing"])
def test_a_loss_that_is_not_the_functions_own_is_refused(wrong: str) -> None:
    def script(run: Run) -> None:
        model = nn.Linear(3, 2)
        run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))

        def body(batch: Batch) -> Any:
            return None if wrong == "nothing" else functional.cross_entropy(model(batch.x), batch.y)

        lane = run.lane(body)
        for batch in run.batches(Rows(16), lane_batch=4):
            loss = lane(batch)
            if wrong == "changed":
                loss = loss * 2
            elif wrong == "twice":
                loss = lane(batch)
            run.step(loss, body(batch)) if wrong == "other" else run.step(loss)

    says = {"twice": "called twice for one batch", "nothing": "returned a NoneType"}
    with pytest.raises(Usage, match=says.get(wrong, "something else than the loss")):
        alone(script)


def test_outside_of_the_loop_it_is_a_function_like_any_other() -> None:
    def script(run: Run) -> None:
        model = nn.Linear(3, 2)
        run.track(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        lane = run.lane(lambda batch: functional.cross_entropy(model(batch.x), batch.y))
        before = run.evaluate(lambda batch: lane(batch) * len(batch), Rows(16))
        for batch in run.batches(Rows(16), lane_batch=4, epochs=4):
            run.step(lane(batch))
        after = run.evaluate(lambda batch: lane(batch) * len(batch), Rows(16))
        assert sum(after.values()) < sum(before.values())

    alone(script)


# --- what may be captured: pure -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (CaptureFacts(device="cpu"), "on the CPU"),
        (CaptureFacts(mode="local"), "the mode local"),
        (CaptureFacts(autocast=True), "autocast is on around the call"),
        (CaptureFacts(gradients=False), "gradients are off"),
        (CaptureFacts(hook="Linear.weight"), "Linear.weight has a hook"),
        (CaptureFacts(whole=False), "the last of an epoch"),
        (CaptureFacts(graphs=CAPTURED_GRAPHS_MAX), "change again and again"),
    ],
)
def test_what_cannot_be_captured_is_not_and_the_reason_is_said(
    facts: CaptureFacts, says: str
) -> None:
    decision = decide(facts)
    assert not decision.capture and says in decision.reason


def test_the_first_lane_of_a_form_is_computed_without_a_graph_and_nothing_is_said() -> None:
    assert (decide(CaptureFacts(seen=0)).capture, decide(CaptureFacts(seen=0)).reason) == (
        False,
        "",
    )
    assert decide(CaptureFacts(seen=1)).capture


@pytest.mark.parametrize(
    ("trial", "says"),
    [
        ({"read": {"run.completed", "batch.epoch"}}, "it uses batch.epoch, run.completed, which"),
        ({"drew": True}, "random numbers on the host"),
        ({"replaced": "model/ema"}, "the place of the buffer model/ema"),
        ({"loss": None}, "has no loss"),
    ],
)
def test_what_a_graph_would_not_repeat_is_found_in_the_trial(
    trial: dict[str, Any], says: str
) -> None:
    done: dict[str, Any] = {"read": set(), "drew": False, "replaced": None, "loss": LOSS, **trial}
    assert says in after_trial(**done)
    assert not after_trial(read=set(), drew=False, replaced=None, loss=LOSS)


def test_batches_of_one_form_have_one_signature_and_others_have_another() -> None:
    one, two = torch.randn(4, 3), torch.randn(4, 3)
    assert signature({"x": one, "n": (1, "a")}) == signature({"x": two, "n": (1, "a")})
    others = ({"x": one.double()}, {"x": one.t()}, {"y": one}, {"x": [one]}, {"x": one[:2]})
    assert len({signature(each) for each in (*others, {"x": one})}) == len(others) + 1
    assert signature([one, 1]) != signature([one, 2])
    with pytest.raises(Uncapturable, match="has a object"):
        signature([one, object()])


def test_what_is_asked_of_a_batch_beside_its_data_is_noted() -> None:
    reads: set[str] = set()
    batch = WatchedBatch(Batch([LOSS, LOSS], count=4, lane=2, epoch=1), reads)
    assert batch.x is LOSS and len(batch) == 4 and not reads
    assert (batch.epoch, batch.lane) == (1, 2)
    assert reads == {"batch.epoch", "batch.lane"}
