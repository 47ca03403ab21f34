"""What lanes log is read late, and is what it was when it was logged."""

from __future__ import annotations

from collections import ChainMap

import torch

from holdfast.train.sums import step_records
from holdfast.train.sums.values import Late, Values


def test_the_means_of_a_step_are_read_when_somebody_looks_and_once() -> None:
    step = step_records.StepRecord(
        {0: step_records.LaneRecord(count=2), 1: step_records.LaneRecord(count=6)}, b""
    )
    values = Values()
    for lane, loss in ((0, 1.0), (1, 3.0)):
        values.add(step.lanes[lane], "loss", torch.tensor(loss), step.lanes[lane].count)
        values.add(step.lanes[lane], "right", torch.tensor([lane]), step.lanes[lane].count)
    means = values.means(step)
    assert not step.lanes[0].values  # nobody has looked
    assert means == {"loss": 2.5, "right": 0.75}
    assert means == {"loss": 2.5, "right": 0.75}  # not added up a second time


def test_asking_whether_there_are_metrics_reads_none() -> None:
    asked: list[str] = []

    def read() -> dict[str, float]:
        asked.append("read")
        return {"loss": 1.0}

    shown = ChainMap({}, Late(read))
    assert shown and not asked
    assert dict(shown) == {"loss": 1.0} and asked == ["read"]


def test_a_tensor_that_is_put_beside_them_is_read_with_them() -> None:
    metrics = Late(lambda: {"loss": 1.0})
    metrics["gradient_norm"] = torch.tensor(0.5)
    metrics["plain"] = 2.0
    assert metrics == {"loss": 1.0, "gradient_norm": 0.5, "plain": 2.0}
